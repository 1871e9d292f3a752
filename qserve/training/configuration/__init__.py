"""A run in its libraries' own formats: `trl` and `accelerate` say what stands in them, `files` writes them."""
