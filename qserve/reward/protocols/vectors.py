"""POST /v1/embeddings of an embedding model, as OpenAI has it: vectors in place of rewards.

As sentence-transformers computes them: the prompt before the text, the vector cut and normalized in float32.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from typing import Any

import numpy as np

from qserve.reward.checkpoints import Vectors
from qserve.reward.protocols.job import ModelInfo, Scored, ScoreJob, Text, job_of, texts_of_input
from qserve.wire.errors import ApiError
from qserve.wire.reward.vectors import VectorRequest

__all__ = ["embed", "finished", "written_before"]

Vector = np.ndarray


@job_of(VectorRequest)
def embed(request: VectorRequest, about: ModelInfo) -> ScoreJob:
    """A vector of each text, in the order of the input."""
    vectors = about.vectors
    assert vectors is not None, "it is an embedding model's protocol"
    size = _size(request, vectors)
    write = _in_base64 if request.encoding_format == "base64" else _in_numbers

    def answer(scored: Scored) -> bytes:
        found = (finished(one.vector, size, vectors) for one in scored.scores if one.vector is not None)
        return _body(scored, (write(vector) for vector in found))

    return ScoreJob(_texts(request, vectors), answer)


def finished(vector: Vector, size: int, vectors: Vectors) -> Vector:
    """The first `size` numbers, of length 1 where the model's vectors are. Zeros stay zeros."""
    cut = vector[:size]
    if not vectors.is_normalized:
        return cut
    length = np.linalg.norm(cut)
    return cut / length if length > 0 else cut


def written_before(request: VectorRequest, vectors: Vectors) -> str:
    """The prompt of the request, else the model's own. Raises ApiError for one that the model lacks."""
    if request.instruction is not None:
        if vectors.instruct is None:
            raise ApiError(
                400,
                "this model takes no 'instruction': none of its prompts is 'Instruct: …\\nQuery: …'; leave it out"
                f"{_named(vectors)}",
                "unsupported_value",
                "instruction",
            )
        return vectors.instruct.replace("{}", request.instruction, 1)
    name = request.prompt_name or vectors.default_prompt
    if name is None:
        return ""
    if name not in vectors.prompts:
        raise ApiError(400, f"this model has no prompt {name[:100]!r}{_named(vectors)}", "invalid_value", "prompt_name")
    return vectors.prompts[name]


def _named(vectors: Vectors) -> str:
    names = ", ".join(map(repr, vectors.prompts))
    return f", or name one of its prompts with 'prompt_name': {names}" if names else "; it has no prompts"


def _texts(request: VectorRequest, vectors: Vectors) -> tuple[Text, ...]:
    """Token ids are taken as they are, without the model's own prompt. Raises ApiError for ids with a prompt."""
    texts, before = texts_of_input(request.input, "input"), written_before(request, vectors)
    if isinstance(texts[0].content, str):
        return tuple(Text(before + str(text.content), text.where) for text in texts)
    if (given := next((name for name in ("instruction", "prompt_name") if getattr(request, name)), None)) is not None:
        raise ApiError(
            400,
            f"{given!r} is written before a text, and 'input' has token ids; send text, or put the prompt's ids first",
            "unsupported_value",
            given,
        )
    return texts


def _size(request: VectorRequest, vectors: Vectors) -> int:
    """Numbers of a vector. Raises ApiError for a size that the model has not."""
    size = vectors.size if request.dimensions is None else request.dimensions
    allowed = {*vectors.dimensions, vectors.size}
    if size > vectors.size or (vectors.dimensions and size not in allowed):
        takes = " or ".join(map(str, sorted(allowed))) if vectors.dimensions else f"1 to {vectors.size}"
        raise ApiError(
            400, f"'dimensions' is {size}; this model's vectors can have {takes}", "invalid_value", "dimensions"
        )
    return size


def _in_numbers(vector: Vector) -> str:
    """Nine digits give the same float32 again."""
    return "[" + ",".join(["%.9g"] * len(vector)) % tuple(vector.tolist()) + "]"


def _in_base64(vector: Vector) -> str:
    """As OpenAI's: little-endian float32."""
    return f'"{base64.b64encode(vector.astype("<f4").tobytes()).decode()}"'


def _body(scored: Scored, written: Iterable[str]) -> bytes:
    """Written by hand: a vector at a time, so that a thousand of them hold up nobody else in this process."""
    head: dict[str, Any] = {"object": "list", "model": scored.model}
    usage = {"prompt_tokens": scored.num_tokens, "total_tokens": scored.num_tokens}
    rows = [f'{{"object":"embedding","index":{index},"embedding":{one}}}' for index, one in enumerate(written)]
    ends = {"usage": usage, "meta": scored.meta}
    return f'{json.dumps(head)[:-1]},"data":[{",".join(rows)}],{json.dumps(ends)[1:]}'.encode()
