"""Runs in vLLM's own processes: asks Linux for the tiles (AMX) of a Xeon before the first product needs them.

Linux gives a process these registers when it has asked for them, and else ends it by SIGILL at the first instruction
that uses one; a child keeps the permission, another program (exec) does not. vLLM 0.32's attention on a CPU
(csrc/cpu/cpu_attn_amx.hpp) multiplies with tiles and never asks: it relies on oneDNN, which does so when it packs a
matrix of more than 1 MiB. A small model has none, and where nothing is compiled its first request ends the worker.

vLLM imports this module in each worker (--worker-extension-cls), before it makes a model; the class adds nothing.
"""

from __future__ import annotations

import ctypes
import platform
import sys

__all__ = ["WithTiles", "ask_for_tiles"]

# arch_prctl(2) of x86-64, and Documentation/arch/x86/xstate.rst of Linux.
_SYS_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA = 158, 0x1023, 18


def ask_for_tiles() -> bool:
    """Whether this process may use tiles now. False on a processor or a Linux (before 5.16) without them."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    return bool(ctypes.CDLL(None).syscall(_SYS_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA) == 0)


class WithTiles:
    """A base class that vLLM gives its worker; it has nothing of its own."""


ask_for_tiles()
