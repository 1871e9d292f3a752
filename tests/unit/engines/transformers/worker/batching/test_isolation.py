"""Whose fault a failed step is, over all kinds of faults: exactly the sequences at fault fail, and all others end."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from qserve.engines.transformers.worker.batching.batcher import Sequence
from qserve.engines.transformers.worker.batching.isolation import Isolation
from qserve.engines.transformers.worker.sampling.params import SamplingParams, TokenChoice
from qserve.engines.transformers.worker.sampling.sampler import SequenceSampler

NUM_TOKENS = 12
_MOST_STEPS = 20_000


@dataclass
class Rows:
    """A batcher without a model: a step reads all prompts that are not read, or draws a token of each."""

    faults: dict[str, tuple[int, str]]
    """Of a sequence: from how many tokens on a step with it fails, and which: `prefill`, `decode` or `any`."""
    every: int = 0
    """Each so many steps one fails, whoever is in it."""
    isolation: Isolation = field(default_factory=Isolation)
    waiting: deque[Sequence] = field(default_factory=deque)
    running: list[Sequence] = field(default_factory=list)
    unread: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    num_steps: int = 0

    def run(self, arrivals: dict[int, Sequence], num_places: int) -> None:
        while arrivals or self.waiting or self.running or self.isolation.is_active:
            self.num_steps += 1
            assert self.num_steps < _MOST_STEPS, "it goes on for ever"
            if (came := arrivals.pop(self.num_steps, None)) is not None:
                (self.isolation.hold if self.isolation.is_active else self.waiting.append)(came)
            while self.waiting and len(self.running) < num_places:
                self.running.append(self.waiting.popleft())
                self.unread.add(self.running[-1].request_id)
            if self.running:
                self._step()

    def _step(self) -> None:
        reads = [one for one in self.running if one.request_id in self.unread]
        kind, involved = ("prefill", reads) if reads else ("decode", list(self.running))
        if any(self._is_due(one, kind) for one in involved) or (self.every and self.num_steps % self.every == 0):
            self._recover(involved)
            return
        for one in involved:
            self.unread.discard(one.request_id)
            one.note(TokenChoice(1))
        self.running = [one for one in self.running if not one.is_complete]
        if self.isolation.has_passed:
            self._run_next_alone()

    def _is_due(self, one: Sequence, kind: str) -> bool:
        begin, of = self.faults.get(one.request_id, (NUM_TOKENS, "any"))
        return len(one.sampled_ids) >= begin and of in (kind, "any")

    def _recover(self, involved: list[Sequence]) -> None:
        others = [one for one in (*self.running, *self.waiting) if one not in involved]
        self.running, self.waiting = [], deque()
        self.failed |= {one.request_id for one in self.isolation.failed(involved, others, is_all=True)}
        self._run_next_alone()

    def _run_next_alone(self) -> None:
        self.waiting += self.running
        self.isolation.passed()
        following = self.isolation.next()
        self.running = []
        self.waiting = deque(self.isolation.release() if following is None else [following])


def made(name: str) -> Sequence:
    return Sequence(name, [1], NUM_TOKENS, frozenset(), SequenceSampler(SamplingParams(temperature=0.0), [1]))


FAULTS = st.dictionaries(
    st.integers(0, 15).map(str),
    st.tuples(st.integers(0, NUM_TOKENS - 2), st.sampled_from(["prefill", "decode", "any"])),
    max_size=6,
)


@given(faults=FAULTS, num=st.integers(1, 16), places=st.integers(1, 8), starts=st.lists(st.integers(1, 40)))
@settings(max_examples=80, deadline=None)
def test_nobody_fails_but_those_at_fault(
    faults: dict[str, tuple[int, str]], num: int, places: int, starts: list[int]
) -> None:
    some = [made(str(index)) for index in range(num)]
    # One that has drawn tokens reads its prompt again only where others made a step fail.
    faults = {name: (0 if of == "prefill" else begin, of) for name, (begin, of) in faults.items()}
    arrivals: dict[int, Sequence] = {}
    for one, start in zip(some, [*starts, *[1] * num], strict=False):
        while start in arrivals:
            start += 1
        arrivals[start] = one
    rows = Rows(faults)
    rows.run(arrivals, places)
    faulty = {one.request_id: faults[one.request_id][1] for one in some if one.request_id in faults}
    assert rows.failed <= faulty.keys()
    # A fault of decoding alone may be passed by: each time that its tokens are read again, one is drawn.
    assert {name for name, of in faulty.items() if of != "decode"} <= rows.failed
    assert all(one.is_complete for one in some if one.request_id not in faults)
    assert not len(rows.isolation)


@given(every=st.integers(4, 30), num=st.integers(1, 12), places=st.integers(1, 8))
@settings(max_examples=60, deadline=None)
def test_a_fault_of_nobody_fails_nobody(every: int, num: int, places: int) -> None:
    some = [made(str(index)) for index in range(num)]
    rows = Rows({}, every=every)
    rows.run({index + 1: one for index, one in enumerate(some)}, places)
    assert not rows.failed and all(one.is_complete for one in some)
