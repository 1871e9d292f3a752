"""The pool is planned in the pages that the worker makes: any length that fits the plan is served."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from qserve.engines.transformers.kernels.kv_pages import FLASH_PAGE_TOKENS, PAGE_TOKENS, plan_page_tokens, whole_pages
from tests.unit.planner.test_device_map import machine, plan_of


@given(length=st.integers(1, 5000), num_seqs=st.integers(1, 20), on_cpu=st.booleans())
@settings(max_examples=150, deadline=None)
def test_the_pages_of_the_pool_hold_the_planned_length(length: int, num_seqs: int, on_cpu: bool) -> None:
    hardware = machine() if on_cpu else machine(24)
    plan = plan_of("Qwen/Qwen3-0.6B", hardware, max_model_len=length, max_num_seqs=num_seqs)
    assert plan.fits
    for page_tokens in (PAGE_TOKENS,) if on_cpu else (PAGE_TOKENS, FLASH_PAGE_TOKENS):
        assert plan.kv_cache_tokens // page_tokens * page_tokens >= length


def test_pages_of_both_kinds_divide_what_is_planned() -> None:
    for on_cpu in (True, False):
        assert plan_page_tokens(on_cpu=on_cpu) % PAGE_TOKENS == 0
    assert [whole_pages(tokens, 32) for tokens in (1, 32, 33)] == [32, 32, 64]
