"""The answer to a request, whatever its status, and the exceptions in place of one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from qserve.client.error_text import message_of
from qserve.errors import UsageError

__all__ = ["Answer", "NotJson", "Refused", "Unreachable", "UnsendableKey", "is_error", "key_header"]


class Unreachable(Exception):
    """No server answers, or the connection broke. Its text is that of `reason`, the library's exception."""

    def __init__(self, reason: Exception) -> None:
        super().__init__(str(reason) or type(reason).__name__)
        self.reason = reason


class NotJson(ValueError):
    """A body is not JSON. Its text is the parser's."""


class UnsendableKey(UsageError):
    """An API key has characters that no header may hold."""


class Refused(Exception):
    """A server answered with the status of an error."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(f"status {answer.status}: {answer.message()}")
        self.answer = answer


@dataclass(frozen=True)
class Answer:
    """A whole answer. `headers` finds its names in any case; `redirects` are those of the redirects that led to it."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    redirects: tuple[Mapping[str, str], ...] = ()

    @property
    def text(self) -> str:
        return self.body.decode(errors="replace")

    def json(self) -> Any:
        """The document in the body. Raises NotJson."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError) as error:
            raise NotJson(str(error)) from None

    def message(self, hint: str = "") -> str:
        """As `message_of`, for an error's body."""
        return message_of(self.body, hint)

    def raise_for_status(self) -> Answer:
        """This answer. Raises Refused for the status of an error."""
        if is_error(self.status):
            raise Refused(self)
        return self


def is_error(status: int) -> bool:
    """Whether a status says anything but success; a redirect that was not followed is no success."""
    return not 200 <= status < 300


def key_header(api_key: str | None) -> dict[str, str]:
    """The header that carries the key; none without a key."""
    return {"Authorization": f"Bearer {api_key}"} if api_key else {}
