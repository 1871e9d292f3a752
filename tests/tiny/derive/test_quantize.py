"""A checkpoint really quantized, by the method that needs no environment of its own: size, memory and card."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from qserve.cli.main import cli
from qserve.core.quantization_config import read_quantization
from qserve.errors import UsageError
from qserve.hub.resolve import resolve


def test_the_demo_in_four_bits(tmp_path: Path) -> None:
    out = tmp_path / "demo-nf4"
    words = ["quantize", "demo", "--to", "nf4", "--out", str(out), "--state-dir", str(tmp_path), "--json"]
    done = CliRunner().invoke(cli, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    figures = json.loads(done.stdout)
    # Headers and a table of codes for each weight, which count in a model of 4 MB.
    assert figures["bytes"] == pytest.approx(figures["planned_bytes"], rel=0.05)
    assert figures["peak_bytes"] < figures["planned_peak_bytes"]
    found = resolve(str(out))
    stored = read_quantization(found.config["quantization_config"], "it")
    assert stored is not None and stored.scheme == "bnb-nf4" and stored.skipped == ("lm_head",)
    card = (out / "README.md").read_text()
    assert "nf4: bitsandbytes' NF4 with double quantization" in card and str(tmp_path) not in card
    with pytest.raises(UsageError, match="exists already"):
        CliRunner().invoke(cli, words, catch_exceptions=False)
    with pytest.raises(UsageError, match="is quantized already"):
        CliRunner().invoke(cli, ["quantize", str(out), "--to", "w4a16", "--plan-only"], catch_exceptions=False)
    # What is there of a run that ends early: its log alone.
    assert sorted(path.name for path in tmp_path.iterdir()) == ["demo-nf4", "qserve"]
