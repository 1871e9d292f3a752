"""The transformers engine: a worker process of our own, for whatever transformers can load.

Read it from the outside in: `__main__` (the process) → `app` (routes) → `chat`, `completions` (requests to answers) →
`requests` (validation against the model) → `engine` (text piece by piece) → `paged` (the running batch) → `sampling`.
"""
