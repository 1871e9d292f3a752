"""Weights in fp8 on a card: held as they are stored, and multiplied by products of ours; no package, no hub."""
