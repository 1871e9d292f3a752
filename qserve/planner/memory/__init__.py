"""Bytes per term: weights, KV cache, activations, CUDA graphs, runtime; one file per term or engine."""
