"""Admission to a worker, without HTTP: order, bounds, and no slot lost however a wait ends."""

from __future__ import annotations

import asyncio
import contextlib
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qserve.gateway.relay.admission import Admission, Requester, Requeued
from qserve.wire.errors import ApiError
from qserve.wire.reward.fields import BULK_SLOTS, num_slots


class Guest:
    """Asks for slots in a task, and leaves when told."""

    def __init__(
        self, admission, num_sequences=1, background=False, client="", leaves_one=False, num_tokens=None, urgent=False
    ):
        self.inside = False
        self._leave = asyncio.Event()
        who = Requester(client, background, leaves_one, urgent)
        self.task = asyncio.create_task(self._visit(admission, num_sequences, who, num_tokens))

    async def _visit(self, admission, num_sequences, who, num_tokens):
        places = await admission.enter(num_sequences, who, num_tokens=num_tokens)
        try:
            self.inside = True
            held_s = time.perf_counter()
            await self._leave.wait()
        finally:
            admission.leave(places, time.perf_counter() - held_s)
        self.inside = False

    async def leave(self):
        self._leave.set()
        await self.task


async def _settle():
    for _ in range(4):
        await asyncio.sleep(0)


async def test_first_come_first_served_and_nobody_overtakes():
    admission = Admission(num_slots=4, max_waiting=10)
    first, big, small = Guest(admission, 2), Guest(admission, 4), Guest(admission, 1)
    await _settle()
    assert (first.inside, big.inside, small.inside) == (True, False, False)
    await first.leave()
    await _settle()
    assert (big.inside, small.inside) == (True, False)
    await big.leave()
    await _settle()
    assert small.inside
    await small.leave()
    assert admission.num_running_sequences == admission.num_running_requests == admission.num_waiting == 0


async def test_who_waits_in_the_background_lets_others_go_first():
    admission = Admission(num_slots=2, max_waiting=10)
    evaluation = [Guest(admission, background=True) for _ in range(3)]
    await _settle()
    assert [guest.inside for guest in evaluation] == [True, False, False], "a slot is left for the next user"
    user, later = Guest(admission), Guest(admission)
    await _settle()
    assert (user.inside, later.inside) == (True, False)
    await evaluation[0].leave()
    await _settle()
    assert later.inside and not evaluation[1].inside, "who came later as a user goes before the background"
    for guest in (user, later):
        await guest.leave()
    for guest in evaluation[1:]:
        await _settle()
        assert guest.inside
        await guest.leave()
    assert admission.num_running_sequences == admission.num_waiting == 0


async def test_who_is_urgent_goes_before_others_whatever_it_has_running():
    admission = Admission(num_slots=3, max_waiting=10)
    first = [Guest(admission, client="a", urgent=True, num_tokens=9000) for _ in range(3)]
    await _settle()
    waiting = [
        Guest(admission, client="b", background=True),
        Guest(admission, client="c", num_tokens=1),
        Guest(admission, client="a", urgent=True, num_tokens=9000),
    ]
    await _settle()
    for guest, next_one in zip(first, reversed(waiting), strict=True):
        await guest.leave()
        await _settle()
        assert next_one.inside or next_one is waiting[0], "the background leaves a slot"
    for guest in reversed(waiting):
        await guest.leave()
        await _settle()
    assert admission.num_running_sequences == admission.num_waiting == 0


async def test_a_worker_with_one_place_runs_the_background_too():
    admission = Admission(num_slots=1, max_waiting=10)
    guest = Guest(admission, 5, background=True)
    await _settle()
    assert guest.inside and admission.num_running_sequences == 1
    await guest.leave()


async def test_an_oversize_request_takes_every_place_and_no_more():
    admission = Admission(num_slots=4, max_waiting=1)
    guest = Guest(admission, 1000)
    await _settle()
    assert guest.inside and admission.num_running_sequences == 4
    await guest.leave()


async def test_beyond_the_queue_is_429_with_a_time_to_come_back():
    admission = Admission(num_slots=1, max_waiting=1)
    inside, waiting = Guest(admission), Guest(admission)
    await _settle()
    with pytest.raises(ApiError) as refused:
        async with admission.slots(1):
            pass
    assert refused.value.status == 429 and refused.value.code == "queue_full"
    assert 1 <= int(refused.value.headers["retry-after"]) <= 60
    await inside.leave()
    await waiting.leave()


async def test_a_queue_of_no_length_admits_whoever_fits():
    admission = Admission(num_slots=1, max_waiting=0)
    async with admission.slots(1):
        with pytest.raises(ApiError):
            async with admission.slots(1):
                pass


async def test_turning_away_spares_those_who_run():
    admission = Admission(num_slots=1, max_waiting=5)
    inside, waiting = Guest(admission), [Guest(admission), Guest(admission)]
    await _settle()
    admission.turn_away(ApiError(503, "draining", "draining"))
    for guest in waiting:
        with pytest.raises(ApiError, match="draining"):
            await guest.task
    assert inside.inside and admission.num_waiting == 0
    await inside.leave()


async def test_leaving_in_the_tick_of_being_admitted_gives_the_place_back():
    admission = Admission(num_slots=1, max_waiting=5)
    inside, waiting = Guest(admission), Guest(admission)
    await _settle()
    inside._leave.set()
    while admission.num_waiting:
        await asyncio.sleep(0)
    waiting.task.cancel()  # admitted, but it has not run yet
    with contextlib.suppress(asyncio.CancelledError):
        await waiting.task
    await inside.task
    assert admission.num_running_sequences == 0


async def test_retry_after_follows_the_pace(monkeypatch):
    now_s = 0.0
    monkeypatch.setattr("time.perf_counter", lambda: now_s)
    admission = Admission(num_slots=2, max_waiting=5)
    slow = fast = 0
    for seconds, times in ((30.0, 40), (0.01, 80)):
        for _ in range(times):
            async with admission.slots(2):
                now_s += seconds
        async with admission.slots(2):
            if seconds == 30.0:
                slow = admission.retry_after_s()
            else:
                fast = admission.retry_after_s()
    assert fast == 1 and 25 <= slow <= 31


@settings(deadline=None, max_examples=60)
@given(
    num_slots=st.integers(1, 5),
    actions=st.lists(st.tuples(st.sampled_from(["come", "leave", "cancel"]), st.integers(0, 7)), max_size=30),
)
def test_no_order_of_events_loses_a_slot(num_slots, actions):
    async def play():
        admission = Admission(num_slots, max_waiting=100)
        guests = []
        for action, number in actions:
            if action == "come":
                guests.append(Guest(admission, number + 1))
            elif guests:
                guest = guests[number % len(guests)]
                guest._leave.set() if action == "leave" else guest.task.cancel()
            if number % 2:
                await _settle()
            assert 0 <= admission.num_running_sequences <= num_slots
        for guest in guests:
            guest._leave.set()
        await asyncio.gather(*(guest.task for guest in guests), return_exceptions=True)
        assert admission.num_running_sequences == admission.num_running_requests == admission.num_waiting == 0

    asyncio.run(play())


async def test_when_a_large_one_in_front_leaves_the_small_one_behind_goes_in():
    admission = Admission(num_slots=2, max_waiting=5)
    inside, large, small = Guest(admission, 1), Guest(admission, 2), Guest(admission, 1)
    await _settle()
    large.task.cancel()
    await _settle()
    assert inside.inside and small.inside
    await inside.leave()
    await small.leave()


async def test_large_requests_for_rewards_leave_places_for_small_ones():
    admission = Admission(num_slots=64, max_waiting=100)
    large = [Guest(admission, BULK_SLOTS, background=True) for _ in range(5)]
    await _settle()
    assert [guest.inside for guest in large] == [True, True, True, False, False]
    small = [Guest(admission, num_slots(2)) for _ in range(16)]
    await _settle()
    assert all(guest.inside for guest in small)
    for guest in (*small, *large):
        await guest.leave()


async def test_who_waits_moves_only_where_it_would_run_at_once():
    """One that would wait there as well, in the background or with many sequences, would be moved back and forth."""
    full, free = Admission(num_slots=2, max_waiting=10), Admission(num_slots=4, max_waiting=10)
    guests = [Guest(full, 2), Guest(full, 2), Guest(full, 2), Guest(full, background=True), Guest(free, 2)]
    await _settle()
    assert full.num_waiting == 3
    assert full.move_first("free", free, 0) == 2
    assert full.move_first("free", free, 2) == 0, "its slots are promised"
    there = Guest(free, 1)
    await _settle()
    assert full.move_first("free", free, 0) == 0, "one slot is free, and it needs two"
    await there.leave()
    assert full.move_first("free", free, 0) == 2
    there = Guest(free, 1)
    await _settle()
    assert full.move_first("free", free, 0) == 0, "the last slot is left for a user"
    await there.leave()
    assert full.move_first("free", free, 0) == 1
    assert full.move_first("free", free, 0) == 0
    moved = await asyncio.gather(*(guest.task for guest in guests[1:4]), return_exceptions=True)
    assert [type(error) for error in moved] == [Requeued] * 3
    await guests[0].leave()
    await guests[4].leave()


async def _all(guests):
    for guest in guests:
        await guest.leave()


async def test_clients_take_turns_whoever_has_sent_most():
    admission = Admission(num_slots=2, max_waiting=100)
    many = [Guest(admission, client="a") for _ in range(8)]
    await _settle()
    others = [Guest(admission, client="b") for _ in range(2)]
    await _settle()
    await many[0].leave()
    await _settle()
    assert others[0].inside and not many[2].inside, "the next free slot is theirs who have none"
    await many[1].leave()
    await _settle()
    assert many[2].inside and not others[1].inside, "and then each has one"
    await others[0].leave()
    await _settle()
    assert others[1].inside
    await _all([*many[2:], others[1]])


@pytest.mark.parametrize("background", [False, True])
async def test_many_sequences_leave_the_last_slot_and_one_passes_them_by(background):
    admission = Admission(num_slots=4, max_waiting=100)
    many = [Guest(admission, client="a", background=background, leaves_one=not background) for _ in range(9)]
    await _settle()
    assert sum(guest.inside for guest in many) == 3
    chats = [Guest(admission, client=client) for client in ("a", "b")]
    await _settle()
    assert [guest.inside for guest in chats] == [True, False]
    await chats[0].leave()
    await _settle()
    assert chats[1].inside
    await _all([chats[1], *many])
    assert admission.num_running_sequences == 0


async def test_who_waits_for_many_slots_gets_them_while_chats_come_and_go():
    admission = Admission(num_slots=4, max_waiting=100)
    chats = [Guest(admission, client="b") for _ in range(3)]
    await _settle()
    wide = Guest(admission, 100, client="a", leaves_one=True)
    await _settle()
    for chat in chats:
        chats.append(Guest(admission, client="b"))
        await chat.leave()
        await _settle()
        if wide.inside:
            break
    assert wide.inside, "chats took one slot, not every one that was free"
    assert admission.num_running_sequences == 4
    await _all([wide, *(chat for chat in chats if not chat.task.done())])


@pytest.mark.parametrize("background", [False, True])
async def test_at_a_worker_that_shares_its_places_every_client_is_in_at_once(background):
    admission = Admission(num_slots=64, max_waiting=100, shares_places=True)
    wide = [Guest(admission, 128, background, client) for client in "ab" for _ in range(3)]
    await _settle()
    assert [guest.inside for guest in wide] == [True, True, False] * 2
    chats = [Guest(admission, client=client) for client in "abc"]
    await _settle()
    assert all(chat.inside for chat in chats), "the worker gives them a place"
    lines = [Guest(admission, background=True, client="d") for _ in range(100)]
    await _settle()
    assert 1 <= sum(line.inside for line in lines) < 64
    await _all([*chats, *wide, *lines])
    assert admission.num_running_sequences == admission.num_waiting == 0


async def test_requests_of_one_client_are_bounded_at_a_worker_that_shares_its_places():
    admission = Admission(num_slots=4, max_waiting=100, shares_places=True)
    chats = [Guest(admission, client="a") for _ in range(9)]
    await _settle()
    assert sum(chat.inside for chat in chats) == 4
    other = Guest(admission, client="b")
    await _settle()
    assert other.inside
    await _all([other, *chats])


@pytest.mark.parametrize("shares_places", [False, True])
async def test_a_client_whose_batch_is_new_may_send_a_line_though_all_slots_are_anothers(shares_places):
    admission = Admission(num_slots=4, max_waiting=100, shares_places=shares_places)
    lines = []
    while admission.free_in_background("a"):
        lines.append(Guest(admission, background=True, client="a"))
        await _settle()
    assert len(lines) == 3
    assert admission.free_in_background("b") == 1
    assert admission.all_free_in_background() == (1, {"a": 0})
    lines.append(Guest(admission, background=True, client="b"))
    await _settle()
    assert lines[3].inside is shares_places
    await lines[0].leave()
    await _settle()
    assert lines[3].inside and admission.free_in_background("a") == 0
    chat = Guest(admission, 4, client="c")
    await _settle()
    if not chat.inside:
        assert admission.free_in_background("b") == admission.free_in_background("x") == 0, "others wait"
    await _all([*lines[1:], chat])


async def test_eight_long_prompts_are_not_equal_to_eight_chats():
    admission = Admission(num_slots=4, max_waiting=100)
    long = [Guest(admission, client="a", num_tokens=30_000) for _ in range(8)]
    await _settle()
    chats = [Guest(admission, client="b", num_tokens=100) for _ in range(8)]
    await _settle()
    for guest in long[:3]:
        await guest.leave()
        await _settle()
    assert [guest.inside for guest in chats] == [True] * 3 + [False] * 5
    assert [guest.inside for guest in long[3:]] == [True] + [False] * 4
    await long[3].leave()
    await _settle()
    assert long[4].inside, "who has none running is next, however long it is"
    for guest in chats:
        await _settle()
        assert guest.inside, "one slot is that of the long prompts, the others are the chats'"
        await guest.leave()
    await _all(long[4:])
    assert admission.num_running_sequences == admission.num_waiting == 0


async def test_at_one_slot_clients_take_turns_by_tokens():
    admission = Admission(num_slots=1, max_waiting=100)
    long = [Guest(admission, client="a", num_tokens=1000) for _ in range(3)]
    await _settle()
    chats = [Guest(admission, client="b", num_tokens=100) for _ in range(25)]
    await _settle()
    order, left = [], [*long, *chats]
    while left:
        inside = next(guest for guest in left if guest.inside)
        order.append("a" if inside in long else "b")
        left.remove(inside)
        await inside.leave()
        await _settle()
    assert "".join(order) == "a" + 10 * "b" + "a" + 10 * "b" + "a" + 5 * "b"


@pytest.mark.parametrize("shares_places", [False, True])
async def test_nothing_of_the_background_goes_in_while_a_chat_waits(shares_places):
    """Whoever it is of: the worker of our own takes a place back from what runs in the background."""
    admission = Admission(num_slots=8, max_waiting=500, shares_places=shares_places)
    lines = [Guest(admission, background=True, client=f"batch-{number}") for number in range(20)]
    await _settle()
    chats = [Guest(admission, client=client) for client in "abcde" for _ in range(4)]
    await _settle()
    inside = [guest for guest in chats if guest.inside]
    if shares_places:
        assert len(inside) >= 8, "as many as the worker has places, for all that the background has"
    while any(not (guest.inside or guest.task.done()) for guest in chats):
        more = Guest(admission, background=True, client="new")
        before = {guest for guest in (*lines, more) if guest.inside}
        await (inside or lines).pop(0).leave()
        await _settle()
        assert {guest for guest in (*lines, more) if guest.inside} <= before
        lines.append(more)
        inside = [guest for guest in chats if guest.inside]
    await _all(guest for guest in (*chats, *lines) if not guest.task.done())
    assert admission.num_running_sequences == admission.num_waiting == 0


async def test_the_expected_wait_is_that_behind_those_that_are_next():
    admission, me = Admission(num_slots=2, max_waiting=100), Requester("me")
    assert admission.expected_wait_s(1, me, 10) == 0.0
    inside = [Guest(admission, client="a", num_tokens=100) for _ in range(2)]
    await _settle()
    assert admission.expected_wait_s(1, me, 10) is None, "nothing has finished yet"
    await inside.pop(0).leave()
    admission._seconds_per_request = 4.0
    waiting = [Guest(admission, client="a", num_tokens=100) for _ in range(5)]
    await _settle()
    assert admission.num_waiting == 4
    assert admission.expected_wait_s(1, me, 10) == pytest.approx(4.0 / 2), "nobody of them is next before me"
    assert admission.expected_wait_s(1, Requester("a"), 10) == pytest.approx(5 * 4.0 / 2)
    assert admission.expected_wait_s(1, Requester("me", is_background=True), 10) == pytest.approx(5 * 4.0 / 2)
    await _all([*inside, *waiting])
