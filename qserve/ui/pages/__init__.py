"""The pages, one file each: its components, and what happens to them."""
