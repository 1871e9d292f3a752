"""The router against round robin, in simulated time: replicas with a prefix cache, prefill and decode slots."""

from __future__ import annotations

import heapq
import itertools
import random
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from qserve.gateway.routing.prefix import BLOCK_BYTES
from qserve.gateway.routing.router import RequestTokens, Router
from qserve.worker.base import WorkerLoad

BLOCK_TOKENS = BLOCK_BYTES // 4
PREFILL_TOKENS_PER_S, DECODE_TOKENS_PER_S = 8000, 50
PLACES, CACHE_BLOCKS = 16, 4000


@dataclass
class Replica:
    """Reads one prompt at a time, what it has cached for nothing; decodes the others meanwhile."""

    cached: OrderedDict[int, None] = field(default_factory=OrderedDict)
    reading_until_s: float = 0.0
    places: list[float] = field(default_factory=list)

    def serve(self, now_s: float, blocks: tuple[int, ...], answer: int) -> tuple[float, float, int]:
        """When the first token comes, when the last, and how many blocks came from the cache."""
        while self.places and self.places[0] <= now_s:
            heapq.heappop(self.places)
        begin_s = now_s if len(self.places) < PLACES else heapq.heappop(self.places)
        hits = next((at for at, block in enumerate(blocks) if block not in self.cached), len(blocks))
        for block in blocks:
            self.cached[block] = None
            self.cached.move_to_end(block)
        while len(self.cached) > CACHE_BLOCKS:
            self.cached.popitem(last=False)
        cost_s = (len(blocks) - hits + 1) * BLOCK_TOKENS / PREFILL_TOKENS_PER_S
        self.reading_until_s = first_s = max(begin_s, self.reading_until_s) + cost_s
        end_s = first_s + answer / DECODE_TOKENS_PER_S
        heapq.heappush(self.places, end_s)
        return first_s, end_s, hits


@dataclass
class Outcome:
    hits: int = 0
    blocks: int = 0
    ttft_s: list[float] = field(default_factory=list)

    @property
    def hit_rate(self) -> float:
        return self.hits / self.blocks

    @property
    def mean_ttft_s(self) -> float:
        return sum(self.ttft_s) / len(self.ttft_s)

    def percentile(self, share: float) -> float:
        return sorted(self.ttft_s)[int(share * (len(self.ttft_s) - 1))]


Prompt = tuple[tuple[int, ...], int]


def simulate(arrivals: Iterator[tuple[float, Prompt]], count: int, choice: str) -> Outcome:
    replicas, router, outcome = [Replica() for _ in range(count)], Router(), Outcome()
    names = [str(at) for at in range(count)]
    for name in names:
        router.add(name, PLACES, WorkerLoad())
    turns, ends = itertools.cycle(names), []
    for now_s, (blocks, answer) in arrivals:
        while ends and ends[0][0] <= now_s:
            _, is_end, done, tokens = heapq.heappop(ends)
            (router.end if is_end else router.has_done)(done, tokens)
        name = next(turns) if choice == "round robin" else router.choose(blocks, names).name
        counted = router.begin(name, blocks, RequestTokens(len(blocks) * BLOCK_TOKENS, answer))
        first_s, end_s, hits = replicas[int(name)].serve(now_s, blocks, answer)
        heapq.heappush(ends, (first_s, False, name, counted.prompt))
        heapq.heappush(ends, (end_s, True, name, counted.answer))
        outcome.hits += hits
        outcome.blocks += len(blocks)
        outcome.ttft_s.append(first_s - now_s)
    return outcome


def chain(seed: object, length: int, after: tuple[int, ...] = ()) -> tuple[int, ...]:
    blocks = list(after)
    for at in range(length):
        blocks.append(hash((blocks[-1] if blocks else 0, str(seed), at)))
    return tuple(blocks)


def poisson(rate: float, prompts: Iterator[Prompt], count: int, seed: int = 1) -> Iterator[tuple[float, Prompt]]:
    chance, now_s = random.Random(seed), 0.0
    for prompt in itertools.islice(prompts, count):
        now_s += chance.expovariate(rate)
        yield now_s, prompt


def conversations(num: int, turns: int, seed: int = 3) -> Iterator[tuple[float, Prompt]]:
    """Each turn repeats everything before it."""
    chance, events = random.Random(seed), []
    for person in range(num):
        now_s, blocks = chance.uniform(0, 10), chain("system", 8)
        for turn in range(turns):
            blocks = chain((person, turn), 12, blocks)
            events.append((now_s, (blocks, 100)))
            now_s += chance.uniform(3, 12)
    return iter(sorted(events, key=lambda one: one[0]))


def both(arrivals: Callable[[], Iterator[tuple[float, Prompt]]], count: int) -> tuple[Outcome, Outcome]:
    return simulate(arrivals(), count, "router"), simulate(arrivals(), count, "round robin")


def test_conversations_come_back_to_their_cache() -> None:
    """40 conversations of 6 turns over 3 replicas: nearly what a single replica would have."""
    alone = simulate(conversations(40, 6), 1, "router")
    routed, turns = both(lambda: conversations(40, 6), 3)
    assert routed.hit_rate > 0.9 * alone.hit_rate
    assert turns.hit_rate < 0.7 * alone.hit_rate
    assert routed.mean_ttft_s < turns.mean_ttft_s


def test_one_hot_prefix_does_not_make_one_hot_replica() -> None:
    def prompts() -> Iterator[Prompt]:
        hot = chain("hot", 60)
        return ((chain(at, 4, hot), 150) for at in itertools.count())

    routed, turns = both(lambda: poisson(10.0, prompts(), 1500), 4)
    assert routed.percentile(0.99) <= 2 * turns.percentile(0.99)
    assert routed.hit_rate > 0.9


def test_without_shared_prefixes_it_is_no_worse_than_round_robin() -> None:
    def prompts() -> Iterator[Prompt]:
        chance = random.Random(5)
        return ((chain(at, chance.randint(2, 80)), chance.choice((20, 100, 600))) for at in itertools.count())

    routed, turns = both(lambda: poisson(11.0, prompts(), 1500), 4)
    assert routed.mean_ttft_s < turns.mean_ttft_s
    assert routed.percentile(0.99) <= turns.percentile(0.99)
