"""Runs rules in a separate process; one that does not return in time fails only its own response."""

from __future__ import annotations

import multiprocessing
import os
import resource
import threading
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

from qserve.reward.rules.rules import Rule

__all__ = ["ITEM_S", "RuleProcess", "Verdict"]

Verdict = float | str
"""From 0 to 1, or in words why there is none."""

_START_S = 120.0
ITEM_S = 5.0
"""What one response may take, unless it is said otherwise."""
# What a library may take for one expression of a client's; a program in its sandbox has a limit of its own.
_DATA_BYTES = 2 << 30
_NICER = 5


class RuleProcess:
    """`verdict` and `verdicts` block; any thread may call, one is served at a time. `item_s`: what one response may
    take."""

    def __init__(self, rules: Sequence[Rule], item_s: float = ITEM_S) -> None:
        self._rules = tuple(rules)
        self._item_s = item_s
        self._lock = threading.Lock()
        self._process: Any = None
        self._pipe: Connection | None = None

    def verdicts(self, rule: int, pairs: Sequence[tuple[str, str]]) -> list[Verdict]:
        """Of each (response, reference) by the rule of that number."""
        return [self.verdict(rule, response, reference) for response, reference in pairs]

    def verdict(self, rule: int, response: str, reference: str) -> Verdict:
        """Of one response by the rule of that number."""
        with self._lock:
            return self._verdict(rule, response, reference)

    def start(self) -> None:
        """Returns when the process is ready; without it the first verdict waits for that."""
        with self._lock:
            self._running()

    def interrupt(self) -> None:
        """Give up the verdict that another thread waits for, which then has none; `close` before the next one."""
        process = self._process
        if process is not None:
            process.kill()

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._end()

    def _verdict(self, rule: int, response: str, reference: str) -> Verdict:
        pipe = self._running()
        try:
            pipe.send((rule, response, reference))
            if pipe.poll(self._item_s):
                verdict: Verdict = pipe.recv()
                return verdict
            why = f"the rule did not return within {self._item_s:g} s"
        except (EOFError, OSError):
            why = "the rule ended its process"
        self._end()
        return why

    def _running(self) -> Connection:
        if self._pipe is None:
            context = multiprocessing.get_context("spawn")
            self._pipe, theirs = context.Pipe()
            self._process = context.Process(target=_work, args=(self._rules, theirs), daemon=True, name="rules")
            self._process.start()
            theirs.close()
            self._wait_until_ready(self._pipe)
        return self._pipe

    def _wait_until_ready(self, pipe: Connection) -> None:
        try:
            if pipe.poll(_START_S):
                pipe.recv()
                return
        except EOFError:
            pass
        self._end()
        raise OSError("the process that rules run in did not start")

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
            assert self._pipe is not None
            self._pipe.close()
        self._process = self._pipe = None


def _work(rules: Sequence[Rule], pipe: Connection) -> None:
    os.nice(_NICER)
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = _DATA_BYTES if hard == resource.RLIM_INFINITY else min(_DATA_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (most, hard))
    checks = [rule.check() for rule in rules]
    for rule, check in zip(rules, checks, strict=True):
        if rule.kind == "math":
            check("$1$", "1")  # the first call imports sympy
    pipe.send("ready")
    while True:
        try:
            number, response, reference = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send(checks[number](response, reference))
        except Exception as error:  # of a library, on a text of a client's
            pipe.send(f"{type(error).__name__}: {error}"[:200])
