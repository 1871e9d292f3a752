"""Sessions of the web UI with signed tokens, which every gateway process can verify alone."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable, Iterable

from qserve.gateway.web.session import SESSION_S, Sessions

__all__ = ["MOST_ENDED", "SignedSessions"]

MOST_ENDED = 65_536
"""Digests of sessions that signed out before they expired; the oldest are forgotten first."""


class SignedSessions(Sessions):
    """Tokens `random.end.signature`. Sign-outs are sent to the other processes."""

    def __init__(
        self,
        secret: str,
        ended: Iterable[str],
        tell_ended: Callable[[str], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`secret`: common to all processes of this service. `ended`: digests of ended sessions."""
        super().__init__(clock)
        self._secret = secret.encode()
        self._ended = dict.fromkeys(ended)
        self._tell_ended = tell_ended

    def begin(self) -> str:
        about = f"{secrets.token_urlsafe(24)}.{int(self._clock() + SESSION_S)}"
        return f"{about}.{self._signature(about)}"

    def visitor(self, token: str) -> str | None:
        about, _, signature = token.rpartition(".")
        ends = about.rpartition(".")[2]
        if not hmac.compare_digest(signature.encode(), self._signature(about).encode()) or not ends.isdigit():
            return None
        digest = _digest(token)
        return digest[:32] if self._clock() < int(ends) and digest not in self._ended else None

    def end(self, token: str) -> None:
        if self.visitor(token) is not None:
            self.has_ended(_digest(token))
            self._tell_ended(_digest(token))

    def has_ended(self, digest: str) -> None:
        """End a session that signed out at another process."""
        self._ended[digest] = None
        while len(self._ended) > MOST_ENDED:
            del self._ended[next(iter(self._ended))]

    def _signature(self, about: str) -> str:
        return hmac.new(self._secret, about.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
