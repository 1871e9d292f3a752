"""The demo checkpoints of qserve: `chat/` and `reward/`, and nothing that runs. `qserve.demo` finds them here.

The code that trained them is `qserve/demo/`.
"""
