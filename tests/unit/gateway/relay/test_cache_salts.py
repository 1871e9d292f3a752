"""The salts by which cached prompts of keys are kept apart."""

from __future__ import annotations

import json
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qserve.gateway.large_bodies import LARGE_BYTES
from qserve.gateway.relay.cache_salts import CacheSalts, with_cache_salt
from qserve.gateway.routing.prefix import prefix_blocks

_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text() | st.just("cache_salt"),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.just("cache_salt"), inner),
    max_leaves=8,
)


def test_each_key_and_each_salt_of_its_own_has_another_one() -> None:
    salts = CacheSalts("secret", shared=False)
    made = [salts.of(owner, given) for owner in ("a", "b") for given in (None, "x", "y", "None", "null")]
    assert len(set(made)) == len(made) and salts.of("a", "x") == salts.of("a", "x")
    assert all(salt is not None and len(salt) <= 128 and salt.isalnum() for salt in made), "as vLLM takes them"


@pytest.mark.parametrize("given", [["x"], {"x": 1}, 1, True, False, ""])
def test_what_is_no_text_makes_one_too_and_the_engine_judges_it(given: object) -> None:
    salts = CacheSalts("secret", shared=False)
    assert salts.of("a", given) not in (None, salts.of("a", None), salts.of("b", given))
    assert salts.of("a", True) != salts.of("a", 1)


def test_no_salt_of_a_clients_own_is_kept() -> None:
    class Said(str):
        __slots__ = ("__weakref__",)

    said = Said("x" * 1000)
    held = weakref.ref(said)
    CacheSalts("secret", shared=False).of("a", said)
    del said
    assert held() is None


def test_without_the_secret_of_the_service_nobody_can_say_it() -> None:
    assert CacheSalts("one", shared=False).of("a", None) != CacheSalts("another", shared=False).of("a", None)


@pytest.mark.parametrize(("owner", "shared"), [("", False), ("a", True), ("", True)])
def test_without_keys_and_where_they_share_the_body_says_what_is_meant(owner: str, shared: bool) -> None:
    assert CacheSalts("secret", shared=shared).of(owner, "x") is None


@given(st.dictionaries(st.text() | st.just("cache_salt"), _VALUES), st.sampled_from(["", " ", "\n\t "]))
def test_a_body_has_the_salt_and_everything_else_that_it_had(body: dict[str, object], space: str) -> None:
    written = with_cache_salt((json.dumps(body) + space).encode(), "f00")
    assert json.loads(written, object_pairs_hook=_once) == {**body, "cache_salt": "f00"}


def test_a_large_body_is_not_read_again_and_its_last_salt_counts() -> None:
    body = json.dumps({"cache_salt": "mine", "metadata": "x" * LARGE_BYTES}).encode()
    written = with_cache_salt(body, "f00")
    assert written == body[:-1] + b',"cache_salt":"f00"}'
    assert json.loads(written)["cache_salt"] == "f00", "as vLLM reads it"


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    assert len({name for name, _ in pairs}) == len(pairs), "a name stands twice"
    return dict(pairs)


def test_prompts_of_two_keys_are_routed_as_if_they_had_nothing_in_common() -> None:
    body = json.dumps({"messages": [{"role": "user", "content": "x" * 2000}]}).encode()
    one, other = prefix_blocks(body, "m", "a"), prefix_blocks(body, "m", "b")
    assert len(one) > 10 and not set(one) & set(other)
    assert one == prefix_blocks(body, "m", "a")
