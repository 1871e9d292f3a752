"""OpenAI's files and batches from the client's side, with the standard library alone."""

from __future__ import annotations

import json
import shutil
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any

from qserve.error_text import message_of
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
        headers = {"content-type": "application/json"}
        return self._json("POST", "/v1/batches", json.dumps(body).encode(), headers)

    def batch(self, batch_id: str) -> dict[str, Any]:
        """The batch as it is now."""
        return self._json("GET", f"/v1/batches/{batch_id}")

    def download(self, file_id: str, target: Path) -> None:
        """Write the content of a file on the server to `target`."""
        with self._opened("GET", f"/v1/files/{file_id}/content") as answer, target.open("wb") as file:
            shutil.copyfileobj(answer, file, _CHUNK_BYTES)

    def _json(
        self, method: str, path: str, data: Any = None, headers: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        with self._opened(method, path, data, headers) as answer:
            try:
                value: dict[str, Any] = json.load(answer)
            except ValueError as error:
                raise UsageError(f"{self.url}{path} did not answer with JSON: {error}") from error
        return value

    def _opened(self, method: str, path: str, data: Any = None, headers: Mapping[str, str] | None = None) -> Any:
        key = {"authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        request = urllib.request.Request(  # noqa: S310 - the flag looked at the scheme
            f"{self.url}{path}", data, {**(headers or {}), **key}, method=method
        )
        try:
            return urllib.request.urlopen(request, timeout=_TIMEOUT_S)  # noqa: S310
        except urllib.error.HTTPError as error:
            with error:
                raise self._refusal(path, error.code, error.read()) from None
        except (OSError, HTTPException) as error:
            raise self._failure(getattr(error, "reason", error)) from None
        except ValueError as error:  # of http.client, for what no header may hold
            raise UsageError(f"the key of --api-key can't be sent: {error}") from None

    def _refusal(self, path: str, status: int, body: bytes) -> QserveError:
        message = f"{self.url}{path} answered {status}: {message_of(body)}"
        if status >= 500:
            return QserveError(message)
        return UsageError(f"{message}; give one with --api-key or QSERVE_API_KEY" if status == 401 else message)

    def _failure(self, reason: object) -> QserveError:
        if isinstance(reason, BrokenPipeError | ConnectionResetError):
            return QserveError(
                f"{self.url} closed the connection: {reason}; it may have stopped, or the file is longer than its "
                "--max-file-mib (default: 200)"
            )
        return QserveError(f"{self.url} can't be reached: {reason}; is `qserve up` running there?")
