"""How often a plan comes back to each file; the arguments are those of `qserve plan`.

    python scripts/plan_walk.py --model Qwen/Qwen3-8B --gpu rtx-4090 --quant bf16 --engine vllm

A visit is a call from another file of qserve. Files that call no other file are leaves (sizes, versions, formulas): a
reader looks them up. Of the others, two counts: visits at run time, where a search asks the same file again for each
setup and workload that it tries, and callers: functions of other files that call it, which is how often a reader who
follows the source comes by.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = f"{Path(__file__).parents[1] / 'qserve'}/"


class Walk:
    """Calls from file to file while it is the profiler."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self.visits: Counter[str] = Counter()
        self.callers: dict[str, set[tuple[str, str]]] = defaultdict(set)

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(ROOT) or code.co_name == "<module>":
            return
        above = frame.f_back
        while above is not None and not above.f_code.co_filename.startswith(ROOT):
            above = above.f_back
        if above is None or above.f_code.co_filename == code.co_filename:
            return
        file = code.co_filename.removeprefix(ROOT)
        if file not in self.visits:
            self.order.append(file)
        self.visits[file] += 1
        self.callers[file].add((above.f_code.co_filename.removeprefix(ROOT), above.f_code.co_name))

    @property
    def story(self) -> list[str]:
        """Files that call others, in the order in which they are first entered."""
        calling = {file for callers in self.callers.values() for file, _ in callers}
        return [file for file in self.order if file in calling]


def walk(arguments: list[str]) -> Walk:
    """Of `qserve plan` with these arguments; run twice, so that imports and caches are not in it."""
    import contextlib
    import io

    from qserve.cli.main import cli

    found = Walk()
    for profiler in (None, found):
        with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
            sys.setprofile(profiler)
            try:
                cli.main(["plan", *arguments], standalone_mode=False)
            finally:
                sys.setprofile(None)
    return found


def main() -> None:
    """Print the table."""
    found = walk(sys.argv[1:])
    print("visits  callers  file")
    for file in found.story:
        print(f"{found.visits[file]:6d}  {len(found.callers[file]):7d}  {file}")
    leaves = len(found.visits) - len(found.story)
    print(f"\n{len(found.story)} files that call others, {leaves} leaves")


if __name__ == "__main__":
    main()
