"""What choosing a replica costs: microseconds a request and bytes a replica, for 3 to 1,000 replicas.

    python bench/router_cost.py

One process, no I/O: prompts of 2 and 16 KiB in conversations, tables filled to their bound.
"""

from __future__ import annotations

import json
import time
import tracemalloc

from qserve.gateway.routing.prefix import MAX_BLOCKS, PrefixTable, prefix_blocks
from qserve.gateway.routing.router import RequestTokens, Router
from qserve.worker.base import WorkerLoad

_COUNTS = (1, 3, 10, 100, 1000)
_REQUESTS = 300


def main() -> None:
    """Prints a table."""
    print(f"a full table: {_table_bytes() / 1e6:.1f} MB a replica ({MAX_BLOCKS:,} blocks of 128 bytes)")
    print("replicas | 2 KiB prompt, µs | 16 KiB prompt, µs")
    for count in _COUNTS:
        print(f"{count:>8} | {_request_us(count, 2048):16.1f} | {_request_us(count, 16384):17.1f}")


def _table_bytes() -> int:
    tracemalloc.start()
    table = PrefixTable()
    table.add([hash((7, at)) for at in range(MAX_BLOCKS)])
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(table) == MAX_BLOCKS
    return held


def _request_us(count: int, num_bytes: int) -> float:
    """Hashing, choosing, beginning and ending one request; the median of its runs."""
    router = Router()
    names = [f"chat-{at}" for at in range(count)]
    for name in names:
        router.add(name, 64, WorkerLoad())
    bodies = [
        json.dumps({"messages": [{"role": "user", "content": f"{at} " * (num_bytes // (len(str(at)) + 1))}]}).encode()
        for at in range(40)
    ]
    tokens, taken_us = RequestTokens(num_bytes // 4, 100), []
    for at in range(_REQUESTS):
        began = time.perf_counter()
        blocks = prefix_blocks(bodies[at % len(bodies)], "model")
        name = router.choose(blocks, names).name
        counted = router.begin(name, blocks, tokens)
        router.end(name, counted.total)
        taken_us.append((time.perf_counter() - began) * 1e6)
    return sorted(taken_us)[_REQUESTS // 2]


if __name__ == "__main__":
    main()
