"""How long a step takes: by its kernels, by its launches, and in sentences."""
