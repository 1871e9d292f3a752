"""The process that tries grammars: `python -m …grammar.trial_process CONTROL_FD < vocabulary`

What a structure of 70 bytes makes the library do has no bound of its own: a count, a multiple or a repetition
multiplies. So each grammar is compiled first in a process that is forked from this one, which may take `MOST_CPU_S` and
`MOST_BYTES`, and ends with whoever asked. Only what stayed within is compiled again by the worker, which then knows
what it will take.

For each grammar the worker sends one end of a pair of sockets through CONTROL_FD; over the pair go the grammar, behind
its length, and back a `Trial` as JSON, or `{"failure": why}` where it could not be tried, or nothing where the kernel
ended the process at one of its bounds. The vocabulary has the bytes and the special tokens alone: nothing is compiled
over the others.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import struct
import sys
import threading
import time
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

from llguidance import LLTokenizer
from llguidance._tokenizer import TokenizerWrapper

from qserve.engines.transformers.worker.grammar.matcher import matcher_of
from qserve.worker.process import end_with_parent

__all__ = ["LENGTH", "MOST_BYTES", "MOST_CPU_S", "Trial"]

MOST_CPU_S = 1
MOST_BYTES = 64 * 1024 * 1024
LENGTH = struct.Struct("!I")

# The processor is the model's first.
_NICE = 10
_WALL_S = 60.0
_PAGE = resource.getpagesize()


@dataclass(frozen=True)
class Trial:
    """What compiling it took: the bytes are those that stay. `error`: why no answer can follow it; empty: one can."""

    num_bytes: int
    cpu_s: float
    error: str


class _Bytes:
    """A tokenizer without merges, as the library wants one."""

    bos_token_id = None

    def __init__(self, told: dict[str, Any]) -> None:
        self.tokens = [b""] * told["vocab_size"]
        for token_id, text in told["tokens"]:
            self.tokens[token_id] = text.encode("latin-1")
        self.special_token_ids = told["special_ids"]
        self.eos_token_id = told["end"]
        self._ids = {token: token_id for token_id, token in enumerate(self.tokens) if len(token) == 1}

    def __call__(self, text: str | bytes) -> list[int]:
        whole = text.encode() if isinstance(text, str) else text
        return [self._ids[bytes([byte])] for byte in whole if bytes([byte]) in self._ids]


def main(control: socket.socket, told: dict[str, Any]) -> None:
    """A process for each grammar, until the worker has gone."""
    wrapper: Any = TokenizerWrapper(_Bytes(told))
    tokens = LLTokenizer(wrapper, n_vocab=told["vocab_size"], eos_token=told["end_ids"] or None, slices=[])
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps them
    os.nice(_NICE)
    while True:
        _, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not descriptors:
            return
        if os.fork() == 0:
            control.close()
            _try(socket.socket(fileno=descriptors[0]), tokens)
        os.close(descriptors[0])


def _try(asker: socket.socket, tokens: LLTokenizer) -> NoReturn:
    """Compile one grammar and end."""
    log = os.fdopen(os.dup(2), "w")
    try:
        end_with_parent()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # the library writes its panics there
        source = asker.makefile("rb")
        (length,) = LENGTH.unpack(source.read(LENGTH.size))
        grammar = source.read(length).decode()
        threading.Thread(target=_end_in_time, args=(asker,), daemon=True).start()
        _bound()
        began_s, began_bytes = time.process_time(), _resident_bytes()
        matcher, error = matcher_of(tokens, grammar)
        _answer(asker, asdict(Trial(max(0, _resident_bytes() - began_bytes), time.process_time() - began_s, error)))
        del matcher
    except MemoryError:
        pass
    except BaseException as error:
        traceback.print_exc(file=log)
        log.flush()
        _answer(asker, {"failure": f"trying it failed: {type(error).__name__}; the worker's log says more"})
    finally:
        os._exit(0)


def _end_in_time(asker: socket.socket) -> None:
    """With who asked, or when it is late."""
    asker.settimeout(_WALL_S)
    try:
        asker.recv(1)
    except TimeoutError:
        _answer(asker, {"failure": f"the machine has no time for this structure: {_WALL_S:.0f} s"})
    finally:
        os._exit(1)


def _answer(asker: socket.socket, fields: dict[str, Any]) -> None:
    asker.sendall(json.dumps(fields).encode())


def _bound() -> None:
    """The kernel ends it beyond these."""
    most = int(Path("/proc/self/statm").read_text().split()[0]) * _PAGE + MOST_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CPU, (MOST_CPU_S, MOST_CPU_S))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _resident_bytes() -> int:
    """Of its own: no files."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))


if __name__ == "__main__":
    end_with_parent()
    main(socket.socket(fileno=int(sys.argv[1])), json.load(sys.stdin))
