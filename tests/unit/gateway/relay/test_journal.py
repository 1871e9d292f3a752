"""What a stream keeps to be continued elsewhere, and what of a second answer its client gets."""

from __future__ import annotations

import pytest

from qserve.gateway.relay.journal import Journals, OtherAnswer, StreamJournal

HEAD, FIRST, SECOND = b':j{"id":"a"}\n', b":j[[0,1]]\n", b":j[[0,2],[1,3]]\n"
EVENTS = [b"data: {}\n\n", b'data: {"text":"\\n\\n:j[[0,9]]"}\n\n', b"event: end\ndata: [DONE]\n\n"]


def begun(journals: Journals | None = None, body: bytes = b"{}") -> StreamJournal:
    journal = StreamJournal(journals or Journals())
    journal.keep(body)
    return journal


def test_lines_stay_here_and_events_are_passed_on() -> None:
    journal = begun()
    assert journal.read(HEAD + FIRST + EVENTS[0]) == EVENTS[0]
    assert journal.read(EVENTS[1]) == EVENTS[1], "a line within a text is text"
    assert journal.read(SECOND + EVENTS[2]) == EVENTS[2]
    assert journal.begin_again() == (b"{}" + HEAD + FIRST + SECOND, len(HEAD + FIRST + SECOND))


def test_events_that_come_at_once_are_told_apart() -> None:
    journal = begun()
    together = HEAD + EVENTS[0] + FIRST + EVENTS[1] + EVENTS[1] + SECOND + EVENTS[2]
    assert journal.read(together) == EVENTS[0] + EVENTS[1] + EVENTS[1] + EVENTS[2]
    assert journal.begin_again()[0] == b"{}" + HEAD + FIRST + SECOND


@pytest.mark.parametrize("num_sent", range(len(EVENTS) + 1))
def test_what_was_sent_is_not_passed_on_again(num_sent: int) -> None:
    journal = begun()
    for event in EVENTS[:num_sent]:
        journal.sent(journal.read(FIRST + event))
    if num_sent < len(EVENTS):
        journal.read(SECOND + EVENTS[num_sent])  # read and, the client being slow, never sent
    for _ in range(2):  # the second worker may die as well
        journal.begin_again()
        whole = b"".join(EVENTS)
        passed = b"".join(journal.read(whole[at : at + 7]) for at in range(0, len(whole), 7))
        assert passed == b"".join(EVENTS[num_sent:])
        journal.check_end()


def test_another_answer_is_noticed() -> None:
    journal = begun()
    journal.sent(journal.read(EVENTS[0]))
    journal.begin_again()
    with pytest.raises(OtherAnswer, match="differs"):
        journal.read(b"data: []\n\n")
    journal.begin_again()
    journal.read(EVENTS[0][:4])
    with pytest.raises(OtherAnswer, match="shorter"):
        journal.check_end()


def test_without_lines_there_is_nothing_to_continue() -> None:
    journal = begun()
    journal.read(EVENTS[0])
    assert not journal.can_continue
    journal.read(HEAD + EVENTS[0])
    assert journal.can_continue
    assert not StreamJournal(Journals()).can_continue


def test_memory_is_bound_for_one_and_for_all() -> None:
    journals = Journals(max_bytes=800)
    first = begun(journals, b"x" * 60)
    first.read(HEAD + EVENTS[0])
    assert first.can_continue and journals.num_bytes == 60 + len(HEAD)
    assert first.read(b":j" + b"1" * 50 + b"\n" + EVENTS[1]) == EVENTS[1]
    assert not first.can_continue and journals.num_bytes == 0, "more than an eighth: it gives up what it has"
    assert first.read(FIRST + EVENTS[2]) == EVENTS[2] and journals.num_bytes == 0
    many = [begun(journals, b"x" * 100) for _ in range(9)]
    assert journals.num_bytes == 800 and not many[-1]._body
    for one in many:
        one.close()
        one.close()
    assert journals.num_bytes == 0


def test_where_figures_may_differ_events_are_counted() -> None:
    journal = begun()
    journal.sent(journal.read(b":j~{}\n" + FIRST + b'data: {"logprob":-0.12345}\n\n'))
    journal.sent(journal.read(SECOND + EVENTS[0]))
    journal.begin_again()
    again = b'data: {"logprob":-0.123456789}\n\n' + EVENTS[0] + EVENTS[1]
    assert journal.read(again) == EVENTS[1]
    journal.check_end()
    journal.begin_again()
    journal.read(EVENTS[0])
    with pytest.raises(OtherAnswer, match="shorter"):
        journal.check_end()
