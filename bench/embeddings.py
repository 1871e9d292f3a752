"""Vectors of embedding models against sentence-transformers, in float32: alone, in company, cut, with a prompt.

    pip install sentence-transformers
    python bench/embeddings.py                                    # tiny checkpoints of each kind, made here
    python bench/embeddings.py ./Qwen3-Embedding-0.6B             # a folder

Prints a row for each checkpoint: the largest difference of any number, and the same of the model in bf16, as it is
served by default.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from qserve.detect import detect
from qserve.planner import PlanRequest
from qserve.reward.items import Score, ScoreItem
from qserve.reward.open import open_scorer
from qserve.reward.protocols.vectors import finished, written_before
from qserve.reward.scoring.scorer import RewardScorer
from qserve.reward.settings import RewardSettings
from qserve.wire.reward.vectors import VectorRequest
from tests.tiny.reward.make_checkpoints import EMBEDDERS

_WORDS = ["the", "largest", "of", "7,", "3", "and", "9", "is", "sort", "count", "12+30", "subtract", "words", "twice"]


def main() -> None:
    """A row for each folder of the command line, or for one checkpoint of each kind."""
    rng = Random(1)
    texts = [" ".join(rng.choices(_WORDS, k=rng.randrange(1, 60))) for _ in range(200)]
    print(f"{'checkpoint':<34} {'alone':>9} {'together':>9} {'prompt':>9} {'cut':>9} {'bf16':>9}")
    with tempfile.TemporaryDirectory() as temporary:
        for name, folder in _folders(sys.argv[1:], Path(temporary)):
            print(f"{name:<34} " + " ".join(f"{one:9.2g}" for one in _differences(folder, texts)))


def _folders(named: Sequence[str], temporary: Path) -> Iterator[tuple[str, Path]]:
    if named:
        yield from ((name, Path(name)) for name in named)
        return
    for kind, make in EMBEDDERS.items():
        torch.manual_seed(1)
        yield kind, make(temporary / kind.replace(" ", "-"))


def _differences(folder: Path, texts: Sequence[str]) -> Iterator[float]:
    """Alone, together, together with a prompt, cut to half, and the whole vectors in bf16."""
    from sentence_transformers import SentenceTransformer
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    truth: Any = SentenceTransformer(str(folder), device="cpu", model_kwargs={"dtype": torch.float32})
    scorer = _opened(folder, "float32")
    meant = truth.encode(list(texts), batch_size=1)
    yield _largest(meant, np.concatenate([_vectors(scorer, [text]) for text in texts]))
    yield _largest(meant, _vectors(scorer, texts))
    vectors = scorer.vectors
    assert vectors is not None
    asked = {"prompt_name": next(iter(vectors.prompts))} if vectors.prompts else {}
    yield _largest(truth.encode(list(texts), batch_size=1, **asked), _vectors(scorer, texts, **asked))
    size = vectors.size // 2
    cut = truth.encode(list(texts), batch_size=1, truncate_dim=size, normalize_embeddings=vectors.is_normalized)
    yield _largest(cut, _vectors(scorer, texts, dimensions=size))
    yield _largest(meant, _vectors(_opened(folder, "bfloat16"), texts))


def _opened(folder: Path, dtype: str) -> RewardScorer:
    return open_scorer(str(folder), RewardSettings(embeds=True), detect(), PlanRequest(dtype=dtype))


def _vectors(scorer: RewardScorer, texts: Sequence[str], **fields: Any) -> np.ndarray:
    """As the route makes them of a request."""
    vectors, request = scorer.vectors, VectorRequest(input=list(texts), **fields)
    assert vectors is not None
    before = written_before(request, vectors)
    items = [ScoreItem(scorer.template.encode(before + text).token_ids) for text in texts]
    found = [one.vector for one in scorer.score_now(items) if isinstance(one, Score) and one.vector is not None]
    return np.stack([finished(one, request.dimensions or vectors.size, vectors) for one in found])


def _largest(meant: np.ndarray, found: np.ndarray) -> float:
    return float(np.abs(meant - found).max())


if __name__ == "__main__":
    main()
