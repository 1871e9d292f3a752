"""Generated answers: thoughts, length limits, outcomes, several answers per item."""
