"""Charts by hand: `specs` what is to be seen, one file for each way of drawing it. No library and no script.

Labels are HTML and lines are SVG that stretches under them: on a phone a chart gets narrower, its words do not get
smaller. Colours are CSS classes, so that they follow the reader's light or dark.
"""
