"""Kernels for cards are tried in a process of their own, once, and before there are weights: by real processes, which
find a CPU where a card would be."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from qserve.demo import chat_model_path
from qserve.detect import detect
from qserve.engines.transformers.kernels.attention_kernels import TORCH_VARLEN, TRITON_PAGED, Candidates
from qserve.engines.transformers.worker import card_trials
from qserve.engines.transformers.worker.attention import kernels, texts
from qserve.engines.transformers.worker.attention.kernels import GATHERED, Heads, choose_kernel
from qserve.engines.transformers.worker.decoding import check, choose
from qserve.engines.transformers.worker.decoding.operations import ON_CARDS, PLAIN
from qserve.errors import BrokenCheckpoint
from qserve.hub import resolve
from qserve.model.cuda import before_load
from qserve.model.cuda import trial as trial_of_products
from qserve.model.cuda.before_load import cards_of, product_trials_ahead
from qserve.model.cuda.samples import Shape
from qserve.model.cuda.trial import product_trials
from qserve.model.placement import skeleton
from qserve.model.trials import ask
from qserve.model.trials.ask import tried
from qserve.model.trials.children import in_children
from qserve.model.trials.verdicts import KeptVerdicts, Trial, Verdict
from qserve.planner import make_plan, plan_request
from qserve.planner.plan import Plan
from tests.unit.model.trials.faulty import trial

CARD = torch.device("cuda", 0)
HEADS = Heads(4, 2, 64, torch.bfloat16)


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[KeptVerdicts]:
    """A card whose processes compute on the CPU, and the file that is in use: another one may be put there."""
    files = [KeptVerdicts(tmp_path / "card.json", {"driver": "580"})]
    monkeypatch.setattr(ask, "_of_this_time", {})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(ask, "_kept", lambda device: files[-1])
    monkeypatch.setattr(ask, "in_children", lambda device, groups: in_children("cpu", groups))
    return files


def test_a_verdict_is_reached_once_and_again_under_another_driver(kept: list[KeptVerdicts], tmp_path: Path) -> None:
    log = tmp_path / "log"
    group = [trial(name, log=str(log)) for name in ("segfaults", "is wrong", "right", "not wanted")]

    def ran() -> list[str]:
        names = [line.split(maxsplit=1)[1] for line in log.read_text().splitlines()] if log.exists() else []
        log.unlink(missing_ok=True)
        return names

    first = tried(CARD, [group])
    assert [first[one].reason for one in group[:3]] == ["its trial ended with SIGSEGV", "it is wrong on this card", ""]
    assert ran() == ["segfaults", "is wrong", "right"]
    assert tried(CARD, [group]) == first and ran() == []
    assert tried(CARD, [[group[3]], group])[group[3]].is_right and ran() == ["not wanted"]
    kept.append(replace(kept[0], about={"driver": "590"}))
    assert tried(CARD, [group]) == first and ran() == ["segfaults", "is wrong", "right"]
    assert tried(CARD, [group], afresh=True) == first and ran() == ["segfaults", "is wrong", "right"]


def test_what_does_not_last_is_asked_once_by_each_process(kept: list[KeptVerdicts], tmp_path: Path) -> None:
    log = tmp_path / "log"
    group = [[trial("is killed", log=str(log))]]
    first = tried(CARD, group)
    assert first == tried(CARD, group) and len(log.read_text().splitlines()) == 1
    assert kept[0].find() == {}


def test_without_a_card_there_is_no_process() -> None:
    here = trial("right")
    assert tried(torch.device("cpu"), [[here]])[here] == Verdict(result=["cpu", "right"])


def test_what_a_verdict_holds_for(monkeypatch: pytest.MonkeyPatch) -> None:
    card = SimpleNamespace(name="NVIDIA GeForce RTX 4090", major=8, minor=9, total_memory=24 << 30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: card)
    monkeypatch.setattr(ask, "driver_version", lambda: "580.65.06")
    file = ask._kept(CARD)
    assert file.path.name == "NVIDIA-GeForce-RTX-4090.json" and file.path.parent.name == "kernel-trials"
    about = json.loads(json.dumps(file.about))
    assert about == file.about  # as it is read again
    torch_version = metadata.version("torch")  # without the "+cu130" of torch.__version__
    assert (about["driver"], about["capability"], about["packages"]["torch"]) == ("580.65.06", "8.9", torch_version)
    assert {"triton", "flash-attn"} <= set(about["packages"]) and about["qserve"] and len(about["sources"]) == 20


def test_attention_is_tried_there_and_the_one_that_passed_is_taken(
    kept: list[KeptVerdicts], monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch's kernel, which a CPU refuses; and one that its trial found right the second way, which is not run here."""
    monkeypatch.setattr(kernels, "kernel_candidates", lambda *_: Candidates((TORCH_VARLEN,), {}))
    refused = choose_kernel(CARD, HEADS)
    assert refused.name == GATHERED and "CPU" in refused.passed_over[TORCH_VARLEN]
    ((asked,), _) = kernels.kernel_trials(CARD, HEADS)
    kept[0].add({asked.key: Verdict(result=1)})
    monkeypatch.setattr(kernels, "is_right", lambda *_, **__: pytest.fail("a kernel ran in this process"))
    chosen = choose_kernel(CARD, HEADS)
    assert (chosen.name, chosen.passed_over, chosen.refused) == (TORCH_VARLEN, {}, ())
    assert chosen.read.keywords == {"with_bounds": True}  # type: ignore[attr-defined]


def test_operations_that_were_refused_are_torch_s(kept: list[KeptVerdicts], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    for name, one in ON_CARDS.items():
        monkeypatch.setitem(ON_CARDS, name, one)
    trials = {one.name: one for one in check.operation_trials(HEADS, 128)}
    kept[0].add({trials["add_rms_norm"].key: Verdict(), trials["silu_and_multiply"].key: Verdict("its trial hung")})
    refused = {one.kernel: one.reason for one in choose.take_on_cards(CARD, HEADS, 128)}
    assert refused.pop("silu_and_multiply") == "its trial hung" and list(refused) == ["rotate_and_store"]  # of a CPU
    assert ON_CARDS["add_rms_norm"] is not PLAIN["add_rms_norm"]
    assert ON_CARDS["silu_and_multiply"] is PLAIN["silu_and_multiply"]


def plan_for(quant: str, device_map: Any) -> Plan:
    request = plan_request(engine="transformers", dtype="bfloat16", quant=quant)
    plan = make_plan(resolve("demo"), replace(detect(), devices=()), request)
    return replace(plan, placement=replace(plan.placement, device_map=device_map))


@pytest.mark.parametrize(
    ("device_map", "cards"),
    [
        ("cpu", []),
        ("cuda:1", [1]),
        ("auto", [0, 1, 2]),
        ({"model.embed_tokens": 1, "model.layers.0": 0, "x": "cpu"}, [1, 0]),
    ],
)
def test_cards_of_a_plan(monkeypatch: pytest.MonkeyPatch, device_map: Any, cards: list[int]) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert cards_of(plan_for("bf16", device_map)) == [torch.device("cuda", index) for index in cards]


@pytest.mark.parametrize("scheme", ["bnb-int8", "bnb-nf4"])
def test_products_are_foreseen_by_the_shapes_that_the_loaded_model_has(
    scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("bitsandbytes")
    from bench.step_counts import hold
    from qserve.engines.transformers.worker.decoding import fused
    from qserve.engines.transformers.worker.decoding.fused import GATE_UP, QKV
    from qserve.model.cuda.linear import card_linears

    plan = plan_for(scheme, "cuda:0")
    model = skeleton(chat_model_path())
    foreseen = product_trials_ahead(plan, torch.bfloat16, lambda: model, (QKV, GATE_UP))
    real = model.to_empty(device="cpu").bfloat16()
    hold(real.get_decoder(), scheme.removeprefix("bnb-"))
    asked = product_trials((Shape.of(one) for one in card_linears(real)), torch.bfloat16)
    assert asked and set(asked) <= set(foreseen)
    made: list[torch.nn.Module] = []
    monkeypatch.setattr(fused, "choose_products", lambda layers, dtype: made.extend(layers))
    monkeypatch.setattr(type(real), "device", CARD)
    saved = fused.fuse_products(real)
    assert saved / len(real.model.layers) == (3 if scheme == "bnb-int8" else 1)  # k has half a block of scales
    asked = product_trials((Shape.of(one) for one in card_linears(torch.nn.ModuleList(made))), torch.bfloat16)
    assert set(asked) <= set(foreseen)
    assert product_trials_ahead(plan_for("bf16", "cuda:0"), torch.bfloat16, lambda: pytest.fail("asked for")) == []


def test_all_is_asked_before_there_are_weights(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: dict[torch.device, list[list[Trial]]] = {}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 9))
    monkeypatch.setattr(before_load, "tried", lambda device, groups: asked.update({device: groups}))
    card_trials.try_kernels_of(chat_model_path(), plan_for("bnb-nf4", "cuda:0"))
    ((device, (attention, of_prompts, *rest)),) = asked.items()
    assert device == CARD and [one.name for one in attention[:2]] == [TRITON_PAGED, TORCH_VARLEN]
    assert of_prompts == attention[1:]
    assert {one.name for (one,) in rest[:3]} == set(PLAIN) and len(rest) > 3
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(BrokenCheckpoint, match="config"):
        card_trials.try_kernels_of(tmp_path, plan_for("bnb-nf4", "cuda:0"))


def test_a_trial_imports_torch_and_little_beside() -> None:
    """A process is started for them, and a start waits for it: transformers alone would take longer than torch."""
    modules = {one.function.partition(":")[0] for one in check.operation_trials(HEADS, 128)}
    modules |= {kernels.__name__, trial_of_products.__name__, texts.__name__, "qserve.model.trials.process"}
    code = f"import sys, {', '.join(sorted(modules))}; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"transformers", "accelerate", "torch._dynamo"} & set(found) and "torch" in found
