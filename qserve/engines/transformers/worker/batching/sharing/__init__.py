"""What sequences of several clients share: the places of a batch, and pages of prompts."""
