"""What stands between `<think>` and `</think>`, apart from the answer after it, while both are being written."""

from __future__ import annotations

from qserve.engines.transformers.worker.parsing.parts import overlap

__all__ = ["ThoughtReader"]

_OPEN, _CLOSE, _CALL = "<think>", "</think>", "<tool_call>"


class ThoughtReader:
    """Blank lines around a thought belong to nobody. A `<think>` later in an answer is text."""

    def __init__(self, *, within: bool, may_call: bool = False) -> None:
        """`within`: the prompt ends in an open thought. `may_call`: a call of a tool ends a thought, too."""
        self._ends = (_CLOSE, _CALL) if may_call else (_CLOSE,)
        self._held = ""
        self._state = "thought" if within else "start"
        self._has_begun = False  # the part at hand has shown a character that is not blank

    @property
    def is_thinking(self) -> bool:
        """Whether the latest text was thought."""
        return self._state == "thought"

    def push(self, text: str) -> tuple[str, str]:
        """What may be shown now: of the thought, and of the answer."""
        if self._state == "answer":
            return "", self._without_blank_lines(text)
        self._held += text
        if self._state == "start":
            begun = self._held.lstrip()
            if _OPEN.startswith(begun[: len(_OPEN)]) and len(begun) < len(_OPEN):
                return "", ""
            if not begun.startswith(_OPEN):
                self._state, self._has_begun = "answer", True
                held, self._held = self._held, ""
                return "", held
            self._state, self._held = "thought", begun[len(_OPEN) :]
        return self._in_thought()

    def _in_thought(self) -> tuple[str, str]:
        found = [(place, tag) for tag in self._ends if (place := self._held.find(tag)) >= 0]
        if found:
            place = min(found)[0]
            shown = self._without_blank_lines(self._held[:place].rstrip("\n"))
            after = self._held[place:].removeprefix(_CLOSE)
            self._state, self._held, self._has_begun = "answer", "", False
            return shown, self._without_blank_lines(after)
        thought = self._held
        keep = max(overlap(thought, tag) for tag in self._ends)
        # Blank lines before the end are not shown; others come with what follows them.
        ready = thought[: len(thought) - keep].rstrip("\n")
        self._held = thought[len(ready) :]
        return self._without_blank_lines(ready), ""

    def _without_blank_lines(self, text: str) -> str:
        if self._has_begun:
            return text
        text = text.lstrip("\n")
        self._has_begun = bool(text)
        return text

    def flush(self) -> tuple[str, str]:
        """What was held back when no more text comes."""
        held, self._held = self._held, ""
        if self._state == "thought":
            return self._without_blank_lines(held.rstrip("\n")), ""
        return "", held
