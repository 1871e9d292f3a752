"""Why a peer's test does not pass here, by the test and by what it says."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["reason_of"]


@dataclass(frozen=True)
class _Rule:
    """A reason for tests whose name, and whose words, match; `engine`: for one engine alone."""

    reason: str
    test: str = ""
    said: str = ""
    engine: str = ""

    def fits(self, engine: str, test: str, said: str) -> bool:
        is_meant = self.engine in ("", engine) and re.search(self.test, test) is not None
        return is_meant and re.search(self.said, said, re.DOTALL) is not None


_RULES: tuple[_Rule, ...] = ()


def reason_of(engine: str, test: str, said: str) -> str | None:
    """The first that fits; None: there is none yet."""
    return next((rule.reason for rule in _RULES if rule.fits(engine, test, said)), None)
