"""What bench/gpu.py and real vLLM need on a machine with a card and no network: packed here, brought in parts.

    python bench/gpu_kit.py pack                  # on a machine with an index of packages: writes .kit/1, .kit/2, …
    python bench/gpu_kit.py pack --only qserve    # without vLLM
    python3 bench/gpu_kit.py take .kit/1          # on the machine with the card, for each part

`pack` prints each command of the other machine, ready to paste. A part and the tree together stay below --limit-mib,
which is what one command may bring along; nothing that was packed before is packed again. What is packed, and why,
stands in bench/kit/contents.py.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if not __package__:  # run as a script
    sys.path[0] = str(ROOT)  # not bench/, whose files have common names

from bench.kit.archive import pack  # noqa: E402  # after the path
from bench.kit.contents import ARCHIVES  # noqa: E402
from bench.kit.parts import Part, split  # noqa: E402
from bench.kit.take import NotWhole, take  # noqa: E402

_HOME = "~/qserve-kit"
_RESULTS = "docs/results/gpu-*.json"
# What is measured once an archive is there: groups of bench/gpu.py, and their seconds. Unpacking and a row that was
# begun in time take some more.
_RUNS = {"qserve": ("kernels quality bf16 quantized", 330), "vllm": ("service pair rewards offload sizes fp8", 330)}
_BESIDE_S = 60
_MIB = 2**20
# Of a tar's header a file, and of what a folder's own entries take.
_BYTES_PER_FILE = 1024
_SETTINGS = "VLLM_USE_FLASHINFER_SAMPLER=0 VLLM_NO_USAGE_STATS=1 HF_HUB_OFFLINE=1"


def main() -> int:
    """Command line."""
    args = _parser().parse_args()
    if args.do == "take":
        return _take(args.part, args.home)
    tree_bytes = _tree_bytes()
    room_bytes = args.limit_mib * _MIB - tree_bytes
    if room_bytes < _MIB:
        print(f"gpu_kit: the tree has {tree_bytes / _MIB:.1f} MiB, which leaves no room; give a larger --limit-mib")
        return 2
    parts = _write_parts(args.into, [args.only] if args.only else [one.name for one in ARCHIVES], room_bytes)
    for line in steps(parts, args.into, tree_bytes, args.limit_mib):
        print(line)
    return 0


def steps(parts: list[Part], folder: Path, tree_bytes: int, limit_mib: int) -> list[str]:
    """The commands of the machine with the card: each part is brought by one, and measured with once it is whole."""
    lines, path = [], "$PWD"
    for number, part in enumerate(parts, 1):
        sizes = f"{part.num_bytes / _MIB:.1f} MiB, with the tree {(part.num_bytes + tree_bytes) / _MIB:.1f}"
        command = f"python3 bench/gpu_kit.py take {folder}/{number}"
        about = "seconds"
        if part.number == part.of:
            groups, budget_s = _RUNS[part.archive]
            path += f":{_HOME.replace('~', '$HOME')}/{part.archive}"
            command += f" && PYTHONPATH={path} {_SETTINGS} python3 bench/gpu.py --only {groups} --budget-s {budget_s}"
            about = f"up to {budget_s + _BESIDE_S} s"
        piece = f"{part.archive}, piece {part.number} of {part.of}, {sizes} of {limit_mib}"
        lines += [f"# {number}. bring {folder}/{number}: {piece}; {about}", command]
    return [
        *lines,
        "# Results are in $OUT. With all of them in docs/results:",
        f"python bench/gpu.py --page {_RESULTS}",
    ]


def _write_parts(into: Path, names: list[str], room_bytes: int) -> list[Part]:
    """The folders `into/1`, `into/2`, …, in place of those of an earlier call; their parts in that order."""
    for older in [folder for folder in into.glob("*") if folder.name.isdigit()]:
        shutil.rmtree(older)
    parts: list[Part] = []
    for archive in ARCHIVES:
        if archive.name in names:
            packed = pack(archive, ROOT / "constraints.txt", into / "cache")
            for part, data in split(packed, room_bytes - 2 * _BYTES_PER_FILE):
                parts.append(part)
                part.write(into / str(len(parts)), data)
    return parts


def _tree_bytes() -> int:
    """What the tree takes that is brought along with each part: what git tracks, and what it does not ignore."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    files = [ROOT / name for name in names if name and (ROOT / name).is_file()]
    return sum(file.stat().st_size + _BYTES_PER_FILE for file in files)


def _take(part: Path, home: Path) -> int:
    try:
        print(take(part, home.expanduser()))
    except NotWhole as error:
        print(f"gpu_kit: {error}")
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="do", required=True)
    packing = commands.add_parser("pack", help="on a machine with an index of packages")
    packing.add_argument("--into", type=Path, default=Path(".kit"), help="a folder that git ignores")
    packing.add_argument("--only", choices=[archive.name for archive in ARCHIVES])
    packing.add_argument("--limit-mib", type=int, default=64, help="for the tree and a part together")
    taking = commands.add_parser("take", help="on the machine with the card")
    taking.add_argument("part", type=Path)
    taking.add_argument("--home", type=Path, default=Path(_HOME), help="where it stays, outside of the tree")
    return parser


if __name__ == "__main__":
    sys.exit(main())
