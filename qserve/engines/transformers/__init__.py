"""All that is the transformers engine's: planned, detected, started, and in worker/ the engine itself."""
