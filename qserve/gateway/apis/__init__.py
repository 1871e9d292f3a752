"""What OpenAI's and Anthropic's APIs have beside the engines' own routes.

unserved.py      their routes that are not served, each with what it is
input_tokens.py  POST /v1/responses/input_tokens, by an answer of one token on vLLM
message_ids.py   ids of Anthropic's form in vLLM's answers
"""
