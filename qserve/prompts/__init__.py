"""Chat templates and special tokens of a checkpoint, for every engine, reward models and training. No torch."""
