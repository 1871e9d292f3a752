"""Documents as YAML: keys in their order, programs as blocks, a comment above."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import yaml

__all__ = ["commented", "yaml_text"]


class _Dumper(yaml.SafeDumper):
    """Lists of an item below their key are indented, as people write them; nothing is an alias of something."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Dumper.add_representer(str, _text)


def yaml_text(header: Iterable[str], *documents: Mapping[str, Any]) -> str:
    """`documents`, one after the other, below `header` as a comment."""
    dumped = [yaml.dump(dict(one), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120) for one in documents]
    return f"{commented(header)}\n" + "---\n".join(dumped)


def commented(lines: Iterable[str]) -> str:
    """Each line behind a #."""
    return "\n".join(f"# {line}".rstrip() for line in lines)
