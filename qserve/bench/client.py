"""Sends one request and returns its record, which also holds any failure."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

from qserve.bench import failures
from qserve.bench.answer import StreamAnswer, WholeAnswer
from qserve.bench.connection import Address, ConnectionBroke, Pool, Unreachable
from qserve.bench.endpoints import Endpoint, Prompt, message
from qserve.bench.records import RequestRecord

__all__ = ["LoadClient"]


class LoadClient:
    """Asks one endpoint of one server.

    Args:
        address: where.
        endpoint: what.
        api_key: "" where none is wanted.
        timeout_s: for a whole answer.
        count: tokens of a text, for servers that do not tell; None: such answers count one token, as in vLLM's.
    """

    def __init__(
        self,
        address: Address,
        endpoint: Endpoint,
        api_key: str = "",
        timeout_s: float = 600.0,
        count: Callable[[str], int] | None = None,
    ) -> None:
        self.address = address
        self.endpoint = endpoint
        self._api_key = api_key
        self._timeout_s = timeout_s
        self._count = count
        self._pool = Pool(address)
        self._path = address.prefix + endpoint.path

    def encoded(self, prompt: Prompt, *, is_probe: bool = False) -> bytes:
        """The bytes of a request; making them is no part of its time."""
        body = self.endpoint.body(prompt)
        return message(self.address.netloc, self._path, self._api_key, body, is_probe=is_probe)

    async def ask(self, record: RequestRecord, data: bytes) -> WholeAnswer | None:
        """Sends `data` and writes into `record` what is seen, but for `start_s`; the answer, where one came."""
        url = self.address.url
        answer: WholeAnswer | None = None
        began_s = time.perf_counter()
        try:
            async with asyncio.timeout(self._timeout_s):
                answer = await self._pool.ask(data, StreamAnswer if self.endpoint.streams else WholeAnswer)
        except Unreachable as error:
            record.failure = failures.unreachable(url, str(error))
        except ConnectionBroke as error:
            answer = error.args[1]
            record.failure = failures.broken_off(url, str(error.args[0]), answer)
        except TimeoutError:
            record.failure = failures.timed_out(url, self._timeout_s)
        record.end_s = time.perf_counter() - began_s
        if answer is not None:
            self._read(record, answer, began_s)
        return answer

    def close(self) -> None:
        """Drops idle connections."""
        self._pool.close()

    def _read(self, record: RequestRecord, answer: WholeAnswer, began_s: float) -> None:
        if record.failure is None and answer.status != 200:
            record.failure = failures.refused(self.address.url, self._path, self.endpoint.model, answer)
        if isinstance(answer, StreamAnswer):
            answer.finish()
            record.announced_s = max(0.0, answer.announced_s - began_s)
            record.chunk_s = [arrival_s - began_s for arrival_s in answer.arrivals_s]
            record.failure = record.failure or failures.wrong_stream(self.address.url, answer)
            usage = answer.usage
        else:
            usage = _usage(answer.body) if record.failure is None else {}
        record.prompt_tokens = int(usage.get("prompt_tokens") or record.prompt_tokens)
        record.output_tokens = int(usage.get("completion_tokens") or 0)
        if self.endpoint.generates and not record.output_tokens and record.failure is None:
            text = answer.text() if isinstance(answer, StreamAnswer) else ""
            record.output_tokens = max(1, self._count(text)) if self._count else 1


def _usage(body: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(body)
    except ValueError:
        return {}
    return (answer.get("usage") or {}) if isinstance(answer, dict) else {}
