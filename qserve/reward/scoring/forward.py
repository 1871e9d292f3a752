"""One pass of the body over a row of texts, and the head at the positions that are wanted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from qserve.engines.transformers.kernels.shapes import padded_length
from qserve.model.transfers import upload
from qserve.reward.load import LoadedReward
from qserve.reward.scoring.attention import RowLayout, Segment
from qserve.reward.scoring.pooling import Pooled
from qserve.reward.scoring.rows import Group

__all__ = ["PooledText", "forward_packed", "forward_padded", "row_padding"]


@dataclass(frozen=True)
class PooledText:
    """Token ids and where to read the head."""

    token_ids: Sequence[int]
    pooled: Pooled


def row_padding(loaded: LoadedReward, num_tokens: int) -> int:
    """Tokens that a packed row of `num_tokens` is padded with: on a CPU each new length costs memory."""
    return padded_length(num_tokens) - num_tokens if loaded.device.type == "cpu" else 0


@torch.inference_mode()
def forward_packed(loaded: LoadedReward, row: Sequence[Group], texts: Sequence[PooledText]) -> dict[int, torch.Tensor]:
    """By text index, the head's output [positions, labels] in fp32 on the CPU (one row for a mean).

    The row goes through the body as one sequence whose texts do not see each other. `texts` are indexed by the groups'
    members.
    """
    ids: list[int] = []
    positions: list[int] = []
    segments: list[Segment] = []
    wanted: dict[int, list[int]] = {}
    for group in row:
        begin = len(ids)
        shared = texts[group.members[0]].token_ids[: group.shared]
        if shared:
            segments.append(Segment(begin, begin + group.shared))
            ids += shared
            positions += range(group.shared)
        for member in group.members:
            text, start = texts[member], len(ids)
            ids += text.token_ids[group.shared :]
            positions += range(group.shared, len(text.token_ids))
            segments.append(Segment(start, len(ids), begin, begin + group.shared))
            offset = start - group.shared
            wanted[member] = [begin + p if p < group.shared else offset + p for p in text.pooled.positions]
    if num_padding := row_padding(loaded, len(ids)):
        segments.append(Segment(len(ids), len(ids) + num_padding))
        ids += [0] * num_padding
        positions += range(num_padding)
    layout = RowLayout(tuple(segments), loaded.by_one_call)
    if loaded.row_pass is not None:
        places = sorted({place for of_text in wanted.values() for place in of_text})
        padded = places + places[-1:] * (padded_length(len(places)) - len(places))
        hidden = loaded.row_pass(torch.tensor(ids), torch.tensor(positions), layout, torch.tensor(padded))
        index = {place: number for number, place in enumerate(places)}
        return _read(loaded, hidden, {member: [index[p] for p in of_text] for member, of_text in wanted.items()}, texts)
    device = loaded.device
    hidden = loaded.body(
        input_ids=upload([ids], torch.long, device),
        position_ids=upload([positions], torch.long, device),
        layout=layout,
        use_cache=False,
    ).last_hidden_state[0]
    return _read(loaded, hidden, wanted, texts)


@torch.inference_mode()
def forward_padded(
    loaded: LoadedReward, members: Sequence[int], texts: Sequence[PooledText]
) -> dict[int, torch.Tensor]:
    """The same for bodies that can't be packed: one text a row, padding on the right, where no text sees it."""
    longest = max(len(texts[member].token_ids) for member in members)
    device = loaded.device
    ids = torch.zeros(len(members), longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    wanted: dict[int, list[int]] = {}
    for index, member in enumerate(members):
        text = texts[member]
        ids[index, : len(text.token_ids)] = torch.tensor(text.token_ids)
        mask[index, : len(text.token_ids)] = 1
        wanted[member] = [index * longest + position for position in text.pooled.positions]
    hidden = loaded.body(
        input_ids=ids.to(device), attention_mask=mask.to(device), use_cache=False
    ).last_hidden_state.flatten(0, 1)
    return _read(loaded, hidden, wanted, texts)


def _read(
    loaded: LoadedReward, hidden: torch.Tensor, wanted: dict[int, list[int]], texts: Sequence[PooledText]
) -> dict[int, torch.Tensor]:
    """`hidden` is [tokens, hidden size]; `wanted` are its rows, by text. A card is waited for once, at the end."""
    places = upload([place for of_text in wanted.values() for place in of_text], torch.long, hidden.device)
    parts = hidden[places].float().split_with_sizes([len(of_text) for of_text in wanted.values()])
    rows = [
        part.mean(0, keepdim=True) if texts[member].pooled.mean else part
        for member, part in zip(wanted, parts, strict=True)
    ]
    weight = next(loaded.head.parameters(), None)  # of most embedding models there is none
    states = torch.cat(rows)
    outputs = loaded.head(states if weight is None else states.to(weight.device)).cpu()
    return dict(zip(wanted, outputs.split([len(part) for part in rows]), strict=True))
