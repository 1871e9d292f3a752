"""What the transformers engine does on a card, decided before it starts: for the engine and the plan alike."""
