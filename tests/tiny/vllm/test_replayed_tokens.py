"""Known tokens in vLLM's second model runner, which runs on cards alone: by its own classes, over logits of ours.

In the first, whole services show it: tests/tiny/vllm_served/test_continued.py.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from qserve.engines.vllm.launch.plugins import replayed_tokens
from qserve.engines.vllm.launch.plugins.replayed_tokens import REPLAYED

second = pytest.importorskip("vllm.v1.worker.gpu.sample.logits_processor")
VOCAB = 5


def changed(config: Any, state: Any) -> list[Any]:
    """What the runner builds, in a copy of its module."""
    names = ("LogitsProcessor", "LogitsProcRequestState", "build_custom_logits_processors")
    module = SimpleNamespace(**{name: getattr(second, name) for name in names})
    replayed_tokens._add_to_second_runner(module)
    built: list[Any] = module.build_custom_logits_processors(config, state, False)
    return built


def a_state(*prompt_lens: int) -> Any:
    names = ("device", "max_num_reqs", "vocab_size", "all_token_ids", "prefill_len", "total_len")
    return SimpleNamespace(**dict.fromkeys(names), prompt_len=SimpleNamespace(np=np.array(prompt_lens)))


def drawn(processor: Any, slots: list[int], seq_lens: list[int]) -> list[int | None]:
    """The only token that each row may have, or None."""
    logits = torch.randn(len(slots), VOCAB)
    context = SimpleNamespace(idx_mapping_np=np.array(slots), seq_lens_upper_bound_np=np.array(seq_lens))
    allowed = torch.isfinite(processor.apply(logits, context))
    return [int(row.nonzero()) if row.sum() == 1 else None for row in allowed]


def test_a_request_draws_what_is_known_of_it() -> None:
    config = SimpleNamespace(speculative_config=None)
    (processor,) = changed(config, a_state(7, 3, 4))
    assert isinstance(processor, second.LogitsProcessor)
    assert processor.add_request(1, SimpleNamespace(extra_args={REPLAYED: [[4, 2]]}))
    assert not processor.add_request(0, SimpleNamespace(extra_args=None))
    assert drawn(processor, [0, 1], [7, 2]) == [None, None], "the prompt is not whole yet"
    assert drawn(processor, [0, 1], [7, 3]) == [None, 4]
    assert drawn(processor, [1, 0], [4, 8]) == [2, None]
    assert drawn(processor, [1, 0], [5, 9]) == [None, None], "what is new is drawn"
    assert not processor.add_request(1, SimpleNamespace(extra_args={}))
    assert drawn(processor, [1], [3]) == [None], "a slot's next request has nothing of the last one's"


def test_drafts_have_none() -> None:
    assert changed(SimpleNamespace(speculative_config=object()), a_state(1)) == []
