"""The thinking suite on a served demo of either engine, against lm-eval's own transformers model in this process."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from qserve.evaluation.answers.thinking_mode import thinking_mode
from qserve.evaluation.harness import evaluate
from qserve.evaluation.preview import check_budget
from qserve.evaluation.request import EvalRequest
from qserve.evaluation.server import ServedModel
from qserve.evaluation.tasks import load_tasks

EVALS = Path(__file__).parents[3] / "evals"
TASK = "qserve_demo_think"
BUDGET = 5


def in_process(
    demo: Path, dtype: str, tasks: list[str], limit: int, model_args: dict[str, Any] | None = None, **more: Any
) -> dict[str, Any]:
    """lm-eval's own transformers model. Its softmax in float32: else it rounds log-probabilities to the dtype."""
    import lm_eval
    import torch
    from lm_eval.tasks import TaskManager

    torch.set_num_threads(1)
    arguments = {"pretrained": str(demo), "dtype": dtype, "device": "cpu", "batch_size": 8}
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        results = lm_eval.simple_evaluate(
            model="hf",
            model_args={**arguments, "softmax_dtype": "float32", **(model_args or {})},
            tasks=tasks,
            task_manager=TaskManager(include_path=str(EVALS), include_defaults=False),
            limit=limit,
            bootstrap_iters=0,
            **more,
        )
    assert results is not None
    return results


def check_scores(seen: ServedModel, demo: Path, on: bool, limit: int) -> None:
    """Item for item as in process, with the thought apart."""
    theirs = in_process(
        demo,
        "float32",
        [TASK],
        limit,
        {"enable_thinking": on, "think_end_token": "</think>"},
        apply_chat_template=True,
        gen_kwargs={"max_gen_toks": 256},
    )
    mine = _asked(seen, limit, thinking="on" if on else "off", max_gen_toks=256)
    pairs = list(zip(_by_doc(mine["samples"][TASK]), _by_doc(theirs["samples"][TASK]), strict=True))
    assert len(pairs) == limit
    assert all(one["exact_match"] == other["exact_match"] for one, other in pairs)
    told = mine["results"][TASK]
    print(f"thinking {on}: {told['exact_match,none']:.3f} of {limit}, {told['mean_tokens']} tokens each")
    assert told["num_thoughts"] == (limit if on else 0) and told["truncated"] == 0
    assert told["exact_match,none"] > 0.9 if on else told["exact_match,none"] < 0.9


def check_thinking_budget(seen: ServedModel) -> None:
    """The engine takes it, and ends thoughts there: they are cut short, and answers follow that are worth less."""
    check_budget(seen, BUDGET)
    limit = 8
    whole, cut = (_asked(seen, limit, thinking="on", thinking_budget=budget) for budget in (None, BUDGET))
    for one, other in zip(_by_doc(whole["samples"][TASK]), _by_doc(cut["samples"][TASK]), strict=True):
        # The demo may think on after a tag that it did not write.
        thought, (short, *_) = one["generations"][0]["thought"], other["generations"][0]["thought"].split("</think>")
        assert short and len(short) < len(thought) and thought.startswith(short)
        assert other["generations"][0]["outcome"] in ("complete", "empty")
    told = [of["results"][TASK] for of in (whole, cut)]
    assert told[1]["mean_tokens"] < told[0]["mean_tokens"]


def _asked(seen: ServedModel, limit: int, **more: Any) -> dict[str, Any]:
    """Greedy: what is sampled differs from engine to engine."""
    request = EvalRequest((TASK,), limit=limit, chat=True, gen_kwargs={"temperature": 0}, **more)
    tasks = load_tasks(request.tasks)
    thinking, _ = thinking_mode(seen, request, tasks)
    return evaluate(seen, request, None, lambda answered, wanted: None, tasks, thinking)


def _by_doc(samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(samples, key=lambda sample: sample["doc_id"])
