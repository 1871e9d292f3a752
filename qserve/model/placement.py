"""The plan's placement as `from_pretrained` takes it: a device map in the model's own names, and an offload folder.

accelerate does the rest underneath: weights go straight to their place, hooks move activations from card to card, and
what lies in RAM or on disk is brought to the first card piece by piece, or on a machine without one to the CPU. Layers
of a dense model in RAM beside one card are streamed instead (`layer_stream.py`).
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from qserve.errors import DoesNotFit, UsageError
from qserve.hub.folder import read_tensors
from qserve.planner.plan import DeviceMap, Plan
from qserve.units import format_bytes

__all__ = [
    "check_cards",
    "in_names_of",
    "offload_root",
    "placement_arguments",
    "remove_offload_folder",
    "rewritten_bytes",
    "skeleton",
]

_log = logging.getLogger(__name__)
# Where a model nests its language model; the plan names modules as a plain causal language model does.
_NESTED = "model.language_model."
# What accelerate says of every offloaded model as if it were a surprise.
_EXPECTED = "Some parameters are on the meta device"


def placement_arguments(folder: Path, plan: Plan) -> dict[str, Any]:
    """Keyword arguments of `from_pretrained` for the checkpoint in `folder`.

    Raises UsageError for a card that is not there, DoesNotFit when the disk is too small for what must be written.
    """
    placed = plan.placement.device_map
    check_cards(placed)
    if not isinstance(placed, dict):
        return {"device_map": placed}
    logging.getLogger("accelerate.big_modeling").addFilter(lambda record: _EXPECTED not in record.getMessage())
    empty = skeleton(folder)
    device_map = in_names_of(empty, placed)
    if "disk" not in device_map.values():
        return {"device_map": device_map}
    return {"device_map": device_map, "offload_folder": str(_offload_folder(folder, empty, device_map))}


def in_names_of(model: torch.nn.Module, placed: DeviceMap) -> DeviceMap:
    """`placed` in the names of `model`: its prefixes, no modules that it lacks, and those that it has beside.

    What the plan does not know of (a vision encoder that is loaded with the rest) goes where the embedding goes.
    """
    own = {name for name, _ in model.named_modules()}
    named = {_own_name(name, own): place for name, place in placed.items()}
    found = {name: place for name, place in named.items() if name in own}
    beside = next(iter(placed.values()))
    for name, _ in [*model.named_parameters(), *model.named_buffers()]:
        if not any(name.startswith(f"{key}.") for key in found):
            found[_uncovered(name, found)] = beside
    return found


def _own_name(name: str, own: set[str]) -> str:
    return name if name in own else name.replace("model.", _NESTED, 1)


def _uncovered(tensor_name: str, covered: Iterable[str]) -> str:
    """The largest module that holds the tensor and nothing that has a place already."""
    parts = tensor_name.split(".")
    for length in range(1, len(parts)):
        module = ".".join(parts[:length])
        if not any(key.startswith(f"{module}.") or key == module for key in covered):
            return module
    return tensor_name


def skeleton(folder: Path) -> torch.nn.Module:
    """The model without weights; it takes no memory."""
    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    with torch.device("meta"):
        model: torch.nn.Module = AutoModelForCausalLM.from_config(config)
    return model


def check_cards(placed: DeviceMap | str | None) -> None:
    """Raises UsageError for a card of `placed` that torch does not see, or can't use."""
    places = [placed] if isinstance(placed, str) else (placed or {}).values()
    indices = {int(found[1]) for place in places if (found := re.fullmatch(r"(?:cuda:)?(\d+)", str(place)))}
    if not indices:
        return
    have = torch.cuda.device_count()
    if max(indices) >= have:
        seen = f"cards 0 to {have - 1}" if have > 1 else "card 0 alone" if have else "no card"
        raise UsageError(
            f"the plan places modules on card {max(indices)}, but torch sees {seen} here; plan again on this machine, "
            "or write --gpu none to stay on the CPU (a CPU build of torch and CUDA_VISIBLE_DEVICES hide cards)"
        )
    try:
        # Counting asks NVML, which knows nothing of what torch was built for.
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        why = str(error).strip().splitlines()[0]
        raise UsageError(
            f"torch {torch.__version__} can't use the card: {why} Install a driver and a torch that match (this "
            f"one is built for CUDA {torch.version.cuda}; nvidia-smi names the newest that the driver runs), or write "
            "--gpu none to stay on the CPU"
        ) from error


def offload_root() -> Path:
    """Where offload folders are made: a cache folder, on a disk, since /tmp is often RAM."""
    cached = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cached / "qserve" / "offload"


def _offload_folder(folder: Path, skeleton: torch.nn.Module, device_map: DeviceMap) -> Path:
    """A private folder of this process, gone when the process ends, or at the next start if it was killed."""
    root = offload_root()
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    _sweep(root)
    needed, free = rewritten_bytes(folder, skeleton, device_map), shutil.disk_usage(root).free
    if needed > free:
        raise DoesNotFit(
            f"{format_bytes(needed)} of weights must be rewritten for offloading to disk, and {root} has "
            f"{format_bytes(free)} free; free space there, name a folder on another disk by XDG_CACHE_HOME, or offload "
            "less"
        )
    made = Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=root))
    atexit.register(remove_offload_folder)
    return made


def rewritten_bytes(folder: Path, skeleton: torch.nn.Module, device_map: DeviceMap) -> int:
    """Bytes on disk that can't be read where they lie: tensors that loading makes of several (fused experts).

    All others are read from the checkpoint's own safetensors files.
    """
    stored = {tensor.name.replace(_NESTED, "model.") for tensor in read_tensors(folder) or ()}
    return sum(
        tensor.nbytes
        for name, tensor in skeleton.state_dict().items()
        if _place_of(name, device_map) == "disk" and name.replace(_NESTED, "model.") not in stored
    )


def _place_of(name: str, device_map: DeviceMap) -> int | str | None:
    found = [key for key in device_map if name.startswith(f"{key}.")]
    return device_map[max(found, key=len)] if found else None


def remove_offload_folder() -> None:
    """Remove what this process offloaded. Nothing can be generated afterwards."""
    for made in offload_root().glob(f"{os.getpid()}-*"):
        shutil.rmtree(made, ignore_errors=True)


def _sweep(root: Path) -> None:
    """Remove the folders of processes that were killed before they could."""
    for made in root.iterdir():
        owner = made.name.partition("-")[0]
        if owner.isdigit() and not _is_alive(int(owner)):
            _log.info("removing %s, left by a process that was killed", made)
            shutil.rmtree(made, ignore_errors=True)


def _is_alive(pid: int) -> bool:
    with contextlib.suppress(PermissionError):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
    return True
