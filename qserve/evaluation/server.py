"""Inspects a server for an evaluation: model, length, tokenizer, engine; all from the server itself."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from qserve.client.answer import NotJson, Unreachable, is_error
from qserve.client.http import ask
from qserve.errors import UsageError
from qserve.wire.worker_headers import PROBE

__all__ = [
    "NoServer",
    "ServedModel",
    "get_json",
    "inspect_reward_server",
    "inspect_server",
    "models_of",
    "post_json",
    "report_of",
]

_TIMEOUT_S = 300
# Where the server does not say how many requests it runs at once.
_UNKNOWN_CONCURRENCY = 8
_MOST_CONCURRENCY = 32


class NoServer(UsageError):
    """Nothing answers at an address."""


@dataclass(frozen=True)
class ServedModel:
    """One model of a running server.

    Attributes:
        url: without /v1.
        api_key: empty where none is wanted.
        model: the name that requests carry.
        max_model_len: prompt and answer together, in tokens; 0 where the server does not say and nobody counts.
        tokenizer: folder or hub id of the tokenizer; empty where there is none and nobody counts.
        concurrency: requests that the server runs at once.
        run: engine, quantization, dtype, hardware: what the server says of itself, for the record. Empty for a server
            that is no qserve.
        run_id: its run in the run store; None where it keeps none.
    """

    url: str
    api_key: str
    model: str
    max_model_len: int
    tokenizer: str
    concurrency: int
    run: Mapping[str, Any]
    run_id: str | None = None

    def fingerprint(self) -> str:
        """Tells what was evaluated: by what it says of itself, or by where it is if it says nothing."""
        document = json.dumps([self.model, self.max_model_len, self.run or self.url], sort_keys=True, default=str)
        return hashlib.sha256(document.encode()).hexdigest()[:16]


def inspect_server(
    url: str,
    api_key: str,
    model: str | None,
    tokenizer: str | None,
    cache: Path,
    max_length: int | None = None,
    counts_tokens: bool = True,
) -> ServedModel:
    """The model that is served at `url`.

    Args:
        url: with or without /v1 at its end.
        api_key: empty where none is wanted.
        model: its name; None where the server has only one that generates.
        tokenizer: folder or hub id; None: the server's own, kept in `cache`.
        cache: a folder for tokenizers that servers gave.
        max_length: for servers that do not say how long a request may be.
        counts_tokens: false where the server counts and cuts by itself, as for chats: then no tokenizer is needed.

    Raises UsageError when nobody answers there, or what is missing can't be asked.

    """
    url = url.rstrip("/").removesuffix("/v1")
    if not url.startswith(("http://", "https://")):
        raise UsageError(f"--url {url} is not the address of a server; write it as http://127.0.0.1:8000")
    cards = models_of(url, api_key)
    report = report_of(url, api_key)
    workers = report["data"]
    name = model or _only(url, cards, workers)
    if name not in cards:
        raise UsageError(f"--served-model-name {name}: {url} serves {', '.join(cards)}")
    length = cards[name].get("max_model_len") or max_length
    if not length and counts_tokens:
        raise UsageError(f"{url} does not say how many tokens a request may have; give --max-length")
    planned = _planned(workers, name)
    seqs = planned.get("workload", {}).get("max_num_seqs", _UNKNOWN_CONCURRENCY)
    return ServedModel(
        url=url,
        api_key=api_key,
        model=name,
        max_model_len=int(length or 0),
        tokenizer=tokenizer or _given_tokenizer(url, api_key, name, cache, counts_tokens),
        concurrency=max(1, min(int(seqs) * _num_replicas(workers, name), _MOST_CONCURRENCY)),
        run=_run(planned),
        run_id=report["run"],
    )


def inspect_reward_server(url: str, api_key: str) -> ServedModel:
    """The reward model that a qserve serves at `url`; it has no tokenizer of ours. Raises UsageError without one."""
    report = report_of(url, api_key)
    worker = next((one for one in report["data"] if one.get("role", one["worker"]) == "reward"), None)
    if worker is None:
        raise UsageError(f"{url} serves no reward model; `qserve up --reward demo` does")
    planned = worker.get("planned") or {}
    length = planned["workload"]["max_model_len"]
    return ServedModel(
        url, api_key, worker["models"][0], int(length), "", _UNKNOWN_CONCURRENCY, _run(planned), report["run"]
    )


def report_of(url: str, api_key: str) -> dict[str, Any]:
    """A qserve's own report: `data`, an entry for each worker, and `run`; nothing of both for another server."""
    try:
        document = get_json(f"{url}/v1/qserve/report", api_key)
        return {"data": list(document["data"]), "run": document.get("run")}
    except (UsageError, LookupError, TypeError, AttributeError):
        return {"data": [], "run": None}


def get_json(url: str, api_key: str) -> Any:
    """The document at `url`. Raises NoServer, or UsageError with what was answered in its place."""
    return _asked("GET", url, api_key)


def post_json(url: str, api_key: str, body: Mapping[str, Any], *, is_probe: bool = False) -> Any:
    """The answer to `body`; `is_probe`: it only tests the server. Raises UsageError with what was answered instead."""
    return _asked("POST", url, api_key, body, {PROBE: "1"} if is_probe else {})


def models_of(url: str, api_key: str) -> dict[str, dict[str, Any]]:
    """What the server lists at /v1/models, by id. Raises NoServer, or UsageError for what is no OpenAI server."""
    try:
        return {str(card["id"]): dict(card) for card in get_json(f"{url}/v1/models", api_key)["data"]}
    except (LookupError, TypeError, ValueError):
        raise UsageError(
            f"{url} answers, but it is not an OpenAI server: its /v1/models is not a list of models. --url takes the "
            "address of an OpenAI server, for example http://127.0.0.1:8000"
        ) from None


def _asked(
    method: str, url: str, api_key: str, body: Mapping[str, Any] | None = None, headers: Mapping[str, str] | None = None
) -> Any:
    try:
        answer = ask(method, url, api_key=api_key, body=body, headers=headers, timeout_s=_TIMEOUT_S)
    except Unreachable as error:
        raise NoServer(f"no server answers at {url} ({error}); start one with `qserve up`") from None
    if answer.status == 401:
        raise UsageError(f"{url} needs a key: --api-key, or QSERVE_API_KEY")
    if is_error(answer.status):
        raise UsageError(f"{url} answered {answer.status}: {answer.message('; is it an OpenAI server?')}")
    try:
        return answer.json()
    except NotJson:
        raise UsageError(f"{url} answered something that is not valid JSON; is it an OpenAI server?") from None


def _planned(workers: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return next((worker.get("planned") or {} for worker in workers if name in worker["models"]), {})


def _num_replicas(workers: list[dict[str, Any]], name: str) -> int:
    return max(1, sum(name in worker["models"] for worker in workers))


def _only(url: str, cards: Mapping[str, Any], workers: list[dict[str, Any]]) -> str:
    others = {
        name
        for worker in workers
        if worker.get("role", worker["worker"]) in ("reward", "embed")
        for name in worker["models"]
    }
    names = [name for name, card in cards.items() if name not in others and not card.get("parent")]
    if len(names) != 1:
        raise UsageError(f"{url} serves {', '.join(cards) or 'nothing'}; say which one with --served-model-name")
    return names[0]


def _given_tokenizer(url: str, api_key: str, model: str, cache: Path, is_needed: bool) -> str:
    """The server's tokenizer files in a folder named by their content; empty where it gives none and none is needed."""
    try:
        files: dict[str, str] = get_json(f"{url}/v1/qserve/tokenizer/{quote(model)}", api_key)["files"]
    except UsageError:
        if not is_needed:
            return ""
        raise UsageError(
            f"{url} does not serve its tokenizer, which is needed to count tokens; name one with --tokenizer "
            "(a folder, or a hub id)"
        ) from None
    digest = hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()[:16]
    folder = cache / digest
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / Path(name).name).write_text(text)
    return str(folder)


def _run(planned: Mapping[str, Any]) -> dict[str, Any]:
    if not planned:
        return {}
    return {
        "model_id": planned["model"]["id"],
        "architecture": planned["model"]["architecture"],
        "engine": planned["engine"],
        "engine_version": planned["engine_version"],
        "scheme": planned["quant"]["scheme"],
        "checkpoint": planned["quant"]["checkpoint"],
        "dtype": planned["dtype"],
        "kv_cache_dtype": planned["kv_cache_dtype"],
        "devices": [device["name"] for device in planned["devices"]],
    }
