"""Programs and tests for the rule `code`, as text: `=== name`, the program, then parts that begin with `--- part`."""

from __future__ import annotations

from pathlib import Path

__all__ = ["read_programs"]


def read_programs(name: str) -> dict[str, dict[str, str]]:
    """Of each name its parts; the program's is called `program`."""
    text = "\n" + Path(__file__).with_name(f"{name}.txt").read_text()
    return {
        title: {part: text for part, _, text in (one.partition("\n") for one in f"program\n{rest}".split("\n--- "))}
        for title, _, rest in (one.partition("\n") for one in text.split("\n=== ")[1:])
    }
