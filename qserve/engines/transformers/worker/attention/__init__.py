"""Attention over packed sequences and pages, behind transformers' own interface."""
