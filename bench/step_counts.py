"""What one decoding step of the paged batcher asks of a device: counted, since it can't be timed where no card is.

A model of two and one of four layers decode the same rows on a CPU, by the path that cards take. Counted in the
generating thread, from the preparation of a step to the end of its bookkeeping:

- launches: operations that start a kernel (views do not), by `TorchDispatchMode`; those of a layer are the difference
  of the two models' over two;
- waits: what makes the host wait for a card: values read (`item`, `tolist`, `bool(tensor)`, `cpu`, `nonzero` and its
  kin), and lists brought to it by copies that block (`torch.tensor(…, device=…)`);
- calls: Python functions called around a forward that is captured, and the microseconds of processor time that they
  take, without those in which this CPU computes the draw itself: a card does that beside them.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import Qwen3Config, Qwen3ForCausalLM

from qserve.engines.transformers.kernels.kv_pages import PAGE_TOKENS
from qserve.engines.transformers.worker.attention.kernels import ChosenKernel
from qserve.engines.transformers.worker.attention.pages import PageStep
from qserve.engines.transformers.worker.attention.triton_decode import PagedDecode
from qserve.engines.transformers.worker.batching import paged
from qserve.engines.transformers.worker.batching.batcher import BatchLimits, Sequence
from qserve.engines.transformers.worker.batching.paged import PagedBatcher
from qserve.engines.transformers.worker.decoding import stages
from qserve.engines.transformers.worker.decoding.body import DenseSteps
from qserve.engines.transformers.worker.decoding.choose import Layers
from qserve.engines.transformers.worker.sampling import batch
from qserve.engines.transformers.worker.sampling.params import SamplingParams
from qserve.engines.transformers.worker.sampling.sampler import SequenceSampler
from qserve.model.cuda.kernels import recording
from qserve.model.cuda.linear import CardLinear
from qserve.model.cuda.weights import FourBitWeight, Int8Weight, Weight

__all__ = ["GREEDY", "SAMPLED", "StepCounts", "count_steps", "hold", "launches_of", "names_of", "waits_of"]

GREEDY = SamplingParams(temperature=0.0)
SAMPLED = SamplingParams(temperature=0.7, top_p=0.8, top_k=20, seed=0)  # Qwen3's own generation_config.json

_VIEWS = frozenset(
    {
        "alias",
        "as_strided",
        "detach",
        "expand",
        "permute",
        "select",
        "slice",
        "split",
        "split_with_sizes",
        "squeeze",
        "t",
        "transpose",
        "unbind",
        "unsqueeze",
        "view",
        "_unsafe_view",
        "_reshape_alias",
        "lift_fresh",
        "unfold",
        "empty",
        "empty_like",
        "empty_strided",
        "new_empty",
        "resize_",
    }
)
_READS = frozenset(
    {
        "item",
        "tolist",
        "cpu",
        "numpy",
        "nonzero",
        "masked_select",
        "unique",
        "__bool__",
        "__int__",
        "__float__",
        "__index__",
        "__contains__",
    }
)
_MADE = frozenset({"tensor", "as_tensor"})
_PROMPT_TOKENS, _WARM_STEPS, _STEPS = 40, 4, 12
_VOCABULARY, _BLOCK = 1000, 64
_DECODE = PagedDecode(132)


@dataclass(frozen=True)
class StepCounts:
    """Of a decoding step; medians over `_STEPS` of them.

    Attributes:
        launches: kernels in all.
        layer_launches: kernels of a layer.
        waits: times that the host waits for the device.
        calls: Python functions around the forward.
        python_us: microseconds around the forward, without the draw's own operations.
    """

    launches: float
    layer_launches: float
    waits: float
    calls: float
    python_us: float


@dataclass
class _Step:
    launches: int = 0
    waits: int = 0
    calls: int = 0
    python_s: float = 0.0
    names: Counter[str] = field(default_factory=Counter)


class _Launches(TorchDispatchMode):
    def __init__(self, step: _Step) -> None:
        super().__init__()
        self._step = step

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name not in _VIEWS:
            self._step.launches += 1
            self._step.names[name] += 1
        return func(*args, **(kwargs or {}))


class _Waits(TorchFunctionMode):
    def __init__(self, step: _Step) -> None:
        super().__init__()
        self._step = step

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in _READS or (name in _MADE and kwargs.get("device") is not None):
            self._step.waits += 1
            self._step.names[f"wait: {name}"] += 1
        return func(*args, **kwargs)


def launches_of(call: Callable[[], object]) -> Counter[str]:
    """By operation, those that `call` launches."""
    step = _Step()
    with _Launches(step):
        call()
    return step.names


def waits_of(call: Callable[[], object]) -> int:
    """How often `call` makes the host wait for a card."""
    step = _Step()
    with _Waits(step):
        call()
    return step.waits


def count_steps(rows: int, params: SamplingParams, held: str = "bf16") -> StepCounts:
    """Of `rows` streams that all draw by `params`, with weights in bf16, int8, nf4 or fp4."""
    few, many = (_median(_steps(layers, rows, params, "operations", held)) for layers in (2, 4))
    calls = _median(_steps(2, rows, params, "calls", held))
    python = _median(_steps(2, rows, params, "time", held))
    layer = (many.launches - few.launches) / 2
    return StepCounts(few.launches, layer, few.waits, calls.calls, 1e6 * python.python_s)


def _median(steps: list[_Step]) -> _Step:
    pairs = {
        name: statistics.median_low([getattr(one, name) for one in steps])
        for name in ("launches", "waits", "calls", "python_s")
    }
    return _Step(**pairs)


def names_of(layers: int, rows: int, params: SamplingParams, held: str = "bf16") -> Counter[str]:
    """Which operations a step has: for whoever asks what grew."""
    return _steps(layers, rows, params, "operations", held)[-1].names


def _steps(layers: int, rows: int, params: SamplingParams, what: str, held: str) -> list[_Step]:
    return asyncio.run(_run(_model(layers, held), rows, params, what))[-_STEPS:]


def _model(layers: int, held: str) -> Any:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=_VOCABULARY,
        hidden_size=256,  # of whole blocks of nested scales, as known models are
        intermediate_size=128,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=4096,
        use_sliding_window=False,
    )
    model = Qwen3ForCausalLM(config).bfloat16().eval()
    if held != "bf16":
        hold(model.get_decoder(), held)
    return model


def hold(model: torch.nn.Module, held: str) -> None:
    """Hold, in place, linear layers as bitsandbytes does on a card, and multiply by them as a card does."""
    for name, child in list(model.named_children()):
        if type(child) is not torch.nn.Linear:
            hold(child, held)
            continue
        setattr(model, name, CardLinear(_held(child.weight.data.float(), held), child.bias))


def _held(weight: torch.Tensor, held: str) -> Weight:
    if held == "int8":
        scales = weight.abs().amax(dim=1) / 127
        return Int8Weight((weight / scales[:, None]).round().to(torch.int8), scales)
    from bitsandbytes.functional import quantize_4bit

    packed, state = quantize_4bit(weight, blocksize=_BLOCK, quant_type=held, compress_statistics=True)
    nested = state.state2.code, state.state2.absmax, state.offset.view(1)
    return FourBitWeight(held, packed.flatten(), state.code, state.absmax, nested, _BLOCK, weight.shape[1])


async def _run(model: Any, rows: int, params: SamplingParams, what: str) -> list[_Step]:
    loop = asyncio.get_running_loop()
    steps: list[_Step] = []
    generator = torch.Generator().manual_seed(1)
    most = _WARM_STEPS + _STEPS + 2
    requests = [
        Sequence(f"r{i}", prompt, most, frozenset(), SequenceSampler(params, prompt))
        for i, prompt in enumerate(torch.randint(0, 999, (rows, _PROMPT_TOKENS), generator=generator).tolist())
    ]
    with _as_on_a_card(what):
        batcher = PagedBatcher(model, loop, BatchLimits(256 * rows, rows, 64 * rows))
        batcher.start(on_death=lambda error: loop.call_soon_threadsafe(loop.stop))
        _watch(batcher, steps, rows, what)
        try:
            with batcher.exclusive():  # so that all of them share their first step
                for one in requests:
                    batcher.submit(one)
            async with asyncio.timeout(120):
                for one in requests:
                    for _ in range(most):
                        await one.outbox.get()
        finally:
            batcher.stop()
    return steps[_WARM_STEPS : _WARM_STEPS + _STEPS]


@torch.library.custom_op("qserve_bench::launch", mutates_args=())
def _launch(query: torch.Tensor) -> torch.Tensor:
    """Counted as one kernel; what it says does not matter here."""
    return query.clone()


def _kernel(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, step: PageStep, scaling: float) -> Any:
    """As many launches as our own kernel makes, which runs on no CPU."""
    with recording() as launches:
        _DECODE(query, keys, values, step, scaling)
    for _ in launches:
        query = _launch(query)
    return query


def _captured(forward: Callable[[], object]) -> Callable[[], None]:
    """A capture whose replay costs nothing: what is left is what stands around it."""
    forward()
    return lambda: None


@contextmanager
def _as_on_a_card(what: str) -> Iterator[None]:
    """What is there for CPUs alone stands aside, and a kernel that reads pages is there.

    Operations are those of a step that is not captured; Python is that around one that is.
    """
    chosen = ChosenKernel("counted", _kernel, PAGE_TOKENS, {}, reads_prompts=False)
    capture = None if what == "operations" else _captured
    with (
        mock.patch.object(batch, "largest", lambda scores: scores.max(dim=-1)),
        mock.patch.object(stages, "choose_layers", lambda model: Layers(DenseSteps.of(model), capture)),
        mock.patch.object(paged, "compile_steps", lambda model, cache: None),
        mock.patch.object(paged, "choose_kernel", lambda *_: chosen),
        mock.patch.object(paged, "decodes_in_runs", lambda *_: True),
        mock.patch.object(paged, "fuses_products", lambda _: True),
    ):
        yield


def _watch(batcher: PagedBatcher, steps: list[_Step], rows: int, what: str) -> None:
    """Put the counters around the three stages of each step in which all rows decode."""
    processor: Any = batcher._library.manager.batch_processor
    now = [_Step()]

    def counted(stage: Callable[..., Any], is_first: bool, is_last: bool) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            if is_first:
                now[0] = _Step()
            with _counting(now[0], what):
                answer = stage(*args, **kwargs)
            if is_last and len(batcher._stages._stages.in_step()) == rows:
                steps.append(now[0])
            return answer

        return run

    processor.prepare_next_batch = counted(processor.prepare_next_batch, True, False)
    processor._generation_step = counted(processor._generation_step, False, False)
    processor.update_batch = counted(processor.update_batch, False, True)


@contextmanager
def _counting(step: _Step, what: str) -> Iterator[None]:
    if what == "operations":
        with _Waits(step), _Launches(step):
            yield
    elif what == "calls":

        def called(frame: Any, event: str, arg: Any) -> None:
            step.calls += event == "call"

        sys.setprofile(called)
        try:
            yield
        finally:
            sys.setprofile(None)
    else:
        with _without_drawing(step):
            start = time.thread_time()
            yield
            step.python_s += time.thread_time() - start


@contextmanager
def _without_drawing(step: _Step) -> Iterator[None]:
    drawn = batch._Group.drawn

    def left_out(*args: Any) -> torch.Tensor:
        start = time.thread_time()
        try:
            return drawn(*args)
        finally:
            step.python_s -= time.thread_time() - start

    with mock.patch.object(batch._Group, "drawn", left_out):
        yield
