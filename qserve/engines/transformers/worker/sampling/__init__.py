"""From logits to a token, and from tokens to text."""
