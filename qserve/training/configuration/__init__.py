"""A run as TRL's and accelerate's own YAML: `trl` and `accelerate` say what stands in it, `files` writes it."""
