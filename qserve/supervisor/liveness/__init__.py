"""Whether a worker lives: signs of work, hangs while it starts or serves, and its threads' stacks when it was ended."""
