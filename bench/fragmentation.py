"""What torch's caching allocator makes of batches of varying lengths: a simulation of its large blocks.

    python bench/fragmentation.py

Each step allocates and frees what a training step with gradient checkpointing does: layer inputs, a layer's temporaries
and the vocabulary-wide buffers of the loss. Printed beyond the allocated peak, as shares of it: `need`, the smallest
card on which all steps go through, and `reserved`, what is kept where there is room. The rules are those of
c10/cuda/CUDACachingAllocator.cpp with its defaults: the best fit of the free blocks, split where more than 1 MiB is
left; else a segment rounded to 2 MiB, of 20 MiB below 10 MiB; before it fails, segments that are wholly free go back.
"""

from __future__ import annotations

import bisect
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

MIB = 1024**2
HIDDEN, LAYERS, INTERMEDIATE, VOCAB = 2048, 8, 5504, 151_936
LONGEST, STEPS, ORDERS = 4096, 120, 5


class OutOfMemory(Exception):
    """The card is full, with all that could go back given back."""


@dataclass(eq=False)
class Block:
    """A piece of a segment, between its neighbours."""

    size: int
    before: Block | None = None
    after: Block | None = None
    free: bool = False
    key: int = 0

    @property
    def is_segment(self) -> bool:
        return self.before is None and self.after is None


@dataclass
class Allocator:
    """Large blocks alone: those up to 1 MiB have segments of their own, which do not matter here."""

    card: float = float("inf")
    reserved: int = 0
    allocated: int = 0
    peak: int = 0
    _free: list[tuple[int, int, Block]] = field(default_factory=list)
    _keys: int = 0

    def take(self, size: int) -> Block | None:
        size = -(-size // 512) * 512
        if size <= MIB:
            return None
        index = bisect.bisect_left(self._free, (size, 0))
        block = self._free.pop(index)[2] if index < len(self._free) else self._segment(size)
        if block.size - size > MIB:
            rest = Block(block.size - size, block, block.after)
            if block.after is not None:
                block.after.before = rest
            block.size, block.after = size, rest
            self._offer(rest)
        block.free = False
        self.allocated += block.size
        self.peak = max(self.peak, self.allocated)
        return block

    def give(self, block: Block | None) -> None:
        if block is None:
            return
        self.allocated -= block.size
        if block.before is not None and block.before.free:
            self._withdraw(block.before)
            block = _joined(block.before, block)
        if block.after is not None and block.after.free:
            self._withdraw(block.after)
            block = _joined(block, block.after)
        self._offer(block)

    def _segment(self, size: int) -> Block:
        num_bytes = 20 * MIB if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB
        if self.reserved + num_bytes > self.card:
            self.reserved -= sum(block.size for _, _, block in self._free if block.is_segment)
            self._free = [entry for entry in self._free if not entry[2].is_segment]
            if self.reserved + num_bytes > self.card:
                raise OutOfMemory
        self.reserved += num_bytes
        return Block(num_bytes)

    def _offer(self, block: Block) -> None:
        self._keys += 1
        block.free, block.key = True, self._keys
        bisect.insort(self._free, (block.size, block.key, block))

    def _withdraw(self, block: Block) -> None:
        self._free.pop(bisect.bisect_left(self._free, (block.size, block.key)))


def _joined(first: Block, second: Block) -> Block:
    first.size += second.size
    first.after = second.after
    if second.after is not None:
        second.after.before = first
    return first


def step(allocator: Allocator, tokens: int, *, with_logits: bool) -> None:
    """One micro-batch of so many tokens, in 16 bit with adapters: no gradient of a weight is of a token's size."""
    take, give = allocator.take, allocator.give
    hidden, wide, logits = 2 * tokens * HIDDEN, 2 * tokens * INTERMEDIATE, 2 * tokens * VOCAB
    inputs, stream = [], take(hidden)
    for _ in range(LAYERS):
        held = [take(2 * hidden), take(hidden), take(3 * hidden), take(hidden)]
        for block in held:
            give(block)
        gate, up, product = take(wide), take(wide), take(wide)
        give(gate)
        give(up)
        inputs.append(stream)
        stream = take(hidden)
        give(product)
    if with_logits:  # the logits, their fp32 copy and its log-softmax; then the two gradients in fp32 and one in 16 bit
        first, copy, softmax = take(logits), take(2 * logits), take(2 * logits)
        give(copy)
        give(first)
        incoming, own = take(2 * logits), take(2 * logits)
        give(incoming)
        give(softmax)
        last = take(logits)
        give(own)
        gradient = take(hidden)
        give(last)
    else:
        gradient = take(hidden)
    for saved in reversed(inputs):
        sizes = (2 * hidden, hidden, 3 * hidden, hidden, 2 * hidden, hidden, *[wide] * 7)
        held = [take(size) for size in sizes]
        for block in reversed(held):
            give(block)
        following = take(hidden)
        give(gradient)
        give(saved)
        gradient = following
    give(gradient)
    give(stream)


def beyond_peak(lengths: Sequence[int], *, with_logits: bool) -> tuple[float, float]:
    """(need, reserved) beyond the allocated peak, as shares of it."""

    def run(card: float) -> Allocator:
        allocator = Allocator(card)
        for tokens in lengths:
            step(allocator, tokens, with_logits=with_logits)
        return allocator

    free = run(float("inf"))
    low, high = free.peak, free.reserved
    while high - low > 0.01 * free.peak:
        middle = (low + high) // 2
        try:
            run(middle)
            high = middle
        except OutOfMemory:
            low = middle
    return high / free.peak - 1, free.reserved / free.peak - 1


def main() -> None:
    kinds: dict[str, Callable[[random.Random], int]] = {
        "one length": lambda _: LONGEST,
        "from 0": lambda order: order.randint(40, LONGEST),
        "from 0.6": lambda order: order.randint(round(0.6 * LONGEST), LONGEST),
        "from 0.9": lambda order: order.randint(round(0.9 * LONGEST), LONGEST),
        "log-normal": lambda order: min(LONGEST, max(40, round(order.lognormvariate(7.1, 0.7)))),
    }
    print(f"{'loss':10s} {'lengths':12s} {'mean':>5s}  {'need':>18s}  {'reserved':>18s}")
    for with_logits in (True, False):
        for name, draw in kinds.items():
            needs, kept, means = [], [], []
            for seed in range(ORDERS):
                order = random.Random(seed)
                lengths = [draw(order) for _ in range(STEPS)]
                need, reserved = beyond_peak(lengths, with_logits=with_logits)
                needs.append(need)
                kept.append(reserved)
                means.append(statistics.mean(lengths) / max(lengths))
            print(
                f"{'logits' if with_logits else 'in chunks':10s} {name:12s} {statistics.mean(means):5.2f}  "
                f"{min(needs):.2f} {statistics.mean(needs):.2f} {max(needs):.2f}     "
                f"{min(kept):.2f} {statistics.mean(kept):.2f} {max(kept):.2f}"
            )


if __name__ == "__main__":
    main()
