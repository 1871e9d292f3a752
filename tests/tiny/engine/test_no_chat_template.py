"""A tokenizer without a chat template: chat is refused with a reason, completions go on."""

from __future__ import annotations

import shutil
from pathlib import Path

import httpx
import pytest

from qserve.demo import chat_model_path
from qserve.engines.transformers.worker.api.app import build_app
from qserve.engines.transformers.worker.api.prompt_workers import prompt_workers
from qserve.wire.errors import ApiError
from tests.tiny.engine.loading import running


async def test_names_of_templates_are_told_where_none_is_for_every_chat(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(chat_model_path(), tmp_path / "checkpoint"))
    more = folder / "additional_chat_templates"
    more.mkdir()
    (folder / "chat_template.jinja").rename(more / "rag.jinja")
    async with running(str(folder)) as engine:
        prompts = prompt_workers(engine, tmp_path / "socket")
        await prompts.start()
        with pytest.raises(ApiError, match="this model has the chat templates rag, and none of them is called default"):
            await prompts.chat("chat", b'{"model": "m", "messages": [{"role": "user", "content": "a"}]}')
        await prompts.close()


async def test_chat_is_refused_and_completions_go_on(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(chat_model_path(), tmp_path / "checkpoint"))
    (folder / "chat_template.jinja").unlink()
    async with running(str(folder)) as engine:
        prompts = prompt_workers(engine, tmp_path / "socket")
        transport = httpx.ASGITransport(build_app(engine, prompts, ("m",), "key"))
        headers = {"authorization": "Bearer key"}
        async with httpx.AsyncClient(transport=transport, base_url="http://worker", headers=headers) as client:
            messages = [{"role": "user", "content": "What is 12+30?"}]
            chat = await client.post("/v1/chat/completions", json={"model": "m", "messages": messages})
            completion = await client.post("/v1/completions", json={"model": "m", "prompt": "1+1=", "max_tokens": 2})
    await prompts.close()
    assert chat.status_code == 400
    assert chat.json()["error"]["code"] == "no_chat_template"
    assert "/v1/completions" in chat.json()["error"]["message"]
    assert completion.status_code == 200
    assert completion.json()["usage"]["completion_tokens"] >= 1
