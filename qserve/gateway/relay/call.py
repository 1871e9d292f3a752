"""What is asked of a worker, as the rest of the relay needs to know it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from qserve.gateway.relay.deadline import Deadline
from qserve.wire.errors import Dialect

__all__ = ["ON_QUEUED", "Call"]

ON_QUEUED = "qserve.on_queued"
"""In a request's scope: called when it begins to wait for its slots; a full queue refuses it in the same turn."""


class Call(NamedTuple):
    """One request to a worker.

    Attributes:
        path: with the query, if there is one.
        num_sequences: slots it takes at the worker; 0 for work so small that it never queues.
        dialect: whose shape an error inside a stream has.
        is_bulk: so many sequences that other requests go first.
        max_tokens: of the answer; 0: none is asked for; None: as many as fit.
        client: whom it counts for where work is shared out (`auth.share_of`).
        cache_salt: with whom it shares cached prompts (`gateway/relay/cache_salts.py`); None: as its body says.
        is_more: a further portion of a request that has slots already (`portioned`).
        rewrite: makes of the worker's answer, or of the first events of a stream, what the client gets.
        deadline: when the answer is to be complete, if the client said so.
        is_portion: one sequence of a request that has many: it leaves the last slot to requests that have one.
        is_urgent: its key goes before others (`gateway/keys/`).
        opens_early: a stream, of a model that may have to be loaded: it begins with comments until then.
    """

    method: str
    path: str
    num_sequences: int
    dialect: Dialect
    is_bulk: bool = False
    max_tokens: int | None = None
    client: str = ""
    cache_salt: str | None = None
    is_more: bool = False
    rewrite: Callable[[bytes], bytes] | None = None
    deadline: Deadline | None = None
    is_urgent: bool = False
    is_portion: bool = False
    opens_early: bool = False
