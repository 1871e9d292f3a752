"""Images, videos and audio that a model is to take: vLLM's flags for them, read."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from qserve.errors import UsageError

__all__ = ["MediaLimits", "parse_media"]


@dataclass(frozen=True)
class MediaLimits:
    """What one prompt may hold, and the most pixels of one image or video. None: vLLM's or the model's default."""

    images: int | None = None
    videos: int | None = None
    audios: int | None = None
    image_pixels: int | None = None
    video_pixels: int | None = None


def parse_media(limit_mm_per_prompt: str | None, mm_processor_kwargs: str | None) -> MediaLimits:
    """--limit-mm-per-prompt and --mm-processor-kwargs. Raises UsageError for what is no JSON object of that kind."""
    counts = _object("--limit-mm-per-prompt", limit_mm_per_prompt, '{"image": 4, "video": 0}')
    sizes = _object("--mm-processor-kwargs", mm_processor_kwargs, '{"max_pixels": 1003520}')
    unknown = sorted(set(counts) - {"image", "video", "audio"})
    if unknown:
        raise UsageError(f"--limit-mm-per-prompt names {', '.join(unknown)}; it takes image, video and audio")
    return MediaLimits(
        images=_count("image", counts),
        videos=_count("video", counts),
        audios=_count("audio", counts),
        image_pixels=_pixels({**sizes, **_part(sizes, "images_kwargs")}),
        video_pixels=_pixels({**sizes, **_part(sizes, "videos_kwargs")}),
    )


def _object(flag: str, text: str | None, example: str) -> dict[str, Any]:
    try:
        value = json.loads(text) if text else {}
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise UsageError(f"{flag} {text!r} is not a JSON object; write for example '{example}'")
    return value


def _count(name: str, counts: dict[str, Any]) -> int | None:
    """A number, or vLLM's longer form `{"count": 1, "num_frames": 32}`, whose sizes make the profile smaller only."""
    value = counts.get(name)
    if isinstance(value, dict):
        value = value.get("count")
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
        raise UsageError(f"--limit-mm-per-prompt: {name} is {value!r}, but must be a whole number, 0 or more")
    return value


def _part(sizes: dict[str, Any], name: str) -> dict[str, Any]:
    part = sizes.get(name)
    return part if isinstance(part, dict) else {}


def _pixels(sizes: dict[str, Any]) -> int | None:
    """`max_pixels`, or `size.longest_edge`, which means the same to Qwen's processors. Source: vllm qwen2_vl.py."""
    size = sizes.get("size")
    edge = size.get("longest_edge") if isinstance(size, dict) else None
    value = sizes.get("max_pixels", edge)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        raise UsageError(f"--mm-processor-kwargs: max_pixels is {value!r}, but must be a whole number, 1 or more")
    return value
