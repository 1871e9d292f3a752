"""The steps of bench/gpu.py, one file each. Each returns rows of plain figures."""
