"""Plans for cards that no engine of qserve runs on: memory by the model's own bytes, speed by the card's bandwidth."""
