"""Views of data as HTML and inline SVG; no components."""
