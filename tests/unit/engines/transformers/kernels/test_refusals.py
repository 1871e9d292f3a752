"""What a refused kernel costs is said for each, from counts that the plan has too."""

from __future__ import annotations

import logging

import pytest

from qserve.core.facts import load
from qserve.engines.transformers.kernels.refusals import (
    CAPTURE,
    COSTS,
    FOUR_BIT_PRODUCT,
    INT8_PRODUCT,
    LAYER_LAUNCHES,
    OPERATIONS,
    layer_launches_without,
    log_refusal,
    product_name,
    refusal,
)


def test_the_plan_counts_the_same_launches() -> None:
    assert load("speed")["transformers"]["launches"]["dense_layer"] == LAYER_LAUNCHES
    assert {name: layer_launches_without(name) for name in OPERATIONS} == {
        "add_rms_norm": 26,
        "rotate_and_store": 38,
        "silu_and_multiply": 11,
    }


def test_products_by_pieces_write_and_read_weights_in_16_bit() -> None:
    """One byte a weight is read, then two are written and read again; of 4 bits half a byte."""
    assert COSTS[product_name("int8")] == "steps of up to 64 rows move 5 times the bytes of weights"
    assert COSTS[product_name("nf4")] == "steps of 5 to 64 rows move 9 times the bytes of weights"
    assert (product_name("fp4"), product_name("int8")) == (FOUR_BIT_PRODUCT, INT8_PRODUCT)


def test_a_refusal_is_a_warning_with_the_whole_exception(caplog: pytest.LogCaptureFixture) -> None:
    refused = refusal(CAPTURE, "no")
    log_refusal(logging.getLogger("qserve.worker"), refused)
    assert caplog.messages == [f"CUDA graph capture is refused on this card (no): {COSTS[CAPTURE]}"]
    assert caplog.records[0].levelname == "WARNING" and not caplog.records[0].exc_info
    try:
        raise RuntimeError("at line 1\nthe rest")
    except RuntimeError:
        log_refusal(logging.getLogger("qserve.worker"), refused)
    assert "the rest" in caplog.text
