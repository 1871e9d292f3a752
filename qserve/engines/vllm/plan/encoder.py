"""The vision encoder in vLLM: how much of images and video it is profiled with, its peak, and what it hands on.

Start-up runs the encoder once on the largest item that a prompt may hold, and the language model beside the outcome.
Source: vllm 0.32, multimodal/encoder_budget.py and profile_run; Qwen2VLProcessingInfo, Qwen3VLProcessingInfo.
"""

from __future__ import annotations

from qserve.core.model_parts import VisionEncoder
from qserve.core.model_spec import ModelSpec
from qserve.engines.vllm.plan.media import MediaLimits

__all__ = [
    "deepstack_bytes",
    "embedding_bytes",
    "encoder_peak",
    "longest_with_same_profile",
    "profiled_tokens",
    "takes_media",
]

_ACTIVATION_BYTES = 2  # bf16 and fp16 alike
_MOST_ITEMS = 999  # of a prompt that nobody limited
_MOST_FRAMES = 14  # of a dummy video: vllm qwen2_vl.py, _MAX_FRAMES_PER_VIDEO
# Largest image of the preprocessor_config.json that comes with the models: 16384 tokens of 28 × 28 or 32 × 32 pixels.
_IMAGE_TOKENS = 16384
_VIDEO_PIXELS = 25_165_824  # Qwen3-VL's and later: both frames of the dummy together


def takes_media(spec: ModelSpec, limits: MediaLimits) -> bool:
    """Whether there is an encoder, and the limits allow an item of at least one kind."""
    return spec.vision is not None and (limits.images != 0 or limits.videos != 0)


def profiled_tokens(
    spec: ModelSpec, limits: MediaLimits, max_model_len: int, max_num_seqs: int, max_num_batched_tokens: int
) -> int:
    """Tokens of the items that start-up encodes at once; 0 where no item is allowed.

    One item of the kind with more tokens, or several small ones up to a step's tokens. A video of Qwen2-VL and
    Qwen2.5-VL grows with max_model_len: two frames of the largest image for every 16384 tokens, up to 14 frames.
    """
    vision = spec.vision
    if vision is None:
        return 0
    kinds = {
        "image": (_image_tokens(vision, limits), limits.images),
        "video": (_video_tokens(vision, limits, max_model_len), limits.videos),
    }
    allowed = [(tokens, name, limit) for name, (tokens, limit) in kinds.items() if limit != 0]
    if not allowed:
        return 0
    tokens, _, limit = max(allowed, key=lambda kind: kind[:2])
    of_all_prompts = max_num_seqs * (_MOST_ITEMS if limit is None else limit)
    return tokens * max(1, min(max_num_batched_tokens // tokens, of_all_prompts))


def longest_with_same_profile(
    spec: ModelSpec, limits: MediaLimits, max_model_len: int, max_num_seqs: int, max_num_batched_tokens: int
) -> int:
    """The largest max_model_len whose profile is no larger than that of `max_model_len`."""
    vision, positions = spec.vision, max(max_model_len, spec.max_position_embeddings)
    if vision is None or not vision.tower.video_grows:
        return positions
    steps = max_num_seqs, max_num_batched_tokens
    most, frame_pair = profiled_tokens(spec, limits, max_model_len, *steps), _image_tokens(vision, limits)
    longer = range(2 * frame_pair, (_MOST_FRAMES + 1) * frame_pair, frame_pair)
    grows = (length for length in longer if profiled_tokens(spec, limits, length, *steps) > most)
    return min(positions, next((length - 1 for length in grows if length > max_model_len), positions))


def encoder_peak(spec: ModelSpec, num_tokens: int, tensor_parallel_size: int = 1, gathers_heads: bool = False) -> int:
    """The encoder on `num_tokens` of image: pixels, residual stream twice, the widest moment of a layer, deepstack.

    The pixels count three times: fp32 as the processor made them stays beside the 16-bit copy that the encoder reads.
    Ranks share the MLP's inner width only; where they are several, its output and the sum over the ranks may be wider
    than what follows GELU. Qwen2.5-VL's gate and up stay until down has its output.
    Source: vllm qwen2_vl.py, qwen2_5_vl.py, qwen3_vl.py, the transformers' forward; linear.py, RowParallelLinear.
    """
    vision = spec.vision
    if vision is None:
        return 0
    pixels: int = vision.in_channels * vision.temporal_patch_size * vision.patch_size * vision.patch_size
    inner = vision.intermediate_size // tensor_parallel_size
    outputs = vision.hidden_size if tensor_parallel_size == 1 else 2 * vision.hidden_size
    widest: int = 3 * inner + outputs if vision.tower.is_gated else inner + max(inner, outputs)
    if gathers_heads and tensor_parallel_size > 1:
        widest = max(widest, 2 * 3 * vision.hidden_size + 3 * vision.hidden_size // tensor_parallel_size)
    kept: int = vision.deepstack_layers * vision.out_hidden_size // _merged(vision)
    patches = num_tokens * _merged(vision)
    return patches * (3 * pixels + 2 * vision.hidden_size + widest + kept) * _ACTIVATION_BYTES


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
        return _IMAGE_TOKENS
    return max(1, limits.image_pixels // _token_pixels(vision))


def _video_tokens(vision: VisionEncoder, limits: MediaLimits, max_model_len: int) -> int:
    if not vision.tower.video_grows:
        return max(1, (limits.video_pixels or _VIDEO_PIXELS) // vision.temporal_patch_size // _token_pixels(vision))
    frame_pair = _image_tokens(vision, limits)  # of the largest image's size
    return frame_pair * max(1, min(_MOST_FRAMES // vision.temporal_patch_size, max_model_len // frame_pair))
