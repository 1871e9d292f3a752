"""Where checkpoints are found: a folder, the local cache, or the hub by range requests; and model aliases."""
