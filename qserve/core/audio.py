"""Audio encoders: their sizes, as a config.json tells them, and their tensors.

Two kinds read mel spectrograms of 100 frames a second. Whisper's has two convolutions in time, the second of stride 2,
and pools pairs of frames. The later one (AuT) has three in time and frequency of stride 2, over 100 frames at once.
Source: transformers 5.19 modeling_qwen2_audio.py, modeling_qwen2_5_omni.py, modeling_qwen3_omni_moe.py; vllm 0.32
qwen3_omni_moe_thinker.py, qwen3_asr.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from qserve.core.model_parts import Sizes
from qserve.core.towers import AudioTower

__all__ = ["AudioEncoder", "audio_tensors", "read_audio"]

_SECONDS = 30  # of the longest item that engines profile
_FRAMES = 100 * _SECONDS
_CHUNK = 100  # frames that the later kind convolves at once, and positions that they leave
_CHUNK_TOKENS = 13


@dataclass(frozen=True)
class AudioEncoder:
    """An audio encoder. `out_size`: of a token that the language model gets; `conv_channels`: 0 of Whisper's kind."""

    num_layers: int
    hidden_size: int
    intermediate_size: int
    out_size: int
    mel_bins: int
    conv_channels: int
    num_positions: int
    tower: AudioTower

    @property
    def item_positions(self) -> int:
        """Positions that its layers compute of an item of 30 s."""
        return _FRAMES // 2 if self.tower.is_whisper else _FRAMES // _CHUNK * _CHUNK_TOKENS

    @property
    def item_features(self) -> int:
        """Elements of the mel spectrogram of an item of 30 s."""
        return _FRAMES * self.mel_bins

    @property
    def item_chunks(self) -> int:
        """Chunks of 100 frames that an item of 30 s is convolved in."""
        return _FRAMES // _CHUNK

    @property
    def chunk_elements(self) -> int:
        """What the first convolution of the later kind makes of a chunk: channels × half the bins × half the frames."""
        return self.conv_channels * -(-self.mel_bins // 2) * (_CHUNK // 2)

    @property
    def conv_out_size(self) -> int:
        """Elements of a position behind three convolutions of stride 2: channels × bins that are left."""
        bins = self.mel_bins
        for _ in range(3):
            bins = -(-bins // 2)
        return self.conv_channels * bins


def read_audio(sizes: Sizes, tower: AudioTower, text_hidden_size: int) -> AudioEncoder:
    """Of a config's `audio_config`. Raises BrokenCheckpoint."""
    return AudioEncoder(
        num_layers=sizes("encoder_layers", 32),
        hidden_size=sizes("d_model", 1280),
        intermediate_size=sizes("encoder_ffn_dim", 5120),
        out_size=sizes("output_dim", text_hidden_size),
        mel_bins=sizes("num_mel_bins", 128),
        conv_channels=0 if tower.is_whisper else sizes("downsample_hidden_size", 480),
        num_positions=sizes("max_source_positions", 1500),
        tower=tower,
    )


def audio_tensors(audio: AudioEncoder) -> Iterator[tuple[str, tuple[int, ...], int]]:
    """Name, shape and number of each tensor, as the checkpoint has them."""
    yield from _convolutions(audio)
    yield from _layers(audio)
    yield f"{audio.tower.last_norm}.weight", (audio.hidden_size,), 1
    yield f"{audio.tower.last_norm}.bias", (audio.hidden_size,), 1
    *inner, last = audio.tower.projector
    for name in inner:
        yield f"{name}.weight", (audio.hidden_size, audio.hidden_size), 1
        yield f"{name}.bias", (audio.hidden_size,), 1
    yield f"{last}.weight", (audio.out_size, audio.hidden_size), 1
    yield f"{last}.bias", (audio.out_size,), 1
    if audio.tower.marks:
        yield "audio_tower.audio_bos_eos_token.weight", (audio.tower.marks, audio.out_size), 1


def _convolutions(audio: AudioEncoder) -> Iterator[tuple[str, tuple[int, ...], int]]:
    width, channels = audio.hidden_size, audio.conv_channels
    if audio.tower.is_whisper:
        yield "audio_tower.conv1.weight", (width, audio.mel_bins, 3), 1
        yield "audio_tower.conv2.weight", (width, width, 3), 1
        for name in ("conv1", "conv2"):
            yield f"audio_tower.{name}.bias", (width,), 1
        if audio.tower.is_padded:
            yield "audio_tower.embed_positions.weight", (audio.num_positions, width), 1
        return
    yield "audio_tower.conv2d1.weight", (channels, 1, 3, 3), 1
    for name in ("conv2d2", "conv2d3"):
        yield f"audio_tower.{name}.weight", (channels, channels, 3, 3), 1
    for name in ("conv2d1", "conv2d2", "conv2d3"):
        yield f"audio_tower.{name}.bias", (channels,), 1
    yield "audio_tower.conv_out.weight", (width, audio.conv_out_size), 1


def _layers(audio: AudioEncoder) -> Iterator[tuple[str, tuple[int, ...], int]]:
    """Pre-norm layers; Whisper's key projections have no bias."""
    width, inner, layers, prefix = audio.hidden_size, audio.intermediate_size, audio.num_layers, "audio_tower.layers.0"
    for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
        yield f"{prefix}.self_attn.{name}.weight", (width, width), layers
        if name != "k_proj" or not audio.tower.is_whisper:
            yield f"{prefix}.self_attn.{name}.bias", (width,), layers
    yield f"{prefix}.fc1.weight", (inner, width), layers
    yield f"{prefix}.fc1.bias", (inner,), layers
    yield f"{prefix}.fc2.weight", (width, inner), layers
    yield f"{prefix}.fc2.bias", (width,), layers
    for name in ("self_attn_layer_norm", "final_layer_norm"):
        yield f"{prefix}.{name}.weight", (width,), layers
        yield f"{prefix}.{name}.bias", (width,), layers
