"""The planner behind the form: `qserve plan --json` as a child process, so that a plan takes nothing of this one."""

from __future__ import annotations

import asyncio
import json
import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

__all__ = ["PlanQuestion", "PlanRefused", "ask_planner"]

_DOES_NOT_FIT = 3
_LONGEST_S = 60
# They read files of the server's machine by name, or change what is written.
_NOT_HERE = frozenset({"config", "state-dir", "device-map", "prices", "trace", "json", "explain", "help"})
_SAID_BY = "qserve: "


class PlanRefused(Exception):
    """The planner's own sentence about what can't be planned."""


@dataclass(frozen=True)
class PlanQuestion:
    """The fields of the form; "" and None are the planner's to choose. `gpu` "" plans for this machine.

    `other` holds further flags of `qserve plan`, joined by `=` to their values.
    """

    model: str
    gpu: str = ""
    quant: str = "auto"
    engine: str = ""
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    reward: str = ""
    other: tuple[str, ...] = ()

    @classmethod
    def from_command(cls, command: str) -> PlanQuestion:
        """The question that a line such as `qserve plan --model X --gpu Y` asks. Raises PlanRefused."""
        given = dict(_flags_of(shlex.split(command)[2:]))
        context, users = given.pop("max-model-len", ""), given.pop("max-num-seqs", "")
        return cls(
            model=given.pop("model", ""),
            gpu=given.pop("gpu", ""),
            quant=given.pop("quant", "auto"),
            engine=given.pop("engine", ""),
            max_model_len=int(context) if context else None,
            max_num_seqs=int(users) if users else None,
            reward=given.pop("reward", ""),
            other=_words(given.items()),
        )

    @classmethod
    def other_flags(cls, text: str) -> tuple[str, ...]:
        """What the form's field of this name holds, a word a flag. Raises PlanRefused."""
        try:
            words = shlex.split(text)
        except ValueError as error:
            raise PlanRefused(f"the other flags can't be read: {error}") from None
        return _words(_flags_of(words))

    def with_other(self, text: str) -> PlanQuestion:
        """The same with the flags in `text`. Raises PlanRefused for one that a field of the form gives as well."""
        other = self.other_flags(text)
        in_form = {flag.partition("=")[0] for flag in self.plan_flags()}
        for flag in other:
            name = flag.partition("=")[0]
            if name in in_form:
                raise PlanRefused(
                    f"{name} is given twice: in its own field and under other flags; remove one of the two"
                )
        return replace(self, other=other)

    def flags(self) -> list[str]:
        """The flags of `qserve plan` and `qserve up`, without --gpu. Joined by `=`: no value is taken for a flag."""
        given = {
            "model": self.model,
            "reward": self.reward,
            "quant": "" if self.quant == "auto" else self.quant,
            "engine": self.engine,
            "max-model-len": self.max_model_len,
            "max-num-seqs": self.max_num_seqs,
        }
        return [*(f"--{name}={value}" for name, value in given.items() if value), *self.other]

    def plan_flags(self) -> list[str]:
        """With the cards."""
        return [*self.flags(), *([f"--gpu={self.gpu}"] if self.gpu else [])]

    def command(self) -> str:
        """The question as a line to copy."""
        words = ["qserve", "plan", *self.plan_flags()]
        # Spelled as people write it; the value is quoted, the flag is not.
        return " ".join(
            f"{name} {shlex.quote(value)}" if equals else shlex.quote(name)
            for name, equals, value in (word.partition("=") for word in words)
        )


def _flags_of(words: Sequence[str]) -> list[tuple[str, str]]:
    """Names without dashes, and values; "" for a switch."""
    flags: list[tuple[str, str]] = []
    for word in words:
        if word.startswith("--"):
            name, _, value = word[2:].partition("=")
            flags.append((name, value))
        elif flags and not flags[-1][1]:
            flags[-1] = (flags[-1][0], word)
        else:
            raise PlanRefused(f"{word} is not a flag; give flags of `qserve plan`, such as --kv-cache-dtype fp8")
    for name, _ in flags:
        if name in _NOT_HERE:
            raise PlanRefused(
                f"--{name} can only be used on the server's own command line: it reads or writes files there"
            )
    return flags


def _words(flags: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    return tuple(f"--{name}={value}" if value else f"--{name}" for name, value in flags)


async def ask_planner(question: PlanQuestion) -> dict[str, Any]:
    """The plan, as `qserve plan --json` writes it. Raises PlanRefused, TimeoutError."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "qserve",
        "plan",
        *question.plan_flags(),
        "--json",
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        output, errors = await asyncio.wait_for(process.communicate(), _LONGEST_S)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode not in (0, _DOES_NOT_FIT):
        raise PlanRefused(_sentence(errors.decode(errors="replace")))
    plan: dict[str, Any] = json.loads(output)
    return plan


def _sentence(errors: str) -> str:
    """The last thing that the command said, without its name."""
    before, found, sentence = errors.rpartition(_SAID_BY)
    if found:
        return sentence.strip()
    lines = [line for line in before.splitlines() or errors.splitlines() if line.strip()]
    return lines[-1].removeprefix("Error: ").strip() if lines else "the planner ended without a message"
