"""Runs lm-eval's Python API against a server: tasks, prompts, metrics and cache are lm-eval's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from qserve.errors import WorkerFailed
from qserve.evaluation.answers.cache import answers_stem, generations_file
from qserve.evaluation.answers.generations import Generations, counts_of, with_generations
from qserve.evaluation.answers.repeated import combined
from qserve.evaluation.answers.thinking import Thinking
from qserve.evaluation.environment import LmEvalLog, lm_eval_environment
from qserve.evaluation.refusals import Refusals
from qserve.evaluation.request import EvalRequest
from qserve.evaluation.server import ServedModel
from qserve.evaluation.tasks import Tasks, TaskSpec, import_lm_eval, load_tasks
from qserve.evaluation.tokenizer import load_tokenizer

__all__ = ["Progress", "evaluate"]

Progress = Callable[[int, int], None]
"""`progress(answered, wanted)`, in requests; `wanted` grows as tasks begin."""

_TIMEOUT_S = 3600


@dataclass(frozen=True)
class _Pass:
    """Tasks that are asked through one client, one answer each. Files of the cache carry `name`."""

    name: str
    specs: tuple[TaskSpec, ...]
    by_chat: bool
    thinking: Thinking
    seed: int


def evaluate(
    served: ServedModel,
    request: EvalRequest,
    cache: Path | None,
    progress: Progress,
    tasks: Tasks | None = None,
    thinking: Thinking | None = None,
    log: LmEvalLog | None = None,
) -> dict[str, Any]:
    """lm-eval's result, whole: results, configs, versions, samples; thoughts and outcomes with the samples.

    With `cache`, a folder, answers are kept there as they come, and what it holds is not asked again: an evaluation
    that was interrupted goes on. `progress` hears how many requests are answered, and of how many. `tasks` are those of
    `request`, where they were loaded before. Generative tasks of a chat go through /v1/chat/completions, others through
    /v1/completions; both may be in one request. Raises UsageError for an unknown task or tokenizer, MissingExtra
    without lm-eval, WorkerFailed when the server stops answering.
    """
    tasks = tasks or load_tasks(request.tasks, request.include_path)
    thinking = thinking or Thinking()
    passes = _passes(request, tasks, thinking)
    if any(not one.by_chat for one in passes):
        load_tokenizer(served.tokenizer)  # lm-eval would fail on it with a traceback
    stem = None if cache is None else answers_stem(cache, served, request)
    refusals = Refusals()
    harness = _HarnessRun(served, request, tasks, stem, _Counted(progress), log or LmEvalLog(), refusals)
    results = [harness.run(one) for one in passes]
    by_seed = [
        _merged([told for one, told in zip(passes, results, strict=True) if one.seed == seed])
        for seed in dict.fromkeys(one.seed for one in passes)
    ]
    result = _with_counts(combined(by_seed) if len(by_seed) > 1 else by_seed[0])
    left_out = refusals.left_out(result, tasks.unscorable(request.limit))
    return {**result, "unscorable": left_out} if left_out else result


def _passes(request: EvalRequest, tasks: Tasks, thinking: Thinking) -> list[_Pass]:
    """Log-likelihoods are the same each time: only what is generated is asked `num_samples` times."""
    generative = tuple(spec for spec in tasks.specs if spec.only_generates)
    by_chat = generative if request.chat else ()
    by_prompt = tuple(spec for spec in tasks.specs if spec not in by_chat)
    passes = []
    for index in range(request.num_samples):
        seed = request.seed + index
        if by_chat:
            passes.append(_Pass(f"chat-{seed}", by_chat, True, thinking, seed))
        again = tuple(spec for spec in by_prompt if spec.only_generates) if index else by_prompt
        if again:
            off = Thinking(template_kwargs=_switched_off(thinking), is_split=False)
            passes.append(_Pass(f"plain-{seed}", again, False, off, seed))
    return passes


def _switched_off(thinking: Thinking) -> dict[str, bool] | None:
    """Prompts that end before a choice have no thought, wherever the template has a switch."""
    return {"enable_thinking": False} if thinking.has_switch else None


@dataclass(frozen=True)
class _HarnessRun:
    """What all passes of one evaluation share; `stem`: where answers are kept, None for nowhere."""

    served: ServedModel
    request: EvalRequest
    tasks: Tasks
    stem: Path | None
    counted: _Counted
    log: LmEvalLog
    refusals: Refusals

    def run(self, one: _Pass) -> dict[str, Any]:
        """lm-eval's result of one pass."""
        lm_eval, request = import_lm_eval(), self.request
        generations = Generations(None if self.stem is None else generations_file(self.stem, one.name))
        with lm_eval_environment(self.served.api_key, self.log):
            try:
                result = lm_eval.simple_evaluate(
                    model=self._client(one, generations),
                    use_cache=None if self.stem is None else f"{self.stem}-{one.name}",
                    tasks=[spec.spec for spec in one.specs],
                    task_manager=self.tasks.manager,
                    num_fewshot=request.num_fewshot,
                    limit=request.limit,
                    apply_chat_template=request.chat,
                    gen_kwargs=dict(request.gen_kwargs) or None,
                    random_seed=request.seed,
                    numpy_random_seed=request.seed,
                    torch_random_seed=request.seed,
                    fewshot_random_seed=request.seed,
                    confirm_run_unsafe_code=False,
                )
            except Exception as error:
                if not _is_of_the_server(error):
                    raise
                kept = ". The answers so far are kept; the same command continues" if self.stem else ""
                reason = self.log.last_refusal or repr(error)
                raise WorkerFailed(f"{self.served.url} stopped answering: {reason}{kept}") from error
        assert result is not None, "lm-eval says nothing only on ranks other than 0"
        return with_generations(dict(result), generations)

    def _client(self, one: _Pass, generations: Generations) -> Any:
        from qserve.evaluation.client import ChatClient, CompletionClient, Settings

        kind = ChatClient if one.by_chat else CompletionClient
        client = kind(**self._arguments(one))
        client.settings = Settings(self.served, self.request, one.thinking, generations, self.refusals)
        keep = client.set_cache_hook
        client.set_cache_hook = lambda hook: keep(_Keyed(hook))
        self.counted.count(client)
        return client

    def _arguments(self, one: _Pass) -> dict[str, Any]:
        served = self.served
        path = "chat/completions" if one.by_chat else "completions"
        shared = {
            "batch_size": 1,
            "model": served.model,
            "base_url": f"{served.url}/v1/{path}",
            **({"max_length": served.max_model_len} if served.max_model_len else {}),
            # More than one: then each request is a task of its own, which knows its question (client.py).
            "num_concurrent": max(2, served.concurrency),
            "timeout": _TIMEOUT_S,
            "seed": one.seed,
            **({"header": _background_header(served.api_key)} if self.request.background else {}),
        }
        if one.by_chat:
            return {**shared, "tokenizer_backend": None, "tokenized_requests": False}
        return {**shared, "tokenizer": served.tokenizer, "tokenizer_backend": "huggingface"}


class _Counted:
    """Has `progress` hear of each request that is wanted and of each answer that came, over all passes."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._wanted = self._answered = 0

    def count(self, client: Any) -> None:
        """Count what this client asks."""
        acall = client.amodel_call

        async def counted(session: Any, sem: Any, messages: Any, **kwargs: Any) -> Any:
            answer = await acall(session, sem, messages, **kwargs)
            self._answered += len(messages)
            self._progress(self._answered, max(self._wanted, self._answered))
            return answer

        client.amodel_call = counted
        for name in ("loglikelihood", "loglikelihood_rolling", "generate_until"):
            setattr(client, name, self._wants(getattr(client, name)))

    def _wants(self, verb: Callable[..., Any]) -> Callable[..., Any]:
        def asking(requests: Any, *args: Any, **kwargs: Any) -> Any:
            self._wanted += len(requests)
            return verb(requests, *args, **kwargs)

        return asking


class _Keyed:
    """lm-eval's cache hook, less the parts of rolling log-likelihoods: without a key it fails on them (0.4.13)."""

    def __init__(self, hook: Any) -> None:
        self._hook = hook

    def add_partial(self, attr: str, req: Any, res: Any) -> None:
        """Keep one answer as it comes."""
        if req is not None:
            self._hook.add_partial(attr, req, res)


def _merged(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Results of passes with different tasks as one; what is not by task is the first's."""
    whole = dict(results[0])
    for other in results[1:]:
        for key, value in other.items():
            if isinstance(value, Mapping) and isinstance(whole.get(key), Mapping) and key != "config":
                whole[key] = {**whole[key], **value}
            else:
                whole.setdefault(key, value)
    return whole


def _with_counts(result: dict[str, Any]) -> dict[str, Any]:
    """How the answers of each task ended, beside its figures."""
    for task, samples in result["samples"].items():
        counts = counts_of(samples)
        if counts is not None:
            result["results"][task].update(asdict(counts))
    return result


def _is_of_the_server(error: Exception) -> bool:
    packages = {kind.__module__.partition(".")[0] for kind in type(error).__mro__}
    return isinstance(error, ConnectionError | TimeoutError) or bool(packages & {"aiohttp", "requests"})


def _background_header(api_key: str) -> dict[str, str]:
    """lm-eval's `header` takes the place of its own, the key's among them."""
    return {"Authorization": f"Bearer {api_key}", "x-qserve-priority": "background"}
