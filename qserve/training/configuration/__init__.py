"""A run in its libraries' own formats: `trl`, `accelerate` and `deepspeed` say what stands in them, `files` writes."""
