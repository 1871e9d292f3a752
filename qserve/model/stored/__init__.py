"""Checkpoints that somebody quantized already, read as they are stored, and embeddings that stay in their files."""
