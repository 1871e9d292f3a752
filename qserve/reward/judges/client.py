"""Client of a judge on an OpenAI-compatible server: a few concurrent requests, answers cached by request."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import OrderedDict
from typing import Any

from qserve.client.answer import NotJson, Unreachable
from qserve.client.api import ApiClient
from qserve.errors import UsageError
from qserve.reward.failures import RewardFailed
from qserve.reward.judges.served import ServedChat
from qserve.reward.judges.verdict import tail_of
from qserve.reward.recipe.config import SERVED, JudgePart

__all__ = ["JudgeClient"]

_KEPT_ANSWERS = 20_000
_TIMEOUT_S = 600.0


class JudgeClient:
    """`answer` is asked from one event loop. Equal questions of the same vote are asked once."""

    def __init__(self, part: JudgePart, served: ServedChat | None = None) -> None:
        """`served` is the chat model of the same service, where there is one."""
        if part.url == SERVED and served is None:
            raise UsageError(
                f"the judge {part.name!r} is the chat model of the same service (url: {SERVED}), but "
                "no chat model is served; name one: qserve up --model …"
            )
        self._part = part
        self._served = served if part.url == SERVED else None
        self._model = part.model or (served.model if served is not None else "")
        self._at_once = asyncio.Semaphore(part.at_once)
        self._kept: OrderedDict[str, asyncio.Future[str]] = OrderedDict()
        self._client: ApiClient | None = None
        self.num_asked = 0

    async def answer(self, question: str, vote: int) -> str:
        """The answer's end, in which a verdict is looked for: what is kept of it.

        Raises RewardFailed where the server does not answer as a chat model does.
        """
        part = self._part
        question_of = [part.url, part.model, part.template.version, part.temperature, part.max_tokens, vote, question]
        name = hashlib.sha256(json.dumps(question_of).encode()).hexdigest()
        if name not in self._kept:
            self._kept[name] = asyncio.ensure_future(self._ask(question, vote))
            while len(self._kept) > _KEPT_ANSWERS:
                self._kept.popitem(last=False)
        self._kept.move_to_end(name)
        try:
            return await asyncio.shield(self._kept[name])
        except RewardFailed:
            self._kept.pop(name, None)  # the next one who asks tries again
            raise

    async def close(self) -> None:
        """Stop asking, and close the connections."""
        unfinished = [task for task in self._kept.values() if not task.done()]
        for task in unfinished:
            task.cancel()
        await asyncio.gather(*unfinished, return_exceptions=True)
        if self._client is not None:
            await self._client.close()

    async def _ask(self, question: str, vote: int) -> str:
        part = self._part
        body = {
            "model": self._model,
            "messages": [{"role": "user", "content": question}],
            "seed": vote,
            "temperature": part.temperature,
            **({"max_tokens": part.max_tokens} if part.max_tokens else {}),
        }
        async with self._at_once:
            self.num_asked += 1
            try:
                answer = await self._opened().ask("POST", "/chat/completions", body)
                if answer.status != 200:
                    raise self._failed(f"it answered {answer.status}: {' '.join(answer.text.split())[:300]}")
                return _content(answer.json())
            except Unreachable as error:
                raise self._failed(f"{type(error.reason).__name__} {error.reason}".strip()) from None
            except NotJson as error:
                raise self._failed(f"what it answered is not JSON: {error}") from None
            except (ValueError, LookupError, TypeError) as error:
                raise self._failed(f"{type(error).__name__} {error}".strip()) from None

    def _opened(self) -> ApiClient:
        if self._client is None:
            url, socket = (self._part.url, None) if self._served is None else ("http://worker/v1", self._served.socket)
            self._client = ApiClient(url, self._key(), socket=socket, timeout_s=_TIMEOUT_S)
        return self._client

    def _key(self) -> str:
        if self._served is not None:
            return self._served.key
        return self._part.api_key_file.read_text().strip() if self._part.api_key_file is not None else ""

    def _failed(self, why: str) -> RewardFailed:
        message = f"the judge {self._part.name!r} at {self._part.url} did not answer: {why}"
        return RewardFailed(message, "judge_failed")


def _content(data: Any) -> str:
    """The answer's end; a thought in a field of its own is no part of it."""
    return tail_of(str(data["choices"][0]["message"]["content"] or ""))
