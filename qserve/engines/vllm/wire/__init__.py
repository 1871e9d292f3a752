"""What the gateway knows of vLLM's requests and errors beside vLLM's own OpenAPI document.

requests.py   what the document does not tell of a body: fields that are harmless, narrowed or refused; sizes
rules.py      rules between fields
forms.py      forms that clients send and vLLM does not take, in words that it follows
agents.py     what coding agents send beside, brought into what vLLM reads
errors.py     vLLM's errors in this API's form
"""
