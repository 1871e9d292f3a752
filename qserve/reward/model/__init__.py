"""A trained reward model in memory: the body as the plan says, the head in fp32.

load.py           body, head and tokenizer, ready to score       (torch)
weights.py        tensors by the body's own names, from any layout of files, adapters merged
"""
