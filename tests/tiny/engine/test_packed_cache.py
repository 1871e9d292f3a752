"""Packed weights on disk: a second load maps them and says the same to the bit; what is damaged is made again."""

from __future__ import annotations

import errno
import multiprocessing
import os
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import pytest
import torch
from safetensors.torch import load_file, save_file

from qserve.demo import chat_model_path
from qserve.model import load as loading
from qserve.model import packed_linear
from qserve.model.cpu.build import why_none
from qserve.model.cpu.experts import CompiledExperts
from qserve.model.cpu.linear import takes_bfloat16
from qserve.model.cpu.matrix import Matrix
from qserve.model.load import LoadedModel, load
from qserve.model.packed_cache import folder as folders
from qserve.model.packed_cache import start as starts
from qserve.model.packed_cache.folder import PackedFolder
from qserve.model.packed_cache.identity import packed_key
from qserve.model.packed_cache.layers import Packed, packed_layers
from qserve.model.packed_cache.start import packed_start
from qserve.model.stored.embedding import MappedEmbedding
from qserve.units import GIB, MIB
from tests.tiny.engine.loading import folder_of, plan_of
from tests.tiny.engine.stored_checkpoints import AWQ, GPTQ, as_awq, as_gptq, make, make_of, write_experts

pytestmark = [
    pytest.mark.skipif(why_none() is not None, reason=str(why_none())),
    # torch's own, on the first import of its compiler.
    pytest.mark.filterwarnings("ignore:.torch.jit.script_method:DeprecationWarning"),
]
NF4 = plan_of("demo", "bnb-nf4")


@pytest.fixture(autouse=True)
def small_models_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starts, "_WORTH_KEEPING_BYTES", 0)
    monkeypatch.setattr(packed_linear, "_WORTH_PACKING_BYTES", 0)


@pytest.fixture
def folder(tmp_path: Path) -> PackedFolder:
    return PackedFolder(tmp_path / "packed", GIB)


@pytest.fixture(scope="module")
def gptq(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pack = partial(as_gptq, act_order=True, is_symmetric=False)
    return Path(make(tmp_path_factory.mktemp("gptq") / "model", pack, {**GPTQ, "desc_act": True, "sym": False}))


@pytest.fixture(scope="module")
def experts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    plain = write_experts(tmp_path_factory.mktemp("experts") / "plain")
    return Path(make_of(plain, plain.with_name("awq"), as_awq, AWQ))


def logits(loaded: LoadedModel) -> torch.Tensor:
    with torch.inference_mode():
        found: torch.Tensor = loaded.model(input_ids=torch.arange(3, 40)[None]).logits
    return found


def mapped(path: Path) -> list[tuple[int, int]]:
    """Where this process has the file."""
    lines = [line.split(None, 5) for line in Path("/proc/self/maps").read_text().splitlines()]
    found = [line[0].split("-") for line in lines if len(line) == 6 and line[5] == str(path)]
    return [(int(begin, 16), int(end, 16)) for begin, end in found]


def matrices(layer: Packed) -> tuple[Matrix, ...]:
    return layer.matrices if isinstance(layer, CompiledExperts) else (layer.matrix,)


def not_made(*_: Any) -> Any:
    raise AssertionError("it was made from the checkpoint")


@pytest.mark.parametrize("quant", ["bnb-nf4", "bnb-int8", "gptq", "experts in awq", "experts in bnb-int8"])
def test_the_second_load_maps_and_says_the_same(
    quant: str, gptq: Path, experts: Path, folder: PackedFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = {"gptq": gptq, "experts in awq": experts, "experts in bnb-int8": experts.with_name("plain")}.get(
        quant, folder_of("demo")
    )
    plan = plan_of(str(checkpoint), quant.rpartition(" ")[2] if "bnb" in quant else "auto")
    expected = logits(load(checkpoint, plan))
    first = load(checkpoint, plan, packed=folder)
    [(path, _)] = folder.entries()
    monkeypatch.setattr(loading, "_arguments", not_made)
    second = load(checkpoint, plan, packed=folder)
    for loaded in (first, second):
        assert torch.equal(logits(loaded), expected)
        layers = packed_layers(loaded.model)
        has_experts = "experts" in quant
        assert len(layers) >= (5 if has_experts else 7) * loaded.model.config.num_hidden_layers
        assert any(isinstance(layer, CompiledExperts) for layer in layers.values()) == has_experts
        codes = [matrix.codes.data_ptr() for layer in layers.values() for matrix in matrices(layer)]
        assert all(any(begin <= place < end for begin, end in mapped(path)) for place in codes)
    assert second.weights_bytes == first.weights_bytes
    assert [type(module) for module in second.model.modules()] == [type(module) for module in first.model.modules()]
    if takes_bfloat16():
        assert isinstance(second.model.get_input_embeddings(), MappedEmbedding)  # its head is packed as well
    ids = torch.arange(3, 20)[None]
    texts = [one.model.generate(ids, do_sample=False, max_new_tokens=12) for one in (first, second)]
    assert torch.equal(*texts)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 4096)


def flip(place: int) -> Callable[[Path], None]:
    def flipped(path: Path) -> None:
        whole = bytearray(path.read_bytes())
        whole[place] ^= 4
        path.write_bytes(whole)

    return flipped


DAMAGE = {
    "cut": cut,
    "empty": lambda path: path.write_bytes(b""),
    "foreign": lambda path: path.write_bytes(b"x" * 9999),
    "zeroed": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "head": flip(80),
    "data": flip(-700),
    "others may write": lambda path: path.chmod(0o666),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_found_and_removed(
    damage: str, folder: PackedFolder, caplog: pytest.LogCaptureFixture
) -> None:
    assert folder.write("a-1", {}, {"one": torch.arange(200, dtype=torch.uint8).repeat(50)}) is None
    assert folder.find("a-1") is not None
    DAMAGE[damage](folder.path("a-1"))
    assert folder.find("a-1") is None
    assert "can't be used" in caplog.text
    assert folder.entries() == []


def test_what_is_damaged_is_made_again(folder: PackedFolder) -> None:
    expected = logits(load(folder_of("demo"), NF4, packed=folder))
    [(path, _)] = folder.entries()
    good = path.read_bytes()
    flip(len(good) // 2)(path)
    assert torch.equal(logits(load(folder_of("demo"), NF4, packed=folder)), expected)
    assert path.read_bytes() == good


def test_another_checkpoint_or_plan_is_another_file(tmp_path: Path) -> None:
    checkpoint = Path(shutil.copytree(chat_model_path(), tmp_path / "model"))
    key = packed_key(checkpoint, NF4)
    assert packed_key(checkpoint, NF4) == key
    assert packed_key(checkpoint, plan_of("demo", "bnb-int8")) != key
    tensors = load_file(checkpoint / "model.safetensors")
    next(iter(tensors.values())).view(-1)[7] += 1
    time.sleep(0.01)  # a file system tells times in steps of some ms
    save_file(tensors, checkpoint / "model.safetensors", {"format": "pt"})
    assert packed_key(checkpoint, NF4) != key


def test_nothing_is_kept_where_nothing_was_asked_for(folder: PackedFolder) -> None:
    checkpoint = folder_of("demo")
    assert packed_start(checkpoint, NF4, None) is None
    assert packed_start(checkpoint, NF4, PackedFolder(folder.root, 0)) is None
    assert packed_start(checkpoint, plan_of("demo", "bf16"), folder) is None
    assert packed_start(checkpoint, NF4, folder) is not None


def test_a_full_disk_is_said_and_served_on(folder: PackedFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: BinaryIO, *_: Any) -> None:
        file.write(bytes(MIB))
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(folders, "write_tensors", full)
    loaded = load(folder_of("demo"), NF4, packed=folder)
    assert any("not kept" in note and "No space left" in note for note in loaded.notes)
    assert torch.equal(logits(loaded), logits(load(folder_of("demo"), NF4)))
    assert [path.suffix for path in folder.root.iterdir()] == [".lock"]


def some(size: int) -> dict[str, torch.Tensor]:
    return {"one": torch.arange(size, dtype=torch.uint8), "two": torch.ones(3, dtype=torch.bfloat16)}


def test_the_folder_is_bounded(tmp_path: Path) -> None:
    folder = PackedFolder(tmp_path / "packed", 100_000)
    for index, key in enumerate(("a-1", "b-1", "c-1")):
        assert folder.write(key, {"index": index}, some(200)) is None
        os.utime(folder.path(key), (1000 + index, 1000 + index))
    found = folder.find("a-1")  # used now
    assert found is not None
    assert found.about == {"index": 0}
    assert torch.equal(found.tensors["one"], some(200)["one"])
    assert folder.write("d-1", {}, some(85_000)) is None
    assert {path.name.partition(".")[0] for path, _ in folder.entries()} >= {"a-1", "d-1"}
    assert folder.find("b-1") is None
    why = folder.write("e-1", {}, some(200_000))
    assert why is not None
    assert "may be kept" in why
    assert folder.find("d-1") is not None
    assert folder.write("d-2", {}, some(100)) is None  # the same weights by other code
    assert folder.find("d-1") is None


def take_turns(root: Path, begin: Any, said: Any) -> None:
    folder = PackedFolder(root, GIB)
    begin.wait(60)
    with folder.locked("k-1"):
        if folder.find("k-1") is not None:
            said.put("found")
            return
        time.sleep(0.3)
        assert folder.write("k-1", {}, {"t": torch.ones(1000)}) is None
    said.put("made")


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")  # Python 3.12 of every fork
def test_of_two_processes_one_makes_and_the_other_finds(tmp_path: Path) -> None:
    forked = multiprocessing.get_context("fork")  # torch is imported already
    begin, said = forked.Event(), forked.Queue()
    both = [forked.Process(target=take_turns, args=(tmp_path / "packed", begin, said), daemon=True) for _ in range(2)]
    for one in both:
        one.start()
    begin.set()
    assert sorted(said.get(timeout=60) for _ in both) == ["found", "made"]
    for one in both:
        one.join(60)
