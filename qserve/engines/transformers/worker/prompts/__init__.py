"""From a client's text to token ids: chat templates, special tokens, bounds.

It knows no torch and no transformers, so that it runs in small processes beside the worker as well as in the worker.
"""
