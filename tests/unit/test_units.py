"""How bytes, counts, durations and rates are written for people."""

from __future__ import annotations

import pytest

from qserve.units import (
    GIB,
    counted,
    format_bytes,
    format_count,
    format_flops,
    format_ms,
    format_parameters,
    format_rate,
)


@pytest.mark.parametrize(
    ("count", "text"),
    [(32_762_123_264, "32.76B"), (596_049_920, "0.60B"), (85_000_000, "85.00M"), (2_021_376, "2.02M"), (0, "0.00M")],
)
def test_a_small_model_has_millions_of_parameters(count: int, text: str) -> None:
    assert format_parameters(count) == text


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (0.094, "0.09 ms"),
        (9.994, "9.99 ms"),
        (9.996, "10.0 ms"),
        (21.44, "21.4 ms"),
        (99.96, "100 ms"),
        (715.6, "716 ms"),
        (999.6, "1.00 s"),
        (7_110, "7.11 s"),
        (9_996, "10.0 s"),
        (119_400, "119 s"),
        (119_600, "2.0 min"),
        (600_000, "10 min"),
        (4_929_000, "82 min"),
        (11_548_000, "3.2 h"),
        (172_700_000, "2.0 days"),
        (0, "0.00 ms"),
    ],
)
def test_a_duration_has_three_figures_and_the_unit_that_people_would_take(milliseconds: float, text: str) -> None:
    assert format_ms(milliseconds) == text


@pytest.mark.parametrize(("count", "text"), [(8688, "8,688"), (999_999, "999,999"), (16_356_514, "16.4 million")])
def test_a_count_is_read_at_a_glance(count: int, text: str) -> None:
    assert format_count(count) == text


@pytest.mark.parametrize(
    ("rate", "text"),
    [(5562.9, "5,563"), (41.9, "42"), (9.96, "10"), (4.66, "4.7"), (0.96, "1.0"), (0.0608, "0.061"), (0.0, "0")],
)
def test_a_slow_rate_is_not_rounded_to_nothing(rate: float, text: str) -> None:
    assert format_rate(rate) == text


def test_gib_may_have_one_decimal() -> None:
    assert (format_bytes(42.4 * GIB), format_bytes(42.4 * GIB, 1)) == ("42.40 GiB", "42.4 GiB")


@pytest.mark.parametrize(
    ("per_s", "shown"),
    [
        (4.2e8, "0.42 GFLOP/s"),
        (8.8e11, "880 GFLOP/s"),
        (9.994e11, "999 GFLOP/s"),
        (9.999e11, "1 TFLOP/s"),
        (2e12, "2 TFLOP/s"),
        (9.996e13, "100 TFLOP/s"),
        (3.12e14, "312 TFLOP/s"),
        (2.25e15, "2,250 TFLOP/s"),
    ],
)
def test_operations_have_three_figures_and_no_exponent(per_s: float, shown: str) -> None:
    assert format_flops(per_s) == shown


@pytest.mark.parametrize(("count", "text"), [(0, "0 items"), (1, "1 item"), (2, "2 items"), (2000, "2,000 items")])
def test_one_is_no_plural(count: int, text: str) -> None:
    assert counted(count, "item") == text
