"""An idle process sleeps: what of Gradio's queue is slowed down for that is there, and is what the queue reads."""

from __future__ import annotations

import inspect

import pytest

from qserve.ui.process.app import PollingOnDemand, lean_import


async def _nothing(scope, receive, send) -> None: ...


@pytest.fixture
async def queue():
    with lean_import():  # here: it takes seconds, in every process that collects these tests
        import gradio as gr

    with gr.Blocks() as blocks:
        pass
    blocks.queue()
    return blocks._queue


async def test_the_tested_gradio_has_what_keeps_its_queue_calm(queue) -> None:
    """Both are read before every sleep; were they renamed, an idle process would take 3 % of a core again."""
    before = vars(queue).copy()
    PollingOnDemand(_nothing, _Blocks(queue))
    changed = {name for name, value in vars(queue).items() if before.get(name) != value}
    assert changed == {"sleep_when_free", "progress_update_sleep_when_free"} <= before.keys()
    source = inspect.getsource(type(queue))
    assert all(f"asyncio.sleep(self.{name})" in source for name in changed)


@pytest.mark.parametrize(
    ("path", "query", "is_busy"),
    [
        ("/gradio_api/queue/join", b"", False),  # a timer of a page that nobody looks at
        ("/gradio_api/app_id", b"active", True),
        ("/gradio_api/app_id", b"", False),
        ("/", b"active", False),
    ],
)
async def test_it_hurries_while_somebody_is_there(queue, path: str, query: bytes, is_busy: bool) -> None:
    polling = PollingOnDemand(_nothing, _Blocks(queue))
    idle_s = queue.sleep_when_free
    await polling({"type": "http", "path": path, "query_string": query}, None, None)  # type: ignore[arg-type]
    assert (queue.sleep_when_free < idle_s) is is_busy
    polling._rest()
    assert queue.sleep_when_free == idle_s


class _Blocks:
    def __init__(self, queue) -> None:
        self._queue = queue
