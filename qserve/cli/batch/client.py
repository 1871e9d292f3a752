"""OpenAI's files and batches from the client's side, with the standard library alone."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qserve.client.answer import Answer, NotJson, Unreachable, is_error
from qserve.client.http import Body, Reply, opened
from qserve.errors import QserveError, UsageError

__all__ = ["BatchServer"]

_TIMEOUT_S = 300
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class BatchServer:
    """A server that has /v1/files and /v1/batches.

    Raises UsageError with what it refused, QserveError if it can't be reached or fails.
    """

    url: str
    api_key: str

    def check(self) -> None:
        """A refused key shows here: during a large upload the server may hang up before its answer is read."""
        self._json("GET", "/v1/files?limit=1")

    def upload(self, file: Path) -> str:
        """Upload a file; returns its id. It is read as it is sent, never whole."""
        border = uuid.uuid4().hex
        name = file.name.encode("ascii", "replace").decode().replace('"', "_").replace("\\", "_")
        head = (
            f'--{border}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--{border}\r\n'
            f'Content-Disposition: form-data; name="file"; filename="{name}"\r\n'
            "Content-Type: application/octet-stream\r\n\r\n"
        ).encode()
        tail = f"\r\n--{border}--\r\n".encode()
        length = len(head) + file.stat().st_size + len(tail)
        headers = {"content-type": f"multipart/form-data; boundary={border}", "content-length": str(length)}

        def parts() -> Iterator[bytes]:
            yield head
            with file.open("rb") as opened:
                while chunk := opened.read(_CHUNK_BYTES):
                    yield chunk
            yield tail

        uploaded = self._json("POST", "/v1/files", parts(), headers)
        return str(uploaded["id"])

    def create(self, file_id: str, endpoint: str, window: str) -> dict[str, Any]:
        """Create a batch; returns it."""
        body = {"input_file_id": file_id, "endpoint": endpoint, "completion_window": window}
        return self._json("POST", "/v1/batches", body)

    def batch(self, batch_id: str) -> dict[str, Any]:
        """The batch as it is now."""
        return self._json("GET", f"/v1/batches/{batch_id}")

    def download(self, file_id: str, target: Path) -> None:
        """Write the content of a file on the server to `target`."""
        with self._opened("GET", f"/v1/files/{file_id}/content") as answer, target.open("wb") as file:
            shutil.copyfileobj(answer, file, _CHUNK_BYTES)

    def _json(
        self, method: str, path: str, body: Body = None, headers: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        with self._opened(method, path, body, headers) as reply:
            try:
                value: dict[str, Any] = Answer(reply.status, reply.headers, reply.read()).json()
            except NotJson as error:
                raise UsageError(f"{self.url}{path} did not answer with JSON: {error}") from error
        return value

    @contextmanager
    def _opened(
        self, method: str, path: str, body: Body = None, headers: Mapping[str, str] | None = None
    ) -> Iterator[Reply]:
        url = f"{self.url}{path}"
        try:
            with opened(method, url, api_key=self.api_key, body=body, headers=headers, timeout_s=_TIMEOUT_S) as reply:
                if is_error(reply.status):
                    raise self._refusal(path, Answer(reply.status, reply.headers, reply.read()))
                yield reply
        except Unreachable as error:
            raise self._failure(error.reason) from None

    def _refusal(self, path: str, answer: Answer) -> QserveError:
        message = f"{self.url}{path} answered {answer.status}: {answer.message()}"
        if answer.status >= 500:
            return QserveError(message)
        return UsageError(f"{message}; give one with --api-key or QSERVE_API_KEY" if answer.status == 401 else message)

    def _failure(self, reason: object) -> QserveError:
        if isinstance(reason, BrokenPipeError | ConnectionResetError):
            return QserveError(
                f"{self.url} closed the connection: {reason}; it may have stopped, or the file is longer than its "
                "--max-file-mib (default: 200)"
            )
        return QserveError(f"{self.url} can't be reached: {reason}; is `qserve up` running there?")
