"""The processes that read the bodies of one engine's requests (`qserve.engines.transformers.worker.prompts`)."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from qserve.engines.transformers.worker.engine import Engine
from qserve.engines.transformers.worker.prompts.reader_settings import ReaderSettings
from qserve.engines.transformers.worker.prompts.workers import PromptWorkers
from qserve.hub.chat_template import template_of

__all__ = ["prompt_workers"]


def prompt_workers(engine: Engine, socket: Path) -> PromptWorkers:
    """What its processes need to know lies beside the worker's socket, in a folder that is private."""
    tokenizer = engine.tokenizer
    file = socket.with_suffix(".tokenizer.json")
    tokenizer.backend_tokenizer.save(str(file))
    settings = ReaderSettings(
        tokenizer=str(file),
        template=template_of(tokenizer),
        tool_template=template_of(tokenizer, with_tools=True),
        named_templates=tuple(tokenizer.chat_template) if isinstance(tokenizer.chat_template, dict) else (),
        special_tokens=dict(tokenizer.special_tokens_map),
        limits=asdict(engine.limits.context),
        vocab_size=engine.vocab_size,
    )
    return PromptWorkers(settings, socket.with_suffix(".reader.json"))
