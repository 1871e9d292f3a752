"""Text piece by piece: whatever the pieces, they join to the whole, and nothing of a stop string is shown."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qserve.engines.transformers.worker.prompts.token_text import TokenText
from qserve.engines.transformers.worker.sampling.text import StopStrings, TextStream

any_text = st.text(st.sampled_from("ab \n漢你é🚀<|>x"), max_size=40)
# The tokenizer is the same for all examples; only reading it is what makes hypothesis wary.
shared = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)


def streamed(tokenizer: Any, ids: list[int], *, skip: bool = True) -> list[str]:
    stream = TextStream(tokenizer, skip_special_tokens=skip)
    return [*(stream.push(token) for token in ids), stream.flush()]


@shared
@given(ids=st.lists(st.integers(0, 1279), max_size=60), skip=st.booleans())
def test_any_tokens_join_to_what_decode_says(demo_tokenizer: Any, ids: list[int], skip: bool) -> None:
    """Halves of characters, rubbish and special tokens among them."""
    whole = demo_tokenizer.backend_tokenizer.decode(ids, skip_special_tokens=skip)
    assert "".join(streamed(demo_tokenizer, ids, skip=skip)) == whole


@shared
@given(ids=st.lists(st.integers(0, 255), max_size=60))
def test_any_bytes_join_to_what_decode_says(demo_tokenizer: Any, ids: list[int]) -> None:
    assert "".join(streamed(demo_tokenizer, ids)) == demo_tokenizer.backend_tokenizer.decode(ids)


@shared
@given(text=any_text)
def test_real_text_never_shows_half_a_character(demo_tokenizer: Any, text: str) -> None:
    pieces = streamed(demo_tokenizer, demo_tokenizer.encode(text), skip=False)
    assert "".join(pieces) == text
    assert not any("�" in piece for piece in pieces)


def stopped_at(text: str, stops: list[str]) -> tuple[int, int] | None:
    """Where the stop string that is complete first begins and ends; the earliest, and of those the longest."""
    for end in range(1, len(text) + 1):
        begins = [end - len(stop) for stop in stops if text[:end].endswith(stop)]
        if begins:
            return min(begins), end
    return None


def letters_through(text: str, stops: list[str], *, include: bool) -> tuple[str, bool]:
    """One character at a time."""
    return pushed(list(text), stops, include=include)


def pushed(pieces: list[str], stops: list[str], *, include: bool) -> tuple[str, bool]:
    holding = StopStrings(stops, include=include)
    shown = ""
    for piece in pieces:
        ready, met = holding.push(piece)
        shown += ready
        if met:
            return shown, True
    return shown + holding.flush(), False


some_stops = st.lists(st.text("abc", min_size=1, max_size=4), max_size=3)


@given(st.text("abcd", max_size=30), some_stops, st.booleans())
def test_character_by_character_it_cuts_at_the_first_stop_string(text: str, stops: list[str], include: bool) -> None:
    where = stopped_at(text, stops)
    meant = text if where is None else text[: where[1] if include else where[0]]
    assert letters_through(text, stops, include=include) == (meant, where is not None)


@given(st.lists(st.text("abcd", max_size=6), max_size=12), some_stops)
def test_nothing_of_a_stop_string_is_shown_wherever_pieces_end(pieces: list[str], stops: list[str]) -> None:
    text = "".join(pieces)
    shown, met = pushed(pieces, stops, include=False)
    assert met == any(stop in text for stop in stops)
    assert text.startswith(shown)
    assert not any(stop in shown for stop in stops)
    if not met:
        assert shown == text
    else:
        assert any(text[len(shown) :].startswith(stop) for stop in stops)


@given(st.lists(st.text("abcd", max_size=6), max_size=12), some_stops)
def test_what_is_shown_is_never_taken_back(pieces: list[str], stops: list[str]) -> None:
    """No piece shows the beginning of a stop string that the next piece completes."""
    holding, shown = StopStrings(stops, include=False), ""
    for index, piece in enumerate(pieces):
        ready, met = holding.push(piece)
        shown += ready
        if met:
            return
        rest = "".join(pieces[: index + 1])[len(shown) :]
        assert all(not (shown + rest)[: len(shown)].endswith(stop) for stop in stops)
        assert any(stop.startswith(rest) for stop in stops) or not rest


def test_no_stop_strings_hold_nothing_back() -> None:
    assert StopStrings((), include=False).push("abc") == ("abc", False)


def test_every_token_has_a_label_of_its_own(demo_tokenizer: Any) -> None:
    """lm-eval reads top_logprobs as a dictionary: equal labels would lose tokens."""
    naming = TokenText(demo_tokenizer.backend_tokenizer)
    labels = [naming.label(token) for token in range(1280)]
    assert len(set(labels)) == len(labels)


@shared
@given(text=any_text)
def test_bytes_of_tokens_join_to_the_text(demo_tokenizer: Any, text: str) -> None:
    naming = TokenText(demo_tokenizer.backend_tokenizer)
    assert b"".join(naming.raw(token) for token in demo_tokenizer.encode(text)).decode() == text


@pytest.mark.parametrize(
    ("token_text", "label"), [("<|im_end|>", "<|im_end|>"), ("<think>", "<think>"), (" the", " the")]
)
def test_labels(demo_tokenizer: Any, token_text: str, label: str) -> None:
    assert TokenText(demo_tokenizer.backend_tokenizer).label(demo_tokenizer.encode(token_text)[0]) == label


def test_a_token_outside_the_tokenizer_has_a_label_too(demo_tokenizer: Any) -> None:
    """Checkpoints pad their vocabulary; the rows past the tokenizer's end can be drawn."""
    naming = TokenText(demo_tokenizer.backend_tokenizer)
    assert (naming.label(5000), naming.raw(5000)) == ("token_id:5000", b"")


@given(st.lists(st.text("abcd", max_size=6), max_size=12), st.integers(0, 12), some_stops, st.booleans())
def test_a_stop_string_counts_where_it_ends_behind_what_must_come(
    pieces: list[str], least: int, stops: list[str], include: bool
) -> None:
    """As in vLLM: the first `least` pieces are a part of the answer, whatever they hold."""
    holding, shown, has_met = StopStrings(stops, include=include), "", False
    for number, piece in enumerate(pieces, 1):
        ready, has_met = holding.push(piece, may_end=number > least)
        shown += ready
        if has_met:
            break
    text, free = "".join(pieces), sum(map(len, pieces[:least]))
    ends = [end for stop in stops for end in range(free + 1, len(text) + 1) if text[:end].endswith(stop)]
    assert has_met == bool(ends)
    assert text.startswith(shown) and len(shown + holding.flush()) >= (free - 3 if has_met else len(text))
