"""What a step is made of: the rates of cards and CPUs, and what kernels, links and engines take."""
