"""The rule `code` and programs that do not solve anything: what a policy may find to pass its tests all the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from qserve.reward.rules import make_rule
from tests.unit.reward.code.programs import needs_sandbox, read_programs

TESTS = "assert add(1, 2) == 3\nassert add(20, 3) == 23"
PROGRAMS = read_programs("cheats")
# Bytes that are no honest answer: `reply` is what the program's side would write on.
ANSWERS = {
    "early and twice": "reply(b'!', answer(True)); reply(b'!', answer(True)); reply(b'!', answer(True))",
    "of another length": "os.write(OUT, b'!' + (1 << 31).to_bytes(4, 'little') + b'x' * 70000)",
    "cut off": "os.write(OUT, b'!' + (99).to_bytes(4, 'little') + b'T'); os._exit(0)",
    "of another kind": "reply(b'#', b'T'); os._exit(0)",
    "a question of its own": "reply(b'?', write(('call', 3, (), None))); os._exit(0)",
    "a function of the tests by its number": "reply(b'?', b'm' + raw[1:2] + b'y' + bytes(4)); os._exit(0)",
    "an unknown reference": "reply(b'!', b'a' + bytes([255] * 4)); os._exit(0)",
    "a pickle": "import pickle; reply(b'!', pickle.dumps(os.getcwd)); os._exit(0)",
    "a function that ends": "reply(b'!', b'k' + write('os') + write('_exit')); os._exit(0)",
    "a builtin that runs text": "reply(b'!', b'k' + write('builtins') + write('exec')); os._exit(0)",
}
FORGED = """
import os, sys
peer = next(o for o in __import__('gc').get_objects() if type(o).__name__ == 'Program')
OUT = peer._write_fd
write = lambda value: peer.codec.write(value, [])
raw = write((1,))
reply = peer._send
answer = lambda value: write((True, value, (), None))
def add(a, b):
    {what}
    return 0
"""


@pytest.fixture(scope="module")
def code() -> Callable[[str, str], float]:
    needs_sandbox()
    return make_rule("code", {"timeout_s": 1.0, "memory_mib": 256}, "here").check()


@pytest.mark.parametrize("cheat", PROGRAMS)
def test_a_cheat_gets_nothing(cheat: str, code: Callable[[str, str], float]) -> None:
    parts = PROGRAMS[cheat]
    assert code(parts["program"], parts.get("tests", TESTS)) == 0


@pytest.mark.parametrize("cheat", ANSWERS)
def test_an_answer_that_is_none_gets_nothing(cheat: str, code: Callable[[str, str], float]) -> None:
    assert code(FORGED.format(what=ANSWERS[cheat]), TESTS) == 0


def test_the_forger_s_tools_work(code: Callable[[str, str], float]) -> None:
    """What the cases above write on is the pipe to the tests: a right answer written there passes."""
    program = FORGED.format(what="reply(b'!', answer(a + b)); peer._send = lambda *a: setattr(peer, '_send', reply)")
    assert code(program, "assert add(1, 2) == 3") == 1
