"""Rewards from a server: the texts of a file as requests of /v1/reward, and the answers in the file's order."""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from qserve.cli.reward.texts import Answered, Rewards, TextToScore, together
from qserve.errors import UsageError

if TYPE_CHECKING:
    import aiohttp

__all__ = ["served_rewards"]

_AT_ONCE = 32
_TIMEOUT_S = 3600


def served_rewards(url: str, model: str | None, api_key: str | None) -> Rewards:
    """Rewards from POST /v1/reward of a server. Raises UsageError if it has no such route."""

    def rewards(texts: Sequence[TextToScore]) -> list[Answered]:
        return asyncio.run(_rewards(url, model, api_key or os.environ.get("QSERVE_API_KEY"), texts))

    return rewards


async def _rewards(url: str, model: str | None, api_key: str | None, texts: Sequence[TextToScore]) -> list[Answered]:
    import aiohttp

    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        async with aiohttp.ClientSession(headers=headers, timeout=aiohttp.ClientTimeout(_TIMEOUT_S)) as session:
            return await _RewardRequests(session, f"{url.rstrip('/')}/v1/reward", model, texts).all()
    except (aiohttp.ClientError, KeyError, ValueError) as error:
        raise UsageError(
            f"{url} did not answer POST /v1/reward as qserve does ({error}); start one: qserve up --reward demo, and "
            "name it: --url http://127.0.0.1:8000"
        ) from error


class _RewardRequests:
    """Sends the requests, several at a time."""

    def __init__(
        self, session: aiohttp.ClientSession, url: str, model: str | None, texts: Sequence[TextToScore]
    ) -> None:
        self._session, self._url, self._texts = session, url, texts
        self._model = {"model": model} if model else {}
        self._takes_references = True
        self._answers: list[Answered] = [{"error": "not asked"}] * len(texts)

    async def all(self) -> list[Answered]:
        """All answers, in the order of the texts."""
        # A request holds texts or conversations, not both, and references for all of its texts or for none.
        kinds: dict[tuple[str, bool], list[int]] = defaultdict(list)
        for index, text in enumerate(self._texts):
            kinds["texts" if isinstance(text.content, str) else "conversations", text.reference is not None].append(
                index
            )
        parts = [(kind, part) for (kind, _), indices in kinds.items() for part in self._together(indices, _AT_ONCE)]
        await asyncio.gather(*(self._ask(kind, indices) for kind, indices in parts))
        return self._answers

    def _together(self, indices: Sequence[int], at_once: int) -> list[list[int]]:
        return together(indices, [self._texts[index].group for index in indices], at_once)

    async def _ask(self, kind: str, indices: list[int]) -> None:
        status, data = await self._post(kind, indices)
        if status != 200 and self._takes_references and _takes_none(data["error"]):
            self._takes_references = False
        if status != 200 and not self._takes_references and self._texts[indices[0]].reference is not None:
            status, data = await self._post(kind, indices)
        groups = self._together(indices, 1)
        if status != 200 and len(groups) > 1:  # one bad line must not fail the others
            await asyncio.gather(*(self._ask(kind, group) for group in groups))
            return
        for index, row in zip(indices, _rows(status, data, len(indices)), strict=True):
            self._answers[index] = row

    async def _post(self, kind: str, indices: list[int]) -> tuple[int, Any]:
        texts = [self._texts[index] for index in indices]
        body: dict[str, Any] = {kind: [text.content for text in texts], **self._model}
        if self._takes_references and texts[0].reference is not None:
            body["references"] = [text.reference for text in texts]
        async with self._session.post(self._url, json=body) as answer:
            return answer.status, await answer.json()


def _takes_none(error: dict[str, Any]) -> bool:
    """Whether the server refused references, which only rules and judges use."""
    return (error.get("param"), error.get("code")) == ("references", "unsupported_value")


def _rows(status: int, data: Any, count: int) -> list[Answered]:
    if status != 200:
        return [{"error": data["error"]["message"]}] * count
    judges = {"judges": data["meta"]["judges"]} if "judges" in data.get("meta", {}) else {}
    return [{**row, **judges} for row in data["data"]]
