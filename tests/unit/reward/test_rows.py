"""Groups share what pays, rows stay within bounds, and nobody is lost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from qserve.reward.scoring.rows import Group, grouped, into_rows, padded_rows, shared_length

TOKEN = st.integers(0, 3)
TEXTS = st.lists(st.lists(TOKEN, min_size=1, max_size=60), min_size=1, max_size=30)


def test_answers_to_one_prompt_are_one_group() -> None:
    prompt = list(range(100))
    texts = [prompt + [200 + index] * 5 for index in range(4)]
    (group,) = grouped([*texts])
    assert group == Group(100, (0, 1, 2, 3), (105,) * 4)
    assert group.num_tokens == 100 + 4 * 5


def test_a_template_s_first_tokens_are_no_reason_to_group() -> None:
    template = [1, 2, 3]
    assert len(grouped([template + [index] * 50 for index in range(10, 15)])) == 5


def test_a_text_that_would_shorten_what_the_others_share_stays_outside() -> None:
    prompt = list(range(200))
    answers = [[*prompt, 300 + index] for index in range(8)]
    stranger = prompt[:30] + [999] * 50
    assert [group.members for group in grouped([*answers, stranger])] == [tuple(range(8)), (8,)]


def test_the_same_text_twice_keeps_a_token_of_its_own() -> None:
    text = list(range(50))
    assert grouped([text, text]) == [Group(49, (0, 1), (50, 50))]


@given(st.lists(TOKEN, max_size=40), st.lists(TOKEN, max_size=40))
def test_shared_length(a: list[int], b: list[int]) -> None:
    length = shared_length(a, b)
    assert a[:length] == b[:length]
    assert length == min(len(a), len(b)) or a[length] != b[length]


@given(TEXTS, st.integers(1, 200))
def test_everyone_is_in_one_row_once_and_rows_are_bounded(texts: list[list[int]], max_tokens: int) -> None:
    groups = grouped(texts)
    rows = into_rows(groups, max_tokens)
    members = [member for row in rows for group in row for member in group.members]
    assert sorted(members) == list(range(len(texts)))
    assert sum(group.num_tokens for group in groups) <= sum(map(len, texts))
    for row in rows:
        tokens = sum(group.num_tokens for group in row)
        assert tokens <= max_tokens or len([m for group in row for m in group.members]) == 1
        for group in row:
            beginning = texts[group.members[0]][: group.shared]
            assert all(texts[member][: group.shared] == beginning for member in group.members)
            assert all(group.shared < length for length in group.lengths)
            assert group.lengths == tuple(len(texts[member]) for member in group.members)


@given(st.lists(st.integers(1, 300), min_size=1, max_size=40), st.integers(1, 500))
def test_padded_batches_are_bounded_and_hold_everyone(lengths: list[int], max_tokens: int) -> None:
    batches = padded_rows(lengths, max_tokens)
    assert sorted(group.members[0] for batch in batches for group in batch) == list(range(len(lengths)))
    assert batches[0] == min(batches, key=lambda batch: min(group.members[0] for group in batch))
    for batch in batches:
        longest = max(group.lengths[0] for group in batch)
        assert len(batch) == 1 or longest * len(batch) <= max_tokens
