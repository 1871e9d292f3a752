"""What is told of an exception of Triton's, of ptxas', or of torch's: the one line that says what is wrong."""

from __future__ import annotations

import pytest

from qserve.engines.transformers.kernels.compiler_errors import reason_of


class CompilationError(Exception):
    """As Triton's: its text is all there is."""


class PTXASError(Exception):
    pass


class OutOfResources(Exception):
    pass


_IN_SOURCE = """at 12:4:
    head = tl.program_id(1)
    if head < heads:
    ^
AttributeError("'dtype' object has no attribute 'type'")"""

_PTXAS = """PTXAS error: `ptxas` failed with error code 255
`ptxas` stderr:
ptxas k.ptx, line 5; error   : Feature 'mma' requires .target sm_80 or higher
ptxas k.ptx, line 9; error   : Arguments mismatch for instruction 'mov'
ptxas fatal   : Ptx assembly aborted due to errors

Repro command: ptxas -lineinfo -v --gpu-name=sm_75 k.ptx -o k.ptx.o
"""

_PTXAS_DIED = "PTXAS error: Internal Triton PTX codegen error\n`ptxas` stderr:\n\nRepro command: ptxas x.ptx\n"

_NO_TARGET = """PTXAS error: `ptxas` failed with error code 255
`ptxas` stderr:
ptxas fatal   : Value 'sm_130' is not defined for option 'gpu-name'

Repro command: ptxas --gpu-name=sm_130 k.ptx
"""

_SHARED = "out of resource: shared memory, Required: 131072, Hardware limit: 101376. Reducing block sizes may help."

_CUDA = """CUDA error: an illegal memory access was encountered
CUDA kernel errors might be asynchronously reported at some other API call.
For debugging consider passing CUDA_LAUNCH_BLOCKING=1
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions."""


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (CompilationError(_IN_SOURCE), "AttributeError: 'dtype' object has no attribute 'type'"),
        (CompilationError("at 2:4:\n    tl.static_assert(n == 4)\n    ^\nn is four"), "CompilationError: n is four"),
        (CompilationError("at 2:4:\n    tl.foo(n)\n    ^"), "CompilationError: tl.foo(n)"),
        (PTXASError(_PTXAS), "PTXASError: ptxas k.ptx, line 9; error   : Arguments mismatch for instruction 'mov'"),
        (PTXASError(_PTXAS_DIED), "PTXASError: Internal Triton PTX codegen error"),
        (PTXASError(_NO_TARGET), "PTXASError: ptxas fatal   : Value 'sm_130' is not defined for option 'gpu-name'"),
        (PTXASError("PTXAS error: "), "PTXASError"),
        (OutOfResources(_SHARED), f"OutOfResources: {_SHARED}"),
        (RuntimeError(_CUDA), "RuntimeError: CUDA error: an illegal memory access was encountered"),
        (RuntimeError("0 active drivers ([]). There should only be one."), None),
        (ImportError("No module named 'triton'"), "ImportError: No module named 'triton'"),
        (AssertionError(), "AssertionError"),
        (RuntimeError("  \n "), "RuntimeError"),
    ],
)
def test_the_line_that_says_what_is_wrong(error: Exception, said: str | None) -> None:
    assert reason_of(error) == (said or f"{type(error).__name__}: {error}")


def test_the_cause_speaks_where_it_has_something_to_say() -> None:
    """Triton's error about a call has the place of the call alone; what is wrong stands in its cause."""
    call = CompilationError("at 3:16:\n    tl.store(p, inner(d))\n                ^")
    call.__cause__ = CompilationError(_IN_SOURCE)
    assert reason_of(call) == "AttributeError: 'dtype' object has no attribute 'type'"
    call.__cause__ = AssertionError()
    assert reason_of(call) == "CompilationError: tl.store(p, inner(d))"
    call.__cause__ = call
    assert reason_of(call) == "CompilationError: tl.store(p, inner(d))"


def test_it_is_one_short_line() -> None:
    said = reason_of(RuntimeError("a" * 500 + "\nb"))
    assert len(said) == 200 and said.endswith("…") and "\n" not in said


def test_triton_s_own_errors_are_told() -> None:
    """The real exceptions, so that a release which changes their text is seen."""
    errors = pytest.importorskip("triton.compiler.errors")
    runtime = pytest.importorskip("triton.runtime.errors")
    message = repr(AttributeError("'dtype' object has no attribute 'type'"))
    node = type("node", (), {"lineno": 2, "col_offset": 4})()
    real = errors.CompilationError("def k(p):\n    q = p.dtype.type\n    x = 1\n", node, message)
    assert reason_of(real) == "AttributeError: 'dtype' object has no attribute 'type'"
    assert "shared memory, Required: 2, Hardware limit: 1" in reason_of(runtime.OutOfResources(2, 1, "shared memory"))
    assert "Arguments mismatch" in reason_of(runtime.PTXASError(_PTXAS.removeprefix("PTXAS error: ")))
