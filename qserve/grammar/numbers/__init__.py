"""Numbers within bounds, to the last digit.

bounds.py    bounds of numbers as closed ones
patterns.py  numbers within bounds as regular expressions
rules.py     schemas as rules of Lark, where llguidance takes their numbers in no schema
"""
