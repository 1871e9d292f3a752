"""Response schema of each route; those of reward models stand in `wire/reward/table.py`."""

from __future__ import annotations

from pydantic import BaseModel

from qserve.wire.responses.adapters import Adapter, AdapterList, UnloadedAdapter
from qserve.wire.responses.files import Batch, BatchList, DeletedFile, File, FileList
from qserve.wire.responses.generations import (
    ChatCompletion,
    Completion,
    Detokenized,
    InputTokens,
    Tokenized,
    TokenizerFiles,
)
from qserve.wire.responses.reports import MemoryList, ReportList
from qserve.wire.responses.service import (
    Health,
    ModelCard,
    ModelList,
    Ready,
    ResidentModel,
    ResidentModels,
    Restarting,
    Room,
    Version,
)

__all__ = ["OF_METHOD", "OF_ROUTE"]

OF_METHOD: dict[tuple[str, str], type[BaseModel]] = {
    ("POST", "/v1/files"): File,
    ("GET", "/v1/files"): FileList,
    ("GET", "/v1/files/{file_id}"): File,
    ("DELETE", "/v1/files/{file_id}"): DeletedFile,
    ("POST", "/v1/batches"): Batch,
    ("GET", "/v1/batches"): BatchList,
    ("GET", "/v1/batches/{batch_id}"): Batch,
    ("POST", "/v1/batches/{batch_id}/cancel"): Batch,
    ("GET", "/v1/qserve/adapters"): AdapterList,
    ("POST", "/v1/qserve/adapters"): Adapter,
    ("DELETE", "/v1/qserve/adapters/{adapter}"): UnloadedAdapter,
}
"""Of paths that several methods share."""

OF_ROUTE: dict[str, type[BaseModel]] = {
    "/health": Health,
    "/ready": Ready,
    "/version": Version,
    "/v1/qserve/restart": Restarting,
    "/v1/models": ModelList,
    "/v1/models/{model}": ModelCard,
    "/v1/qserve/models": ResidentModels,
    "/v1/qserve/room": Room,
    "/v1/qserve/room/{room}": Room,
    **{f"/v1/qserve/models/{{model}}/{one}": ResidentModel for one in ("load", "unload", "pin", "unpin")},
    "/v1/qserve/memory": MemoryList,
    "/v1/qserve/report": ReportList,
    "/v1/qserve/tokenizer/{model}": TokenizerFiles,
    "/v1/chat/completions": ChatCompletion,
    "/v1/completions": Completion,
    "/v1/responses/input_tokens": InputTokens,
    "/tokenize": Tokenized,
    "/detokenize": Detokenized,
}
