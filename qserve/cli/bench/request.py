"""From the flags of `qserve bench` to its load plan: stages, limits, endpoint, prompts."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from qserve.errors import UsageError

if TYPE_CHECKING:
    from qserve.bench.client import LoadClient
    from qserve.bench.counting import Counter
    from qserve.bench.dataset import Entry
    from qserve.bench.load import Stage
    from qserve.bench.session import LoadPlan, PromptSource
    from qserve.bench.target import Target

__all__ = ["Inputs", "client_of", "inputs_of", "load_plan_of", "source_of"]

_DEFAULT_OUTPUT_LEN = 128
_MOST_REQUESTS = 1_000_000


@dataclass(frozen=True)
class Inputs:
    """What flags and files hold, read before the first request: fields of a request, prompts, a tokenizer's counter."""

    extra: dict[str, Any]
    entries: list[Entry] | None
    counter: Counter | None


def inputs_of(values: dict[str, Any]) -> Inputs:
    """Raises UsageError for --extra-body, --dataset and --tokenizer that can't be read."""
    from qserve.bench.counting import named_counter
    from qserve.bench.dataset import read_dataset

    return Inputs(
        _extra_body(values["extra_body"]),
        None if values["dataset"] is None else read_dataset(values["dataset"]),
        None if values["tokenizer"] is None else named_counter(values["tokenizer"]),
    )


def load_plan_of(values: dict[str, Any]) -> LoadPlan:
    """Stages and limits from the flags. Raises UsageError for flags that contradict each other."""
    from qserve.bench.metrics import parse_goodput
    from qserve.bench.session import LoadPlan

    limits = [*values["goodput"], *values["more_limits"]]
    if values["more_limits"] and not values["goodput"]:
        raise UsageError(f"{values['more_limits'][0]!r} does not belong to an option; write limits after --goodput")
    given = [name for name in ("concurrency", "request_rate", "sweep") if values[name]]
    if len(given) > 1:
        named = " and ".join("--" + name.replace("_", "-") for name in given)
        raise UsageError(f"{named} are different loads; give one of them")
    if not values["request_rate"] and (values["burstiness"] != 1 or values["burst_size"] != 1):
        raise UsageError("--burstiness and --burst-size describe arrivals; use them with --request-rate")
    if values["best_of"] and values["endpoint"] not in ("reward", "classify"):
        raise UsageError(
            "--best-of is the number of answers that a request scores; use it with --endpoint reward or classify"
        )
    goodput = parse_goodput(limits)
    if goodput and (values["endpoint"] in ("reward", "classify") or not values["stream"]) and set(goodput) != {"e2el"}:
        raise UsageError("--goodput: without streamed tokens only e2el can be limited")
    stages = _stages(values)
    _check_amount(stages)
    return LoadPlan(
        stages=stages,
        sweep=values["max_concurrency"] if values["sweep"] else 0,
        num_warmups=values["num_warmups"],
        seed=values["seed"],
        goodput=goodput,
    )


def _check_amount(stages: Sequence[Stage]) -> None:
    """Refuse more requests than fit in memory: an open loop's arrivals and --num-prompts are made before the start."""
    from qserve.bench.session import bounded

    for stage in map(bounded, stages):
        num = stage.num_prompts or math.ceil((stage.request_rate or 0.0) * (stage.duration_s or 0.0))
        if num > _MOST_REQUESTS:
            raise UsageError(
                f"{stage.name}: a stage has {num:,} requests, and at most {_MOST_REQUESTS:,} are allowed; lower "
                "--num-prompts, --request-rate or --duration"
            )


def _stages(values: dict[str, Any]) -> tuple[Stage, ...]:
    from qserve.bench.load import Stage

    ends = {"num_prompts": values["num_prompts"], "duration_s": values["duration"]}
    arrivals = {"burstiness": values["burstiness"], "burst_size": values["burst_size"]}
    if values["request_rate"]:
        return tuple(Stage(request_rate=rate, **arrivals, **ends) for rate in values["request_rate"])
    return tuple(Stage(concurrency=int(one), **ends) for one in values["concurrency"] or (8,))


def client_of(target: Target, values: dict[str, Any], extra: dict[str, Any], counter: Counter) -> LoadClient:
    """The client for the endpoint and model; `extra` are further fields of each request."""
    from qserve.bench.client import LoadClient
    from qserve.bench.endpoints import ENDPOINTS, Endpoint

    name = values["endpoint"]
    generates = name in ("chat", "completions")
    ignore_eos = values["dataset"] is None if values["ignore_eos"] is None else values["ignore_eos"]
    endpoint = Endpoint(
        name,
        ENDPOINTS[name],
        target.model,
        streams=values["stream"] and generates,
        ignore_eos=ignore_eos and generates,
        temperature=values["temperature"],
        extra=extra,
    )
    return LoadClient(target.address, endpoint, values["api_key"], values["timeout"], counter.count)


def _extra_body(text: str) -> dict[str, Any]:
    try:
        fields = json.loads(text)
    except ValueError as error:
        raise UsageError(f"--extra-body {text!r} is not valid JSON: {error}") from None
    if not isinstance(fields, dict):
        raise UsageError(f"--extra-body {text!r} is not a JSON object; write it as '{{\"top_p\": 0.9}}'")
    if "stream" in fields:
        raise UsageError("--extra-body can't set stream; use --no-stream")
    return fields


def source_of(values: dict[str, Any], entries: list[Entry] | None, counter: Counter) -> PromptSource:
    """Synthetic prompts, or `entries` of a file. Raises UsageError where they can't be made."""
    from qserve.bench.dataset import FromFile
    from qserve.bench.prompts import Synthetic, TextMaker

    scores = values["endpoint"] in ("reward", "classify")
    prefix_len = values["shared_prefix_len"]
    prefix, maker = "", None
    if entries is None or prefix_len:
        maker = TextMaker(counter)
        prefix = maker.text(prefix_len, random.Random(f"{values['seed']} prefix")) if prefix_len else ""  # noqa: S311
    if entries is not None:
        return FromFile(entries, counter, values["output_len"], prefix, values["best_of"] or 0)
    assert maker is not None
    return Synthetic(
        maker,
        values["input_len"],
        values["output_len"] or _DEFAULT_OUTPUT_LEN,
        prefix,
        prefix_len,
        values["range_ratio"],
        (values["best_of"] or 1) if scores else 0,
    )
