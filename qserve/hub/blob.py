"""One large file of the hub into the library's cache: resumed after whatever ended it, and verified.

The library's own download begins anew in each process (its partial file has a name that no other process knows), and
holds what came against its size alone. This one keeps `<SHA-256>.incomplete`, which the next call goes on from, and
takes the library's lock, so that two processes fetch a file once.
"""

from __future__ import annotations

import hashlib
import string
import threading
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from qserve.errors import BrokenCheckpoint
from qserve.hub.retries import MOST_TRIES, may_pass, pause_s, status_of

__all__ = ["Blob", "Stopped", "WrongContent", "digest_of", "is_digest"]

_LOOK_S = 1.0
_PIECE = 1 << 22
_SHA1_DIGITS, _SHA256_DIGITS = 40, 64
_PART, _NOT_THAT_RANGE = 206, 416


class Stopped(Exception):
    """The download was asked to end."""


class WrongContent(BrokenCheckpoint):
    """What the hub sends is not what it says that the file is."""


@dataclass(frozen=True)
class Blob:
    """A file of the hub, and where the cache keeps it.

    Attributes:
        name: within its repository.
        num_bytes: of all of it.
        digest: its SHA-256; of a small file, which git keeps itself, the SHA-1 of git's blob. The cache's name for it.
        url: where it is asked for.
        folder: of the cache's blobs.
        lock: the library's for this file.
    """

    name: str
    num_bytes: int
    digest: str
    url: str
    folder: Path
    lock: Path

    @property
    def path(self) -> Path:
        """Where it is when it is whole."""
        return self.folder / self.digest

    @property
    def partial(self) -> Path:
        """Where it grows."""
        return self.folder / f"{self.digest}.incomplete"

    @property
    def num_bytes_here(self) -> int:
        """Of the partial file."""
        try:
            return min(self.partial.stat().st_size, self.num_bytes)
        except OSError:
            return 0

    def fetch(self, stopped: threading.Event) -> None:
        """Returns when it is there, whoever fetched it.

        Raises Stopped once `stopped` is set, WrongContent if it came with another digest twice, and what the library or
        the disk raise after several tries without a new byte.
        """
        from huggingface_hub.utils import WeakFileLock

        self.folder.mkdir(parents=True, exist_ok=True)
        self.lock.parent.mkdir(parents=True, exist_ok=True)
        while not self.path.exists():
            if stopped.is_set():
                raise Stopped
            try:
                with WeakFileLock(self.lock, timeout=_LOOK_S):
                    if not self.path.exists():
                        self._fetch(stopped)
            except TimeoutError:  # another process has it
                continue

    def _fetch(self, stopped: threading.Event) -> None:
        for is_last in (False, True):
            self._complete(stopped)
            if digest_of(self.partial, self.digest) == self.digest:
                self.partial.rename(self.path)
                return
            self.partial.unlink()
            if is_last:
                raise WrongContent(
                    f"{self.name} came with another checksum than the hub says, twice ({self.digest[:12]}… is right); "
                    "a proxy or a mirror in between may change it: try again later, or another HF_ENDPOINT"
                )

    def _complete(self, stopped: threading.Event) -> None:
        failures = 0
        while (before := self.num_bytes_here) < self.num_bytes:
            try:
                self._go_on(before, stopped)
                if self.num_bytes_here <= before:
                    raise OSError(f"the hub sent nothing of {self.name}")
            except Stopped:
                raise
            except Exception as error:
                if not may_pass(error):
                    raise
                if status_of(error) == _NOT_THAT_RANGE:
                    self.partial.unlink(missing_ok=True)
                failures = 1 if self.num_bytes_here > before else failures + 1
                if failures >= MOST_TRIES:
                    raise
                if stopped.wait(pause_s(error, failures)):
                    raise Stopped from None

    def _go_on(self, num_bytes_here: int, stopped: threading.Event) -> None:
        """The rest of it, by one request; what came is in the partial file whatever ends it."""
        from huggingface_hub import constants, get_hf_file_metadata
        from huggingface_hub.utils import build_hf_headers, hf_raise_for_status, http_stream_backoff

        location = get_hf_file_metadata(self.url).location  # signed for a while
        headers = {**build_hf_headers(), "accept-encoding": "identity", "range": f"bytes={num_bytes_here}-"}
        if urlsplit(location).netloc != urlsplit(self.url).netloc:
            headers.pop("authorization", None)  # the key is for the hub alone
        tries = {"retry_on_exceptions": (), "retry_on_status_codes": ()}  # ours go on from what came
        timeout_s = constants.HF_HUB_DOWNLOAD_TIMEOUT
        with (
            self.partial.open("ab", buffering=0) as file,
            http_stream_backoff("GET", location, headers=headers, timeout=timeout_s, **tries) as response,
        ):
            hf_raise_for_status(response)
            if response.status_code != _PART:  # all of it
                file.truncate(0)
            for piece in response.iter_raw():
                if stopped.is_set():
                    raise Stopped
                file.write(piece)


def is_digest(text: str) -> bool:
    """Whether it can be one: a SHA-256, or git's SHA-1, in hexadecimal digits."""
    return len(text) in (_SHA1_DIGITS, _SHA256_DIGITS) and not text.strip(string.hexdigits)


def digest_of(file: Path, like: str) -> str:
    """Of the file's bytes: SHA-256, or git's SHA-1 of a blob if `like` has as many digits as one."""
    is_git = len(like) == _SHA1_DIGITS
    found = hashlib.sha1(usedforsecurity=False) if is_git else hashlib.sha256()
    if is_git:
        found.update(f"blob {file.stat().st_size}\0".encode())
    with file.open("rb") as stream:
        while piece := stream.read(_PIECE):
            found.update(piece)
    return found.hexdigest()
