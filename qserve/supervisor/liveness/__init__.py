"""Whether a worker lives, and how it comes back: the phases of its start, signs of work, hangs, stacks, restarts."""
