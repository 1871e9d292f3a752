"""What a command line of vLLM has room for, of LoRA adapters that are loaded while it serves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from qserve.engines.vllm.launch.parser import FlagParser
from qserve.engines.vllm.plan.flag_table import is_negative
from qserve.engines.vllm.plan.options import Adapters

__all__ = ["AdapterRoom", "adapter_room"]

_CPU_LORAS = "--max-cpu-loras"
# Several API servers would each have names of their own; vLLM refuses to start with that.
_SEVERAL_SERVERS = ("api_server_count", "data_parallel_size")


@dataclass(frozen=True)
class AdapterRoom:
    """0 adapters: none may be loaded later. `flags`: what vLLM is told besides."""

    max_loras: int = 0
    max_rank: int = 0
    flags: tuple[str, ...] = ()


def adapter_room(words: Sequence[str], parser: FlagParser) -> AdapterRoom:
    """Of a command line; the later of two flags holds, as with vLLM."""
    given: dict[str, Any] = {}
    for argument in parser.parse(words):
        is_on = not is_negative(argument.flag.name, argument.flag.dest)
        given[argument.flag.dest] = argument.values[-1] if argument.values else is_on
    if given.get("enable_lora") is not True or any(int(given.get(name, 1)) > 1 for name in _SEVERAL_SERVERS):
        return AdapterRoom()
    usual = Adapters()
    max_loras = int(given.get("max_loras", usual.max_loras))
    # A version that is replaced stays in RAM until its requests are answered: read from disk, each step would wait.
    flags = (_CPU_LORAS, str(2 * max_loras)) if _CPU_LORAS in parser.flags else ()
    return AdapterRoom(max_loras, int(given.get("max_lora_rank", usual.max_rank)), flags)
