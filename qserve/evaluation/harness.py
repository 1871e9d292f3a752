"""lm-eval's own Python API over HTTP: tasks, prompts, metrics and cache are its; where it asks, and what, is ours."""

from __future__ import annotations

import contextlib
import logging
import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qserve.errors import MissingExtra, UsageError
from qserve.evaluation.server import ServedModel
from qserve.evaluation.suites import task_folders

__all__ = ["Asked", "Progress", "evaluate", "kinds_of_tasks", "task_manager"]

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


def evaluate(served: ServedModel, asked: Asked, cache: Path | None, progress: Progress) -> dict[str, Any]:
    """lm-eval's result, whole: results, configs, versions, samples.

    With `cache`, answers are kept there as they come, and what it holds is not asked again: an evaluation that was
    interrupted goes on. `progress` hears how many requests are answered, and of how many. Raises UsageError for an
    unknown task, MissingExtra without lm-eval.
    """
    lm_eval = _lm_eval()
    manager = task_manager(asked.tasks)
    generates = kinds_of_tasks(manager, asked.tasks) == {"generate_until"}
    name = "local-chat-completions" if asked.chat and generates else "local-completions"
    with _environment(served.api_key):
        client = lm_eval.api.registry.get_model(name).create_from_arg_obj(_model_args(served, asked, generates), {})
        keep = client.set_cache_hook
        client.set_cache_hook = lambda hook: keep(_Keyed(hook))
        _count(client, progress)
        result = lm_eval.simple_evaluate(
            model=client,
            use_cache=None if cache is None else str(cache / served.fingerprint()),
            tasks=list(asked.tasks),
            task_manager=manager,
            num_fewshot=asked.num_fewshot,
            limit=asked.limit,
            apply_chat_template=asked.chat,
            random_seed=asked.seed,
            numpy_random_seed=asked.seed,
            torch_random_seed=asked.seed,
            fewshot_random_seed=asked.seed,
            confirm_run_unsafe_code=False,
        )
    assert result is not None, "lm-eval says nothing only on ranks other than 0"
    return dict(result)


def kinds_of_tasks(manager: Any, tasks: tuple[str, ...]) -> set[str]:
    """The output types of the tasks: `generate_until`, `multiple_choice`, `loglikelihood`, `loglikelihood_rolling`."""
    with _quiet():
        loaded = manager.load(list(tasks))["tasks"]
    return {task.get_config("output_type") for task in loaded.values()}


def _model_args(served: ServedModel, asked: Asked, generates: bool) -> dict[str, Any]:
    path = "chat/completions" if asked.chat and generates else "completions"
    shared = {
        "model": served.model,
        "base_url": f"{served.url}/v1/{path}",
        "max_length": served.max_model_len,
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


def _lm_eval() -> Any:
    try:
        with _quiet():
            import lm_eval
            import lm_eval.tasks
    except ImportError as error:
        raise MissingExtra("lm-eval", "eval", "`qserve eval`") from error
    return lm_eval


def task_manager(tasks: tuple[str, ...]) -> Any:
    """lm-eval's tasks and ours. Raises UsageError for a name that neither has, MissingExtra without lm-eval."""
    _lm_eval()
    # Its own thousands of tasks take seconds to list; ours are there at once.
    for include_defaults in (False, True):
        manager = _manager(include_defaults)
        unknown = [task for task in tasks if not manager.match_tasks([task])]
        if not unknown:
            return manager
    raise UsageError(
        f"--tasks {unknown[0]}: lm-eval has no task of that name; `lm_eval ls tasks` lists them, and those that need "
        "no network are the suite offline"
    )


def _manager(include_defaults: bool) -> Any:
    from lm_eval.tasks import TaskManager

    with _quiet():
        return TaskManager(include_path=[str(folder) for folder in task_folders()], include_defaults=include_defaults)


@contextlib.contextmanager
def _environment(api_key: str) -> Iterator[None]:
    """lm-eval reads the key from the environment, and draws bars for single items: the caller draws one for all."""
    told = {"OPENAI_API_KEY": api_key or "none", "TOKENIZERS_PARALLELISM": "false"}
    before = {name: os.environ.get(name) for name in told}
    os.environ.update(told)
    try:
        with _quiet(), Path(os.devnull).open("w") as nowhere, contextlib.redirect_stderr(nowhere):
            yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """What lm-eval, datasets and their dependencies warn of is theirs; errors still show."""
    logger = logging.getLogger("lm_eval")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)
