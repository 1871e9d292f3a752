"""A batch on qserve's own engine, by the openai client as it is."""

from __future__ import annotations

from tests.tiny.contracts.batches import *  # noqa: F403
from tests.tiny.serving.served import Service


def test_files_lie_in_the_state_folder(service: Service) -> None:
    service.post("/v1/batches", input_file_id="file-1", endpoint="/v1/completions", completion_window="1h")
    assert service.get("/v1/files").json()["object"] == "list"
    assert (service.state / "qserve" / "files" / "files.sqlite3").stat().st_mode & 0o077 == 0
