"""What this machine has for the transformers engine: packages, attention kernels, products of quantized weights."""
