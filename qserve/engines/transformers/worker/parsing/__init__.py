"""From generated text to what an answer's message holds: thoughts, content, calls of tools. Text in, parts out.

parts.py        what is read out of a text
thoughts.py     what stands between <think> and </think>
calls.py        where calls begin and end
hermes.py       one call as JSON
qwen3_coder.py  one call as XML
message.py      all of it, for one choice of an answer
"""
