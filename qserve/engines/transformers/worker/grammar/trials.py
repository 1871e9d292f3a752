"""The worker's side of `process`: one grammar of each client at a time, and none for who has left."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import weakref
from typing import Any

from qserve.engines.transformers.worker.grammar.trial_process import LENGTH, Trial
from qserve.engines.transformers.worker.grammar.vocabulary import Vocabulary
from qserve.model.failures import EngineError
from qserve.worker.places import Places

__all__ = ["TrialFailed", "Trials"]

_AT_ONCE = 3


class TrialFailed(EngineError):
    """A grammar could not be tried, for no fault of its own."""

    code = "internal_error"


class Trials:
    """All methods belong to one event loop at a time."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = json.dumps(_to_json(vocabulary)).encode()
        self._places = Places(_AT_ONCE)
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._end: weakref.finalize[..., Any] | None = None

    def start(self) -> None:
        """Start the process, so that the first grammar does not wait for it."""
        if self._runs():
            return
        self.stop()
        self._control, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "qserve.engines.transformers.worker.grammar.trial_process",
                    str(theirs.fileno()),
                ],
                stdin=subprocess.PIPE,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self._process = process
        self._end = weakref.finalize(self, _end, process, self._control)  # where nobody stops it
        assert process.stdin is not None
        process.stdin.write(self._vocabulary)
        process.stdin.close()

    def stop(self) -> None:
        """End it, and what it tries."""
        if self._end is not None:
            self._end()
        self._process = self._control = self._end = None

    def _runs(self) -> bool:
        """By its end of the sockets, which is closed before the kernel tells that it ended."""
        if self._control is None:
            return False
        try:
            self._control.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    async def of(self, grammar: str, client: str) -> Trial | None:
        """What `grammar` takes; None: more than it may. A caller that is cancelled ends the trial.

        Raises TrialFailed.
        """
        async with self._places.of(client):
            answer = await self._tried(grammar)
            if not answer and not self._runs():
                answer = await self._tried(grammar)
                if not answer and not self._runs():
                    raise TrialFailed("the process that tries structures does not run; the worker's log says why")
        if not answer:
            return None
        fields = json.loads(answer)
        if "failure" in fields:
            raise TrialFailed(fields["failure"])
        return Trial(**fields)

    async def _tried(self, grammar: str) -> bytes:
        """Empty: its process ended without an answer."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self.start()
                assert self._control is not None
                socket.send_fds(self._control, [b"g"], [theirs.fileno()])
            reader, writer = await asyncio.open_unix_connection(sock=ours)
        except BaseException as error:
            ours.close()
            if isinstance(error, BrokenPipeError):
                return b""
            raise
        try:
            data = grammar.encode()
            writer.writelines([LENGTH.pack(len(data)), data])
            await writer.drain()
            return await reader.read()
        except (BrokenPipeError, ConnectionResetError):
            return b""
        finally:
            writer.close()


def _end(process: subprocess.Popen[bytes], control: socket.socket) -> None:
    control.close()
    process.kill()
    process.wait()


def _to_json(vocabulary: Vocabulary) -> dict[str, Any]:
    special = set(vocabulary.special_ids)
    kept = [
        (token_id, token.decode("latin-1"))
        for token_id, token in enumerate(vocabulary.tokens)
        if len(token) == 1 or token_id in special
    ]
    return {
        "vocab_size": len(vocabulary.tokens),
        "tokens": kept,
        "special_ids": vocabulary.special_ids,
        "end": vocabulary.end,
        "end_ids": vocabulary.end_ids,
    }
