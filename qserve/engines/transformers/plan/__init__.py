"""Planning for the transformers engine: one device, or layers over cards, RAM and disk."""
