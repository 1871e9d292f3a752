"""Signs of progress from inside a forward: one beat a layer, so that a long step is not taken for a hang."""

from __future__ import annotations

from typing import Any

from qserve.worker.heartbeat import Heartbeat

__all__ = ["beat_with_layers"]


def beat_with_layers(model: Any, heartbeat: Heartbeat) -> None:
    """Beat before each decoder layer, whoever runs the model: the library, or a compiled body (`cpu/dense.py`)."""
    for layer in model.get_decoder().layers:
        layer.register_forward_pre_hook(lambda *_: heartbeat.beat())
