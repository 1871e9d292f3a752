"""Whose turn it is by tokens: eight long prompts of one client are not equal to another's eight short chats.

    first    the client whose running requests have fewest tokens; one with none is before all that have some
    then     the client that was given fewest since they both wait

The second is start-time fair queuing (Goyal, Vin and Cheng, 1996): each client has a tag, which grows by the tokens of
each of its requests that begins. A client that comes back starts at the tag of whoever was last served, so nobody saves
up turns by being away, and nobody waits for ever behind clients that come and go. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

__all__ = ["Share", "TokenShares"]

Share = tuple[bool, str]
"""Whether in the background, and whose (`Requester.share`)."""
# Of clients that are away; who has had more than others is forgotten with them.
_MOST_TAGS = 1000


class TokenShares:
    """Tokens of the clients of one worker, estimated before the requests are tokenized."""

    def __init__(self) -> None:
        self._running: Counter[Share] = Counter()
        self._tags: dict[Share, int] = {}
        self._last = {True: 0, False: 0}

    def arrives(self, share: Share) -> None:
        """A client that had nothing here, neither running nor waiting, has a request."""
        self._tags[share] = max(self._last[share[0]], self._tags.get(share, 0))

    def rank(self, share: Share) -> tuple[int, int]:
        """The smallest is next."""
        return self._running[share], self._tags.get(share, 0)

    def begin(self, share: Share, num_tokens: int) -> None:
        """A request of so many tokens has its slots."""
        tag = self._tags.get(share, 0)
        self._last[share[0]] = max(self._last[share[0]], tag)
        self._tags[share] = tag + num_tokens
        self._running[share] += num_tokens

    def end(self, share: Share, num_tokens: int) -> None:
        """It has given them back."""
        self._running[share] -= num_tokens

    def leaves(self, share: Share, is_here: Callable[[Share], bool]) -> None:
        """A client has nothing here any more. `is_here`: whether another one has."""
        self._running.pop(share, None)
        if self._tags.get(share, 0) <= self._last[share[0]]:
            self._tags.pop(share, None)
        elif len(self._tags) > _MOST_TAGS:
            self._tags = {other: tag for other, tag in self._tags.items() if is_here(other)}
