"""A seccomp filter as bubblewrap takes it: classic BPF that lets Python compute and start threads, and nothing else.

No process can be started inside, so that what bounds one process bounds the sandbox; no socket but a pair of its own;
no namespace, mount, trace, key, memory without an address (memfd, System V) or any call that is not known here.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterable, Iterator

from qserve.reward.rules.syscalls import NUMBERS

__all__ = ["filter_of"]

_AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_LOAD, _JUMP_EQUAL, _JUMP_ABOVE, _JUMP_FROM, _JUMP_BITS, _RETURN = 0x20, 0x15, 0x25, 0x35, 0x45, 0x06
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENT_0_AT = 0, 4, 16
_ALLOW, _KILL, _ERROR = 0x7FFF0000, 0x80000000, 0x00050000
_REFUSED, _UNKNOWN = _ERROR | errno.EPERM, _ERROR | errno.ENOSYS
_X32_BIT = 0x40000000
_CLONE_THREAD, _AF_UNIX = 0x00010000, 1
_BY_ARGUMENT = ("clone", "clone3", "socketpair")
# From here on a C library falls back where a call is not implemented.
_NEWER = 424

Instruction = tuple[int, int, int, int]
"""Code, how far to jump if so, how far if not, operand."""


def filter_of(machine: str) -> bytes:
    """The program for `machine` (as `platform.machine()` has it). Raises KeyError for one that is not known."""
    numbers = NUMBERS[machine]
    program = [
        (_LOAD, 0, 0, _ARCHITECTURE_AT),
        (_JUMP_EQUAL, 1, 0, _AUDIT[machine]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER_AT),
        *_if_from(_X32_BIT, _REFUSED),
        # glibc makes threads by clone where there is no clone3, whose flags lie in memory that a filter can't read.
        *_if_equal(numbers["clone3"], [(_RETURN, 0, 0, _UNKNOWN)]),
        *_if_equal(numbers["clone"], _if_argument(_JUMP_BITS, _CLONE_THREAD)),
        *_if_equal(numbers["socketpair"], _if_argument(_JUMP_EQUAL, _AF_UNIX)),
        *_allow(number for name, number in numbers.items() if name not in _BY_ARGUMENT),
        *_if_from(_NEWER, _UNKNOWN),
        (_RETURN, 0, 0, _REFUSED),
    ]
    return b"".join(struct.pack("=HBBI", *one) for one in program)


def _if_from(number: int, answer: int) -> list[Instruction]:
    return [(_JUMP_FROM, 0, 1, number), (_RETURN, 0, 0, answer)]


def _if_equal(number: int, then: list[Instruction]) -> list[Instruction]:
    return [(_JUMP_EQUAL, 0, len(then), number), *then]


def _if_argument(test: int, value: int) -> list[Instruction]:
    return [(_LOAD, 0, 0, _ARGUMENT_0_AT), (test, 0, 1, value), (_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _REFUSED)]


def _allow(numbers: Iterable[int]) -> Iterator[Instruction]:
    for low, high in _ranges(sorted(set(numbers))):
        yield from ((_JUMP_FROM, 0, 2, low), (_JUMP_ABOVE, 1, 0, high), (_RETURN, 0, 0, _ALLOW))


def _ranges(numbers: list[int]) -> Iterator[tuple[int, int]]:
    low = numbers[0]
    for number, following in zip(numbers, [*numbers[1:], -1], strict=True):
        if following != number + 1:
            yield low, number
            low = following
