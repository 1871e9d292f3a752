"""What agents and frameworks send beside what is asked, and the words that they look for.

fields.py     what of it asks for nothing, and tools that wait for a search
overflow.py   what does not fit a model, in the words by which clients know it
"""
