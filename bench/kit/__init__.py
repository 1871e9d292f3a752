"""What bench/gpu_kit.py is made of: contents, packing, parts, and taking them on the other machine."""
