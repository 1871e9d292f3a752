"""The search for a plan: quantizations in the order of preference, and the ways out where nothing fits."""
