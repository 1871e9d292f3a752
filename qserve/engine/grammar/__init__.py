"""Grammars of structured outputs and tool calls, and the next tokens that they allow. No torch.

schema.py           a JSON schema as llguidance takes it
closed_objects.py   objects that take no properties but those that are named
endless.py          schemas that no finite value follows
refusals.py         what llguidance says of a structure that it does not take, in our words
unenforceable.py    the error of a keyword that would be silently ignored
vllm_schemas.py     the schemas in a body for vLLM, so prepared
structured.py       from `response_format` and `structured_outputs` to a grammar
tool_calls.py       the same for calls of tools, in each of Qwen's formats
spec.py             a grammar and where in the answer it begins
counts.py           bounds on numbers in schemas that a library multiplies by
vocabulary.py       the tokens that a grammar chooses from
matcher.py          a grammar in llguidance's hands
trial/              each grammar is compiled in a process with bounds first
compiled.py         grammars made ready once and kept, with bounds
numbers/            bounds of numbers to the last digit
xgrammar/           the same for vLLM's library
"""
