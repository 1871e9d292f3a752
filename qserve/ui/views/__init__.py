"""What the pages show of data, as HTML and inline SVG; no component is made here."""
