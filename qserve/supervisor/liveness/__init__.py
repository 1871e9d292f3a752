"""Liveness of workers: phases of the start, signs of work, hangs, stacks, restarts."""
