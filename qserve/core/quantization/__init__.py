"""What a row of core/schemes.py is made of, and what a checkpoint says of its own weights."""
