"""Other APIs for chats, as translations of /v1/chat/completions: pure functions, there and back.

messages.py          Anthropic's Messages: a request, and the chat request that it is
messages_answer.py   what a chat's deltas are in its answers and streams
responses.py         OpenAI's Responses, in the same way
responses_input.py   its list of items as messages
responses_tools.py   its functions, namespaces and custom tools as a chat's functions
custom_input.py      a custom tool's text out of a call's arguments
responses_answer.py
parts.py             runs of thought, text and calls in a chat's deltas

vLLM speaks both itself; qserve's own engine speaks them through this.
"""
