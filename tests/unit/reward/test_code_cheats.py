"""The rule `code` and programs that do not solve anything: what a policy may find to pass its tests all the same."""

from __future__ import annotations

import pytest

from qserve.reward.rules import make_rule, sandbox

TESTS = "assert add(1, 2) == 3\nassert add(20, 3) == 23"
WRONG = "def add(a, b):\n    return 0\n"
OBJECT = "class Any:\n    def {method}(self, *a): return {result}\n    __hash__ = None\ndef add(a, b):\n    return Any()\n"
# What it passes for a moment: every number that is not its own, of every file that it has open.
TO_EVERY_FD = "import os\ndef everywhere(data):\n    for fd in range(64):\n        try: os.write(fd, data)\n        except OSError: pass\n"

PROGRAMS = {
    # There is no word any more; these look for one, as they did where there was one.
    "the source of __main__": TO_EVERY_FD
    + "import sys, re\neverywhere(repr(vars(sys.modules['__main__'])).encode())\nos._exit(0)",
    "constants of frames": TO_EVERY_FD
    + "import sys\nf = sys._getframe()\nwhile f:\n    everywhere(repr((f.f_code.co_consts, f.f_locals)).encode())\n    f = f.f_back\nos._exit(0)",
    "everything that lives": TO_EVERY_FD
    + "import gc\nfor o in gc.get_objects():\n    if isinstance(o, (str, bytes)) and b'assert' in bytes(str(o), 'utf8'): everywhere(str(o).encode())\n"
    + WRONG,
    "an exception hook": "import sys\nsys.excepthook = lambda *a: print(a)\n1 / 0",
    "the verdict on every file": TO_EVERY_FD + "everywhere(b'passed')\nos._exit(0)",
    "the verdict, while it is asked": TO_EVERY_FD + "def add(a, b):\n    everywhere(b'passed'); os._exit(0)",
    "the verdict, printed": WRONG + "print('passed')\nimport sys; sys.__stdout__.write('passed')",
    "ends at once": "import os\nos._exit(0)",
    "ends while it is asked": "import os\ndef add(a, b): os._exit(0)",
    "exits while it is asked": "def add(a, b): raise SystemExit(0)",
    "interrupts": "def add(a, b): raise KeyboardInterrupt",
    "ends at its exit": WRONG + "import atexit, os\natexit.register(os._exit, 0)",
    "always equal": OBJECT.format(method="__eq__", result="True"),
    "always equal from the right": OBJECT.format(method="__req__", result="True"),
    "never unequal": OBJECT.format(method="__ne__", result="False"),
    "an int that is always equal": "class I(int):\n    __eq__ = lambda *a: True\n    __hash__ = int.__hash__\ndef add(a, b): return I(0)",
    "an equal class": "class M(type):\n    __eq__ = lambda *a: True\n    __hash__ = type.__hash__\nclass C(metaclass=M): pass\ndef add(a, b): return C",
    "it is mock's ANY": "from unittest.mock import ANY\ndef add(a, b): return ANY",
    "it is named ANY": "from unittest.mock import _ANY as add",
    "builtins that agree": WRONG
    + "import builtins\nclass X(int):\n    __eq__ = lambda *a: True\nbuiltins.int = X\nbuiltins.AssertionError = type('E', (), {})\nbuiltins.__build_class__ = None",
    "modules that agree": WRONG
    + "import sys, os\nfor n in list(sys.modules):\n    if 'rules' in n or n in ('operator', '_operator'): sys.modules[n] = sys\n",
    "its own side, changed": WRONG
    + "import sys\nm = sys.modules['qserve.reward.rules.inside.program']\nP = m.Program\nP.perform = lambda *a: True\nP.description = lambda *a: True",
    "another process answers": "import os\nif os.fork() == 0:\n    os._exit(0)\ndef add(a, b): return 0",
    "kills whom it can": WRONG.replace("return 0", "os.kill(-1, 9); os.kill(os.getppid(), 9)") + "import os",
    "closes everything": "import os\nos.closerange(0, 64)\n" + WRONG,
    "closes everything when asked": "import os\ndef add(a, b): os.closerange(0, 64)",
    "the tests' own names": WRONG + "def check(f): pass\n__name__ = 'x'\n__builtins__ = {}\nassert_ = True",
    "reads other processes": WRONG
    + "import os\nfor n in range(1, 99):\n    try: print(open(f'/proc/{n}/mem', 'rb+').read())\n    except OSError: pass",
    "traces": "import ctypes\nlibc = ctypes.CDLL(None)\nfor n in range(1, 99): libc.ptrace(16, n, 0, 0)\n" + WRONG,
    "prints without end": "import os\ndef add(a, b):\n    while True: os.write(1, b'x' * 65536); os.write(2, b'x' * 65536)",
    "prints more than there is memory": "def add(a, b):\n    while True: print('x' * 65536)",
    "an answer that refers to itself": "def add(a, b):\n    x = []\n    x.append(x)\n    return x",
    "an answer without an end": "def add(a, b):\n    x = ()\n    for _ in range(100000): x = (x,)\n    return x",
    "an answer of gigabytes": "def add(a, b): return bytes(1 << 28)",
}  # fmt: skip
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
_ASKS = "peer = next(o for o in __import__('gc').get_objects() if type(o).__name__ == 'Program')\n"
# Tests, and a program that gets past them if the rule believes it.
OF_STYLES = {
    "a distance that is always small": (
        "assert abs(f(1) - 2.5) < 1e-6",
        "class A:\n    __sub__ = __abs__ = lambda s, *a: s\n    __lt__ = lambda *a: True\ndef f(x): return A()",
    ),
    "a distance of 0": ("assert abs(f(1) - 2.5) < 1e-6", "class A:\n    __sub__ = lambda *a: 0\ndef f(x): return A()"),
    "a distance of 0 to a number that is none": (
        "assert abs(f(1) - 2.5) < 1e-6",
        "import sys\nsys.modules['qserve.reward.rules.inside.program'].__dict__['BASES'] = (int,)\n"
        "class A(int):\n    __sub__ = lambda *a: 0\n    __add__ = lambda *a: 's'\ndef f(x): return A()",
    ),
    "in anything": ("assert f(1) in [1, 2]", OBJECT.format(method="__eq__", result="True").replace("add(a, b)", "f(x)")),
    "anything in it": ("assert 2 in f(1)", OBJECT.format(method="__contains__", result="True").replace("add(a, b)", "f(x)")),
    "objects that are all equal": (
        "assert P(1) == P(1)\nassert f(1) == P(2)",
        "class P:\n    def __init__(self, x): pass\n    __eq__ = lambda *a: True\ndef f(x): return P(0)",
    ),
    "claims to be an int": (
        "assert isinstance(f(1), int)",
        "class A:\n    __class__ = int\ndef f(x): return A()",
    ),
    "a skipped test": (
        "import unittest\nclass T(unittest.TestCase):\n    def test(self): self.assertEqual(f(1), 2)\nunittest.main()",
        "import unittest\ndef f(x): raise unittest.SkipTest('no')",
    ),
    "ends unittest": (
        "import unittest\nclass T(unittest.TestCase):\n    def test(self): self.assertEqual(f(1), 2)\nunittest.main()",
        "import os\ndef f(x): raise SystemExit(0)",
    ),
    "ends a loop early": (
        "for got, meant in zip(map(f, [1, 2]), [1, 2]):\n    assert got == meant",
        "def f(x): raise StopIteration",
    ),
    "a module of its own": (
        "assert math.isclose(f(1), 2)",
        "class math:\n    isclose = lambda *a: True\ndef f(x): return 0",
    ),
    "a builtin of its own": ("assert all(f(x) == x for x in [1])", "all = abs = lambda *a: True\ndef f(x): return 0"),
    "raises what the assertion raises": (
        "try:\n    f(1)\n    raise RuntimeError\nexcept ValueError: pass",
        "class ValueError(Exception): pass\ndef f(x): raise ValueError",
    ),
    "through a function of the tests": (
        "expected = 7\nassert f(lambda x: x) == expected",
        _ASKS + "def f(g):\n    for name in ('__globals__', '__code__', '__closure__'):\n"
        "        try: return peer.ask('getattr', g, name)['expected']\n        except Exception: pass\n    return 0",
    ),
    "through an object of the tests": (
        "class N:\n    def __init__(self): self.x, self._y = 1, 7\nassert f(N()) == 7",
        _ASKS + "def f(n):\n    try: return peer.ask('getattr', n, '_y')\n    except Exception: return 0",
    ),
    "changes what it is compared with": (
        "expected = [1]\nf([2])\nassert expected == []",
        "def f(x):\n    import gc\n    for o in gc.get_objects():\n        if type(o) is list and len(o) == 1: o.clear()",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def code() -> object:
    if why := sandbox._why_not():
        pytest.skip(why)
    return make_rule("code", {"timeout_s": 1.0, "memory_mib": 256}, "here").check()


@pytest.mark.parametrize("cheat", PROGRAMS)
def test_a_cheat_gets_nothing(cheat: str, code) -> None:
    assert code(PROGRAMS[cheat], TESTS) == 0


@pytest.mark.parametrize("cheat", ANSWERS)
def test_an_answer_that_is_none_gets_nothing(cheat: str, code) -> None:
    assert code(FORGED.format(what=ANSWERS[cheat]), TESTS) == 0


def test_the_forger_s_tools_work(code) -> None:
    """What the cases above write on is the pipe to the tests: a right answer written there passes."""
    program = FORGED.format(what="reply(b'!', answer(a + b)); peer._send = lambda *a: setattr(peer, '_send', reply)")
    assert code(program, "assert add(1, 2) == 3") == 1


@pytest.mark.parametrize("cheat", OF_STYLES)
def test_a_cheat_of_one_style_gets_nothing(cheat: str, code) -> None:
    tests, program = OF_STYLES[cheat]
    assert code(program, tests) == 0
