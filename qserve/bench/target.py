"""Inspects the server under test: its models, the one to test, and whether a first request can be measured."""

from __future__ import annotations

import dataclasses
import ssl
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qserve.bench.client import LoadClient
from qserve.bench.connection import Address
from qserve.bench.endpoints import Endpoint, Prompt
from qserve.bench.records import RequestRecord
from qserve.client.answer import NotJson, Unreachable, is_error
from qserve.client.http import ask
from qserve.errors import UsageError

__all__ = ["Target", "first_request", "inspect_target"]

_TIMEOUT_S = 20
# What may be wrong with one prompt alone, as `failures.refused` calls it; and how many may be refused in a row.
_OF_ONE_PROMPT = ("HTTP 400", "HTTP 413", "HTTP 422")
_MOST_REFUSED = 8


@dataclass(frozen=True)
class Target:
    """A model of a server.

    Attributes:
        model: the name that requests carry; "" where the server lists none and none was given.
        engine: engine, version and quantization as a qserve tells them, or the kind of server as /v1/models hints.
        run_id: of the run that a qserve is; "" for others.
    """

    address: Address
    model: str
    engine: str
    run_id: str = ""


def inspect_target(address: Address, api_key: str, model: str | None, scores: bool, streams: bool = True) -> Target:
    """The model to load.

    Args:
        scores: one that scores is wanted, where the server tells which those are.
        streams: tokens are wanted one by one; without, some reward models answer on a chat's route as well.

    Raises UsageError where nobody answers, the key is refused, or the model is not there, not to be told, or of the
    other kind.
    """
    cards = _cards(address, api_key)
    report = _report(address, api_key) if cards else {}
    workers = [worker for worker in report.get("data") or () if isinstance(worker, dict)]
    if model is None:
        model = _only(address, cards, workers, scores)
    elif cards and model not in cards:
        raise UsageError(
            f"{address.url} does not serve {model!r}; it serves {', '.join(cards)}; choose one with --model"
        )
    about = next((worker for worker in workers if model in worker.get("models", ())), {})
    role = about.get("role", about.get("worker"))
    if role == "embed":
        raise UsageError(f"{model!r} is an embedding model, which bench does not load; --model names another")
    if about and (scores or streams) and (role == "reward") != scores:
        is_one = "generates and scores nothing" if scores else "is a reward model and generates nothing"
        wanted = "chat or completions" if scores else "reward or classify"
        raise UsageError(f"{model!r} {is_one}: --endpoint {wanted}, or another --model ({', '.join(cards)})")
    planned = about.get("planned") or {}
    if planned:
        engine = f"{planned['engine']} {planned['engine_version']}, {planned['quant']['scheme']}, {planned['dtype']}"
    else:
        engine = str(cards.get(model, {}).get("owned_by") or "")
    return Target(address, model, engine, str(report.get("run") or ""))


async def first_request(client: LoadClient, prompts: Iterator[Prompt]) -> tuple[RequestRecord, list[str]]:
    """One request, to see whether its like can be measured, before any counts.

    Where the server refuses a field by name that can be done without, `client.endpoint` changes. A prompt that it
    refuses is left out, as later ones are: the next may be fine. Returns the request's record, and what was changed or
    left out, in sentences. Raises UsageError with what is wrong.
    """
    notes: list[str] = []
    refused: list[str] = []
    prompt = next(prompts)
    while True:
        record = RequestRecord(0, 0.0, 0.0, prompt_tokens=prompt.prompt_tokens)
        await client.ask(record, client.encoded(prompt, is_probe=True))
        if record.failure is None:
            return record, [*notes, *(f"a prompt was refused and left out: {sentence}" for sentence in refused)]
        if (conceded := _conceded(client.endpoint, record.failure.sentence)) is not None:
            client.endpoint, note = conceded
            notes.append(note)
            continue
        refused.append(record.failure.sentence)
        if record.failure.kind not in _OF_ONE_PROMPT or len(refused) == _MOST_REFUSED:
            raise UsageError(refused[0])
        prompt = next(prompts)


def _conceded(endpoint: Endpoint, message: str) -> tuple[Endpoint, str] | None:
    """The endpoint without the field that was refused; None where it was something else."""
    if not endpoint.generates:
        return None
    if endpoint.ignore_eos and "ignore_eos" in message:
        note = "the server does not support ignore_eos: answers may be shorter than --output-len"
        return dataclasses.replace(endpoint, ignore_eos=False), note
    if endpoint.length_field == "max_tokens" and "max_completion_tokens" in message:
        note = "the server calls the length max_completion_tokens"
        return dataclasses.replace(endpoint, length_field="max_completion_tokens"), note
    if endpoint.temperature is not None and "temperature" in message:
        return dataclasses.replace(
            endpoint, temperature=None
        ), "the server does not accept temperature: it uses its default"
    return None


def _cards(address: Address, api_key: str) -> dict[str, dict[str, Any]]:
    """Models by name; {} for a server that has no such list."""
    status, answer = _get(address, "/v1/models", api_key)
    if status in (401, 403):
        had = "refuses the key" if api_key else "needs a key"
        raise UsageError(f"{address.url} {had} ({status}): --api-key, QSERVE_API_KEY or OPENAI_API_KEY")
    cards = answer.get("data") if isinstance(answer, dict) else None
    return {str(card["id"]): card for card in cards or () if isinstance(card, dict) and "id" in card}


def _report(address: Address, api_key: str) -> dict[str, Any]:
    """What a qserve says of itself; {} of another server."""
    _, answer = _get(address, "/v1/qserve/report", api_key)
    return answer if isinstance(answer, dict) else {}


def _only(address: Address, cards: Mapping[str, Any], workers: Sequence[Mapping[str, Any]], scores: bool) -> str:
    if not cards:
        raise UsageError(f"{address.url} lists no models (GET /v1/models); is the address right? --model names one")
    roles = {name: worker.get("role", worker.get("worker")) for worker in workers for name in worker.get("models", ())}
    names = [name for name in cards if not workers or _is_loaded(roles.get(name), scores)]
    roots = [name for name in names if not cards[name].get("parent")] or names
    if not roots:
        kind = "reward model" if scores else "model that generates"
        raise UsageError(f"{address.url} serves {', '.join(cards)}, but no {kind}; choose the route with --endpoint")
    if len(roots) > 1:
        raise UsageError(f"{address.url} serves {', '.join(roots)}; say which one with --model")
    return roots[0]


def _is_loaded(role: str | None, scores: bool) -> bool:
    return role == "reward" if scores else role not in ("reward", "embed")


def _get(address: Address, path: str, api_key: str) -> tuple[int, Any]:
    """(status, JSON or None). Raises UsageError where nobody answers."""
    try:
        # Without a proxy, as the load goes.
        answer = ask("GET", address.url + path, api_key=api_key, timeout_s=_TIMEOUT_S, by_proxy=False)
    except Unreachable as error:
        reason = error.reason
        if not isinstance(reason, OSError):
            raise UsageError(f"what answers at {address.url} is not HTTP ({reason}); is it the right port?") from None
        words = f"TLS: {reason.reason}" if isinstance(reason, ssl.SSLError) else reason.strerror
        raise UsageError(
            f"no server answers at {address.url} ({words or reason}); start one with `qserve up`, or name it with --url"
        ) from None
    try:
        return answer.status, None if is_error(answer.status) else answer.json()
    except NotJson:
        return answer.status, None
