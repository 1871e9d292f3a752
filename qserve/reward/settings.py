"""Settings of a reward model: those of the user; the checkpoint's format provides the others."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from qserve.errors import UsageError

__all__ = ["EMBED_FLAGS", "FLAGS", "POOLINGS", "TRUNCATIONS", "Pooling", "RewardSettings", "Truncation"]

Pooling = Literal["last", "first", "not-pad", "eos", "position", "mean"]
Truncation = Literal["left", "right", "refuse"]
POOLINGS: tuple[Pooling, ...] = ("last", "first", "not-pad", "eos", "position", "mean")
TRUNCATIONS: tuple[Truncation, ...] = ("left", "right", "refuse")


@dataclass(frozen=True)
class RewardSettings:
    """The flags of a reward model; everything that is None is as the checkpoint's format has it.

    Attributes:
        pooling: where the head is read. `last`: the last token of the text, padding never counts. `first`: its first
            token. `not-pad`: the last token that is not config.json's pad token, as transformers' sequence classifiers
            read. `eos`: the last EOS token, an error without one. `position`: the token `position`, counted from the
            end where it is negative. `mean`: the mean of the hidden states.
        position: for `pooling="position"`.
        head: name of the head's tensors in the checkpoint, for example `reward_head`.
        template: a file with a chat template (Jinja) that goes before the tokenizer's own.
        max_length: tokens of a text; None: what the plan allows.
        truncate: what becomes of a longer text: its beginning is cut off, its end, or it is refused.
        base: folder of the base model, for adapters and for single files.
        step_token: the text of the token that ends a step (process reward models).
        weights: of several labels, how much each counts in the reward: `helpfulness=0.7,verbosity=-0.3`.
        answer_tokens: `yes,no`: a causal model is a reranker, and its reward the log-odds of the first against the
            second as the next token.
        judge: a judge template (bundled, or a YAML file): a causal model writes verdicts, and is served as chat.
        recipe: the YAML file whose parts are combined (`qserve.reward.recipe`); no flag, --reward names it.
        embeds: it is an embedding model, which gives vectors; no flag, --embed names it.
    """

    pooling: Pooling | None = None
    position: int = -1
    head: str | None = None
    template: str | None = None
    max_length: int | None = None
    truncate: Truncation = "refuse"
    base: str | None = None
    step_token: str | None = None
    weights: str | None = None
    answer_tokens: str | None = None
    judge: str | None = None
    recipe: str | None = None
    embeds: bool = False

    def __post_init__(self) -> None:
        """Raises UsageError for a word that is none of those allowed, and for a position that nothing reads."""
        if self.pooling is not None and self.pooling not in POOLINGS:
            raise UsageError(f"--pooling {self.pooling!r} is unknown; it takes {' | '.join(POOLINGS)}")
        if self.truncate not in TRUNCATIONS:
            raise UsageError(f"--truncate {self.truncate!r} is unknown; it takes {' | '.join(TRUNCATIONS)}")
        if self.position != -1 and self.pooling != "position":
            raise UsageError(f"--position {self.position} needs --pooling position; add that, or leave --position out")
        if self.max_length is not None and self.max_length < 1:
            raise UsageError(f"--max-length {self.max_length} leaves no token; it takes 1 or more")

    def to_json(self) -> dict[str, Any]:
        """Plain JSON, for a worker's file."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> RewardSettings:
        """What `to_json` wrote."""
        return cls(**data)


FLAGS = tuple(item.name for item in fields(RewardSettings) if item.name not in ("recipe", "embeds"))
"""The settings that are flags, by their fields' names."""
EMBED_FLAGS = ("pooling", "position", "max_length", "truncate")
"""Those of them that an embedding model has, too."""
