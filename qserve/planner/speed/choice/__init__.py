"""Around the layout that is chosen: what would keep targets, and what free cards would give."""
