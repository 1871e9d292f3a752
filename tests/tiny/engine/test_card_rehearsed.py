"""The path of a card, rehearsed without one: a decoding step waits for its tokens, once, and for nothing else.

No tensor of it is left in RAM, a capture asks for nothing, and Triton's kernels get what they name.
"""

from __future__ import annotations

import asyncio
import gc
import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from torch.nn.attention import varlen
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

from qserve.core.hardware import Device, formats_of
from qserve.detect import detect
from qserve.engines.transformers.kernels.decode_sizes import batch_sizes
from qserve.engines.transformers.worker.attention import kernels, packed, sources
from qserve.engines.transformers.worker.attention.pages import PagedKernel, PageStep, gathered
from qserve.engines.transformers.worker.attention.triton_decode import PagedDecode
from qserve.engines.transformers.worker.batching.batcher import BatchLimits
from qserve.engines.transformers.worker.batching.prompt_logprobs import PromptToScore, score_prompts
from qserve.engines.transformers.worker.batching.rows.batcher import RowBatcher
from qserve.engines.transformers.worker.decoding import check
from qserve.engines.transformers.worker.decoding.body import DenseSteps
from qserve.engines.transformers.worker.decoding.choose import can_be_captured, choose_layers
from qserve.engines.transformers.worker.decoding.forward import capture_on_card
from qserve.engines.transformers.worker.decoding.operations import ON_CARDS
from qserve.engines.transformers.worker.grammar.matcher import Grammar
from qserve.engines.transformers.worker.sampling.batch import BatchSampler
from qserve.engines.transformers.worker.sampling.grammar_state import AnswerGrammar
from qserve.engines.transformers.worker.sampling.params import TokenChoice
from qserve.hub import resolve
from qserve.model.cuda import linear, operations
from qserve.model.cuda.products import BY_PIECES, KERNEL, LIBRARY, PRODUCTS, by_rows
from qserve.model.layer_stream import LayerStream
from qserve.model.load import load
from qserve.planner import PlanRequest, make_plan
from qserve.reward.scoring import attention
from qserve.reward.scoring.forward import PooledText, forward_packed
from qserve.reward.scoring.pooling import Pooled
from qserve.reward.scoring.rows import grouped
from tests.tiny.engine.fake_card import FakeCard, fake_card
from tests.tiny.engine.fake_models import VOCABULARY, build, in_place, stepping, weight
from tests.tiny.engine.families import DENSE_HYBRID
from tests.tiny.engine.running import sequence

END = 7
CUDA = torch.device("cuda", 0)


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a card runs in the place of torch's small operations, up to the launch."""
    pytest.importorskip("bitsandbytes")
    triton_kernels = pytest.importorskip("qserve.engines.transformers.worker.decoding.triton_kernels")
    for name in ("add_rms_norm", "rotate_and_store", "silu_and_multiply"):
        monkeypatch.setattr(torch.ops.qserve, name, getattr(triton_kernels, name))
    multiplied = partial(operations._of_any_shape, by_rows)
    monkeypatch.setattr(linear, "multiply", multiplied)


class AllAllowed:
    """A matcher of llguidance's, of a grammar that forbids nothing."""

    def deep_copy(self) -> AllAllowed:
        return self

    def consume_token(self, token_id: int) -> None:
        pass

    def is_stopped(self) -> bool:
        return False

    def is_error(self) -> bool:
        return False

    def compute_bitmask(self) -> bytes:
        return b"\xff" * (VOCABULARY // 8)


def of_ours(waits: list[str]) -> list[str]:
    """Those that the library does not ask for, but for the tokens."""
    return [one for one in waits if "qserve/" in one and not one.startswith("an event")]


def is_event(waits: list[str]) -> bool:
    return len(waits) == 1 and waits[0].startswith("an event qserve/model/transfers.py")


@pytest.mark.parametrize(
    ("family", "held", "kernel"),
    [
        ("qwen3", "bf16", in_place),
        ("qwen3", "bf16", PagedDecode(132)),
        ("qwen3", "bf16", gathered),
        ("qwen2", "bf16", PagedDecode(132)),
        ("qwen3", "int8", in_place),
        ("qwen3", "nf4", PagedDecode(132)),
        ("qwen3", "fp4", gathered),
        ("qwen3-moe", "bf16", in_place),
    ],
    ids=lambda one: getattr(one, "__name__", None) or type(one).__name__ if callable(one) else one,
)
def test_a_step_waits_for_its_tokens_alone(
    card: FakeCard, family: str, held: str, kernel: PagedKernel, launches: None
) -> None:
    """Sizes are captured before the first step, and each step of a run is a replay; not of keys that are copied."""
    model = build(family, held)
    is_dense = family != "qwen3-moe"
    is_captured = is_dense and kernel is not gathered
    assert (DenseSteps.of(model) is not None) == is_dense and can_be_captured(model)
    with stepping(card, model, kernel) as steps:
        steps.submit(*(sequence(f"r{i}", [1] * (20 + i), 30) for i in range(6)))
        assert ("fused_products" in model.model.layers[0].self_attn.__dict__) == is_dense
        num_captured = len(batch_sizes(32)) * is_captured
        assert len(card.captured) == num_captured and card.num_replayed == 0
        # Where no kernel reads the pages of prompts, their bounds are read once a step.
        assert ["packed.py" in one for one in of_ours(steps.take())] == [True, True] * (kernel is not in_place)
        assert steps.take() == [] and steps.is_in_run
        for _ in range(3):
            assert is_event(steps.take())
        assert len(card.captured) == num_captured and card.num_replayed == 4 * is_captured
    if is_captured:  # once as it stands and once in the graph, in each of two layers, and nothing since
        assert card.launched.count("_rotate_and_store") == 2 * 2 * num_captured
        in_each_layer = 2 * 2 * num_captured * isinstance(kernel, PagedDecode)
        assert card.launched.count("_attend_parts") == card.launched.count("_combine_parts") == in_each_layer
        assert card.launched.count("_divide_keys") == in_each_layer // 2


def test_a_capture_writes_where_the_next_step_reads(card: FakeCard) -> None:
    """Logits, positions and the pages of keys: the memory that was there before it."""
    with stepping(card, build("qwen3"), in_place) as steps:
        steps.submit(sequence("one", [1] * 20, 30))
        for _ in range(3):
            steps.take()
        forwards, cache = steps.forwards, steps.processor.cache.cache_tensor
        for kept in (forwards._logits, forwards._buffers.positions, cache):
            assert all(kept.untyped_storage()._cdata in written for written in card.captured)


DRAWS: dict[str, list[dict[str, Any]]] = {
    "temperature": [{"temperature": 1.0}],
    "top-k": [{"temperature": 0.7, "top_k": 20, "top_p": 0.8}],
    "top-p": [{"temperature": 1.0, "top_p": 0.9}],
    "min-p": [{"temperature": 1.0, "min_p": 0.1}],
    "repetition": [{"repetition_penalty": 1.2}],
    "frequency and presence": [{"temperature": 1.0, "frequency_penalty": 0.5, "presence_penalty": 0.5}],
    "logprobs": [{"num_logprobs": 3}, {"temperature": 1.0, "num_logprobs": 0}],
    "bias": [{"logit_bias": {5: 1.0}}],
    "min_tokens": [{"min_tokens": 5, "stop_token_ids": frozenset({END})}],
    "grammar": [{"grammar": AnswerGrammar(Grammar(AllAllowed()))}],
    "grammar, min_tokens": [
        {"grammar": AnswerGrammar(Grammar(AllAllowed())), "min_tokens": 5, "stop_token_ids": frozenset({END})}
    ],
    "thought": [
        {
            "grammar": AnswerGrammar(Grammar(AllAllowed()), thought="open", think_ids=((3,), (4,))),
            "stop_token_ids": frozenset({END}),
        }
    ],
}


@pytest.mark.parametrize("asked", DRAWS.values(), ids=DRAWS)
def test_no_draw_asks_for_more(card: FakeCard, asked: list[dict[str, Any]]) -> None:
    """It is launched without a question, and its tokens are waited for when they are read."""
    samplers = [sequence("one", [1] * 20, 30, **one).sampler for one in asked * 2]
    scores, drawing = torch.empty(len(samplers), VOCABULARY, device=CUDA), BatchSampler()
    for _ in range(3):
        for one in samplers:
            one.wait()
        drawn = drawing.draw(samplers, scores)
        assert card.waits == []
        assert all(isinstance(one, TokenChoice) for one in drawn.choices())
        assert is_event(card.waits)
        card.waits.clear()


def test_draws_of_all_kinds_in_one_step(card: FakeCard) -> None:
    kinds = [{}, *(one for kind in DRAWS.values() for one in kind)]
    with stepping(card, build("qwen3"), in_place) as steps:
        steps.submit(*(sequence(f"r{i}", [1] * 20, 30, **one) for i, one in enumerate(kinds)))
        assert not of_ours(steps.take())
        assert steps.take() == []
        for _ in range(3):
            assert is_event(steps.take())


def test_pages_grow_sequences_end_and_others_come(card: FakeCard) -> None:
    with stepping(card, build("qwen3"), in_place) as steps:
        steps.submit(sequence("short", [1] * 20, 5), sequence("long", [1] * 252, 30))
        steps.take()
        seen = []
        for _ in range(12):
            before, waits = steps.is_in_run, steps.take()
            if before and steps.is_in_run:
                assert is_event(waits)
            assert not of_ours(waits)
            seen.append(steps.is_in_run)
        assert seen.count(True) >= 8 and False in seen  # the run of two ends with the short one
        steps.submit(sequence("late", [1] * 700, 30))
        for _ in range(4):
            assert not of_ours(steps.take())
        assert steps.is_in_run


def test_who_sits_out_is_not_waited_for(card: FakeCard, monkeypatch: pytest.MonkeyPatch) -> None:
    from qserve.engines.transformers.worker.decoding import run

    with stepping(card, build("qwen3"), in_place) as steps:
        steps.submit(*(sequence(f"r{i}", [1] * 20, 30) for i in range(3)))
        for _ in range(2):
            steps.take()
        monkeypatch.setattr(run, "late_rows", lambda samplers: frozenset({1}))
        for _ in range(3):
            assert is_event(steps.take())


def test_hybrids_wait_for_their_tokens_alone(card: FakeCard) -> None:
    with CUDA:
        model = Qwen3_5ForCausalLM._from_config(Qwen3_5TextConfig(**DENSE_HYBRID), dtype=torch.bfloat16).eval()
    loop = asyncio.new_event_loop()
    batcher = RowBatcher(model, loop, BatchLimits(4096, 8, 256))
    with mock.patch.object(batcher, "_run"):  # this thread takes its steps
        batcher.start(lambda error: None)
    batcher.submit(sequence("one", [1] * 20, 30))
    batcher.submit(sequence("longer", [1] * 150, 30, temperature=1.0))
    batcher._take_in(batcher._inbox.wait(True))
    card.waits.clear()
    batcher._prefill()
    assert len(card.waits) == 2 and is_event(card.waits[:1]) and is_event(card.waits[1:])
    for _ in range(3):
        card.waits.clear()
        batcher._decode()
        assert is_event(card.waits)
    batcher.stop()
    loop.close()


def test_kernels_are_tried_at_start_on_the_card_of_the_model(card: FakeCard, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that stands between here and the launch; what they say has no values."""
    pytest.importorskip("triton")
    for name, one in ON_CARDS.items():
        monkeypatch.setitem(ON_CARDS, name, one)
    monkeypatch.setattr(check, "_same", lambda tried, plain, arguments: [tried(*arguments)] != [])
    chosen = choose_layers(build("qwen3"))
    assert chosen.dense is not None and chosen.capture is capture_on_card and not chosen.refused
    assert set(card.launched) == {"_add_rms_norm", "_rotate_and_store", "_silu_and_multiply"}


@pytest.mark.skipif("block_table" not in (varlen.varlen_attn.__kwdefaults__ or {}), reason="torch 2.12 has its first")
def test_torch_s_own_kernel_reads_pages_in_a_capture(card: FakeCard) -> None:
    with CUDA:
        query, pages = (torch.empty(*shape, dtype=torch.bfloat16) for shape in ((3, 4, 128), (6, 256, 2, 128)))
        int32 = partial(torch.zeros, dtype=torch.int32)
        step = PageStep(torch.zeros(3, dtype=torch.long), int32(3, 2), int32(3), int32(4), 1, 512, in_place)
    for read in sources._torch_varlen():
        with card.capture():
            assert read(query, pages, pages, step, 0.1).shape == query.shape


def test_a_torch_whose_kernel_reads_no_pages_says_so(card: FakeCard, monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch 2.11: its reason is told where the choice is."""
    monkeypatch.setattr(varlen, "varlen_attn", lambda query, key, value, *, scale, window_size: query)
    chosen = kernels.choose_kernel(CUDA, kernels.Heads(4, 2, 128, torch.bfloat16))
    assert chosen.name == kernels.GATHERED
    assert "does not read page tables" in chosen.passed_over[sources.TORCH_VARLEN]


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize(
    ("held", "name", "num"),
    [
        ("int8", BY_PIECES, 70),
        *((kind, BY_PIECES, 70) for kind in ("nf4", "fp4")),
        ("nf4", LIBRARY, 4),
        *((kind, KERNEL, num) for kind in ("int8", "nf4") for num in (1, 5, 64)),
    ],
)
def test_products_by_quantized_weights_can_be_captured(
    card: FakeCard, held: str, name: str, num: int, has_bias: bool
) -> None:
    pytest.importorskip("bitsandbytes" if name != KERNEL else "triton")
    with CUDA:
        rows, bias = torch.empty(num, 256, dtype=torch.bfloat16), torch.empty(512, dtype=torch.bfloat16)
        held_weight = weight(held, 512, 256)
    with card.capture():
        said = PRODUCTS[name](rows, held_weight, bias if has_bias else None)
    assert (said.shape, said.dtype, said.device.type) == ((num, 512), torch.bfloat16, "cuda")
    assert len(card.launched) == (name == KERNEL)


def test_layers_in_ram_are_sent_and_not_waited_for(card: FakeCard) -> None:
    model = build("qwen3")
    stream = LayerStream(list(model.model.layers), CUDA)
    assert DenseSteps.of(model) is not None
    ids = torch.ones(1, 5, dtype=torch.long, device=CUDA)
    card.waits.clear()  # of the weights on their way to RAM
    for _ in range(3):
        assert model(input_ids=ids, use_cache=False).logits.device.type == "cuda"
    assert card.waits == [] and stream.num_copies == 2 and stream.is_pinned
    sizes = [storage.nbytes() for storage in card.pinned.values()]
    assert sizes and all(size & (size - 1) == 0 for size in sizes)  # as torch pins them
    del model, stream
    gc.collect()
    assert not card.pinned


@pytest.mark.parametrize("num_pinned", [0, 1])
def test_layers_that_can_t_be_pinned_are_waited_for(
    card: FakeCard, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, num_pinned: int
) -> None:
    """As under WSL, which pins half of the RAM: said once, and asked for once more than it went well."""
    pinned: list[torch.Tensor] = []

    def pin(tensor: torch.Tensor) -> torch.Tensor:
        pinned.append(tensor)
        if len(pinned) > num_pinned:
            raise torch.AcceleratorError("CUDA error: out of memory\nCUDA kernel errors might be reported later")
        return FakeCard.pin(card, tensor)

    monkeypatch.setattr(card, "pin", pin)
    model = build("qwen3")
    stream = LayerStream(list(model.model.layers), CUDA)
    assert not stream.is_pinned and len(pinned) == num_pinned + 1
    assert caplog.messages == [stream.sentence]
    assert "can't be pinned (AcceleratorError: CUDA error: out of memory): the card waits" in stream.sentence
    card.waits.clear()
    model(input_ids=torch.ones(1, 5, dtype=torch.long, device=CUDA), use_cache=False)
    assert len(card.waits) == stream.num_copies - num_pinned > 0
    del model, stream
    gc.collect()  # while the card is there


def test_a_prompt_s_log_probabilities_are_all_that_is_read(card: FakeCard) -> None:
    model = build("qwen3")
    packed.use(model)
    prompts = [PromptToScore([1] * 10, 3, sequence("one", [1], 1).sampler), PromptToScore([1] * 20, 0, None)]
    card.waits.clear()
    assert len(score_prompts(model, prompts)) == 2
    assert not [one for one in card.waits if one.startswith("a copy")]


@pytest.mark.parametrize("by_one_call", [True, False])
def test_a_row_of_rewards_is_waited_for_once(card: FakeCard, by_one_call: bool) -> None:
    body = build("qwen3").model
    attention.register()
    body.set_attn_implementation(attention.NAME)
    head = torch.nn.Linear(256, 1, device=CUDA)
    texts = [PooledText([1] * 30 + [i] * 5, Pooled((34,))) for i in range(6)]
    texts += [PooledText([9] * 20, Pooled((3, 7))), PooledText([8] * 20, Pooled(tuple(range(20)), mean=True))]
    loaded: Any = SimpleNamespace(body=body, head=head, device=body.device, row_pass=None, by_one_call=by_one_call)
    card.waits.clear()
    said = forward_packed(loaded, grouped([one.token_ids for one in texts]), texts)
    assert [tuple(one.shape) for _, one in sorted(said.items())] == [(1, 1)] * 6 + [(2, 1), (1, 1)]
    assert len(card.waits) == 1 and ".cpu()" in card.waits[0]


def test_random_weights_of_a_shape_lie_on_the_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Qwen3-32B's, of two layers: all of it, ready for steps that are captured."""
    shape = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": 5120,
        "num_hidden_layers": 2,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 25600,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 40960,
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
    }
    (tmp_path / "config.json").write_text(json.dumps(shape))
    h100 = Device("H100", "cuda", 80 * 1024**3, 0, 132, formats=formats_of((9, 0)), compute_capability=(9, 0))
    request = PlanRequest(engine="transformers", quant="bf16", max_model_len=4096)
    plan = make_plan(resolve(str(tmp_path)), replace(detect(), devices=(h100,)), request)
    monkeypatch.setenv("HF_DEACTIVATE_ASYNC_LOAD", "1")  # other threads know nothing of this card
    with fake_card():
        loaded = load(tmp_path, plan, "dummy")
        assert {one.device.type for one in (*loaded.model.parameters(), *loaded.model.buffers())} == {"cuda"}
        assert loaded.model.dtype == torch.bfloat16 and DenseSteps.of(loaded.model) is not None
        assert loaded.weights_bytes == pytest.approx(plan.devices[0].weights_bytes, rel=0.01)
