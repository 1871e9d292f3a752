"""Rows of scored files: a line of the input with its rewards, and the answers that such a row was made of."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, TypeVar

from qserve.cli.reward.texts import Answered
from qserve.reward.evaluation.records import Record

__all__ = ["answers_of", "by_record", "row_of"]

_AS_IT_IS = (0.0, 1.0)
# In an input that is scored again, what it says of the earlier scoring: it must not stay beside an error, or be read as
# the new one's.
_OF_EARLIER = frozenset(
    (
        "error",
        "reward",
        "rewards",
        "ranking",
        "margin",
        "chosen_rewards",
        "rejected_rewards",
        "chosen_attributes",
        "rejected_attributes",
        "chosen_num_tokens",
        "rejected_num_tokens",
    )
)
Answer = TypeVar("Answer")


def by_record(
    records: Sequence[Record], parts: Iterable[Sequence[Answer]]
) -> Iterator[list[tuple[Record, list[Answer]]]]:
    """The records of each part with their own answers, in order; a record is yielded once all of its texts have one."""
    place, waiting = 0, deque[Answer]()
    for part in chain([()], parts):  # first the records without a text
        waiting.extend(part)
        ready = []
        while place < len(records) and len(records[place].contents) <= len(waiting):
            ready.append((records[place], [waiting.popleft() for _ in records[place].contents]))
            place += 1
        if ready:
            yield ready


def row_of(record: Record, answers: Sequence[Answered], scale: tuple[float, float] = _AS_IT_IS) -> dict[str, Any]:
    """`answers` are those of the record's contents; `scale` is the mean and deviation that rewards are told by."""
    failed = record.error or next((answer["error"] for answer in answers if "error" in answer), None)
    data = {name: value for name, value in record.data.items() if name not in _OF_EARLIER}
    if failed is not None:
        return {**data, "error": failed}
    return {**data, **_scored(answers, record.num_chosen, scale)}


def _scored(answers: Sequence[Answered], num_chosen: int | None, scale: tuple[float, float]) -> dict[str, Any]:
    rewards = [(answer["reward"] - scale[0]) / scale[1] for answer in answers]
    attributes = [answer["attributes"] for answer in answers if "attributes" in answer]
    num_tokens = [answer["num_tokens"] for answer in answers]
    if num_chosen is not None:
        chosen, rejected = rewards[:num_chosen], rewards[num_chosen:]
        pair = {"chosen_rewards": chosen, "rejected_rewards": rejected, "margin": min(chosen) - max(rejected)}
        sides = {"chosen_attributes": attributes[:num_chosen], "rejected_attributes": attributes[num_chosen:]}
        tokens = {"chosen_num_tokens": num_tokens[:num_chosen], "rejected_num_tokens": num_tokens[num_chosen:]}
        return {**pair, **(sides if attributes else {}), **tokens}
    if len(rewards) > 1:
        ranking = sorted(range(len(rewards)), key=lambda index: -rewards[index])
        several = {"attributes": attributes} if attributes else {}
        return {"rewards": rewards, "ranking": ranking, **several, "num_tokens": num_tokens}
    own: dict[str, Any] = {name: answers[0][name] for name in ("steps", "attributes") if name in answers[0]}
    return {"reward": rewards[0], **own, "num_tokens": num_tokens[0], "truncated": answers[0].get("truncated", False)}


def answers_of(row: Mapping[str, Any]) -> list[Answered]:
    """The answers that `row_of` made the row of a preference of. Raises KeyError for another row."""
    if "error" in row:
        return [{"error": row["error"]}]
    sides = [[row[f"{side}_{name}"] for side in ("chosen", "rejected")] for name in ("rewards", "num_tokens")]
    rewards, num_tokens = (first + second for first, second in sides)
    attributes = [*row.get("chosen_attributes", ()), *row.get("rejected_attributes", ())]
    return [
        {"reward": reward, "num_tokens": tokens, **({"attributes": attributes[place]} if attributes else {})}
        for place, (reward, tokens) in enumerate(zip(rewards, num_tokens, strict=True))
    ]
