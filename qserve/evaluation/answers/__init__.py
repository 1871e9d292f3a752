"""What becomes of generated answers: thoughts, limits, outcomes, several answers to an item."""
