"""The transformers engine: a worker process of our own, for whatever transformers can load.

Read it from the outside in: `__main__` (the process) → `api/app` (routes) → `api/chat`, `api/completions` (requests to
answers) → `api/requests` (validation against the model) → `engine` (text piece by piece) → `batching/paged` (the
running batch) → `sampling`.
"""
