"""Facts: what a model is, what hardware is there, what is asked of it. Standard library only."""
