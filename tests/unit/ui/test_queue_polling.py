"""An idle process sleeps: what of Gradio's queue is slowed down for that is there, and is what the queue reads."""

from __future__ import annotations

import inspect

import gradio as gr

from qserve.ui.process.queue_polling import poll_less


async def test_the_tested_gradio_has_what_keeps_its_queue_calm() -> None:
    """Both are read before every sleep; were they renamed, an idle process would take 3 % of a core again."""
    with gr.Blocks() as blocks:
        pass
    blocks.queue()
    before = vars(blocks._queue).copy()
    poll_less(blocks)
    changed = {name for name, value in vars(blocks._queue).items() if before.get(name) != value}
    assert changed == {"sleep_when_free", "progress_update_sleep_when_free"} <= before.keys()
    source = inspect.getsource(type(blocks._queue))
    assert all(f"asyncio.sleep(self.{name})" in source for name in changed)
