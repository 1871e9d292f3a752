"""Is a reward model right? Files of preferences, accuracy on them, agreement with plain transformers."""
