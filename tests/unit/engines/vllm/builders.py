"""The flags of real releases, and plans to start from."""

from __future__ import annotations

import json
from pathlib import Path

from qserve.core.checkpoint import Checkpoint
from qserve.core.hardware import Hardware, parse_gpu
from qserve.core.model_spec import ModelSpec
from qserve.engines.vllm.launch.parser import FlagParser, parser_of
from qserve.hub import resolve
from qserve.hub.bundled import bundled_config
from qserve.planner import Plan, make_plan, plan_request
from qserve.units import GIB
from qserve.worker.process import WorkerSpec

DEMO = Path(resolve("demo").folder)
RELEASES = ("0.26.0", "0.27.1", "0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0", "0.33.0")
_FLAGS = json.loads((Path(__file__).parent / "flags.json").read_text())


def parser_for(release: str) -> FlagParser:
    """What `print_flags` wrote with that release installed; the file holds 0.32 and how the others differ from it."""
    flags = dict(_FLAGS["0.32.0"])
    if release != "0.32.0":
        flags = {name: item for name, item in flags.items() if name not in _FLAGS[release]["without"]}
        flags |= _FLAGS[release]["with"]
    return parser_of(release, flags)


def hardware(gpu: str | None = None) -> Hardware:
    devices = parse_gpu(gpu) if gpu else ()
    return Hardware(devices=devices, ram_total_bytes=24 * GIB, ram_available_bytes=20 * GIB, cpu_cores=2)


def plan_of(model: str = "demo", gpu: str | None = None, **fixed: object) -> Plan:
    return make_plan(checkpoint(model), hardware(gpu), plan_request(engine="vllm", **fixed))


def checkpoint(model: str) -> Checkpoint:
    """The bundled demo model, or a known one by its dimensions."""
    if model == "demo":
        return resolve(model)
    config = bundled_config(model) or {}
    return Checkpoint(model, None, config, ModelSpec.from_config(config, model))


def spec_of(plan: Plan, folder: Path = DEMO, models: tuple[str, ...] = ("demo",)) -> WorkerSpec:
    return WorkerSpec(folder, models, plan, Path("/run/user/q/chat.sock"), "internal-key")


def pairs(argv: tuple[str, ...]) -> dict[str, str]:
    """Flags with the word behind them."""
    return {word: after for word, after in zip(argv, (*argv[1:], ""), strict=True) if word.startswith("--")}
