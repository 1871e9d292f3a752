"""`RewardCheckpoint`: one trained reward model on disk, described without loading it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from qserve.core.checkpoint import Checkpoint
from qserve.core.model_spec import Head, ModelSpec
from qserve.core.tensors import Tensor, dtype_bytes
from qserve.hub.cache import commit_of
from qserve.reward.settings import Pooling

__all__ = ["Format", "HeadLayer", "RewardCheckpoint", "RewardHead", "StoredTensor", "Vectors"]

# math.exp of more overflows.
_MOST_EXPONENT = 700.0

Format = Literal[
    "sequence-classification",
    "reward-model",
    "process-reward-model",
    "value-head",
    "reward-head",
    "lora",
    "openrlhf",
    "multi-attribute",
    "reranker",
    "embedding",
    "none",
]


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file, by its header. `dtype` as safetensors spells it (F32, BF16, …)."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * dtype_bytes(self.dtype)


@dataclass(frozen=True)
class HeadLayer:
    """One linear layer of a head: `weight` [out, in], and its bias [out] where it has one."""

    weight: StoredTensor
    bias: StoredTensor | None


@dataclass(frozen=True)
class RewardHead:
    """What turns a hidden state into scores: one linear layer, or two with a ReLU between them.

    `num_labels` is 1 for a reward, 2 for a process reward model ("bad", "good"), more for several attributes. `prefix`
    names it in the checkpoint. Without layers the hidden state itself is the answer, as of most embedding models, whose
    other ones have one layer. `answer_ids` are two rows of a language-model head, whose difference is the head of a
    reranker: the log-odds of the first token against the second.
    """

    prefix: str
    layers: tuple[HeadLayer, ...]
    answer_ids: tuple[int, int] | None = None

    @property
    def num_labels(self) -> int:
        return 1 if self.answer_ids is not None or not self.layers else self.layers[-1].weight.shape[0]

    @property
    def hidden_size(self) -> int:
        return self.layers[0].weight.shape[1]

    @property
    def has_bias(self) -> bool:
        return self.layers[-1].bias is not None

    def describe(self) -> str:
        """For people and for `meta`: 'reward_head 1×2048 with bias'."""
        if not self.layers:
            return "none"
        if self.answer_ids is not None:
            return f"{self.prefix} row {self.answer_ids[0]} less row {self.answer_ids[1]}"
        shapes = " · ReLU · ".join("×".join(map(str, layer.weight.shape)) for layer in self.layers)
        return f"{self.prefix} {shapes} {'with' if self.has_bias else 'without'} bias"


@dataclass(frozen=True)
class Vectors:
    """What an embedding model makes of a text beside its head, as sentence-transformers keeps it.

    Attributes:
        size: numbers of a vector.
        is_normalized: a vector has the length 1.
        prompts: what is written before a text, by the name of the prompt.
        default_prompt: the name of the one that is written where a request names none.
        instruct: a prompt with `{}` for an instruction; None: the model takes none.
        dimensions: the sizes that vectors may be cut to, as the model was trained; (): any.
        max_length: tokens of a text, as the checkpoint has it; None: it names none.
    """

    size: int
    is_normalized: bool
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    instruct: str | None = None
    dimensions: tuple[int, ...] = ()
    max_length: int | None = None

    def describe(self) -> str:
        """For people and for `meta`: 'vectors of 1024 numbers, normalized'."""
        return f"vectors of {self.size} numbers{', normalized' if self.is_normalized else ''}"


@dataclass(frozen=True)
class RewardCheckpoint:
    """A trained reward model: what `recognise` found.

    Attributes:
        id: what the user wrote.
        format: which of the formats.
        path: the folder or file that was recognised.
        config: config.json of the body, language-model part first in line where it is multimodal.
        body: the body's tensors by their stored names; of an adapter those of its base model.
        body_prefix: what stands before the body's own names (`model.`, `base_model.model.`, nothing).
        head: where the head's tensors are.
        tokenizer: folder with the tokenizer's files.
        base: folder of the base model, None where the checkpoint is complete in itself.
        adapter: folder of the peft adapter to merge into the base, None without one.
        mean: mean and standard deviation of rewards on the training data, where the checkpoint records them.
        std: see `mean`.
        pooling: where training read the head.
        class_reads: it is of transformers' own class for sequences, whose forward says where the head is read.
        pad_token_id: the pad token of config.json, if it names one.
        step_token_id: token that ends a step, of a process reward model.
        forced_eos: training replaced the last token by EOS, as OpenRLHF does.
        labels: names of the head's values where there are several attributes; empty for a single reward.
        weights: what each label counts in the reward; as many as `labels`.
        vectors: of an embedding model; None of one that scores.
        template: the chat template that the format was trained with, where the tokenizer holds another.
        recipe: the YAML file that combines this model with rules and judges; format "none": it names no model.
        notes: for the user.
        asked: the id with the revision that the user named behind it; empty where none was named.
        to_fetch: models of the hub of which only headers were read: itself, and an adapter's base. Empty: all of it is
            on this machine.
    """

    id: str
    format: Format
    path: Path
    config: Mapping[str, Any] = field(repr=False)
    body: tuple[StoredTensor, ...] = field(repr=False)
    body_prefix: str
    head: RewardHead
    tokenizer: Path
    base: Path | None = None
    adapter: Path | None = None
    mean: float | None = None
    std: float | None = None
    pooling: Pooling = "last"
    class_reads: bool = False
    pad_token_id: int | None = None
    step_token_id: int | None = None
    forced_eos: bool = False
    labels: tuple[str, ...] = ()
    weights: tuple[float, ...] = ()
    vectors: Vectors | None = None
    template: Path | None = None
    recipe: Path | None = None
    notes: tuple[str, ...] = ()
    asked: str = ""
    to_fetch: tuple[str, ...] = ()

    def reward(self, values: Sequence[float]) -> float:
        """One number of the head's values: the reward itself, the weighted sum of attributes, or of a process reward
        model's "bad" and "good" the second one's probability."""
        if self.weights:
            return sum(weight * value for weight, value in zip(self.weights, values, strict=True))
        if len(values) == 2:
            return 1 / (1 + math.exp(min(values[0] - values[1], _MOST_EXPONENT)))
        return values[0]

    def planned(self) -> Checkpoint:
        """The same for the planner: the body's tensors and a scoring head, without an lm_head that never runs."""
        head = Head("score", self.head.num_labels, hidden_layers=len(self.head.layers) - 1)
        known = ModelSpec.from_config(_as_causal(self.config), self.id)
        written = next(iter(self.config.get("architectures") or ()), self.format)
        spec = replace(known, head=head, architecture=str(written))
        body = (
            Tensor(f"model.{tensor.name.removeprefix(self.body_prefix)}", tensor.dtype, tensor.shape, tensor.nbytes)
            for tensor in self.body
        )
        head_tensors = (
            Tensor(f"score.{index}.{kind}", "F32", shape := self._head_shape(part), 4 * math.prod(shape))
            for index, layer in enumerate(self.head.layers)
            for kind, part in (("weight", layer.weight), ("bias", layer.bias))
            if part is not None
        )
        tensors = tuple(body) + tuple(head_tensors)
        folder = self.path if self.path.is_dir() else self.path.parent
        return Checkpoint(self.id, folder, self.config, spec, tensors, self.notes, commit_of(folder), self.asked)

    def _head_shape(self, part: StoredTensor) -> tuple[int, ...]:
        return (1, part.shape[1]) if self.head.answer_ids is not None else part.shape


def _as_causal(config: Mapping[str, Any]) -> dict[str, Any]:
    """Trainers write their own class names ("RewardModel"); the body is a decoder whatever sits on it."""
    return {**config, "architectures": ["DecoderForCausalLM"]}
