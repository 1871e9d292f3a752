"""What agents and frameworks send with each request, and the words that they look for in errors.

fields.py     fields that ask for nothing, and tools that are shown once a search has found them
overflow.py   what does not fit a model, in the words by which clients know it
"""
