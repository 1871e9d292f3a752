"""The ways by which a step is taken: the library's, runs of decoding steps as on a card, compiled ones, and rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from qserve.engines.transformers.worker.batching import paged
from qserve.engines.transformers.worker.batching.paged import PagedBatcher
from qserve.engines.transformers.worker.batching.rows.batcher import RowBatcher
from qserve.model import packed_linear
from qserve.model.cpu.kernels import can_attend
from qserve.model.cpu.linear import takes_bfloat16
from tests.tiny.engine.families import build


def library_steps(patched: pytest.MonkeyPatch) -> tuple[Any, Any]:
    compile_steps = paged.compile_steps

    def without_runs(*of: Any) -> Any:
        compiled = compile_steps(*of)
        return None if compiled is None else replace(compiled, layers=None)

    patched.setattr(paged, "compile_steps", without_runs)
    return PagedBatcher, build("qwen3", num_layers=2)


def runs_of_a_card(patched: pytest.MonkeyPatch) -> tuple[Any, Any]:
    patched.setattr(paged, "decodes_in_runs", lambda model, cache: True)
    return PagedBatcher, build("qwen3", num_layers=2)


def compiled_runs(patched: pytest.MonkeyPatch) -> tuple[Any, Any]:
    if not takes_bfloat16() or not can_attend(32):
        pytest.skip("this processor has no steps in one call")
    patched.setattr(packed_linear, "_WORTH_PACKING_BYTES", 0)
    model = build("qwen3", num_layers=2).bfloat16()
    packed_linear.pack_linears(model)
    return PagedBatcher, model


def rows(patched: pytest.MonkeyPatch) -> tuple[Any, Any]:
    return RowBatcher, build("qwen3.5", num_layers=2)


PATHS = {one.__name__: one for one in (library_steps, runs_of_a_card, compiled_runs, rows)}
