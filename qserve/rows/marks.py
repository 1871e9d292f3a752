"""Whether a turn is trained on, as trainers mark it: OpenAI's, Mistral's and Together's `weight`, ms-swift's `loss`,
axolotl's `train` and `training`, LLaMA-Factory's `loss_weight`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qserve.rows.fields import Fields, RowError

__all__ = ["MARKS", "PARTIAL", "is_masked", "row_is_masked"]

MARKS = ("weight", "loss", "train", "training", "loss_weight")
PARTIAL = ("train_detail", "training_detail")
"""axolotl's ranges of characters within a turn."""
_ANY_ROLE = ("train", "training")
"""Those that train a user's turn too, where the trainer reads them."""


def is_masked(turn: Mapping[str, Any], role: str) -> bool:
    """Whether a turn is left out of the loss. Raises RowError for a mark that is neither yes nor no, and for one that
    asks for what is not trained here: single characters, and turns of others than the assistant.
    """
    if (name := next((name for name in PARTIAL if turn.get(name) is not None), None)) is not None:
        raise RowError(
            f"{name!r} of a turn masks single characters; only whole turns can be masked, with 'train': false"
        )
    marks = {name: _marked(name, turn[name]) for name in MARKS if turn.get(name) is not None}
    if len(set(marks.values())) > 1:
        raise RowError(f"{' and '.join(map(repr, marks))} of one turn disagree on whether it is trained on")
    asked = next((name for name, is_trained in marks.items() if is_trained and name in _ANY_ROLE), None)
    if asked is not None and role != "assistant":
        raise RowError(f"{asked!r} is true on a turn of role {role!r}; only the assistant's turns are trained on")
    return False in marks.values()


def row_is_masked(fields: Fields) -> bool:
    """Whether a whole row is left out of the loss: Fireworks' `weight` beside its messages."""
    weight = fields.take("weight")
    return weight is not None and not _marked("weight", weight, "a row")


def _marked(name: str, value: Any, what: str = "a turn") -> bool:
    if isinstance(value, bool | int | float) and value in (0, 1):
        return bool(value)
    raise RowError(
        f"{name!r} of {what} is {value!r}; it is 0 or false (left out of the loss), or 1 or true (trained on)"
    )
