"""A reward model on vLLM's pooling runner: the real server behind our protocols, templates and positions.

`engine` says which checkpoints it can score as they were trained, `server` keeps it running, `scorer` asks it.
"""
