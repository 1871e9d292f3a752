"""Grammars of structured outputs and tool calls: JSON schemas made ready for an engine's library. No torch.

schema.py           a JSON schema as llguidance takes it
closed_objects.py   objects that take no properties but those that are named
endless.py          schemas that no finite value follows
structured.py       from `response_format` and `structured_outputs` to a grammar
tool_calls.py       the same for calls of tools, in each of Qwen's formats
spec.py             a grammar and where in the answer it begins
counts.py           bounds on numbers in schemas that a library multiplies by
number_bounds.py    bounds of numbers as closed ones
number_patterns.py  numbers within bounds as regular expressions, to the last digit
number_rules.py     schemas as rules of Lark, where llguidance takes their numbers in no schema
"""
