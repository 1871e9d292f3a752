"""What the gateway knows of vLLM's requests and errors beside vLLM's own OpenAPI document.

wire.py            what the gateway calls: routes, and who reads their requests and errors
closed.py          routes of vLLM's server that the gateway does not expose
reader.py          a body, read by the document, and rewritten where vLLM would read something else than is meant
requests.py        what the document does not tell of a body: fields that are harmless, narrowed or refused; sizes
rules.py           rules between fields
forms.py           forms that clients send and vLLM does not take, in words that it follows
agents.py          what coding agents send beside, brought into what vLLM reads
schemas.py         JSON schemas that vLLM's grammar library enforces; xgrammar/: how, unenforceable.py: or an error
thought_first.py   a structure with a thought before it
input_tokens.py    /v1/responses/input_tokens, a route that vLLM lacks
message_ids.py     ids of Anthropic's form
openapi.py         the entries of its routes in /openapi.json
errors.py          vLLM's errors in this API's form; overflow.py: that a request does not fit its model
"""
