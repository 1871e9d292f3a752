"""Which packages a worker does without, by what its plan says."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from qserve.worker import unused_packages


@pytest.mark.parametrize(
    ("scheme", "on_cpu", "left_out"),
    [
        ("bf16", True, {"sklearn", "scipy", "triton"}),
        ("bf16", False, {"sklearn", "scipy"}),
        ("bnb-nf4", True, {"sklearn", "scipy", "triton"}),
        ("bnb-int8", False, {"sklearn"}),
        ("gptq-int4", True, {"sklearn"}),  # where its layers are not read as they are stored, a library unpacks them
    ],
)
def test_what_a_plan_needs_stays(
    scheme: str, on_cpu: bool, left_out: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    imported: dict[str, object] = {"torch": object()}
    monkeypatch.setattr(unused_packages, "sys", SimpleNamespace(modules=imported))
    unused_packages.leave_out_unused({"plan": {"quant": {"scheme": scheme}, "on_cpu": on_cpu}})
    assert {name for name, module in imported.items() if module is None} == left_out


def test_what_is_imported_already_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    there = object()
    imported: dict[str, object] = {"scipy": there}
    monkeypatch.setattr(unused_packages, "sys", SimpleNamespace(modules=imported))
    unused_packages.leave_out_unused({"plan": {"quant": {"scheme": "bf16"}, "on_cpu": True}})
    assert imported["scipy"] is there
