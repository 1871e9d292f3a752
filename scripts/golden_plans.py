"""Today's plans against the kept ones of tests/golden/plans.

    python scripts/golden_plans.py [--write | --sample N]

Without an option every request is asked again, and what differs is shown; the exit status is 1 where anything does.
--write keeps today's answers: after a change of figures on purpose, in a commit of its own.
"""

from __future__ import annotations

import difflib
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests.golden.plans.answers import Answer, answer, is_as_kept, keep, kept, machine
from tests.golden.plans.requests import requests

_MOST_SHOWN = 5


def main() -> int:
    before = kept() if "--write" not in sys.argv else {}
    if "--write" in sys.argv:
        with machine():
            keep({line: answer(line) for line in requests()})
        return 0
    step = int(sys.argv[sys.argv.index("--sample") + 1]) if "--sample" in sys.argv else 1
    with machine():
        compared = ((line, was, answer(line)) for line, was in list(before.items())[::step])
        differing = [(line, was, now) for line, was, now in compared if not is_as_kept(was, now)]
    for line, was, now in differing[:_MOST_SHOWN]:
        print(f"== qserve {line}", *_difference(was, now), sep="\n")
    new = set(requests()) - set(before)
    print(f"{len(before)} kept, {len(differing)} differ, {len(new)} requests are not kept yet")
    return 1 if differing else 0


def _difference(was: Answer, now: Answer) -> list[str]:
    texts = [json.dumps(one, indent=1, ensure_ascii=False).splitlines() for one in (was, now)]
    return list(difflib.unified_diff(*texts, "kept", "today", n=1, lineterm=""))[2:42]


if __name__ == "__main__":
    sys.exit(main())
