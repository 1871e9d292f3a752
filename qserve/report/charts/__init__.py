"""Charts without a library or scripts: `specs` describes them, one module draws each kind.

Labels are HTML and lines are SVG that stretches under them: on a phone a chart gets narrower, its words do not get
smaller. Colours are CSS classes, so that they follow the reader's light or dark.
"""
