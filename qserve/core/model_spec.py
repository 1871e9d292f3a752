"""What a checkpoint is, in the numbers that memory depends on. All guessing at foreign config keys is in this file,
in core/model_parts.py for what only some models have, and in core/quantization_config.py for quantized checkpoints.
What no config says is the family's (core/families.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, cast

from qserve.core.audio import AudioEncoder, read_audio
from qserve.core.families import FAMILIES, Family
from qserve.core.model_parts import (
    Head,
    LinearAttention,
    MixtureOfExperts,
    ResidualStreams,
    Sizes,
    SparseIndex,
    VisionEncoder,
    has_heads_of_own_code,
    read_experts,
    read_index,
    read_linear_attention,
    read_streams,
    read_vision,
)
from qserve.core.nested import parts_config, quantization_config, text_config
from qserve.core.ngram_tables import NgramTables, read_ngram_tables
from qserve.core.quantization.stored import CheckpointQuantization
from qserve.core.quantization_config import read_quantization
from qserve.core.rope import Rope, read_rope, rope_keys
from qserve.errors import BrokenCheckpoint, UnknownArchitecture

__all__ = [
    "AudioEncoder",
    "Head",
    "LinearAttention",
    "MixtureOfExperts",
    "ModelSpec",
    "NgramTables",
    "ResidualStreams",
    "SparseIndex",
    "VisionEncoder",
]

LayerType = Literal["full_attention", "sliding_attention", "linear_attention"]
_LAYER_TYPES: tuple[LayerType, ...] = ("full_attention", "sliding_attention", "linear_attention")


_LANGUAGE_MODEL = Head("lm")
# How architectures end that have encoders before a language model. Qwen2.5-Omni's config.json names the last.
_OF_LANGUAGE_MODELS = ("ForConditionalGeneration", "OmniModel")


@dataclass(frozen=True)
class ModelSpec:
    """One model's dimensions. `head_dim` is the config's own: hidden/heads is wrong for half of Qwen3."""

    id: str
    architecture: str
    family: Family
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_position_embeddings: int
    tie_word_embeddings: bool
    qkv_bias: bool
    output_bias: bool
    qk_norm: bool
    attn_output_gate: bool
    rotary_dim: int
    dtype: str
    layer_types: tuple[LayerType, ...]
    rope: Rope
    sliding_window: int | None = None
    moe: MixtureOfExperts | None = None
    linear_attention: LinearAttention | None = None
    index: SparseIndex | None = None
    streams: ResidualStreams | None = None
    ngrams: NgramTables | None = None
    vision: VisionEncoder | None = None
    audio: AudioEncoder | None = None
    mtp_layers: int = 0
    head: Head = _LANGUAGE_MODEL
    quantization: CheckpointQuantization | None = None

    @property
    def num_full_layers(self) -> int:
        """Layers whose KV cache grows with the whole sequence."""
        return self.layer_types.count("full_attention")

    @property
    def num_sliding_layers(self) -> int:
        """Layers whose KV cache is bounded by `sliding_window`."""
        return self.layer_types.count("sliding_attention")

    @property
    def num_linear_layers(self) -> int:
        """Layers with a fixed state per sequence."""
        return self.layer_types.count("linear_attention")

    @property
    def rare_parts(self) -> tuple[str, ...]:
        """In words, what it has that most engines and trainers do not compute or count."""
        parts = (
            ("an index of sparse attention", self.index),
            ("tables of n-grams", self.ngrams),
            ("residual streams", self.streams),
        )
        return tuple(name for name, part in parts if part is not None)

    @cached_property
    def is_hybrid(self) -> bool:
        return self.num_linear_layers > 0

    @classmethod
    def from_config(cls, config: Mapping[str, Any], model_id: str = "") -> ModelSpec:
        """The spec of a Hugging Face config.json.

        Multimodal configs nest the language model in `text_config`. Raises UnknownArchitecture for a model type or
        a head that is in no row of `FAMILIES`, BrokenCheckpoint when a dimension is missing or no positive integer.
        """
        reader = _Reader(config, model_id)
        try:
            return reader.spec()
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            # A foreign file can hold any value under any key; those that matter have messages of their own.
            raise BrokenCheckpoint(
                f"{reader.where}: config.json has a value of the wrong type ({error}); download it again"
            ) from error


class _Reader:
    """Reads one config.json: `parts` has language model and encoders, `text` is the first; `where` is for messages."""

    def __init__(self, config: Mapping[str, Any], model_id: str) -> None:
        self.config, self.where = config, model_id or "config.json"
        self.parts, self.text = parts_config(config), text_config(config)
        self.model_id = model_id
        self._size = Sizes(self.text, self.where)

    def spec(self) -> ModelSpec:
        family = self._family()
        heads = self._size("num_attention_heads")
        hidden_size = self._size("hidden_size")
        head_dim = self._size("head_dim", family.head_dim or hidden_size // heads)
        layer_types = self._layer_types(family)
        positions = self._size("max_position_embeddings", self._size("seq_length", 32768))
        rotary_dim = round(head_dim * self._rotary_share(family))
        rope = read_rope(self.text, positions, rotary_dim, self.where)
        return ModelSpec(
            id=self.model_id,
            architecture=self._architecture(),
            family=family,
            hidden_size=hidden_size,
            num_hidden_layers=len(layer_types),
            num_attention_heads=heads,
            num_key_value_heads=self._size("num_key_value_heads", heads),
            head_dim=head_dim,
            intermediate_size=self._size("intermediate_size", 0, least=0) // (2 if family.writes_joined_width else 1),
            vocab_size=self._size("vocab_size"),
            max_position_embeddings=rope.reach,
            rope=rope,
            tie_word_embeddings=bool(self.parts.get("tie_word_embeddings", self.text.get("tie_word_embeddings"))),
            qkv_bias=self._qkv_bias(family),
            output_bias=not family.has_qkv_bias and bool(self.text.get("attention_bias", False)),
            qk_norm=family.has_qk_norm,
            attn_output_gate=family.has_output_gate,
            rotary_dim=rotary_dim,
            dtype=self._dtype(),
            layer_types=layer_types,
            sliding_window=self._size("sliding_window") if self.text.get("sliding_window") else None,
            moe=read_experts(self._size, len(layer_types)) if family.has_experts else None,
            linear_attention=read_linear_attention(self._size) if "linear_attention" in layer_types else None,
            index=read_index(self._size) if family.indexed_layers else None,
            streams=read_streams(self._size, family.residual_streams),
            ngrams=read_ngram_tables(self._size, layer_types, hidden_size) if family.has_ngram_tables else None,
            vision=self._vision(family),
            audio=self._audio(family),
            mtp_layers=self._size("mtp_num_hidden_layers", family.mtp_layers, least=0),
            head=self._head(),
            quantization=read_quantization(quantization_config(self.config), self.where),
        )

    def _architecture(self) -> str:
        names = self.config.get("architectures") or self.text.get("architectures") or []
        return str(names[0]) if names else ""

    def _family(self) -> Family:
        model_type = str(self.text.get("model_type", self.parts.get("model_type", "")))
        # An encoder may stand before a language model of another family: that of the whole says more.
        whole = FAMILIES.get(str(self.config.get("model_type", "")))
        family = whole or FAMILIES.get(model_type.removesuffix("_text").removesuffix("_thinker"))
        if family is None:
            raise UnknownArchitecture(
                f"{self.where}: model_type {model_type!r} (architecture {self._architecture() or 'not named'}) is "
                f"unknown to qserve, and its memory is not guessed. Known are: {', '.join(FAMILIES)}"
            )
        return family

    def _head(self) -> Head:
        name = self._architecture()
        if name.endswith((*_OF_LANGUAGE_MODELS, "ForCausalLM", "LMHeadModel")) or not name:
            return Head("lm")
        labels = self.config.get("num_labels") or len(self.config.get("id2label") or ()) or None
        if name.endswith(("ForSequenceClassification", "ForTokenClassification")):
            return Head("score", labels or 2)  # transformers' default where the config is silent
        if name.endswith("ForRewardModel"):  # Qwen2.5-Math-RM: Linear, ReLU, Linear to one score
            return Head("score", labels or 1, hidden_layers=1)
        if name.endswith("ForProcessRewardModel"):
            return Head("score", labels or 2, hidden_layers=1)
        if has_heads_of_own_code(name):
            return Head("score", 23, guard_size=self._size("guard_inner_size", 512))
        raise UnknownArchitecture(
            f"{self.where}: {name!r} has a head that is unknown to qserve. Known are …ForCausalLM, "
            "…ForConditionalGeneration, …ForSequenceClassification, …ForTokenClassification, …ForRewardModel, "
            "…ForProcessRewardModel, …ForGuardModel"
        )

    def _qkv_bias(self, family: Family) -> bool:
        if family.has_qkv_bias:
            return bool(self.text.get("qkv_bias", True))
        return bool(self.text.get("attention_bias", False))

    def _rotary_share(self, family: Family) -> float:
        _, rope = rope_keys(self.text)
        own = rope.get("partial_rotary_factor") if isinstance(rope, Mapping) else None
        share = own if own is not None else self.text.get("partial_rotary_factor")
        return float(share) if isinstance(share, int | float) else family.rotary_share

    def _dtype(self) -> str:
        for holder in (self.text, self.parts, self.config):
            name = holder.get("dtype") or holder.get("torch_dtype")
            if name:
                return self._size.known_dtype("dtype", name) or "bfloat16"
        return "bfloat16"

    def _layer_types(self, family: Family) -> tuple[LayerType, ...]:
        count = self._size("num_hidden_layers")
        named = self.text.get("layer_types")
        if named is not None:
            named = ["full_attention" if name in family.indexed_layers else name for name in named]
            unknown = sorted({str(name) for name in named} - set(_LAYER_TYPES))
            if unknown or len(named) != count:
                raise BrokenCheckpoint(
                    f"{self.where}: layer_types has {len(named)} entries"
                    + (f", among them {', '.join(unknown)}" if unknown else "")
                    + f"; expected are {count} of {', '.join(_LAYER_TYPES)}"
                )
            return tuple(cast(LayerType, name) for name in named)
        if family.linear_interval:
            interval = self._size("full_attention_interval", family.linear_interval)
            linear, full = _LAYER_TYPES[2], _LAYER_TYPES[0]
            return tuple(linear if (i + 1) % interval else full for i in range(count))
        return self._attention_layers(family, count)

    def _attention_layers(self, family: Family, count: int) -> tuple[LayerType, ...]:
        window = self.text.get("sliding_window")
        full, sliding = _LAYER_TYPES[:2]
        if not window or (family.has_window_switch and not self.text.get("use_sliding_window", False)):
            return (full,) * count
        first = self._size("max_window_layers", 0, least=0) if family.has_window_switch else 0
        return tuple(sliding if i >= first else full for i in range(count))

    def _vision(self, family: Family) -> VisionEncoder | None:
        vision = self._encoder("vision_config")
        return None if vision is None else read_vision(vision, family.tower, self._size("hidden_size"))

    def _audio(self, family: Family) -> AudioEncoder | None:
        audio = self._encoder("audio_config")
        if audio is None or family.audio is None:
            return None
        return read_audio(audio, family.audio, self._size("hidden_size"))

    def _encoder(self, key: str) -> Sizes | None:
        """The part of an encoder; None where there is none, or it isn't loaded with this head."""
        part = self.parts.get(key)
        if not isinstance(part, Mapping) or not self._architecture().endswith(_OF_LANGUAGE_MODELS):
            return None
        return Sizes(part, f"{self.where}, {key}")
