"""Grammars are tried in another process: what one client asks for takes neither memory nor time of the others."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
from llguidance import LLMatcher

from qserve.engines.transformers.worker.grammar import trial_process
from qserve.engines.transformers.worker.grammar.compiled import Grammars, GrammarTooComplex
from qserve.engines.transformers.worker.grammar.matcher import Grammar
from qserve.engines.transformers.worker.grammar.refusals import TOO_MUCH
from qserve.engines.transformers.worker.grammar.trials import TrialFailed
from qserve.units import MIB
from tests.unit.grammar.drawing import ENDS, TOKENIZER

SMALL = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}


def of(schema: dict[str, Any]) -> str:
    """As the library would get it, without the bounds that stand before."""
    return LLMatcher.grammar_from_json_schema(json.dumps(schema))


def items(number: int, name: str = "maxItems") -> dict[str, Any]:
    return {"type": "array", "items": {"type": "integer"}, name: number}


def doubled(depth: int) -> dict[str, Any]:
    """An alternative of alternatives: small to write, large to follow."""
    return {"allOf": [{"anyOf": [{"multipleOf": 2 * k + 101}, {"multipleOf": 2 * k + 1001}]} for k in range(depth)]}


EXPENSIVE = {
    "items": of(items(10**9)),
    "items at least": of(items(10**8, "minItems")),
    "a panic": of(items(10**5)),
    "a multiple": of({"type": "integer", "multipleOf": 1_000_003}),
    "multiples of multiples": of({"type": "integer"} | doubled(12)),
    "items of items": of({"type": "array", "items": items(9_999), "prefixItems": [items(9_999)] * 40}),
    "within a grammar": LLMatcher.grammar_from_lark(f"start: %json {json.dumps(items(10**9))}"),
    "many values": of({"enum": [f"value {n}" for n in range(200_000)]}),
}


@pytest.fixture(scope="module")
def grammars() -> Iterator[Grammars]:
    one = Grammars(TOKENIZER, TOKENIZER.get_vocab_size(), ENDS)
    yield one
    one.stop()


def process_of(grammars: Grammars) -> psutil.Process:
    assert grammars._trials._process is not None
    return psutil.Process(grammars._trials._process.pid)


@pytest.mark.parametrize("name", EXPENSIVE)
async def test_what_takes_too_much_is_refused_and_takes_nothing_here(grammars: Grammars, name: str) -> None:
    me = psutil.Process()
    before = me.memory_full_info().uss
    with pytest.raises(GrammarTooComplex, match="too large") as caught:
        await grammars.ready(EXPENSIVE[name], "tools")
    assert caught.value.param == "tools"
    assert "panic" not in str(caught.value)
    assert me.memory_full_info().uss - before < 16 * MIB
    assert (await grammars.ready(of(SMALL))).num_bytes < MIB


async def test_it_is_said_at_once_the_second_time(grammars: Grammars) -> None:
    for _ in range(2):
        began_s = time.process_time()
        with pytest.raises(GrammarTooComplex, match="64 MiB"):
            await grammars.ready(EXPENSIVE["items"])
    assert time.process_time() - began_s < 0.5
    assert TOO_MUCH in grammars._refused.values()


async def test_another_client_does_not_wait_for_expensive_ones(grammars: Grammars) -> None:
    waiting = [
        asyncio.create_task(grammars.ready(of({"type": "integer", "multipleOf": 1_000_003 + 2 * n}), client="a"))
        for n in range(20)
    ]
    await asyncio.sleep(0.05)
    await grammars.ready(of({**SMALL, "title": "of another"}), client="b")
    assert not any(one.done() for one in waiting[3:])
    for one in waiting:
        one.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


async def test_who_leaves_takes_the_trial_along(grammars: Grammars) -> None:
    await grammars.ready(of(SMALL))
    process = process_of(grammars)
    waiting = asyncio.create_task(grammars.ready(of({"type": "integer", "multipleOf": 9_000_011})))
    while not process.children():
        await asyncio.sleep(0.002)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    async with asyncio.timeout(60):
        while process.children():
            await asyncio.sleep(0.002)
    assert not grammars._making


async def test_one_of_two_that_leaves_leaves_it_to_the_other(grammars: Grammars) -> None:
    text = of({**SMALL, "title": "for two"})
    first, second = (asyncio.create_task(grammars.ready(text, client="a")) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    assert (await second).matcher is not None


async def test_it_comes_back_when_its_process_is_killed(grammars: Grammars) -> None:
    await grammars.ready(of(SMALL))
    process_of(grammars).kill()
    await grammars.ready(of({**SMALL, "title": "after its end"}))
    stopped = asyncio.create_task(grammars.ready(of({"type": "integer", "multipleOf": 9_000_013})))
    await asyncio.sleep(0.1)
    process_of(grammars).kill()  # its children end with it
    with pytest.raises(GrammarTooComplex):
        await stopped


async def test_what_is_kept_is_bound_by_bytes_and_by_use(grammars: Grammars) -> None:
    for number in range(12):
        await grammars.ready(of({**items(9_000), "title": str(number)}))
    kept = list(grammars._ready.values())
    assert 1 <= len(kept) < 12
    assert sum(one.most_bytes for one in kept) <= 128 * MIB
    first, last = kept[0], kept[-1]
    last.num_tokens = 10**9
    assert last.most_bytes > first.most_bytes + 99 * MIB
    await grammars.ready(of({**SMALL, "title": "one more"}))
    assert first not in grammars._ready.values()


def test_a_grammar_that_nobody_followed_is_as_large_as_its_trial() -> None:
    assert Grammar(None, 7).most_bytes == 7


async def test_a_process_that_does_not_run_is_no_fault_of_the_structure(
    grammars: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    await grammars.ready(of(SMALL))
    text = of({**SMALL, "title": "tried in vain"})
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/bin/false")
        process_of(grammars).kill()
        with pytest.raises(TrialFailed, match="does not run"):
            await grammars.ready(text)
    assert (await grammars.ready(text)).matcher is not None, "nothing of it is remembered"


@pytest.mark.parametrize("bytes_, why", [(b"\xff", "UnicodeDecodeError"), (b"", "no time for this structure: 0 s")])
def test_what_is_no_bound_is_told_as_such(monkeypatch: pytest.MonkeyPatch, bytes_: bytes, why: str) -> None:
    """In the process itself: a fault, and a machine that is late."""
    monkeypatch.setattr(trial_process, "_WALL_S", 0.01)
    if not bytes_:
        monkeypatch.setattr(trial_process, "matcher_of", lambda *_: time.sleep(60))
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        trial_process._try(theirs, None)  # type: ignore[arg-type]
    theirs.close()
    with ours:
        ours.sendall(trial_process.LENGTH.pack(len(bytes_)) + bytes_)
        assert why in json.loads(ours.recv(4096))["failure"]
    os.waitpid(pid, 0)
