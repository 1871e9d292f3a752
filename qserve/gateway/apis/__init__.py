"""What OpenAI's and Anthropic's APIs have and the engines' own routes lack.

unserved.py      their routes that are not served, each with what it is
input_tokens.py  POST /v1/responses/input_tokens, by an answer of one token on vLLM
message_ids.py   ids of Anthropic's form in vLLM's answers
"""
