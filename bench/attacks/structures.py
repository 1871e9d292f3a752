"""Attacks by structures: schemas of a few bytes that make the grammar library compute."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

from attacks.service import CHAT, Attack, Service, chat, in_words

__all__ = ["ATTACKS"]

_numbers = itertools.count(1_000_003, 2)


def _asking(schema: dict[str, Any]) -> dict[str, Any]:
    return chat("x", response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": schema}})


def _multiple() -> dict[str, Any]:
    """Another each time: nothing is kept of the last."""
    return _asking({"type": "integer", "multipleOf": next(_numbers)})


def _lists(number: int) -> dict[str, Any]:
    """Within the bound of each count; forty of them."""
    one = {"type": "array", "items": {"type": "integer"}, "maxItems": 9_000 + number}
    return _asking({"type": "object", "properties": {f"p{n}": one for n in range(40)}})


async def huge_list(service: Service) -> str:
    """70 bytes: a list of a billion integers at most."""
    schema = {"type": "array", "items": {"type": "integer"}, "maxItems": 10**9}
    return in_words(await service.post(CHAT, _asking(schema)))


async def huge_list_in_grammar(service: Service) -> str:
    """The same embedded in a grammar, with an escape in its name."""
    text = '{"type": "array", "items": {"type": "integer"}, "m\\u0061xItems": 1000000000}'
    body = chat("x", structured_outputs={"grammar": f"start: %json {text}"})
    return in_words(await service.post(CHAT, body))


async def expensive_structures(service: Service) -> str:
    """Six multiples, six objects of forty long lists; another client sends a small schema that is new."""
    bodies = [_multiple() for _ in range(6)] + [_lists(n) for n in range(6)]
    attack = [asyncio.create_task(service.post(CHAT, body)) for body in bodies]
    await asyncio.sleep(0.3)
    small = _asking({"type": "object", "properties": {f"a{next(_numbers)}": {"type": "boolean"}}})
    honest = await service.post_as_other(CHAT, small)
    statuses = sorted({status for status, _ in await asyncio.gather(*attack)})
    return f"a small schema: {in_words(honest)}; the twelve: {statuses}"


async def abandoned_structures(service: Service) -> str:
    """Twelve expensive ones whose client leaves at once; what another client waits a second later."""
    attack = [asyncio.create_task(service.post(CHAT, _multiple())) for _ in range(12)]
    await asyncio.sleep(0.3)
    for one in attack:
        one.cancel()
    await asyncio.gather(*attack, return_exceptions=True)
    await asyncio.sleep(1)
    small = _asking({"type": "object", "properties": {f"b{next(_numbers)}": {"type": "boolean"}}})
    return f"a small schema: {in_words(await service.post_as_other(CHAT, small))}"


ATTACKS: tuple[Attack, ...] = (huge_list, huge_list_in_grammar, expensive_structures, abandoned_structures)
