"""Experts of checkpoints that somebody quantized: the weights that their format says, joined, and planned so."""

from __future__ import annotations

import re
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from qserve.errors import BrokenCheckpoint, UsageError
from qserve.model.cpu.activations import exact_activations
from qserve.model.cpu.build import why_none
from qserve.model.cpu.experts import CompiledExperts
from qserve.model.stored.arguments import stored_config
from qserve.model.stored.embedding import MappedEmbedding
from qserve.model.stored.layouts import ReadableLayers
from tests.tiny.engine.families import build
from tests.tiny.engine.loading import load_planned, plan_of
from tests.tiny.engine.stored_checkpoints import (
    AWQ,
    FP8,
    GPTQ,
    INT4,
    INT8,
    Packer,
    as_awq,
    as_fp8,
    as_gptq,
    as_int4,
    as_int8,
    gptq_parts,
    make_of,
    write_experts,
)

# torch's own, on the first import of its compiler.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script_method:DeprecationWarning")
COMPILED = pytest.mark.skipif(why_none() is not None, reason=str(why_none()))
NUM, WIDTH = 8, 64


def in_own_order(stem: str, weight: torch.Tensor) -> dict[str, torch.Tensor]:
    """GPTQ with act order and zero points: each expert has its own, for gate and up the same."""
    found = re.search(r"experts\.(\d+)\.(\w)", stem)
    seed = 0 if found is None else int(found[1]) + 100 * (found[2] == "d")
    g_idx = (torch.arange(WIDTH) // 32)[torch.randperm(WIDTH, generator=torch.Generator().manual_seed(seed))]
    if weight.shape[1] != WIDTH:
        return as_gptq(stem, weight, group=32, is_symmetric=False)
    parts = gptq_parts(weight, 4, 32, g_idx, is_symmetric=False, has_low_zeros=True)
    return {f"{stem}.{name}": tensor for name, tensor in parts.items()}


FORMATS: dict[str, tuple[Packer, dict[str, Any], str]] = {
    "gptq-act-order": (in_own_order, {**GPTQ, "group_size": 32, "sym": False, "desc_act": True}, "int4"),
    "awq": (as_awq, AWQ, "int4"),
    "w4a16": (as_int4, INT4, "int4"),
    "w8a8": (as_int8, INT8, "int8"),
    "fp8": (as_fp8, FP8, "fp8"),
}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_experts(tmp_path_factory.mktemp("experts") / "plain")


def stored_weights(folder: Path) -> dict[str, torch.Tensor]:
    """In float32, by the file's names."""
    stored = stored_config(folder)
    assert stored is not None
    tensors = load_file(folder / "model.safetensors")
    layers = ReadableLayers.of(folder, stored).by_name
    return {
        name: layer.codes({end: tensors[f"{name}.{end}"] for end in layer.parts}).dense(torch.float32)
        for name, layer in layers.items()
    }


def library_experts(folder: Path, layer: int) -> Any:
    """The library's module of a layer in float32, of the weights that the file says."""
    weights, experts = stored_weights(folder), build("qwen3-moe", expert_width=WIDTH).model.layers[0].mlp.experts
    gate, up, down = (
        torch.stack([weights[f"model.layers.{layer}.mlp.experts.{e}.{name}"] for e in range(NUM)])
        for name in ("gate_proj", "up_proj", "down_proj")
    )
    experts.load_state_dict({"gate_up_proj": torch.cat([gate, up], dim=1), "down_proj": down})
    return experts


@COMPILED
@pytest.mark.parametrize("name", FORMATS)
def test_they_are_held_as_they_are_stored_and_planned_so(plain: Path, tmp_path: Path, name: str) -> None:
    pack, quantization, held = FORMATS[name]
    folder = Path(make_of(plain, tmp_path / "checkpoint", pack, quantization, dtype="float16"))
    plan, loaded = plan_of(str(folder)), load_planned(str(folder))
    # Beside small weights an order of inputs, which is not planned, is a part that can be seen.
    assert loaded.weights_bytes == pytest.approx(plan.devices[0].weights_bytes, rel=0.06 if "order" in name else 0.03)
    for index in (0, 3):
        ours, library = loaded.model.model.layers[index].mlp.experts, library_experts(folder, index)
        assert isinstance(ours, CompiledExperts)
        gate, up, down = (matrix.dense().view(NUM, WIDTH, WIDTH) for matrix in ours.matrices)
        assert torch.equal(torch.cat([gate, up], dim=1), library.gate_up_proj)
        assert torch.equal(down, library.down_proj)
        assert {matrix.format for matrix in ours.matrices} == {held}
        states, chosen, shares = torch.randn(2, WIDTH).bfloat16(), torch.rand(2, NUM).topk(2).indices, torch.rand(2, 2)
        with torch.no_grad(), exact_activations(loaded.model):
            true = library(states.float(), chosen, shares)
            theirs = library.bfloat16()(states, chosen, shares.bfloat16())
            got = ours(states, chosen, shares)
        assert (got.float() - true).abs().mean() <= 1.2 * (theirs.float() - true).abs().mean()
    with torch.no_grad():
        assert loaded.model(torch.arange(40)[None]).logits.isfinite().all()


def test_in_float32_they_are_the_librarys(plain: Path, tmp_path: Path) -> None:
    folder = Path(make_of(plain, tmp_path / "checkpoint", as_awq, AWQ))
    loaded = load_planned(str(folder), "auto", "float32")
    ours, library = loaded.model.model.layers[1].mlp.experts, library_experts(folder, 1)
    assert torch.equal(ours.gate_up_proj, library.gate_up_proj)
    assert torch.equal(ours.down_proj, library.down_proj)


@COMPILED
def test_outputs_that_are_no_whole_panels_are_unpacked_and_planned_so(tmp_path: Path) -> None:
    plain = write_experts(tmp_path / "plain", width=48)
    quantization = {**GPTQ, "group_size": 16}
    folder = make_of(plain, tmp_path / "checkpoint", partial(as_gptq, group=16), quantization)
    loaded = load_planned(folder)
    assert loaded.weights_bytes == pytest.approx(plan_of(folder).devices[0].weights_bytes, rel=0.03)
    assert loaded.model.model.layers[0].mlp.experts.down_proj.dtype == torch.bfloat16


@COMPILED
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_an_embedding_of_its_own_stays_in_the_file(plain: Path, tmp_path: Path, dtype: torch.dtype) -> None:
    """The head has its own weight here."""
    folder = Path(make_of(plain, tmp_path / "checkpoint", as_fp8, FP8))
    tensors = load_file(folder / "model.safetensors")
    table = tensors["model.embed_tokens.weight"].to(dtype) * 1.1
    save_file({**tensors, "model.embed_tokens.weight": table}, folder / "model.safetensors", {"format": "pt"})
    loaded, ids = load_planned(str(folder)), torch.arange(5, 90)[None]
    embedding = loaded.model.get_input_embeddings()
    assert isinstance(embedding, MappedEmbedding)
    assert not embedding.is_tied
    assert torch.equal(embedding(ids), table.bfloat16()[ids])
    assert loaded.model.dtype == torch.bfloat16
    assert loaded.weights_bytes == pytest.approx(plan_of(str(folder)).devices[0].weights_bytes, rel=0.03)


def test_a_layer_of_which_some_are_quantized_is_refused(plain: Path, tmp_path: Path) -> None:
    def pack(stem: str, weight: torch.Tensor) -> dict[str, torch.Tensor]:
        return {f"{stem}.weight": weight} if "1.mlp.experts.5.up" in stem else as_awq(stem, weight)

    folder = make_of(plain, tmp_path / "checkpoint", pack, AWQ)
    with pytest.raises(UsageError, match=r"layers.1.mlp.experts is stored quantized, except .*experts.5.up_proj"):
        load_planned(folder)


def test_an_expert_whose_tensors_do_not_fit(plain: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(make_of(plain, tmp_path / "good", as_awq, AWQ), tmp_path / "bad"))
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.2.mlp.experts.3.down_proj.scales"]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(BrokenCheckpoint, match=r"layers.2.mlp.experts.3.down_proj: its quantized tensors don't match"):
        load_planned(str(folder))
