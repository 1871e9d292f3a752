"""From the flags of `qserve bench` to its load plan: stages, limits, endpoint, prompts."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qserve.errors import UsageError

if TYPE_CHECKING:
    from qserve.bench.client import LoadClient
    from qserve.bench.counting import Counter
    from qserve.bench.dataset import Entry
    from qserve.bench.load import Stage
    from qserve.bench.session import LoadPlan, PromptSource
    from qserve.bench.target import Target

__all__ = ["BenchFlags", "Inputs", "client_of", "inputs_of", "load_plan_of", "source_of"]

_SYNTHETIC_LEN = 128
_MOST_REQUESTS = 1_000_000


@dataclass(frozen=True)
class BenchFlags:
    """The flags of a load test, by the names of its options; `more_limits`: words after the first one of --goodput."""

    more_limits: tuple[str, ...]
    url: str
    api_key: str = field(repr=False)
    model: str | None
    endpoint: str
    concurrency: tuple[int, ...] | None
    request_rate: tuple[float, ...] | None
    burstiness: float
    burst_size: int
    sweep: bool
    max_concurrency: int
    num_prompts: int | None
    duration: float | None
    input_len: int
    output_len: int | None
    range_ratio: float
    shared_prefix_len: int
    dataset: Path | None
    best_of: int | None
    tokenizer: Path | None
    num_warmups: int
    seed: int
    goodput: tuple[str, ...]
    ignore_eos: bool | None
    temperature: float
    extra_body: str
    stream: bool
    timeout: float
    output: Path | None
    csv_file: Path | None
    as_json: bool

    @property
    def scores(self) -> bool:
        """Whether texts are scored, and none generated."""
        return self.endpoint in ("reward", "classify")

    @property
    def synthetic_len(self) -> int:
        """Tokens of an answer to a synthetic prompt."""
        return self.output_len or _SYNTHETIC_LEN


@dataclass(frozen=True)
class Inputs:
    """What flags and files hold, read before the first request: fields of a request, prompts, a tokenizer's counter."""

    extra: dict[str, Any]
    entries: list[Entry] | None
    counter: Counter | None


def inputs_of(flags: BenchFlags) -> Inputs:
    """Raises UsageError for --extra-body, --dataset and --tokenizer that can't be read."""
    from qserve.bench.counting import named_counter
    from qserve.bench.dataset import read_dataset

    return Inputs(
        _extra_body(flags.extra_body),
        None if flags.dataset is None else read_dataset(flags.dataset),
        None if flags.tokenizer is None else named_counter(flags.tokenizer),
    )


def load_plan_of(flags: BenchFlags) -> LoadPlan:
    """Stages and limits from the flags. Raises UsageError for flags that contradict each other."""
    from qserve.bench.metrics import parse_goodput
    from qserve.bench.session import LoadPlan

    limits = [*flags.goodput, *flags.more_limits]
    if flags.more_limits and not flags.goodput:
        raise UsageError(f"{flags.more_limits[0]!r} does not belong to an option; write limits after --goodput")
    given = [name for name in ("concurrency", "request_rate", "sweep") if getattr(flags, name)]
    if len(given) > 1:
        named = " and ".join("--" + name.replace("_", "-") for name in given)
        raise UsageError(f"{named} are different loads; give one of them")
    if not flags.request_rate and (flags.burstiness != 1 or flags.burst_size != 1):
        raise UsageError("--burstiness and --burst-size describe arrivals; use them with --request-rate")
    if flags.best_of and not flags.scores:
        raise UsageError(
            "--best-of is the number of answers that a request scores; use it with --endpoint reward or classify"
        )
    goodput = parse_goodput(limits)
    if goodput and (flags.scores or not flags.stream) and set(goodput) != {"e2el"}:
        raise UsageError("--goodput: without streamed tokens only e2el can be limited")
    stages = _stages(flags)
    _check_amount(stages)
    return LoadPlan(
        stages=stages,
        sweep=flags.max_concurrency if flags.sweep else 0,
        num_warmups=flags.num_warmups,
        seed=flags.seed,
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


def _stages(flags: BenchFlags) -> tuple[Stage, ...]:
    from qserve.bench.load import Stage

    end = Stage(num_prompts=flags.num_prompts, duration_s=flags.duration)
    if flags.request_rate:
        arrivals = replace(end, burstiness=flags.burstiness, burst_size=flags.burst_size)
        return tuple(replace(arrivals, request_rate=rate) for rate in flags.request_rate)
    return tuple(replace(end, concurrency=int(one)) for one in flags.concurrency or (8,))


def client_of(target: Target, flags: BenchFlags, extra: dict[str, Any], counter: Counter) -> LoadClient:
    """The client for the endpoint and model; `extra` are further fields of each request."""
    from qserve.bench.client import LoadClient
    from qserve.bench.endpoints import ENDPOINTS, Endpoint

    name = flags.endpoint
    generates = name in ("chat", "completions")
    ignore_eos = flags.dataset is None if flags.ignore_eos is None else flags.ignore_eos
    endpoint = Endpoint(
        name,
        ENDPOINTS[name],
        target.model,
        streams=flags.stream and generates,
        ignore_eos=ignore_eos and generates,
        temperature=flags.temperature,
        extra=extra,
    )
    return LoadClient(target.address, endpoint, flags.api_key, flags.timeout, counter.count)


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


def source_of(flags: BenchFlags, entries: list[Entry] | None, counter: Counter) -> PromptSource:
    """Synthetic prompts, or `entries` of a file. Raises UsageError where they can't be made."""
    from qserve.bench.dataset import FromFile
    from qserve.bench.prompts import Synthetic, TextMaker

    prefix_len = flags.shared_prefix_len
    prefix, maker = "", None
    if entries is None or prefix_len:
        maker = TextMaker(counter)
        prefix = maker.text(prefix_len, random.Random(f"{flags.seed} prefix")) if prefix_len else ""  # noqa: S311
    if entries is not None:
        return FromFile(entries, counter, flags.output_len, prefix, flags.best_of or 0)
    assert maker is not None
    return Synthetic(
        maker,
        flags.input_len,
        flags.synthetic_len,
        prefix,
        prefix_len,
        flags.range_ratio,
        (flags.best_of or 1) if flags.scores else 0,
    )
