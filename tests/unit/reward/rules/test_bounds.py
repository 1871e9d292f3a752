"""The rule `code`: what a program can take of the machine, all its processes together, and what the kernel refuses."""

from __future__ import annotations

import os
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil
import pytest

from qserve.reward.rules import bubblewrap, sandbox
from qserve.reward.rules.seccomp import filter_of
from qserve.reward.rules.syscalls import NUMBERS
from tests.unit.reward.code.programs import needs_sandbox

MIB = 1 << 20
# Each is tried inside; its name comes back if it was possible.
REFUSED = {
    "a process": "os.fork()",
    "a process by subprocess": "__import__('subprocess').run(['/bin/true'])",
    "a user namespace": "call(272, 0x10000000)",
    "a mount namespace": "call(272, 0x00020000)",
    "a namespace by clone": "call(56, 0x10000000 | 17, 0, 0, 0, 0)",
    "clone3": "call(435, 0, 0)",
    "a mount": "call(165, b'none', b'/usr', b'tmpfs', 0, 0)",
    "an unmount": "call(166, b'/usr', 2)",
    "another root": "call(161, b'/usr')",
    "a network socket": "socket.socket(socket.AF_INET)",
    "a vsock": "socket.socket(40)",
    "a crypto socket": "socket.socket(38)",
    "a netlink socket": "socket.socket(16, socket.SOCK_RAW)",
    "a packet socket": "socket.socket(17, socket.SOCK_RAW)",
    "a unix socket": "socket.socket(socket.AF_UNIX)",
    "memory without an address": "os.memfd_create('x')",
    "memory without an address by number": "call(319, b'x', 0)",
    "secret memory": "call(447, 0)",
    "shared memory": "call(29, 0, 1 << 20, 0o1600)",
    "a message queue": "call(68, 0, 0o1600)",
    "a trace": "call(101, 16, 1, 0, 0)",
    "another's memory": "call(310, 1, 0, 0, 0, 0, 0)",
    "a key": "call(248, b'user', b'x', b'y', 1, -2)",
    "bpf": "call(321, 0, 0, 0)",
    "perf": "call(298, 0, 0, -1, -1, 0)",
    "io_uring": "call(425, 8, b'\\0' * 200)",
    "userfaultfd": "call(323, 0)",
    "a handle": "call(304, -100, b'\\0' * 99, 0)",
    "a personality": "call(135, 0x0400000)",
    "a call of 32 bits": "call(0x40000000 | 39)",
    "a file": "open('/new', 'w')",
    "a file elsewhere": "open('/dev/shm/new', 'w')",
    "another user": "os.setuid(0)",
    "a better turn": "os.nice(-1)",
    "a higher limit": "resource.setrlimit(resource.RLIMIT_AS, (1 << 40, 1 << 40))",
    "many files": "[open(os.__file__) for _ in range(100)]",
    "more memory": "bytearray(600 << 20)",
    "more memory, mapped": "__import__('mmap').mmap(-1, 600 << 20)",
    "threads without number": "[threads(time.sleep, (9,)) for _ in range(200)]",
}
TRIES = """
import ctypes, os, resource, socket, time
from _thread import start_new_thread as threads
libc = ctypes.CDLL(None, use_errno=True)
def call(*args):
    if libc.syscall(*args) < 0:
        raise OSError(ctypes.get_errno(), 'refused')
def possible():
    found = []
    for name, what in REFUSED.items():
        try:
            eval(what)
        except (OSError, ValueError, MemoryError, RuntimeError):
            continue
        found.append(name)
    return found
"""


@pytest.fixture(autouse=True)
def _sandboxed(request: pytest.FixtureRequest) -> None:
    if "machine" not in request.fixturenames:
        needs_sandbox()


def _passes(program: str, tests: str, timeout_s: float = 4, memory_mib: int = 512) -> bool:
    return sandbox.passes(program, tests, timeout_s=timeout_s, memory_bytes=memory_mib * MIB)


def test_what_is_refused() -> None:
    if os.uname().machine != "x86_64":
        pytest.skip("the numbers of system calls are of x86-64")
    program, tests = f"REFUSED = {REFUSED!r}\n{TRIES}", "assert possible() == []"
    if not _passes(program, tests):  # which, one by one
        each = {name: f"REFUSED = { ({name: what})!r}\n{TRIES}" for name, what in REFUSED.items()}
        pytest.fail(f"not refused: {[name for name, one in each.items() if not _passes(one, tests)]}")


@pytest.mark.parametrize("kind", range(3))
def test_each_kind_of_sandbox_holds(kind: int) -> None:
    """As root one with a user of its own, or one of nobody's; as another user one in a namespace of users."""
    kinds = list(bubblewrap._kinds())
    if kind >= len(kinds):
        pytest.skip("root alone has a third")
    try:
        assert not sandbox._loose(kinds[kind])
    except bubblewrap.NoSandbox as error:
        pytest.skip(str(error))


def test_a_sandbox_that_does_not_hold_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is missing is said; nothing is run with less."""
    everything = struct.pack("=HBBI", 0x06, 0, 0, 0x7FFF0000)
    monkeypatch.setattr(bubblewrap, "filter_of", lambda machine: everything)
    sandbox._why_not.cache_clear()
    try:
        why = sandbox._why_not()
        assert "does not refuse new processes" in why and "sockets" in why
    finally:
        sandbox._why_not.cache_clear()


def test_what_is_possible() -> None:
    """Threads, a pair of sockets (asyncio's), pipes, clocks and the standard library's files."""
    program = (
        "import asyncio, os, select, socket, ssl, tempfile, threading, time, json, sqlite3\n"
        "def works():\n    a, b = socket.socketpair()\n    a.send(b'x')\n    r, w = os.pipe()\n    os.write(w, b'y')\n"
        "    assert b.recv(1) + os.read(r, 1) == b'xy' and select.select([], [w], [], 0)[1]\n"
        "    ts = [threading.Thread(target=time.sleep, args=(0.01,)) for _ in range(20)]\n"
        "    [t.start() for t in ts]; [t.join() for t in ts]\n"
        "    return asyncio.run(asyncio.wait_for(asyncio.sleep(0, 'done'), 1)), sqlite3.connect(':memory:') \\\n"
        "        .execute('select 1').fetchone()"
    )
    assert _passes(program, "assert works() == ('done', (1,))")


@contextmanager
def _watched() -> Iterator[dict[str, float]]:
    """What this process and all its descendants hold at most meanwhile, above what they held before."""
    me = psutil.Process()
    most = {"bytes": 0.0, "processes": 0.0, "own": 0.0}
    own, others = me.memory_info().rss, set(me.children(recursive=True))
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(0.02):
            held = 0
            children = [one for one in me.children(recursive=True) if one not in others]
            for one in children:
                with suppress(psutil.Error):
                    # Before it runs bubblewrap a child shows the memory of this process, which it shares.
                    held += one.memory_info().rss if one.nice() == 19 else 0
            most["bytes"] = max(most["bytes"], held)
            most["processes"] = max(most["processes"], len(children))
            most["own"] = max(most["own"], me.memory_info().rss - own)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield most
    finally:
        stop.set()
        thread.join()


GREEDY = {
    "prints without end": "import os\nwhile True: os.write(1, b'x' * 65536)",
    "prints by Python without end": "while True: print('x' * 65536)",
    "answers without end": "import os\ndef f(): return [bytes(1 << 20)] * 300\n",
    "prints while it is asked": "def f():\n    while True: print('x' * 65536)",
    "forks": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    "four children": "import os, time\nfor _ in range(4):\n    try:\n        if os.fork() == 0: break\n"
    "    except OSError: pass\nx = b'x' * (400 << 20)\ntime.sleep(9)",
    "files in memory": "import os\nf = os.memfd_create('x')\nwhile True: os.write(f, bytes(1 << 20))",
    "takes it bit by bit": "x = []\nwhile True: x.append(bytes(1 << 16))",
}


@pytest.mark.parametrize("how", GREEDY)
def test_it_takes_no_more_than_it_may(how: str) -> None:
    with _watched() as most:
        assert not _passes(GREEDY[how], "assert f() == 1", timeout_s=0.7, memory_mib=448)
    assert most["bytes"] < 600 * MIB and most["own"] < 64 * MIB
    assert most["processes"] <= 6, "two of bubblewrap and an interpreter, each of program and tests"


def test_it_runs_as_nobody_who_is_somebody_and_gives_way() -> None:
    seen: set[tuple[int, int]] = set()

    def watch() -> None:
        until_s = time.monotonic() + 3
        while time.monotonic() < until_s and len(seen) < 1:
            for one in psutil.Process().children(recursive=True):
                try:
                    if "python" in one.name() and one.nice() == 19:
                        seen.add((one.uids().real, one.nice()))
                except psutil.Error:
                    continue

    thread = threading.Thread(target=watch)
    thread.start()
    _passes("import time\ntime.sleep(0.5)", "pass")
    thread.join()
    assert seen and all(uid != 0 for uid, _ in seen)


def test_nothing_is_left_of_it() -> None:
    before, children = psutil.Process().num_fds(), psutil.Process().children()
    for program in ("def f(): return 1", "while True: pass", "import os; os._exit(0)"):
        _passes(program, "assert f() == 1", timeout_s=0.3)
    assert psutil.Process().num_fds() == before and psutil.Process().children() == children


@pytest.mark.parametrize("machine", NUMBERS)
def test_the_filter_by_itself(machine: str) -> None:
    """As the kernel runs it: each call that is named is allowed, its like by another architecture is the end."""
    numbers, program = NUMBERS[machine], list(struct.iter_unpack("=HBBI", filter_of(machine)))
    architecture = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}[machine]
    allow, refused, unknown, kill = 0x7FFF0000, 0x00050001, 0x00050026, 0x80000000

    def verdict(number: int, argument: int = 0, of: int = architecture) -> int:
        seen, at, value = {0: number, 4: of, 16: argument}, 0, 0
        while True:
            code, yes, no, operand = program[at]
            at += 1
            if code == 0x06:
                return operand
            if code == 0x20:
                value = seen[operand]
                continue
            test = {0x15: value == operand, 0x25: value > operand, 0x35: value >= operand, 0x45: bool(value & operand)}
            at += yes if test[code] else no

    assert len(program) < 4096
    allowed = {number for name, number in numbers.items() if name not in ("clone", "clone3", "socketpair")}
    assert all(verdict(number) == allow for number in allowed) and {numbers["futex"], numbers["mmap"]} < allowed
    for number in range(600):
        if number not in allowed and number not in (numbers["clone"], numbers["socketpair"]):
            assert verdict(number) == (unknown if number >= 424 else refused), number
    assert (verdict(numbers["clone"], 0x10000), verdict(numbers["clone"], 0x10000011)) == (allow, refused)
    assert (verdict(numbers["socketpair"], 1), verdict(numbers["socketpair"], 40)) == (allow, refused)
    assert verdict(numbers["read"], of=0x40000003) == kill and verdict(0x40000000 | numbers["read"]) == refused


def test_the_filter_of_an_unknown_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bubblewrap.platform, "machine", lambda: "riscv64")
    sandbox._why_not.cache_clear()
    try:
        assert "x86_64 and aarch64 only, not riscv64" in sandbox._why_not()
    finally:
        sandbox._why_not.cache_clear()
