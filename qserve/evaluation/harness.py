"""lm-eval's own Python API over HTTP: tasks, prompts, metrics and cache are its; where it asks, and what, is ours."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from qserve.errors import WorkerFailed
from qserve.evaluation.server import ServedModel
from qserve.evaluation.tasks import Tasks, import_lm_eval, load_tasks, quiet
from qserve.evaluation.tokenizer import load_tokenizer

__all__ = ["Asked", "Progress", "evaluate", "forget_answers", "kept_answers"]

Progress = Callable[[int, int], None]
"""`progress(answered, wanted)`, in requests; `wanted` grows as tasks begin."""

# Several prompts a request save round trips; the server packs them with those of other requests.
_PROMPTS_A_REQUEST = 8
_TIMEOUT_S = 3600


@dataclass(frozen=True)
class Asked:
    """What is asked of a model.

    Attributes:
        tasks: lm-eval's names.
        limit: items a task; None: all.
        num_fewshot: None: what each task has.
        chat: prompts go through the chat template.
        seed: of everything that lm-eval draws, and of the requests.
        background: the server answers others first.
    """

    tasks: tuple[str, ...]
    limit: int | None = None
    num_fewshot: int | None = None
    chat: bool = False
    seed: int = 1234
    background: bool = False


def evaluate(
    served: ServedModel, asked: Asked, cache: Path | None, progress: Progress, tasks: Tasks | None = None
) -> dict[str, Any]:
    """lm-eval's result, whole: results, configs, versions, samples.

    With `cache`, a folder, answers are kept there as they come, and what it holds is not asked again: an evaluation
    that was interrupted goes on. `progress` hears how many requests are answered, and of how many. `tasks` are those of
    `asked`, where they were loaded before. Raises UsageError for an unknown task or tokenizer, MissingExtra without
    lm-eval, WorkerFailed when the server stops answering.
    """
    lm_eval = import_lm_eval()
    tasks = tasks or load_tasks(asked.tasks)
    name = "local-chat-completions" if asked.chat and tasks.only_generate else "local-completions"
    if name == "local-completions":
        load_tokenizer(served.tokenizer)  # lm-eval would fail on it with a traceback
    with _environment(served.api_key) as heard:
        arguments = _model_args(served, asked, tasks.only_generate)
        client = lm_eval.api.registry.get_model(name).create_from_arg_obj(arguments, {})
        keep = client.set_cache_hook
        client.set_cache_hook = lambda hook: keep(_Keyed(hook))
        _count(client, progress)
        try:
            result = lm_eval.simple_evaluate(
                model=client,
                use_cache=None if cache is None else str(_cache_stem(cache, served, asked)),
                tasks=list(asked.tasks),
                task_manager=tasks.manager,
                num_fewshot=asked.num_fewshot,
                limit=asked.limit,
                apply_chat_template=asked.chat,
                random_seed=asked.seed,
                numpy_random_seed=asked.seed,
                torch_random_seed=asked.seed,
                fewshot_random_seed=asked.seed,
                confirm_run_unsafe_code=False,
            )
        except Exception as error:
            if not _is_of_the_server(error):
                raise
            goes_on = "; the same command goes on where it stopped" if cache else ""
            raise WorkerFailed(
                f"{served.url} stopped answering in the middle of it: {heard.last or error!r}{goes_on}"
            ) from error
    assert result is not None, "lm-eval says nothing only on ranks other than 0"
    return dict(result)


def kept_answers(cache: Path, served: ServedModel, asked: Asked) -> int:
    """How many answers an interrupted evaluation of just this left in `cache`."""
    file = _cache_file(cache, served, asked)
    if not file.is_file():
        return 0
    try:
        with contextlib.closing(sqlite3.connect(file)) as connection:
            return int(connection.execute("SELECT COUNT(*) FROM unnamed").fetchone()[0])
    except sqlite3.Error:
        file.unlink()  # cut off before it held anything
        return 0


def forget_answers(cache: Path, served: ServedModel, asked: Asked) -> None:
    """An evaluation that is finished and kept needs its answers no more: the next one asks anew."""
    _cache_file(cache, served, asked).unlink(missing_ok=True)


def _cache_stem(cache: Path, served: ServedModel, asked: Asked) -> Path:
    """Answers to one seed, of one model, are never taken for those of another."""
    told = json.dumps({**asdict(asked), "background": None}, sort_keys=True)
    return cache / f"{served.fingerprint()}-{hashlib.sha256(told.encode()).hexdigest()[:16]}"


def _cache_file(cache: Path, served: ServedModel, asked: Asked) -> Path:
    return Path(f"{_cache_stem(cache, served, asked)}_rank0.db")  # as lm-eval names it


def _is_of_the_server(error: Exception) -> bool:
    packages = {kind.__module__.partition(".")[0] for kind in type(error).__mro__}
    return isinstance(error, ConnectionError | TimeoutError) or bool(packages & {"aiohttp", "requests"})


def _model_args(served: ServedModel, asked: Asked, generates: bool) -> dict[str, Any]:
    path = "chat/completions" if asked.chat and generates else "completions"
    shared = {
        "model": served.model,
        "base_url": f"{served.url}/v1/{path}",
        **({"max_length": served.max_model_len} if served.max_model_len else {}),
        "num_concurrent": served.concurrency,
        "timeout": _TIMEOUT_S,
        "seed": asked.seed,
        **({"header": _background_header(served.api_key)} if asked.background else {}),
    }
    if asked.chat and generates:
        return {**shared, "tokenizer_backend": None, "tokenized_requests": False, "batch_size": 1}
    return {
        **shared,
        "tokenizer": served.tokenizer,
        "tokenizer_backend": "huggingface",
        "batch_size": 1 if generates else _PROMPTS_A_REQUEST,
    }


def _count(client: Any, progress: Progress) -> None:
    """Have `progress` hear of each request that is wanted and of each answer that came."""
    wanted = answered = 0

    def wants(verb: Callable[..., Any]) -> Callable[..., Any]:
        def asking(requests: Any, *args: Any, **kwargs: Any) -> Any:
            nonlocal wanted
            wanted += len(requests)
            return verb(requests, *args, **kwargs)

        return asking

    def answers(messages: Any) -> None:
        nonlocal answered
        answered += len(messages)
        progress(answered, max(wanted, answered))

    call, acall = client.model_call, client.amodel_call

    def counted_call(messages: Any, *args: Any, **kwargs: Any) -> Any:
        answer = call(messages, *args, **kwargs)
        answers(messages)
        return answer

    async def counted_acall(session: Any, sem: Any, messages: Any, **kwargs: Any) -> Any:
        answer = await acall(session, sem, messages, **kwargs)
        answers(messages)
        return answer

    client.model_call, client.amodel_call = counted_call, counted_acall
    for name in ("loglikelihood", "loglikelihood_rolling", "generate_until"):
        setattr(client, name, wants(getattr(client, name)))


class _Keyed:
    """lm-eval's cache hook, less the parts of rolling log-likelihoods: without a key it fails on them (0.4.13)."""

    def __init__(self, hook: Any) -> None:
        self._hook = hook

    def add_partial(self, attr: str, req: Any, res: Any) -> None:
        """Keep one answer as it comes."""
        if req is not None:
            self._hook.add_partial(attr, req, res)


def _background_header(api_key: str) -> dict[str, str]:
    """lm-eval's `header` takes the place of its own, the key's among them."""
    return {"Authorization": f"Bearer {api_key}", "x-qserve-priority": "background"}


class _Heard(logging.Handler):
    """lm-eval logs what a server answered in place of an answer, and raises an error without it."""

    last = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the reason of the last refusal."""
        _, found, text = record.getMessage().partition("Response text: ")
        if found:
            self.last = text.removesuffix(". Retrying...")[:500]


@contextlib.contextmanager
def _environment(api_key: str) -> Iterator[_Heard]:
    """lm-eval reads the key from the environment, draws bars for single items (the caller draws one for all), and asks
    git about whatever folder the user stands in.
    """
    from lm_eval import evaluator

    told = {"OPENAI_API_KEY": api_key or "none", "TOKENIZERS_PARALLELISM": "false"}
    before = {name: os.environ.get(name) for name in told}
    heard, logger, ask_git = _Heard(), logging.getLogger("lm_eval"), evaluator.get_git_commit_hash
    os.environ.update(told)
    evaluator.get_git_commit_hash = lambda: None
    try:
        with quiet(), Path(os.devnull).open("w") as nowhere, contextlib.redirect_stderr(nowhere):
            logger.setLevel(logging.WARNING)
            logger.addHandler(heard)
            yield heard
    finally:
        logger.removeHandler(heard)
        evaluator.get_git_commit_hash = ask_git
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})
