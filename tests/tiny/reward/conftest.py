"""One checkpoint of each format and kind of body, made once, and scorers over them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from qserve.detect import detect
from qserve.planner import PlanRequest
from qserve.reward.open import open_scorer
from qserve.reward.scoring.scorer import RewardScorer
from qserve.reward.settings import RewardSettings
from tests.tiny.reward.host import ANSWERS, MODEL, PROMPT, SIMPLE, Caller, running
from tests.tiny.reward.make_checkpoints import EMBEDDERS, MADE
from tests.tiny.reward.plain_transformers import Plain
from tests.tiny.serving.served import Service

Opener = Callable[..., RewardScorer]


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """`made(kind)`: the path of a checkpoint of that kind (of `make_checkpoints.py`)."""

    @cache
    def make(kind: str) -> Path:
        torch.manual_seed(len(kind))
        torch.set_num_threads(1)
        return {**MADE, **EMBEDDERS}[kind](tmp_path_factory.mktemp(kind.replace(" ", "-")) / "model")

    return make


@pytest.fixture(scope="session")
def opened(made: Callable[[str], Path]) -> Opener:
    """`opened(kind, dtype=…, **settings)`: a scorer over it, in float32 unless told otherwise."""

    @cache
    def open_one(kind: str, dtype: str = "float32", quant: str = "auto", **settings: Any) -> RewardScorer:
        path = made(kind)
        if kind.startswith("reward-head"):
            settings.setdefault("base", str(path.parent / "base"))
        return open_scorer(str(path), RewardSettings(**settings), detect(), PlanRequest(dtype=dtype, quant=quant))

    return open_one


@pytest.fixture(scope="session")
def both(made: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """The demo and SIMPLE behind one gateway."""
    flags = ("--model", "demo", "--dtype", "float32", "--reward", str(made(SIMPLE)), "--served-reward-name", MODEL)
    with running(Service(flags, tmp_path_factory.mktemp("both"))) as started:
        yield started


@pytest.fixture(scope="module")
def caller(service: Service, opened: Opener) -> Iterator[Caller]:
    """Of the module's `service`, which hosts SIMPLE."""
    one = Caller(service.url, opened(SIMPLE))
    with one.client:
        yield one


@pytest.fixture(scope="module")
def expected(made: Callable[[str], Path], opened: Opener) -> list[float]:
    """Rewards of ANSWERS to PROMPT: in float32, one text at a time."""
    plain, template = Plain(SIMPLE, made(SIMPLE)), opened(SIMPLE).template
    turns = [[{"role": "user", "content": PROMPT}, {"role": "assistant", "content": answer}] for answer in ANSWERS]
    return [float(plain.values(template.encode(one).token_ids)[-1, 0]) for one in turns]
