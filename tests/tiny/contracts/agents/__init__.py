"""What agents send, recorded: a file each, with where it comes from; `replayed.py` sends it again."""
