"""Attacks on the rules of a recipe: programs that never end, programs whose client leaves, one that prints for ever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from attacks.memory import MemoryWatch
from attacks.recipes import with_recipe
from attacks.service import Attack, Service, in_words

__all__ = ["ATTACKS"]

_RECIPE = "parts:\n- {name: tested, rule: code, timeout_s: 3}\n"
_RIGHT = "def add(a, b):\n    return a + b"
_ENDLESS = "while True: pass"
_PRINTING = "import os\nwhile True: os.write(1, b'x' * (1 << 20))"


async def endless_programs(service: Service) -> str:
    """40 requests with a program each that never ends; one response of a client with another key."""
    async with _with_rules(service) as rules:
        flood = await _flood(rules, [_ENDLESS])
        waited = await rules.post_as_other("/v1/reward", _asked([_RIGHT]))
        _leave(flood)
    return f"beside them {in_words(waited)}"


async def endless_programs_of_one(service: Service) -> str:
    """The same 40 programs in one request."""
    async with _with_rules(service) as rules:
        flood = await _flood(rules, [_ENDLESS] * 40, requests=1)
        waited = await rules.post_as_other("/v1/reward", _asked([_RIGHT]))
        _leave(flood)
    return f"beside them {in_words(waited)}"


async def endless_programs_left(service: Service) -> str:
    """A request with 40 programs that never end, whose client leaves after a second; then one response."""
    async with _with_rules(service) as rules:
        _leave(await _flood(rules, [_ENDLESS] * 40, requests=1))
        await asyncio.sleep(1)
        waited = await rules.post_as_other("/v1/reward", _asked([_RIGHT]))
    return f"after them {in_words(waited)}"


async def printing_program(service: Service) -> str:
    """A program that prints without end: what the service's processes take, and when it is answered."""
    async with _with_rules(service) as rules:
        with MemoryWatch(rules.process.pid) as memory:
            memory.begin()
            waited = await rules.post("/v1/reward", _asked([_PRINTING]))
    return f"{in_words(waited)}, {memory.most_mib} MiB"


@asynccontextmanager
async def _with_rules(service: Service) -> AsyncIterator[Service]:
    """A service whose rewards are a rule over code; asked once, so that it runs."""
    async with with_recipe(service, _RECIPE) as rules:
        await rules.post_as_other("/v1/reward", _asked([_RIGHT]))
        yield rules


def _asked(programs: Sequence[str]) -> dict[str, Any]:
    return {"prompt": "Write add(a, b).", "responses": list(programs), "references": "assert add(1, 2) == 3"}


async def _flood(rules: Service, programs: Sequence[str], requests: int = 40) -> list[asyncio.Task[Any]]:
    tasks = [asyncio.create_task(rules.post("/v1/reward", _asked(programs))) for _ in range(requests)]
    await asyncio.sleep(1)
    return tasks


def _leave(tasks: Sequence[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()


ATTACKS: tuple[Attack, ...] = (endless_programs, endless_programs_of_one, endless_programs_left, printing_program)
