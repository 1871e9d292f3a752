"""What a model takes on a card whose engine is another project's, and how fast it can be at best."""
