"""A conversation: its turns, its system prompt and its sampling parameters, as requests and as a file."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qserve.errors import UsageError

__all__ = ["SETTINGS", "Conversation"]


def _switch(text: str) -> bool:
    if text not in ("on", "off"):
        raise ValueError(text)
    return text == "on"


SETTINGS: Mapping[str, tuple[Callable[[str], Any], str]] = {
    "temperature": (float, "0 always takes the likeliest token"),
    "top_p": (float, "share of the probability that is sampled from"),
    "top_k": (int, "number of tokens that are sampled from"),
    "min_p": (float, "least probability, as a share of the largest"),
    "max_tokens": (int, "longest answer"),
    "seed": (int, "the same seed gives the same answer"),
    "presence_penalty": (float, "penalty for words that were used"),
    "frequency_penalty": (float, "penalty for words that were used often"),
    "repetition_penalty": (float, "penalty for tokens of prompt and answer; 1 is none"),
    "think": (_switch, "on or off, if the model can do both"),
}
"""What /set takes: the type of its value, and what it does."""


@dataclass
class Conversation:
    """Turns in the order of the conversation; `settings` are those that differ from the model's own."""

    model: str
    system: str | None = None
    messages: list[dict[str, str]] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)

    def request(self) -> dict[str, Any]:
        """The body of a streamed request for the next answer."""
        sampling = {name: value for name, value in self.settings.items() if name != "think"}
        if "think" in self.settings:
            sampling["chat_template_kwargs"] = {"enable_thinking": self.settings["think"]}
        usage = {"stream": True, "stream_options": {"include_usage": True}}
        return {"model": self.model, "messages": self.turns(), **usage, **sampling}

    def turns(self) -> list[dict[str, str]]:
        """The messages, the system prompt first."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, *self.messages]

    def add(self, role: str, content: str) -> None:
        """Append a turn."""
        self.messages.append({"role": role, "content": content})

    def set(self, name: str, text: str) -> None:
        """Change a sampling parameter; an empty text takes it back. Raises UsageError."""
        if name not in SETTINGS:
            raise UsageError(f"/set has no parameter {name}; it takes {', '.join(SETTINGS)}")
        if not text:
            self.settings.pop(name, None)
            return
        kind = SETTINGS[name][0]
        try:
            self.settings[name] = kind(text)
        except ValueError:
            allowed = {float: "a number", int: "a whole number"}.get(kind, "on or off")  # type: ignore[call-overload]
            raise UsageError(f"/set {name} {text}: write {allowed}") from None

    def save(self, path: Path) -> None:
        """Write the conversation to a file. Raises UsageError if the file holds something else or can't be written."""
        if path.exists():
            _read(path)
        document = {"model": self.model, "system": self.system, "settings": self.settings, "messages": self.messages}
        try:
            path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
        except OSError as error:
            raise UsageError(f"{path} can't be written: {error.strerror}") from None

    def load(self, path: Path) -> None:
        """Take turns, system prompt and settings from a saved file; the model stays. Raises UsageError."""
        document = _read(path)
        self.system, self.settings, self.messages = document["system"], document["settings"], document["messages"]


def _read(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text())
        turns = [{"role": str(one["role"]), "content": str(one["content"])} for one in document["messages"]]
        settings = {name: value for name, value in dict(document.get("settings") or {}).items() if name in SETTINGS}
        return {"messages": turns, "system": document.get("system"), "settings": settings}
    except OSError as error:
        raise UsageError(f"{path} can't be read: {error.strerror}") from None
    except (ValueError, TypeError, KeyError, AttributeError):
        raise UsageError(f"{path} is not a conversation written by /save; name another file") from None
