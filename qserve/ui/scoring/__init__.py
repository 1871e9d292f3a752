"""Files of answers to score."""
