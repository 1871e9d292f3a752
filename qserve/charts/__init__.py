"""Charts without a library or scripts: callers make specs (`spec`), a renderer for each medium draws them.

In HTML labels are HTML and lines are SVG that stretches under them: on a phone a chart gets narrower, its words do not
get smaller. `charts.css` styles it, for the report, the web UI and notebooks; colours follow the page, light or dark.
"""
