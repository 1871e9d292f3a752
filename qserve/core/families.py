"""Model families: one row each of what a family's code does and no config.json says. A new family is a row here.

Names and defaults are those of transformers 5.19; what vLLM does stands in `InVllm`, with its sources.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from qserve.core.release import Release
from qserve.core.towers import (
    AUT,
    DEEPSTACK_VISION,
    FIRST_VISION,
    GATED_VISION,
    OMNI_VISION,
    OMNI_WHISPER,
    TABLE_VISION,
    WHISPER,
    AudioTower,
    VisionTower,
)

__all__ = ["FAMILIES", "Family", "InVllm", "has_dense_decoder", "layer_classes"]

Decoder = Literal["dense", "experts", "hybrid"]
"""Layers that qserve computes by itself. dense: pre-norm, half-rotated q and k (normed or not), SiLU between gate and
up, no more; experts: the same with experts; hybrid: Gated DeltaNet among gated attention."""


@dataclass(frozen=True)
class InVllm:
    """What releases of vLLM make of a family.

    Attributes:
        since: the first with its code; None: every release that is planned.
        needed: the first that runs it without trouble; None: `since`.
        gone: the first without its code; None: it is there still.
        embedding_adapters: the first whose LoRA adapts embedding and lm_head too; None: none.
        second_runner: the first that serve the language model by the second model runner, in 16 bit and quantized;
            None: as all models of its kind (`VllmVersion.runs_model_runner_v2`).
        interleaves_linear: its projections of linear attention are one part each; else several.
        mtp_method: what `--speculative-config` may call drafting with its MTP head, beside "mtp".
        is_compiled: its language model goes through torch.compile on cards of NVIDIA.

    """

    since: Release | None = None
    needed: Release | None = None
    gone: Release | None = None
    embedding_adapters: Release | None = None
    second_runner: tuple[Release, Release] | None = None
    interleaves_linear: bool = False
    mtp_method: str = "mtp"
    is_compiled: bool = True


@dataclass(frozen=True)
class Family:
    """Checkpoints of one `model_type`, whose tensors core/dimensions.py can name one by one.

    Attributes:
        name: `model_type`, without the `_text` of a language model inside of another.
        classes: how the names of its classes begin: Qwen3 of Qwen3ForCausalLM and Qwen3DecoderLayer.
        decoder: by which code of qserve's own its layers can be computed; None: the library's alone.
        head_dim: where the config has none; None: hidden size by heads.
        rotary_share: of a head, that turns with the position, where the config is silent.
        has_qkv_bias: on q, k and v and not on the output projection, which no key says; else `attention_bias` counts.
        has_qk_norm: q and k are normed.
        has_output_gate: what attention returns is gated, by rows of q_proj.
        linear_interval: of so many layers one has full attention and the others linear, where the config lists none
            and has no interval of its own; None: linear attention only where it is listed.
        has_window_switch: a sliding window holds with `use_sliding_window`, from `max_window_layers` on; else always.
        has_experts: its layers have.
        indexed_layers: names in `layer_types` of full attention whose tokens an index chooses; (): it has no index.
        residual_streams: of its hyper-connections, where the config is silent; 0: a plain residual, with norms.
        has_ngram_tables: some layers look n-grams up, where the config lists them.
        mtp_layers: where the config does not count them and the checkpoint has them all the same.
        writes_joined_width: `intermediate_size` is the sum of gate and up; else one of them.
        fuses_qkv: q, k and v are one matrix, which gets one adapter.
        renames_mrope: its config class takes the rope type `mrope` for the default one.
        tower: how its vision encoder is built, where the config has one.
        audio: how its audio encoder is built; None: it reads no audio.
        has_library_class: transformers' AutoModelForCausalLM has a class for its checkpoints. Models of images or audio
            may have others alone, and the first Qwen's comes with its checkpoints.

    """

    name: str
    classes: str
    decoder: Decoder | None = None
    head_dim: int | None = None
    rotary_share: float = 1.0
    has_qkv_bias: bool = False
    has_qk_norm: bool = False
    has_output_gate: bool = False
    linear_interval: int | None = None
    has_window_switch: bool = True
    has_experts: bool = False
    indexed_layers: tuple[str, ...] = ()
    residual_streams: int = 0
    has_ngram_tables: bool = False
    mtp_layers: int = 0
    writes_joined_width: bool = False
    fuses_qkv: bool = False
    renames_mrope: bool = False
    tower: VisionTower = TABLE_VISION
    audio: AudioTower | None = None
    has_library_class: bool = True
    vllm: InVllm = InVllm()

    @property
    def causal_lm(self) -> str:
        """The architecture of its language model alone."""
        return f"{self.classes}ForCausalLM"


# vLLM's first releases: its release notes, and for Qwen3.5, which 0.15 did not know, the earliest log. Adapters of the
# embedding: vllm#29816, #48934, by their dates. The second model runner: vllm#39337 (Qwen3 in 16 bit), #44446
# (quantized), #42667 (Qwen2's experts); of Qwen's experts only those stand in DEFAULT_V2_MODEL_RUNNER_ARCHITECTURES of
# its config/vllm.py (0.27).
_ROWS = (
    Family("llama", "Llama", "dense", has_window_switch=False, vllm=InVllm(embedding_adapters=(0, 5))),
    Family("mistral", "Mistral", "dense", has_window_switch=False, vllm=InVllm(embedding_adapters=(0, 5))),
    Family(
        "qwen",
        "QWen",
        has_qkv_bias=True,
        writes_joined_width=True,
        fuses_qkv=True,
        has_library_class=False,
        vllm=InVllm(gone=(0, 23)),
    ),
    Family("qwen2", "Qwen2", "dense", has_qkv_bias=True),
    Family(
        "qwen2_moe",
        "Qwen2Moe",
        "experts",
        has_qkv_bias=True,
        has_experts=True,
        vllm=InVllm(second_runner=((0, 24), (0, 24))),
    ),
    Family(
        "qwen3",
        "Qwen3",
        "dense",
        head_dim=128,
        has_qk_norm=True,
        vllm=InVllm(since=(0, 8, 4), embedding_adapters=(0, 13), second_runner=((0, 22), (0, 24))),
    ),
    Family(
        "qwen3_moe",
        "Qwen3Moe",
        "experts",
        has_qk_norm=True,
        has_experts=True,
        vllm=InVllm(since=(0, 8, 4), embedding_adapters=(0, 13)),
    ),
    Family(
        "qwen3_next",
        "Qwen3Next",
        "hybrid",
        head_dim=256,
        rotary_share=0.25,
        has_qk_norm=True,
        has_output_gate=True,
        linear_interval=4,
        has_experts=True,
        mtp_layers=1,
        vllm=InVllm(since=(0, 10, 2), interleaves_linear=True, mtp_method="qwen3_next_mtp"),
    ),
    Family(
        "qwen3_5",
        "Qwen3_5",
        "hybrid",
        head_dim=256,
        rotary_share=0.25,
        has_qk_norm=True,
        has_output_gate=True,
        linear_interval=4,
        vllm=InVllm(since=(0, 16, 0), needed=(0, 17), embedding_adapters=(0, 27), mtp_method="qwen3_5_mtp"),
    ),
    Family(
        "qwen3_5_moe",
        "Qwen3_5Moe",
        "hybrid",
        head_dim=256,
        rotary_share=0.25,
        has_qk_norm=True,
        has_output_gate=True,
        linear_interval=4,
        has_experts=True,
        vllm=InVllm(since=(0, 16, 0), needed=(0, 17), embedding_adapters=(0, 27), mtp_method="qwen3_5_mtp"),
    ),
    Family(
        "qwen4_exp",
        "Qwen4Exp",
        head_dim=256,
        has_qk_norm=True,
        has_output_gate=True,
        linear_interval=4,
        has_experts=True,
        indexed_layers=("qwen_sparse_attention", "indexed_attention"),  # up to transformers 5.17, and since
        residual_streams=4,
        has_ngram_tables=True,
        vllm=InVllm(since=(0, 30), mtp_method="qwen4_exp_mtp", is_compiled=False),
    ),
    Family(
        "qwen2_vl",
        "Qwen2VL",
        has_qkv_bias=True,
        renames_mrope=True,
        tower=FIRST_VISION,
        has_library_class=False,
        vllm=InVllm(since=(0, 6, 1)),
    ),
    Family(
        "qwen2_5_vl",
        "Qwen2_5_VL",
        has_qkv_bias=True,
        renames_mrope=True,
        tower=GATED_VISION,
        has_library_class=False,
        vllm=InVllm(since=(0, 7, 2)),
    ),
    Family(
        "qwen3_vl",
        "Qwen3VL",
        head_dim=128,
        has_qk_norm=True,
        tower=DEEPSTACK_VISION,
        has_library_class=False,
        vllm=InVllm(since=(0, 11, 0), embedding_adapters=(0, 13)),
    ),
    Family(
        "qwen3_vl_moe",
        "Qwen3VLMoe",
        has_qk_norm=True,
        has_experts=True,
        tower=DEEPSTACK_VISION,
        has_library_class=False,
        vllm=InVllm(since=(0, 11, 0), embedding_adapters=(0, 13)),
    ),
    Family(
        "qwen2_audio",
        "Qwen2Audio",
        has_qkv_bias=True,
        audio=WHISPER,
        has_library_class=False,
        vllm=InVllm(since=(0, 6, 4)),
    ),
    Family(
        "qwen2_5_omni",
        "Qwen2_5Omni",
        has_qkv_bias=True,
        renames_mrope=True,
        tower=GATED_VISION,
        audio=OMNI_WHISPER,
        has_library_class=False,
        vllm=InVllm(since=(0, 8, 5)),
    ),
    Family(
        "qwen3_omni_moe",
        "Qwen3OmniMoe",
        has_qk_norm=True,
        has_experts=True,
        tower=OMNI_VISION,
        audio=AUT,
        has_library_class=False,
        vllm=InVllm(since=(0, 11, 1), embedding_adapters=(0, 13)),
    ),
    Family(
        "qwen3_asr",
        "Qwen3ASR",
        head_dim=128,
        has_qk_norm=True,
        audio=AUT,
        has_library_class=False,
        vllm=InVllm(since=(0, 16), embedding_adapters=(0, 16)),
    ),
)

FAMILIES = {row.name: row for row in _ROWS}
"""By `Family.name`. Anything else is refused by name."""


def has_dense_decoder(architecture: str) -> bool:
    """Whether this is the language model of a family of dense decoders."""
    return architecture in {row.causal_lm for row in _of(("dense",))}


def layer_classes(*decoders: Decoder) -> frozenset[str]:
    """Names of transformers' classes of the layers that these compute."""
    return frozenset(f"{row.classes}DecoderLayer" for row in _of(decoders))


def _of(decoders: tuple[Decoder, ...]) -> list[Family]:
    return [row for row in FAMILIES.values() if row.decoder in decoders]
