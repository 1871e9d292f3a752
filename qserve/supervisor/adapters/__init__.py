"""LoRA adapters at run time: kept by the supervisor, loaded into every replica of their model.

shelf.py       which adapters there are; the same in all replicas, or in none
in_worker.py   what one worker has; its starts bring it back
copies.py      an adapter's files as they were when it was loaded
"""

__all__: list[str] = []
