"""What holds this process's resident memory, by the kernel's own list of its mappings.

Every page is counted once, so the parts sum to the whole: what no other account names can't hide. Source: man 5 proc,
`/proc/PID/smaps`, `Pss` (a page that n processes share counts 1/n) and `Rss`.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch

from qserve.model.packed_cache.tensor_file import PACKED_SUFFIX

__all__ = ["Mappings", "parse_smaps", "resident_bytes_of", "resident_mappings", "resident_terms"]

_SMAPS = Path("/proc/self/smaps")
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


@dataclass(frozen=True)
class Mappings:
    """Resident bytes by kind of mapping; `shared_bytes` is what of all these is charged to other processes (Rss − Pss).

    Attributes:
        files_bytes: code and data of the interpreter and its libraries, and files that are read where they lie.
        code_bytes: executable memory of no file: kernels that oneDNN and torch compiled.
        data_bytes: everything else: the heap, tensors, stacks.
        packed_bytes: weights that are read in files of packed ones (`packed_cache`), of `packed_size_bytes` in all.
    """

    files_bytes: int
    code_bytes: int
    data_bytes: int
    shared_bytes: int
    packed_bytes: int = 0
    packed_size_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        """Resident set size."""
        return self.files_bytes + self.code_bytes + self.data_bytes + self.packed_bytes


def resident_terms(weights_bytes: int, cache_bytes: int = 0) -> dict[str, int]:
    """What this process's pages are for. All but the last sum to its RSS, and with the last subtracted to its PSS.

    `weights_bytes` are all in RAM that the checkpoint's own files don't keep, `cache_bytes` what of the KV pool is
    resident. Of packed weights that are mapped what is resident counts.
    """
    found = resident_mappings()
    unmapped_bytes = max(0, weights_bytes - found.packed_size_bytes)
    return {
        "weights_bytes": unmapped_bytes + found.packed_bytes,
        "kv_cache_bytes": cache_bytes,
        "compiled_code_bytes": found.code_bytes,
        "libraries_bytes": found.files_bytes,
        "heap_bytes": max(0, found.data_bytes - unmapped_bytes - cache_bytes),
        "shared_bytes": found.shared_bytes,
    }


def resident_mappings() -> Mappings:
    """Of this process, now. All 0 where there is no such list."""
    return parse_smaps(_SMAPS.read_text().splitlines()) if _SMAPS.exists() else Mappings(0, 0, 0, 0)


def parse_smaps(lines: Iterable[str]) -> Mappings:
    """`lines` of /proc/PID/smaps."""
    held = {"files": 0, "code": 0, "data": 0, "packed": 0}
    kind, shared, packed_size = "data", 0, 0
    for line in lines:
        key, _, rest = line.partition(":")
        if " " in key:  # the head of a mapping: "7f3c…-7f3d… rw-p offset device inode path"
            kind = _kind(line.split(None, 5))
        elif key == "Size" and kind == "packed":
            packed_size += int(rest.split()[0]) * 1024
        elif key == "Rss":
            held[kind] += int(rest.split()[0]) * 1024
            shared += int(rest.split()[0]) * 1024
        elif key == "Pss":
            shared -= int(rest.split()[0]) * 1024
    return Mappings(held["files"], held["code"], held["data"], shared, held["packed"], packed_size)


def _kind(head: list[str]) -> str:
    path = head[5].strip() if len(head) > 5 else ""
    if path.removesuffix(" (deleted)").endswith(PACKED_SUFFIX):
        return "packed"
    is_file = path.startswith("/") and not path.endswith("(deleted)")
    if is_file or path in ("[vdso]", "[vsyscall]"):
        return "files"
    return "code" if "x" in head[1] else "data"


def resident_bytes_of(tensors: Iterable[torch.Tensor]) -> int:
    """How much of tensors in RAM is resident: a page counts once it was written (man 2 mincore)."""
    return sum(_resident(tensor) for tensor in tensors if tensor.device.type == "cpu" and tensor.nbytes)


def _resident(tensor: torch.Tensor) -> int:
    storage = tensor.untyped_storage()
    begin = storage.data_ptr() // mmap.PAGESIZE * mmap.PAGESIZE
    num_pages = -(-(storage.data_ptr() + storage.nbytes() - begin) // mmap.PAGESIZE)
    pages = (ctypes.c_ubyte * num_pages)()
    address, length = ctypes.c_void_p(begin), ctypes.c_size_t(num_pages * mmap.PAGESIZE)
    if _LIBC is None or _LIBC.mincore(address, length, pages) != 0:
        return storage.nbytes()
    return min(storage.nbytes(), bytes(pages).count(1) * mmap.PAGESIZE)
