"""Products by weights in 8 and 4 bits on a card: no wait, and no shape that depends on values."""
