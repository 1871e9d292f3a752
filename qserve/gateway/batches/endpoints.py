"""The routes of files and batches. A client sees only what was uploaded with its own key."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from starlette.types import Receive, Scope, Send

from qserve.batches import BatchRunner, FileBounds, FileStore
from qserve.batches.batches import BatchStore
from qserve.batches.database import FilesUnusable
from qserve.batches.files import Page
from qserve.batches.records import StoredFile
from qserve.gateway.auth import client_of, header, owner_of
from qserve.gateway.batches.multipart import Upload, boundary_of, check_length, read_upload
from qserve.gateway.batches.service import GatewayAsService
from qserve.gateway.batches.upload_slots import UploadSlots
from qserve.gateway.bodies import Bodies
from qserve.gateway.dispatch import Endpoint
from qserve.gateway.limits import BodyHead
from qserve.gateway.respond import send_json
from qserve.gateway.routes import Route
from qserve.gateway.settings import GatewaySettings
from qserve.gateway.web.origin import comes_from_elsewhere
from qserve.wire.batches import MAX_KEEP_S, MIN_KEEP_S, CreateBatchRequest
from qserve.wire.errors import ApiError

__all__ = ["BatchEndpoints"]

T = TypeVar("T")
_FIELDS = frozenset({"purpose", "expires_after[anchor]", "expires_after[seconds]"})
_PURPOSE = "batch"
_CHUNK_BYTES = 256 * 1024


class BatchEndpoints:
    """Files and batches of one state folder. `run` answers batches until it is cancelled."""

    def __init__(self, folder: Path | None, bounds: FileBounds, bodies: Bodies, settings: GatewaySettings) -> None:
        """`folder` None: files are off, and every route answers with an error."""
        self._files = None if folder is None else FileStore(folder, bounds)
        self._batches = None if self._files is None else BatchStore(self._files)
        self._bodies = bodies
        self._settings = settings
        self._uploads = UploadSlots()
        self._runner: BatchRunner | None = None
        self._service: GatewayAsService | None = None

    async def run(self, service: GatewayAsService) -> None:
        """Answers batches through `service`, in the background, until it is cancelled."""
        self._service = service
        if self._files is not None:
            self._runner = BatchRunner(self._files, service)
            await self._runner.run()

    def of(self, route: Route) -> Endpoint:
        """The endpoint of a route of `BATCH_ROUTES`."""
        endpoint = {
            ("POST", "/v1/files"): self.upload,
            ("GET", "/v1/files"): self.files,
            ("GET", "/v1/files/{file_id}"): self.file,
            ("DELETE", "/v1/files/{file_id}"): self.delete,
            ("GET", "/v1/files/{file_id}/content"): self.content,
            ("POST", "/v1/batches"): self.create,
            ("GET", "/v1/batches"): self.batches,
            ("GET", "/v1/batches/{batch_id}"): self.batch,
            ("POST", "/v1/batches/{batch_id}/cancel"): self.cancel,
        }[route.method, route.path]

        async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
            try:
                await endpoint(scope, receive, send)
            except FilesUnusable as error:
                raise ApiError(503, str(error), "files_unusable") from error

        return guarded

    async def upload(self, scope: Scope, receive: Receive, send: Send) -> None:
        """POST /v1/files."""
        _check_origin(scope, self._settings)
        boundary_of(scope)
        head = BodyHead.of(scope)
        head.require_plain()
        files = self._kept
        check_length(scope, files.bounds.max_file_bytes)
        idle_s = self._settings.body_idle_timeout_s
        async with self._uploads.slot(client_of(scope), idle_s):
            owner = owner_of(scope)
            # The form around the file counts until the end: it is little, and nobody knows how much.
            part = await asyncio.to_thread(files.begin, owner, head.num_bytes)

            async def reserve(num_bytes: int) -> None:
                if num_bytes > part.num_reserved:
                    await asyncio.to_thread(part.reserve, num_bytes)

            try:
                upload = await read_upload(scope, receive, part.sink, files.bounds.max_file_bytes, idle_s, reserve)
                keep_s = _keep_s(upload)
                await asyncio.to_thread(part.finish, upload.num_bytes)
                add = (part.path, owner, upload.filename or "", _PURPOSE, keep_s)
                file: StoredFile = await asyncio.to_thread(files.add, *add)
            except OSError as error:
                raise FilesUnusable(f"the file can't be kept: {error.strerror}") from error
            finally:
                part.discard()
        await send_json(send, 200, file.document())

    async def files(self, scope: Scope, receive: Receive, send: Send) -> None:
        """GET /v1/files."""
        page = _page_of(scope, ("after", "limit", "order", "purpose"), 10_000, 10_000)
        await send_json(send, 200, _listed(*await asyncio.to_thread(self._kept.listed, owner_of(scope), page)))

    async def file(self, scope: Scope, receive: Receive, send: Send) -> None:
        """GET /v1/files/{file_id}."""
        await send_json(send, 200, (await self._file(scope)).document())

    async def delete(self, scope: Scope, receive: Receive, send: Send) -> None:
        """DELETE /v1/files/{file_id}."""
        file_id = scope["path_params"]["file_id"]
        await asyncio.to_thread(self._kept.delete, file_id, owner_of(scope))
        await send_json(send, 200, {"id": file_id, "object": "file", "deleted": True})

    async def content(self, scope: Scope, receive: Receive, send: Send) -> None:
        """GET /v1/files/{file_id}/content: its bytes, a piece at a time."""
        file = await self._file(scope)
        try:
            opened = await asyncio.to_thread(self._kept.path(file.id).open, "rb")
        except FileNotFoundError:
            raise ApiError(404, f"{file.id} was deleted", "file_not_found") from None
        headers = [(b"content-type", b"application/octet-stream"), (b"content-length", b"%d" % file.num_bytes)]
        with opened:
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            while chunk := await asyncio.to_thread(opened.read, _CHUNK_BYTES):
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def create(self, scope: Scope, receive: Receive, send: Send) -> None:
        """POST /v1/batches."""
        async with self._bodies.read(scope, receive, is_json=True) as body:
            request = CreateBatchRequest.parse(body.data)
        batches = self._batch_store
        expires = request.output_expires_after
        window = (request.completion_window, request.window_s)
        served = self._service.models() if self._service is not None else ()
        batch = await asyncio.to_thread(
            batches.create,
            owner_of(scope),
            request.endpoint,
            request.input_file_id,
            window,
            served,
            request.metadata,
            expires.seconds if expires is not None else None,
        )
        if self._runner is not None:
            self._runner.wake()
        await send_json(send, 200, batch.document())

    async def batches(self, scope: Scope, receive: Receive, send: Send) -> None:
        """GET /v1/batches."""
        page = _page_of(scope, ("after", "limit"), 20, 100)
        await send_json(send, 200, _listed(*await asyncio.to_thread(self._batch_store.listed, owner_of(scope), page)))

    async def batch(self, scope: Scope, receive: Receive, send: Send) -> None:
        """GET /v1/batches/{batch_id}."""
        await self._answer_batch(scope, send, self._batch_store.get)

    async def cancel(self, scope: Scope, receive: Receive, send: Send) -> None:
        """POST /v1/batches/{batch_id}/cancel."""
        await self._answer_batch(scope, send, self._batch_store.cancel)
        if self._runner is not None:
            self._runner.wake()

    async def _answer_batch(self, scope: Scope, send: Send, of: Callable[[str, str], Any]) -> None:
        batch = await asyncio.to_thread(of, scope["path_params"]["batch_id"], owner_of(scope))
        await send_json(send, 200, batch.document())

    async def _file(self, scope: Scope) -> StoredFile:
        return await asyncio.to_thread(self._kept.get, scope["path_params"]["file_id"], owner_of(scope))

    @property
    def _kept(self) -> FileStore:
        if self._files is None:
            raise _not_kept()
        return self._files

    @property
    def _batch_store(self) -> BatchStore:
        if self._batches is None:
            raise _not_kept()
        return self._batches


def _not_kept() -> ApiError:
    return ApiError(501, "no files are kept here; `qserve up` keeps them below --state-dir", "files_not_kept")


def _check_origin(scope: Scope, settings: GatewaySettings) -> None:
    """403 for a form that a page of another site may have posted: browsers allow that without asking."""
    origin = header(scope, b"origin").decode("latin-1")
    if origin in settings.cors_origins:
        return
    host = header(scope, b"host").decode("latin-1")
    if comes_from_elsewhere(scope) or (origin and origin.partition("://")[2].lower() != host.lower()):
        raise ApiError(403, "another site's page sent this form; allow it with --cors-origin", "cross_site")


def _keep_s(upload: Upload) -> int | None:
    """Seconds to keep the file, from the form's `expires_after`. Raises ApiError 400 for other values."""
    for name in upload.fields.keys() - _FIELDS:
        message = f"'{name[:100]}' is not a field of an upload; it takes file, purpose and expires_after"
        raise ApiError(400, message, "unsupported_field", name[:100])
    if upload.fields.get("purpose") != _PURPOSE:
        raise ApiError(400, "'purpose' must be 'batch': files are kept for batches alone", "invalid_value", "purpose")
    if not upload.num_bytes:
        raise ApiError(400, "the file is empty", "invalid_value", "file")
    anchor, seconds = (upload.fields.get(f"expires_after[{name}]") for name in ("anchor", "seconds"))
    if anchor is None and seconds is None:
        return None
    if anchor != "created_at" or not (seconds or "").isdecimal() or not MIN_KEEP_S <= int(seconds or 0) <= MAX_KEEP_S:
        message = f"'expires_after' takes anchor created_at and seconds from {MIN_KEEP_S} to {MAX_KEEP_S}"
        raise ApiError(400, message, "invalid_value", "expires_after")
    return int(seconds or 0)


def _listed(entries: Any, has_more: bool) -> dict[str, Any]:
    data = [entry.document() for entry in entries]
    ends = {"first_id": data[0]["id"] if data else None, "last_id": data[-1]["id"] if data else None}
    return {"object": "list", "data": data, **ends, "has_more": has_more}


def _page_of(scope: Scope, names: tuple[str, ...], default: int, most: int) -> Page:
    """The requested page. Raises ApiError 400 for an unknown parameter or an invalid value."""
    given = _values(scope)
    for name in given.keys() - set(names):
        message = f"{name[:100]!r} is not a parameter of this query; allowed are {', '.join(names)}"
        raise ApiError(400, message, "unsupported_field", name[:100])
    limit = given.get("limit", str(default))
    if not (limit.isascii() and limit.isdigit() and 1 <= int(limit[:9]) <= most):
        raise ApiError(400, f"'limit' must be a number from 1 to {most}", "invalid_value", "limit")
    order = given.get("order", "desc")
    if order not in ("asc", "desc"):
        raise ApiError(400, "'order' must be asc or desc", "invalid_value", "order")
    return Page(int(limit), given.get("after"), order, given.get("purpose"))


def _values(scope: Scope) -> dict[str, str]:
    try:
        query = scope["query_string"].decode("ascii")
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query), errors="strict", max_num_fields=16)
    except ValueError:
        raise ApiError(400, "the query can't be read; write it as ?limit=20&after=ID", "invalid_value") from None
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ApiError(400, "the query has the same name twice", "invalid_value")
    return values
