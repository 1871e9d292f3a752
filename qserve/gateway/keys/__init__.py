"""API keys with names: who may use which models, how fast, how much a day, and until when.

entries.py    the file of keys: what each may do
editing.py    adds a key to the file, and removes one
budgets.py    what keys have left of their minutes and of the day; pure
book.py       the keys of a running gateway: follows the file, counts what they use
endpoints.py  GET /v1/qserve/usage; openapi.py what /openapi.json says of it
"""
