"""The search for a plan: candidates in the order of preference, and the ways out where none fits."""
