"""The model card of a made checkpoint: README.md with the hub's fields, in sections of name and value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import yaml

from qserve.version import __version__

__all__ = ["ModelCard", "versions_of"]


@dataclass(frozen=True)
class ModelCard:
    """What is known of how it was made.

    Attributes:
        title: of the page.
        base: the model that it is made from, as a hub names it; None of a folder.
        relation: the hub's word for how it is derived from `base`: finetune, quantized.
        opening: the first sentence.
        sections: a heading each, with rows of name and value.
        tags: for the hub.
    """

    title: str
    base: str | None
    relation: str
    opening: str
    sections: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    tags: tuple[str, ...] = ()

    def text(self) -> str:
        """The page."""
        head: dict[str, object] = {"library_name": "transformers", "tags": ["qserve", *self.tags]}
        if self.base is not None:
            head |= {"base_model": self.base, "base_model_relation": self.relation}
        parts = [f"---\n{yaml.safe_dump(head, sort_keys=True)}---\n", f"# {self.title}\n", f"{self.opening}\n"]
        for heading, rows in self.sections.items():
            parts += [f"## {heading}\n", "| | |\n|---|---|"]
            parts += [f"| {_cell(name)} | {_cell(value)} |" for name, value in rows.items()]
            parts.append("")
        return "\n".join(parts)

    def write(self, folder: Path) -> None:
        """As README.md of `folder`."""
        (folder / "README.md").write_text(self.text())


def versions_of(*packages: str) -> dict[str, str]:
    """Of qserve and of those packages that are installed."""
    found = {"qserve": __version__}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
