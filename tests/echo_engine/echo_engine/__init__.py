"""An engine of a package of its own: it answers with what it was asked. No file of qserve knows it."""

from __future__ import annotations

from echo_engine.planner import EchoPlanner
from qserve.planner.engine import Engine

__all__ = ["ENGINE"]

ENGINE = Engine("echo", EchoPlanner(), launch="echo_engine.serve:EchoLaunch", wire="echo_engine.wire:WIRE")
