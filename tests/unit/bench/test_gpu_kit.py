"""bench/gpu_kit.py: what is packed comes out as it went in, in parts under a limit, and what was cut off is told."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from bench import gpu_kit
from bench.gpu_steps.order import GROUPS
from bench.kit import archive
from bench.kit.contents import ARCHIVES, Archive
from bench.kit.parts import Part, split
from bench.kit.take import NotWhole, take

FILES = {
    "library/__init__.py": b"VERSION = 3\n",
    "library/_C_hopper.so": bytes(range(256)) * 40,
    "library/_C_other.so": b"not for this card",
    "library-3.dist-info/METADATA": b"Name: library\nVersion: 3\n",
    "bin/tool": b"#!/another/machine/python\n",
}
LIBRARY = Archive("library", {"library==3": "an example", "beside": "it imports it"}, {"_C_other": "another card"})


@pytest.fixture
def packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Path]:
    """Packs LIBRARY; `installs` of the function counts how often pip was asked."""
    constraints = tmp_path / "constraints.txt"
    constraints.write_text("# tested\nlibrary==2\nbeside==1\nother==1\n")

    def install(library: Archive, pinned: str, into: Path, wheels: Path) -> None:
        make.installs += 1  # type: ignore[attr-defined]
        assert pinned == "beside==1", "the archive's own version wins, and others don't count"
        for name, data in FILES.items():
            (into / name).parent.mkdir(parents=True, exist_ok=True)
            (into / name).write_bytes(data)

    def make() -> Path:
        return archive.pack(LIBRARY, constraints, tmp_path / "cache")

    make.installs = 0  # type: ignore[attr-defined]
    monkeypatch.setattr(archive, "_install", install)
    return make


def brought(packed: Path, into: Path, most_bytes: int) -> list[Path]:
    """The folders of the parts."""
    folders = []
    for number, (part, data) in enumerate(split(packed, most_bytes), 1):
        folders.append(into / str(number))
        part.write(folders[-1], data)
    return folders


def test_it_comes_out_as_it_went_in_without_what_is_left_out(packed: Callable[[], Path], tmp_path: Path) -> None:
    file, home = packed(), tmp_path / "home"
    folders = brought(file, tmp_path / "kit", 200)
    assert len(folders) > 1
    assert all((folder / "piece").stat().st_size <= 200 for folder in folders)
    said = [take(folder, home) for folder in reversed(folders)]  # in any order
    assert [("unpacked" in line) for line in said] == [False] * (len(folders) - 1) + [True]
    unpacked = {str(path.relative_to(home / "library")): path.read_bytes() for path in _files(home / "library")}
    assert unpacked == {
        name: data for name, data in FILES.items() if "_other" not in name and not name.startswith("bin")
    }


def test_nothing_is_packed_twice(packed: Callable[[], Path]) -> None:
    first = packed()
    written = first.read_bytes()
    assert packed() == first
    assert packed.installs == 1  # type: ignore[attr-defined]
    first.unlink()
    assert packed().read_bytes() == written, "the same bytes, so a part that was brought stays right"


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda piece: piece.write_bytes(piece.read_bytes()[:10]), "10 of its .* bytes are there; bring it again"),
        (lambda piece: piece.write_bytes(b"x" * piece.stat().st_size), "not those that were packed; bring it again"),
        (lambda piece: piece.unlink(), "are not there; bring it again"),
        (lambda piece: piece.with_name("part.json").write_text('{"archive":'), "has no whole part"),
        (lambda piece: piece.with_name("part.json").write_text("[]"), "has no whole part"),
        (lambda piece: piece.with_name("part.json").unlink(), "has no whole part"),
    ],
    ids=["cut off", "other bytes", "no piece", "half a note", "no note of ours", "no note"],
)
def test_what_was_cut_off_is_told_and_kept_nowhere(
    packed: Callable[[], Path], tmp_path: Path, spoil: Callable[[Path], object], said: str
) -> None:
    folder = brought(packed(), tmp_path / "kit", 200)[0]
    spoil(folder / "piece")
    with pytest.raises(NotWhole, match=said):
        take(folder, tmp_path / "home")
    assert not (tmp_path / "home").exists()


def test_pieces_of_two_packings_are_not_joined(packed: Callable[[], Path], tmp_path: Path) -> None:
    folders = brought(packed(), tmp_path / "kit", 300)
    note = Part.read(folders[0])
    take(folders[0], tmp_path / "home")
    for folder in folders[1:]:
        replace(Part.read(folder), archive_sha256="0" * 64).write(folder, (folder / "piece").read_bytes())
        assert "unpacked" not in take(folder, tmp_path / "home")
    assert note.of == len(folders)


def test_each_command_of_the_other_machine_is_printed(tmp_path: Path) -> None:
    parts = [Part("qserve", 1, 1, 20 << 20, "", ""), *(Part("vllm", n, 2, 38 << 20, "", "") for n in (1, 2))]
    lines = gpu_kit.steps(parts, Path(".kit"), 23 << 20, 64)
    settings = "VLLM_USE_FLASHINFER_SAMPLER=0 VLLM_NO_USAGE_STATS=1 HF_HUB_OFFLINE=1 python3 bench/gpu.py --only"
    assert [line for line in lines if not line.startswith("#")] == [
        f"python3 bench/gpu_kit.py take .kit/1 && PYTHONPATH=$PWD:$HOME/qserve-kit/qserve {settings} "
        "kernels quality bf16 quantized --budget-s 330",
        "python3 bench/gpu_kit.py take .kit/2",
        "python3 bench/gpu_kit.py take .kit/3 && PYTHONPATH=$PWD:$HOME/qserve-kit/qserve:$HOME/qserve-kit/vllm "
        f"{settings} service pair rewards offload sizes fp8 --budget-s 330",
        "python bench/gpu.py --page docs/results/gpu-*.json",
    ]
    told = "# 2. bring .kit/2: vllm, piece 1 of 2, 38.0 MiB, with the tree 61.0 of 64; seconds"
    assert told in lines
    groups = [name for names, _ in gpu_kit._RUNS.values() for name in names.split()]
    assert groups == list(GROUPS)  # every row, once, in the order of its worth
    assert all(budget_s + gpu_kit._BESIDE_S < 600 for _, budget_s in gpu_kit._RUNS.values())


def test_the_tree_leaves_room_for_a_part() -> None:
    assert gpu_kit._tree_bytes() < 32 * 2**20


def test_versions_that_only_work_together_are_named_together() -> None:
    """pip follows no dependencies here."""
    for one in ARCHIVES:
        pins = dict(requirement.split("==") for requirement in one.packages if "==" in requirement)
        for package in ("pydantic", "opentelemetry-sdk"):
            wanted = dict(
                re.findall(r"^([\w.-]+)==([\w.]+)$", "\n".join(importlib.metadata.requires(package) or ()), re.M)
            )
            assert {name: version for name, version in wanted.items() if pins.get(name, version) != version} == {}


def test_what_qserve_pins_is_what_is_packed() -> None:
    constraints = (gpu_kit.ROOT / "constraints.txt").read_text()
    for name in ("transformers", "bitsandbytes"):
        (tested,) = re.findall(rf"^{name}==(.+)$", constraints, re.M)
        assert f"{name}=={tested}" in ARCHIVES[0].packages


@pytest.mark.parametrize("name", ["gpu_kit.py", "kit/parts.py", "kit/take.py", "kit/contents.py", "kit/archive.py"])
def test_the_other_machine_needs_nothing_but_python(name: str) -> None:
    tree = ast.parse((gpu_kit.ROOT / "bench" / name).read_text())
    imported = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    imported |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert {one.partition(".")[0] for one in imported} <= {*sys.stdlib_module_names, "bench"}


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]
