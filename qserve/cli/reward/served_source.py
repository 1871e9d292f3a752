"""Rewards from a server: the texts of a file as requests of /v1/reward, and the answers in the file's order."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from qserve.cli.options.numbers import Count
from qserve.cli.options.url import ServerUrl
from qserve.cli.reward.texts import Answered, Parts, TextToScore, together
from qserve.errors import QserveError, UsageError, WorkerFailed

if TYPE_CHECKING:
    from qserve.client.api import ApiClient

__all__ = ["SERVER_FLAGS", "ServedRewards", "server_options"]

Function = TypeVar("Function", bound=Callable[..., Any])

_TEXTS_A_REQUEST = 32
_REQUESTS_AT_ONCE = 8
_TIMEOUT_S = 3600
# A server that is full, or whose worker starts again, is asked again after as long as it says, so often.
_TRIES, _LONGEST_WAIT_S = 20, 30
_LONGEST_TOLD = 200

SERVER_FLAGS = ("model", "api_key", "concurrency")
"""Options that mean something with --url alone, by field name."""


def server_options(function: Function) -> Function:
    """Adds --url and `SERVER_FLAGS`."""
    for option in (
        click.option(
            "--concurrency",
            type=Count(min=1, max=256),
            default=_REQUESTS_AT_ONCE,
            show_default=True,
            help="Requests to --url at once, each of up to 32 texts.",
        ),
        click.option("--api-key", help="For --url [$QSERVE_API_KEY]."),
        click.option("--model", help="The name under which --url serves it [the only one]."),
        click.option(
            "--url", type=ServerUrl(), help="Use a server that answers POST /v1/reward instead of loading a model here."
        ),
    ):
        function = option(function)
    return function


class ServedRewards:
    """A callable from texts to rewards (`texts.Rewards`), from POST /v1/reward of a server."""

    def __init__(self, url: str, model: str | None, api_key: str | None, concurrency: int = _REQUESTS_AT_ONCE) -> None:
        self.url, self._model, self._concurrency = url.rstrip("/").removesuffix("/v1"), model, concurrency
        self._api_key = api_key or os.environ.get("QSERVE_API_KEY")
        self.meta: dict[str, Any] = {}
        """How the server scores, as its last answer says."""

    def __call__(self, texts: Sequence[TextToScore]) -> Parts:
        """Raises UsageError for a server that has no such route or refuses the key, WorkerFailed where it goes away."""

        async def following() -> list[Answered] | None:
            return await anext(parts, None)

        parts = self._parts(texts)
        with asyncio.Runner() as runner:  # its end also closes `parts`, whose step may still be waiting after SIGTERM
            while (part := runner.run(following())) is not None:
                yield part

    def check(self, texts: Sequence[TextToScore]) -> None:
        """Ask for the first line's rewards, before anything else is begun. Raises as a call does."""
        with contextlib.closing(self([text for text in texts if text.group == texts[0].group])) as parts:
            for _ in parts:
                pass

    async def _parts(self, texts: Sequence[TextToScore]) -> AsyncIterator[list[Answered]]:
        from qserve.client.answer import Unreachable
        from qserve.client.api import ApiClient

        waiting: deque[asyncio.Task[list[Answered]]] = deque()
        has_answered = False
        try:
            async with ApiClient(self.url, self._api_key, timeout_s=_TIMEOUT_S) as client:
                requests = _RewardRequests(client, self.url, self._model, self.meta)
                for part in together(texts, [text.group for text in texts], _TEXTS_A_REQUEST):
                    waiting.append(asyncio.ensure_future(requests.answers(part)))
                    if len(waiting) >= self._concurrency:
                        yield await waiting.popleft()
                        has_answered = True
                while waiting:
                    yield await waiting.popleft()
                    has_answered = True
        except (Unreachable, ValueError) as error:
            if has_answered:
                raise WorkerFailed(f"{self.url} stopped answering ({error})") from error
            raise UsageError(
                f"{self.url} did not answer POST /v1/reward as qserve does ({error}); start one: qserve up --reward "
                "demo, and name it: --url http://127.0.0.1:8000"
            ) from error
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)


class _RewardRequests:
    """Makes requests of texts, as the server takes them. `meta` gets what its answers say of how it scores."""

    def __init__(self, client: ApiClient, url: str, model: str | None, meta: dict[str, Any]) -> None:
        self._client, self._url, self._meta = client, url, meta
        self._model = {"model": model} if model else {}
        self._takes_references = True

    async def answers(self, texts: Sequence[TextToScore]) -> list[Answered]:
        """In the order of the texts."""
        # A request holds texts or conversations, not both, and references for all of its texts or for none.
        kinds: dict[tuple[str, bool], list[int]] = defaultdict(list)
        for index, text in enumerate(texts):
            kinds["texts" if isinstance(text.content, str) else "conversations", text.reference is not None].append(
                index
            )
        answers: list[Answered] = [{"error": "not asked"}] * len(texts)
        for (kind, _), indices in kinds.items():
            found = await self._asked(kind, [texts[index] for index in indices])
            for index, answer in zip(indices, found, strict=True):
                answers[index] = answer
        return answers

    async def _asked(self, kind: str, texts: Sequence[TextToScore]) -> list[Answered]:
        status, data = await self._post(kind, texts)
        if status != 200 and self._takes_references and _takes_none(data["error"]):
            self._takes_references = False
        if status != 200 and not self._takes_references and texts[0].reference is not None:
            status, data = await self._post(kind, texts)
        groups = together(texts, [text.group for text in texts], 1)
        if status != 200 and len(groups) > 1:  # one bad line must not fail the others
            return [answer for group in groups for answer in await self._asked(kind, group)]
        if status != 200:
            return [{"error": data["error"]["message"]}] * len(texts)
        meta = data.get("meta", {})
        self._meta.update(meta)
        judges = {"judges": meta["judges"]} if "judges" in meta else {}
        return [{**row, **judges} for row in data["data"]]

    async def _post(self, kind: str, texts: Sequence[TextToScore]) -> tuple[int, Any]:
        """Status and body; one other than 200 has an error with a message. Raises ValueError for another body."""
        body: dict[str, Any] = {kind: [text.content for text in texts], **self._model}
        if self._takes_references and texts[0].reference is not None:
            body["references"] = [text.reference for text in texts]
        said = ""
        for _ in range(_TRIES):
            answer = await self._client.ask("POST", "/v1/reward", body)
            status, text, wait = answer.status, answer.text, answer.headers.get("retry-after", "")
            data = _object(text)
            said = _message(data) or f"status {status}: {_shortened(text)}"
            if status in (401, 403):  # of the whole file, not of a line
                raise UsageError(f"{self._url}: {said}; name the key: --api-key, or $QSERVE_API_KEY")
            if status == 404 and _message(data):
                raise UsageError(f"{self._url}: {said}")
            if status not in (429, 503) or not wait.isdigit():
                if not (_has_rewards(data, len(texts)) if status == 200 else _message(data)):
                    raise ValueError(said)
                return status, data
            await asyncio.sleep(min(int(wait), _LONGEST_WAIT_S))
        raise QserveError(f"{self._url} had no room for a request after {_TRIES} tries: {said}")


def _takes_none(error: dict[str, Any]) -> bool:
    """Whether the server refused references, which only rules and judges use."""
    return (error.get("param"), error.get("code")) == ("references", "unsupported_value")


def _object(text: str) -> dict[str, Any]:
    """Empty where the text is no JSON object."""
    try:
        data = json.loads(text)
    except ValueError:
        return {}
    return data if isinstance(data, dict) else {}


def _message(data: dict[str, Any]) -> str:
    """Of an error as OpenAI's API writes one; else empty."""
    error = data.get("error")
    message = error.get("message") if isinstance(error, dict) else None
    return message if isinstance(message, str) else ""


def _has_rewards(data: dict[str, Any], count: int) -> bool:
    rows, meta = data.get("data"), data.get("meta", {})
    return isinstance(meta, dict) and isinstance(rows, list) and len(rows) == count and all(map(_is_reward, rows))


def _is_reward(row: Any) -> bool:
    is_object = isinstance(row, dict)
    return is_object and isinstance(row.get("reward"), int | float) and isinstance(row.get("num_tokens"), int)


def _shortened(text: str) -> str:
    told = " ".join(text.split()) or "an empty body"
    return told if len(told) <= _LONGEST_TOLD else f"{told[:_LONGEST_TOLD]} …"
