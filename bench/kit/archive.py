"""An archive of installed packages for another machine: pip installs them into a folder, what is kept is compressed."""

from __future__ import annotations

import hashlib
import json
import lzma
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.kit.contents import PYTHON, Archive

__all__ = ["pack"]

# Whatever a C library of 2024 can load.
_PLATFORMS = (*(f"manylinux_2_{minor}_x86_64" for minor in range(39, 4, -1)), "manylinux2014_x86_64")
# Seven tenths of the time of 6 buys a part more to bring.
_PRESET = 6


def pack(archive: Archive, constraints: Path, cache: Path) -> Path:
    """`NAME-FINGERPRINT.tar.xz` in `cache`: made where the contents or the constraints have changed since.

    Raises subprocess.CalledProcessError where pip can't; it has said why.
    """
    pinned = _constraints_of(archive, constraints)
    packed = cache / f"{archive.name}-{_fingerprint(archive, pinned)}.tar.xz"
    if packed.exists():
        return packed
    print(f"packing {archive.name} ({len(archive.packages)} packages; minutes)", flush=True)
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        installed = Path(scratch) / "installed"
        _install(archive, pinned, installed, cache / "wheels")
        unfinished = Path(scratch) / packed.name
        _compress(installed, archive, unfinished)
        for older in cache.glob(f"{archive.name}-*.tar.xz"):
            older.unlink()
        return unfinished.rename(packed)


def kept(installed: Path, archive: Archive) -> Iterator[Path]:
    """The files that are packed, in an order that is always the same."""
    for file in sorted(installed.rglob("*")):
        name = f"/{file.relative_to(installed).as_posix()}"
        if file.is_file() and not name.startswith("/bin/") and not any(part in name for part in archive.left_out):
            yield file


def _constraints_of(archive: Archive, constraints: Path) -> str:
    """The tested versions of packages that the archive names without one."""
    lines = constraints.read_text().splitlines()
    return "\n".join(line for line in lines if line.partition("==")[0] in archive.packages)


def _fingerprint(archive: Archive, pinned: str) -> str:
    """Of all that decides what is in it, unless an index has a newer version of something that nobody pinned."""
    described = json.dumps([sorted(archive.packages), sorted(archive.left_out), pinned, PYTHON, _PRESET])
    return hashlib.sha256(described.encode()).hexdigest()[:12]


def _install(archive: Archive, pinned: str, into: Path, wheels: Path) -> None:
    """As the other machine's pip would. The wheels stay: what is downloaded once is not downloaded again."""
    constraints = into.with_name("constraints.txt")
    constraints.write_text(pinned)
    platforms = [word for tag in _PLATFORMS for word in ("--platform", tag)]
    its_own = ["--only-binary=:all:", "--python-version", PYTHON, "--implementation", "cp", *platforms]
    asked = ["--no-deps", *its_own, "--constraint", str(constraints), *archive.packages]
    _pip("download", "--dest", str(wheels), *asked)
    _pip("install", "--no-index", "--find-links", str(wheels), "--no-compile", "--target", str(into), *asked)


def _pip(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", *words, "--quiet", "--disable-pip-version-check"], check=True)


def _compress(installed: Path, archive: Archive, into: Path) -> None:
    """The same bytes each time: no owners, no times."""
    with lzma.open(into, "wb", preset=_PRESET) as compressed, tarfile.open(fileobj=compressed, mode="w|") as tar:
        for file in kept(installed, archive):
            entry = tarfile.TarInfo(file.relative_to(installed).as_posix())
            entry.size, entry.mode = file.stat().st_size, 0o644
            with file.open("rb") as opened:
                tar.addfile(entry, opened)
