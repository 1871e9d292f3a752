"""Checkpoints that somebody quantized already: read as they are stored for a CPU's products, or by the library."""
