"""Many sequences through the model at once: batchers, their caches, scored prompts, failures that are isolated."""
