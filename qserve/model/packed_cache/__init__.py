"""Packed weights on disk: made once for a checkpoint, a format and a processor, mapped by every later start."""
