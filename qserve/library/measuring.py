"""`qserve.evaluate` and `qserve.compare`: lm-eval's figures of a model, and what a quantization costs."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from qserve.evaluation.comparison.compare import Candidate, candidates_of
from qserve.evaluation.results import EvalResult
from qserve.library.flags import Value, called, flags_of, names_in

__all__ = ["compare", "evaluate"]


def evaluate(
    model: str | None = None,
    *,
    url: str | None = None,
    tasks: Sequence[str] | str = (),
    suite: str | None = None,
    **options: Value,
) -> EvalResult:
    """lm-eval against a server: accuracies with standard errors (`scores()`), every answer (`samples(task)`).

    Args:
        model: served for the time of the call; None: the server at `url`.
        url: a running server; `api_key` is among the options.
        tasks: lm-eval's names, or one name.
        suite: `offline` needs no network.
        options: the flags of `qserve eval` by name: `limit`, `num_fewshot`, `chat`, `quant`, `seed`, …

    Raises UsageError for what can't be asked, WorkerFailed where the server did not start or stopped answering.

    """
    named = {"model": model, "url": url, "tasks": _with_commas(tasks) or None, "suite": suite}
    with tempfile.TemporaryDirectory(prefix="qserve-eval-") as folder:
        called("eval", *flags_of({**named, **options, "out": folder}))
        return EvalResult.load(Path(folder))


def compare(
    model: str | None = None,
    *,
    reward: str | None = None,
    quants: Sequence[str] | str = ("bf16", "int8", "4bit"),
    out: str | Path | None = None,
    **options: Value,
) -> list[Candidate]:
    """One model at several quantizations: accuracy, memory and latency of each, with differences to the first.

    Args:
        model: or `reward`: what is served, once for each of `quants`.
        reward: a trained reward model.
        quants: as `--quant` takes them.
        out: a folder that keeps all of it, and goes on with what is finished there; None keeps nothing.
        options: the flags of `qserve compare` by name: `suite`, `limit`, `preferences`, `seed`, `up_args`.

    Raises UsageError for bad input, WorkerFailed where a server did not start or stopped answering.

    """
    with tempfile.TemporaryDirectory(prefix="qserve-compare-") as temporary:
        folder = Path(out or temporary)
        named = {"model": model, "reward": reward, "quants": _with_commas(quants), "out": str(folder)}
        called("compare", *flags_of({**named, **options}))
        return candidates_of([folder / quant for quant in names_in(_with_commas(quants))])


def _with_commas(names: Sequence[str] | str) -> str:
    """One name is no sequence of letters."""
    return names if isinstance(names, str) else ",".join(names)
