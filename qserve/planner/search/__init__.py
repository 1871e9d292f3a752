"""The search for a plan: quantizations in the order of preference, and the suggestions where nothing fits."""
