"""Our paged attention for steps of decoding, in Triton's interpreter, against softmax in float64 over random pages."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

_CASES = """
import random
import torch
from qserve.engines.transformers.worker.attention.kernels import Heads, is_right
from qserve.engines.transformers.worker.attention.pages import PageStep
from qserve.engines.transformers.worker.attention.triton_decode import PagedDecode

torch.manual_seed(0)
draw = random.Random(0)


def off_by(lengths, page, heads, kv_heads, size, dtype, kernel, spare=2):
    pages_each = [-(-length // page) for length in lengths]
    numbers = torch.randperm(sum(pages_each) + 3).tolist()
    table = torch.full((len(lengths), max(pages_each) + spare), numbers.pop(), dtype=torch.int32)
    for row, count in enumerate(pages_each):
        table[row, :count] = torch.tensor([numbers.pop() for _ in range(count)])
    keys, values = (torch.randn(sum(pages_each) + 3, page, kv_heads, size).to(dtype) for _ in range(2))
    keys[table[0, -1]] = values[table[0, -1]] = float("nan")  # what is behind a sequence is not read
    query, num_keys = torch.randn(len(lengths), heads, size).to(dtype), torch.tensor(lengths, dtype=torch.int32)
    bounds = torch.arange(len(lengths) + 1, dtype=torch.int32)
    step = PageStep(num_keys.long(), table, num_keys, bounds, 1, max(lengths), kernel)
    said, worst = kernel(query, keys, values, step, size**-0.5), 0.0
    for row, length in enumerate(lengths):
        key, value = (
            part[table[row].long()].flatten(0, 1)[:length].double().repeat_interleave(heads // kv_heads, 1)
            for part in (keys, values)
        )
        shares = (torch.einsum("hd,nhd->hn", query[row].double(), key) * size**-0.5).softmax(-1)
        worst = max(worst, float((said[row] - torch.einsum("hn,nhd->hd", shares, value)).abs().max()))
    return worst


for page, group, kv_heads, size in ((16, 1, 3, 64), (32, 7, 1, 128), (256, 8, 2, 80), (32, 17, 1, 32)):
    lengths = [draw.choice((1, page - 1, page, page + 1)), draw.randrange(2, 300)]
    case = lengths, page, group * kv_heads, kv_heads, size
    processors = draw.choice((1, 2, 40))
    assert off_by(*case, torch.float32, PagedDecode(processors)) < 2e-6, case
    assert off_by(*case, torch.float32, PagedDecode(processors, by_dot=False)) < 2e-6, case
    assert off_by(*case, torch.float16, PagedDecode(processors)) < 2e-3, case
# More parts than are brought together at once.
many = PagedDecode(40)
assert off_by([900, 1], 32, 2, 2, 32, torch.float32, many) < 2e-6
# One long sequence among short ones is read by many programs: as many parts as the card has programs for.
kernel = PagedDecode(8)
lengths = torch.tensor([4000] + [3] * 15, dtype=torch.int32)
step = PageStep(lengths, lengths[:, None], lengths, lengths, 1, 4000, kernel)
parts = step.once(kernel._divide, 2)
items = list(zip(parts.rows.tolist(), parts.starts.tolist()))
length = int(parts.length)
assert len(items) == 16 + 16 and length == 256
assert items[:31] == [(0, start) for start in range(0, 4000, 256)] + [(row, 0) for row in range(1, 16)]
assert items[31][0] == -1 and parts.ends.tolist() == list(range(16, 32))
# What is tried on a card at start.
assert is_right(PagedDecode(4), torch.device("cpu"), Heads(8, 2, 64, torch.float16), 32, decodes_alone=True)
wrong = lambda query, keys, values, step, scaling: PagedDecode(4)(query, keys, values, step, 1.1 * scaling)
assert not is_right(wrong, torch.device("cpu"), Heads(8, 2, 64, torch.float16), 32, decodes_alone=True)
"""


def test_it_says_what_softmax_says() -> None:
    """Pages of 16, 32 and 256, groups of 1 to 17 heads; in float16, since the interpreter can't multiply bf16."""
    pytest.importorskip("triton")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", _CASES], env=environment, check=True, timeout=400)
