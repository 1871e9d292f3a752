"""Encoders of images and audio: one row each of what their code does and no config.json says."""

from __future__ import annotations

from dataclasses import dataclass, replace

__all__ = [
    "AUT",
    "DEEPSTACK_VISION",
    "FIRST_VISION",
    "GATED_VISION",
    "OMNI_VISION",
    "OMNI_WHISPER",
    "TABLE_VISION",
    "WHISPER",
    "AudioTower",
    "VisionTower",
]


@dataclass(frozen=True)
class VisionTower:
    """The code of a vision encoder: names of its tensors, keys of `vision_config`, and sizes where that is silent.

    Attributes:
        mlp: products of a block's MLP, those inwards and the one outwards.
        merger: norm and two products.
        width_key: what `vision_config` calls the width of a block.
        out_key: what it calls the width of the language model.
        intermediate_size: None: the config has `mlp_ratio`, times the width.
        positions: rows of a table of positions; 0: there is none, and no bias at the patches.
        deepstack: blocks whose features the language model gets, beside the last; empty: none, whatever the config
            says.
        is_gated: its MLP has gate, up and down, and its norms have no bias.
        video_grows: of vLLM's dummy video, with max_model_len.
        image_tokens: of the largest image that the preprocessor_config.json beside the models lets through.

    """

    mlp: tuple[tuple[str, ...], str]
    merger: tuple[str, str, str]
    depth: int
    hidden_size: int
    intermediate_size: int | None
    patch_size: int
    width_key: str = "hidden_size"
    out_key: str = "out_hidden_size"
    positions: int = 0
    deepstack: tuple[int, ...] = ()
    is_gated: bool = False
    video_grows: bool = False
    image_tokens: int = 16384


@dataclass(frozen=True)
class AudioTower:
    """The code of an audio encoder.

    Attributes:
        is_whisper: the first of the two kinds, whose layers vLLM has whole on each rank; else the later one, whose
            layers its ranks share.
        is_padded: items are padded to 30 s, layers get a mask of positions × positions, and a table of positions is
            stored; else only what is there is computed, and so are positions.
        projector: names of the products that make its features as wide as the language model.
        last_norm: name of the norm before them.
        marks: rows of an embedding for the beginning and the end of an item, which Qwen2.5-Omni keeps beside it.

    """

    is_whisper: bool
    projector: tuple[str, ...]
    last_norm: str = "audio_tower.ln_post"
    is_padded: bool = False
    marks: int = 0


# Sizes: configuration_qwen2_vl.py, configuration_qwen2_5_vl.py, configuration_qwen3_vl.py.
FIRST_VISION = VisionTower(
    mlp=(("fc1",), "fc2"),
    merger=("ln_q", "mlp.0", "mlp.2"),
    depth=32,
    hidden_size=1280,
    intermediate_size=None,
    patch_size=14,
    width_key="embed_dim",
    out_key="hidden_size",
    video_grows=True,
)
GATED_VISION = VisionTower(
    mlp=(("gate_proj", "up_proj"), "down_proj"),
    merger=("ln_q", "mlp.0", "mlp.2"),
    depth=32,
    hidden_size=3584,
    intermediate_size=3420,
    patch_size=14,
    is_gated=True,
    video_grows=True,
)
TABLE_VISION = VisionTower(
    mlp=(("linear_fc1",), "linear_fc2"),
    merger=("norm", "linear_fc1", "linear_fc2"),
    depth=27,
    hidden_size=1152,
    intermediate_size=4304,
    patch_size=16,
    positions=2304,
)
# Only Qwen3-VL feeds features of inner layers to the language model; later configs still name the key.
DEEPSTACK_VISION = replace(TABLE_VISION, deepstack=(8, 16, 24))
# 12,845,056 pixels by 32 × 32; a video of 62,720 tokens at 65,536: vllm-project/vllm-omni#240.
OMNI_VISION = replace(DEEPSTACK_VISION, merger=("ln_q", "mlp.0", "mlp.2"), video_grows=True, image_tokens=12544)

WHISPER = AudioTower(
    is_whisper=True, projector=("multi_modal_projector.linear",), last_norm="audio_tower.layer_norm", is_padded=True
)
OMNI_WHISPER = AudioTower(is_whisper=True, projector=("audio_tower.proj",), marks=2)
AUT = AudioTower(is_whisper=False, projector=("audio_tower.proj1", "audio_tower.proj2"))
