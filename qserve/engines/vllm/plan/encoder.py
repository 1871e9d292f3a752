"""The encoders in vLLM: how much of images, video and audio they are profiled with, the peak, and what they hand on.

Start-up runs the encoder once on the largest item that a prompt may hold, and the language model beside the outcome.
Source: vllm 0.32, multimodal/encoder_budget.py and profile_run; Qwen2VLProcessingInfo, Qwen3VLProcessingInfo.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from qserve.core.audio import AudioEncoder
from qserve.core.model_parts import VisionEncoder
from qserve.core.model_spec import ModelSpec
from qserve.engines.vllm.plan.media import MediaLimits

__all__ = [
    "NO_ITEMS",
    "ProfiledItems",
    "deepstack_bytes",
    "embedding_bytes",
    "encoder_peak",
    "longest_with_same_profile",
    "profiled_items",
    "takes_media",
]

_ACTIVATION_BYTES = 2  # bf16 and fp16 alike
_MOST_ITEMS = 999  # of a prompt that nobody limited
_MOST_FRAMES = 14  # of a dummy video: vllm qwen2_vl.py, _MAX_FRAMES_PER_VIDEO
_VIDEO_PIXELS = 25_165_824  # Qwen3-VL's and later: both frames of the dummy together
# Of 30 s: Qwen2-Audio's, which vLLM takes for Qwen3-Omni's as well; of Qwen3-ASR it counts what comes out.
_AUDIO_TOKENS = 750
_CHUNKS_AT_ONCE = 500  # conv_chunksize of every known model


_Kind = Literal["image", "video", "audio"]


@dataclass(frozen=True)
class ProfiledItems:
    """What start-up encodes at once: `count` items of one kind, each of `tokens`."""

    kind: _Kind
    tokens: int
    count: int

    @property
    def total(self) -> int:
        return self.tokens * self.count


NO_ITEMS = ProfiledItems("image", 0, 0)


def takes_media(spec: ModelSpec, limits: MediaLimits) -> bool:
    """Whether there is an encoder, and the limits allow an item of at least one kind."""
    return any(limit != 0 for _, _, limit in _kinds(spec, limits, 1))


def profiled_items(
    spec: ModelSpec, limits: MediaLimits, max_model_len: int, max_num_seqs: int, max_num_batched_tokens: int
) -> ProfiledItems:
    """The items that start-up encodes at once; `NO_ITEMS` where none is allowed.

    One item of the kind with most tokens, or several small ones up to a step's tokens. A video of Qwen2-VL and
    Qwen2.5-VL grows with max_model_len, and so does Qwen3-Omni's: two frames of the largest image for as many tokens
    as these have, up to 14 frames.
    """
    allowed = [(tokens, kind, limit) for kind, tokens, limit in _kinds(spec, limits, max_model_len) if limit != 0]
    if not allowed:
        return NO_ITEMS
    tokens, kind, limit = max(allowed, key=lambda one: one[:2])
    of_all_prompts = max_num_seqs * (_MOST_ITEMS if limit is None else limit)
    return ProfiledItems(kind, tokens, max(1, min(max_num_batched_tokens // tokens, of_all_prompts)))


def _kinds(spec: ModelSpec, limits: MediaLimits, max_model_len: int) -> Iterator[tuple[_Kind, int, int | None]]:
    """(kind, tokens of the largest item, most of it in a prompt) of every kind that the model reads."""
    if spec.vision:
        yield "image", _image_tokens(spec.vision, limits), limits.images
        yield "video", _video_tokens(spec.vision, limits, max_model_len), limits.videos
    if spec.audio:
        counts_itself = spec.vision is None and not spec.audio.tower.is_whisper
        yield "audio", spec.audio.item_positions if counts_itself else _AUDIO_TOKENS, limits.audios


def longest_with_same_profile(
    spec: ModelSpec, limits: MediaLimits, max_model_len: int, max_num_seqs: int, max_num_batched_tokens: int
) -> int:
    """The largest max_model_len whose profile is no larger than that of `max_model_len`."""
    vision, positions = spec.vision, max(max_model_len, spec.max_position_embeddings)
    if vision is None or not vision.tower.video_grows:
        return positions
    steps = max_num_seqs, max_num_batched_tokens
    most, frame_pair = profiled_items(spec, limits, max_model_len, *steps).total, _image_tokens(vision, limits)
    longer = range(2 * frame_pair, (_MOST_FRAMES + 1) * frame_pair, frame_pair)
    grows = (length for length in longer if profiled_items(spec, limits, length, *steps).total > most)
    return min(positions, next((length - 1 for length in grows if length > max_model_len), positions))


def encoder_peak(
    spec: ModelSpec, items: ProfiledItems, tensor_parallel_size: int = 1, gathers_heads: bool = False
) -> int:
    """Peak bytes of the encoder that reads `items`, on one rank."""
    if items.kind == "audio" and spec.audio:
        return _audio_peak(spec.audio, items.count, tensor_parallel_size)
    if spec.vision is None:
        return 0
    return _vision_peak(spec.vision, items.total, tensor_parallel_size, gathers_heads)


def _vision_peak(vision: VisionEncoder, num_tokens: int, tensor_parallel_size: int, gathers_heads: bool) -> int:
    """`num_tokens` of image: pixels, residual stream twice, the widest moment of a layer, deepstack.

    The pixels count three times: fp32 as the processor made them stays beside the 16-bit copy that the encoder reads.
    Ranks share the MLP's inner width only; where they are several, its output and the sum over the ranks may be wider
    than what follows GELU. Qwen2.5-VL's gate and up stay until down has its output.
    Source: vllm qwen2_vl.py, qwen2_5_vl.py, qwen3_vl.py, the transformers' forward; linear.py, RowParallelLinear.
    """
    pixels: int = vision.in_channels * vision.temporal_patch_size * vision.patch_size * vision.patch_size
    inner = vision.intermediate_size // tensor_parallel_size
    outputs = vision.hidden_size if tensor_parallel_size == 1 else 2 * vision.hidden_size
    widest: int = 3 * inner + outputs if vision.tower.is_gated else inner + max(inner, outputs)
    if gathers_heads and tensor_parallel_size > 1:
        widest = max(widest, 2 * 3 * vision.hidden_size + 3 * vision.hidden_size // tensor_parallel_size)
    kept: int = vision.deepstack_layers * vision.out_hidden_size // _merged(vision)
    patches = num_tokens * _merged(vision)
    return patches * (3 * pixels + 2 * vision.hidden_size + widest + kept) * _ACTIVATION_BYTES


def _audio_peak(audio: AudioEncoder, count: int, tensor_parallel_size: int) -> int:
    """`count` items of 30 s: features three times as of images, and the wider of convolutions and layers.

    What Whisper's first convolution makes stands beside its GELU, two frames for a position. The later kind's second
    has what the first made of up to 500 chunks, a quarter of that as its output, and both once more with channels
    last, as its kernels want them. A layer has the residual stream twice, fc1's output and its GELU.
    Source: vllm qwen2_audio.py, qwen3_omni_moe_thinker.py; transformers' forward of the encoders; QwenLM/Qwen3-ASR#54.
    """
    width, positions = audio.hidden_size, count * audio.item_positions
    if audio.tower.is_whisper:
        convolved, inner = 2 * 2 * width * positions, audio.intermediate_size
    else:
        convolved = 5 * min(_CHUNKS_AT_ONCE, count * audio.item_chunks) * audio.chunk_elements // 2
        inner = audio.intermediate_size // tensor_parallel_size
    masks = count * audio.item_positions**2 if audio.tower.is_padded else 0
    widest = max(convolved, positions * 2 * (width + inner))
    return (3 * count * audio.item_features + masks + widest) * _ACTIVATION_BYTES


def embedding_bytes(spec: ModelSpec, num_tokens: int) -> int:
    """What the encoder hands on, kept while the language model is profiled: T·H·2, once more a deepstack layer."""
    layers = 1 + (spec.vision.deepstack_layers if spec.vision else 0)
    return layers * num_tokens * spec.hidden_size * _ACTIVATION_BYTES


def deepstack_bytes(spec: ModelSpec, num_tokens: int) -> int:
    """Qwen3-VL's buffers, one per deepstack layer: T·H·2. Source: vllm qwen3_vl.py, deepstack_input_embeds."""
    layers = spec.vision.deepstack_layers if spec.vision else 0
    return layers * num_tokens * spec.hidden_size * _ACTIVATION_BYTES


def _merged(vision: VisionEncoder) -> int:
    """Patches of one token."""
    size: int = vision.spatial_merge_size
    return size * size


def _token_pixels(vision: VisionEncoder) -> int:
    edge: int = vision.patch_size * vision.spatial_merge_size
    return edge * edge


def _image_tokens(vision: VisionEncoder, limits: MediaLimits) -> int:
    if limits.image_pixels is None:
        return vision.tower.image_tokens
    return max(1, limits.image_pixels // _token_pixels(vision))


def _video_tokens(vision: VisionEncoder, limits: MediaLimits, max_model_len: int) -> int:
    if not vision.tower.video_grows:
        return max(1, (limits.video_pixels or _VIDEO_PIXELS) // vision.temporal_patch_size // _token_pixels(vision))
    frame_pair = _image_tokens(vision, limits)  # of the largest image's size
    return frame_pair * max(1, min(_MOST_FRAMES // vision.temporal_patch_size, max_model_len // frame_pair))
