"""Structures for xgrammar, the library that holds answers of vLLM.

schema.py   a JSON schema as it takes it
strings.py  of it, what binds strings: patterns, formats, lengths
numbers.py  of it, bounds of numbers
bounds.py   what it would compile for too long
width.py    of it, what patterns leave open for characters of any kind
"""
