"""A part: what one command brings along, a folder with a piece of an archive and a note that says which."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

__all__ = ["Part", "digest_of", "split"]

_NOTE, _PIECE = "part.json", "piece"


@dataclass(frozen=True)
class Part:
    """Piece `number` of the `of` that `archive` was split into; checksums are SHA-256 in hexadecimal."""

    archive: str
    number: int
    of: int
    num_bytes: int
    sha256: str
    archive_sha256: str

    @classmethod
    def read(cls, folder: Path) -> Part:
        """What the note in the folder says. Raises OSError, ValueError or TypeError where it is not whole."""
        return cls(**json.loads((folder / _NOTE).read_text()))

    def write(self, folder: Path, data: bytes) -> None:
        """The folder as it is brought, made anew where it is another part's."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _PIECE).write_bytes(data)
        (folder / _NOTE).write_text(json.dumps(asdict(self), indent=1) + "\n")

    def piece(self, folder: Path) -> Path:
        return folder / _PIECE

    def why_not_whole(self, folder: Path) -> str | None:
        """What is wrong with the piece in the folder, as half a sentence."""
        try:
            found = (folder / _PIECE).stat().st_size
        except OSError:
            return f"its {self.num_bytes} bytes are not there"
        if found != self.num_bytes:
            return f"{found} of its {self.num_bytes} bytes are there"
        if digest_of([folder / _PIECE]) != self.sha256:
            return "its bytes are not those that were packed"
        return None


def split(archive: Path, most_bytes: int) -> Iterator[tuple[Part, bytes]]:
    """The archive in as few pieces of about the same size as `most_bytes` allows."""
    data = archive.read_bytes()
    of = -(-len(data) // most_bytes)
    size = -(-len(data) // of)
    whole = hashlib.sha256(data).hexdigest()
    for number in range(1, of + 1):
        piece = data[(number - 1) * size : number * size]
        sha256 = hashlib.sha256(piece).hexdigest()
        yield Part(archive.name.partition("-")[0], number, of, len(piece), sha256, whole), piece


def digest_of(files: list[Path]) -> str:
    """SHA-256 of the files, one behind the other."""
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as opened:
            while block := opened.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()
