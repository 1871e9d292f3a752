"""A run of a million requests: how long its report takes, and how large store and page are.

    python bench/report.py [--requests 1000000]

The records are drawn (log-normal latencies, a day with its peaks, one request in two hundred fails); everything after
that is what `qserve report` does. Exit status 1 where it takes more than five seconds by the clock on the wall.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from qserve.hub import resolve
from qserve.planner import PlanRequest, make_plan
from qserve.report import read_report, to_html
from qserve.runs import RunStore
from qserve.service.machine import hardware_of

_LIMIT_S = 5.0
_DAY_MS = 24 * 3600 * 1000
_LABELS = (
    ("POST", "/v1/chat/completions", "demo", "chat", 200, "", 0, 0),
    ("POST", "/v1/reward", "demo-reward", "reward", 200, "", 0, 0),
    ("POST", "/v1/chat/completions", "demo", "chat", 503, "queue_full", 0, 0),
    ("POST", "/v1/chat/completions", "demo", "chat", 200, "", 0, 1),
)


def fill(store: RunStore, num_requests: int) -> None:
    """One run with a plan and so many requests."""
    began_s = time.time() - 24 * 3600
    plan = json.dumps(make_plan(resolve("demo"), hardware_of("none"), PlanRequest()).to_json())
    with store.connection() as connection:
        connection.execute(
            "INSERT INTO run (number, id, started_unix_s, last_seen_unix_s, ended_unix_s, exit_status, host, pid, "
            "process_start, command, versions, hardware, folder, url, num_requests, num_errors, num_lost) "
            "VALUES (1, 'bench', ?, ?, ?, 0, 'h', 1, 's', '[\"qserve\", \"up\"]', '{}', '{}', '/tmp', "
            "'http://127.0.0.1:8000', ?, ?, 0)",
            [began_s, began_s + 86400, began_s + 86400, num_requests, num_requests // 200],
        )
        for worker, model in (("chat", "demo"), ("reward", "demo-reward")):
            connection.execute("INSERT INTO plan VALUES (1, ?, ?, ?, ?)", [worker, began_s, json.dumps([model]), plan])
        connection.executemany(
            "INSERT INTO request_label VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [(number, *label) for number, label in enumerate(_LABELS, 1)],
        )
        connection.executemany(
            "INSERT INTO request VALUES (1, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, NULL)",
            _drawn(num_requests, int(1000 * began_s)),
        )


def _drawn(num_requests: int, began_ms: int) -> Iterator[tuple[Any, ...]]:
    draw = random.Random(7)
    for number in range(num_requests):
        share = number / num_requests
        at_ms = began_ms + int(_DAY_MS * (share + 0.04 * math.sin(12 * share)))
        kind = draw.random()
        is_reward = kind < 0.3
        label = 2 if is_reward else 3 if kind > 0.995 else 4 if kind > 0.99 else 1
        ttft_us = None if is_reward or label == 3 else int(draw.lognormvariate(10.5, 0.6))
        tokens = None if is_reward or label == 3 else draw.randint(8, 400)
        e2e_us = int(draw.lognormvariate(9.5, 0.5)) if tokens is None else ttft_us + tokens * draw.randint(9000, 14000)
        yield (
            number,
            label,
            at_ms,
            e2e_us,
            draw.randint(20, 9000),
            ttft_us,
            draw.randint(20, 900),
            tokens,
            tokens or 0,
            f"req-0a1b2c3d4e5f-{number:06x}",
        )


def main() -> int:
    """Prints seconds and bytes. The exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=1_000_000)
    with tempfile.TemporaryDirectory(prefix="qserve-bench-") as folder:
        store = RunStore.open(Path(folder))
        fill(store, parser.parse_args().requests)
        print(f"store   {store.path.stat().st_size / 1e6:,.0f} MB")
        began_s, cpu_s = time.perf_counter(), time.process_time()
        report = read_report(store, store.run())
        read_s = time.perf_counter() - began_s
        page = to_html(report)
        whole_s, used_s = time.perf_counter() - began_s, time.process_time() - cpu_s
        print(f"page    {len(page) / 1e3:,.0f} kB")
        print(f"reading {read_s:.2f} s · page {whole_s - read_s:.2f} s")
        print(f"together {whole_s:.2f} s, {used_s:.2f} s of them CPU   target < {_LIMIT_S}")
    return int(whole_s > _LIMIT_S)


if __name__ == "__main__":
    sys.exit(main())
