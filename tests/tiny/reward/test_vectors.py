"""Embedding models: vectors as plain transformers has them, whatever they were computed with, and what is refused."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.nn.functional import normalize
from transformers import AutoModel, AutoTokenizer

from qserve.detect import detect
from qserve.planner import PlanRequest
from qserve.reward.open import open_scorer
from qserve.reward.scoring.scorer import RewardScorer
from qserve.reward.settings import RewardSettings
from tests.tiny.reward.conftest import Opener
from tests.tiny.reward.host import MODEL, Host
from tests.tiny.reward.make_checkpoints import EMBEDDERS, PROMPTS

TEXTS = ["12+30", "the largest of 7, 3 and 9 is", "sort 3 1 2", "a", "count to ten " * 12, "12+30 is 42"]


class PlainEmbedder:
    """The model by the letter of sentence-transformers' files, one text at a time, in float32."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self._body: Any = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
        written = json.loads((folder / "1_Pooling" / "config.json").read_text())
        (self._mode,) = (name for name, value in written.items() if name.startswith("pooling_mode") and value)

    def ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer(text)["input_ids"]
        return ids

    @torch.no_grad()
    def of_ids(self, ids: list[int], size: int | None = None) -> np.ndarray:
        hidden = self._body(torch.tensor([ids])).last_hidden_state[0]
        modes = {
            "pooling_mode_lasttoken": hidden[-1],
            "pooling_mode_mean_tokens": hidden.mean(0),
            "pooling_mode_cls_token": hidden[0],
        }
        vector = modes[self._mode]
        if (layer := self._folder / "2_Dense" / "model.safetensors").is_file():
            state = load_file(layer)
            vector = state["linear.weight"] @ vector + state["linear.bias"]
        found: np.ndarray = normalize(vector[:size], dim=-1).numpy()
        return found

    def of(self, text: str, size: int | None = None) -> np.ndarray:
        return self.of_ids(self.ids(text), size)


@pytest.fixture(scope="module")
def plain(made: Callable[[str], Path]) -> PlainEmbedder:
    return PlainEmbedder(made("embedder"))


@pytest.fixture(scope="module")
def host(opened: Opener) -> Iterator[Host]:
    one = Host(opened("embedder", embeds=True))
    yield one
    one.close()


def vectors(host: Host, **body: Any) -> np.ndarray:
    """In the order of the input, which `index` tells."""
    answer = host.post("/v1/embeddings", model=MODEL, **body)
    assert [one["index"] for one in answer["data"]] == list(range(len(answer["data"])))
    return np.array([one["embedding"] for one in answer["data"]], dtype=np.float32)


@pytest.mark.parametrize("kind", EMBEDDERS)
def test_vectors_are_those_of_plain_transformers_alone_and_in_company(
    kind: str, made: Callable[[str], Path], opened: Opener
) -> None:
    truth = PlainEmbedder(made(kind))
    meant = np.array([truth.of(text) for text in TEXTS])
    assert np.abs(meant[:, None] - meant).max() > 0.02  # else equality would say little
    host = Host(opened(kind, embeds=True))
    try:
        alone = np.concatenate([vectors(host, input=text) for text in TEXTS])
        together = vectors(host, input=TEXTS)
    finally:
        host.close()
    assert np.abs(alone - meant).max() < 1e-5
    assert np.abs(together - meant).max() < 1e-5


def test_texts_with_one_beginning_are_packed(host: Host, plain: PlainEmbedder) -> None:
    """Queries share their prompt, which is computed once."""
    stats = host.scorer.stats
    before, computed = stats.num_tokens, stats.num_computed_tokens - stats.num_padding_tokens
    many = [f"{number} plus {number + 1}" for number in range(40)]
    found = vectors(host, input=many, prompt_name="query")
    meant = np.array([plain.of(PROMPTS["query"] + text) for text in many])
    assert np.abs(found - meant).max() < 1e-5
    useful = stats.num_computed_tokens - stats.num_padding_tokens - computed
    assert useful < 0.7 * (stats.num_tokens - before)


def test_vectors_are_cut_and_normalized_again(host: Host, plain: PlainEmbedder) -> None:
    found = vectors(host, input=TEXTS, dimensions=16)
    assert found.shape == (len(TEXTS), 16)
    assert np.abs(found - np.array([plain.of(text, 16) for text in TEXTS])).max() < 1e-5
    assert np.linalg.norm(found, axis=1) == pytest.approx(1, abs=1e-6)


def test_base64_holds_the_same_numbers(host: Host) -> None:
    numbers = vectors(host, input=TEXTS[:2])
    answer = host.post("/v1/embeddings", input=TEXTS[:2], encoding_format="base64")
    decoded = [np.frombuffer(base64.b64decode(one["embedding"]), dtype="<f4") for one in answer["data"]]
    assert np.array_equal(np.array(decoded), numbers)


def test_token_ids_are_taken_as_they_are(host: Host, plain: PlainEmbedder) -> None:
    ids = [plain.ids(text) for text in TEXTS]
    meant = np.array([plain.of_ids(one) for one in ids])
    assert np.abs(vectors(host, input=ids) - meant).max() < 1e-5
    assert np.abs(vectors(host, input=ids[0][:-1])[0] - plain.of_ids(ids[0][:-1])).max() < 1e-5


def test_an_instruction_stands_where_the_prompt_has_its_own(host: Host, plain: PlainEmbedder) -> None:
    (found,) = vectors(host, input="12+30", instruction="Find {the} sum")
    assert np.abs(found - plain.of("Instruct: Find {the} sum\nQuery:12+30")).max() < 1e-5
    (plainly,) = vectors(host, input="12+30", prompt_name="document")
    assert np.abs(plainly - plain.of("12+30")).max() < 1e-5


def test_the_answer_is_openai_s(host: Host, plain: PlainEmbedder) -> None:
    answer = host.post("/v1/embeddings", model=MODEL, input=["a", "12+30"], user="me")
    num_tokens = sum(len(plain.ids(text)) for text in ("a", "12+30"))
    assert answer["object"] == "list" and answer["model"] == MODEL
    assert [one["object"] for one in answer["data"]] == ["embedding", "embedding"]
    assert answer["usage"] == {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
    assert answer["meta"]["pooling"] == "last" and answer["meta"]["head"] == "vectors of 64 numbers, normalized"


REFUSED = {
    "a prompt that is none": ({"prompt_name": "passage"}, "invalid_value", "no prompt 'passage'.*'query', 'document'"),
    "two prompts": ({"prompt_name": "query", "instruction": "Find"}, None, "one of 'prompt_name', 'instruction'"),
    "ids with a prompt": ({"input": [1, 2], "prompt_name": "query"}, "unsupported_value", "'input' has token ids"),
    "more numbers than there are": ({"dimensions": 65}, "invalid_value", "'dimensions' is 65.*1 to 64"),
    "no numbers": ({"dimensions": 0}, None, "dimensions"),
    "no text": ({"input": ""}, "empty_input", "'input' is an empty text"),
    "an empty list": ({"input": []}, None, "input"),
    "another type": ({"input": {"text": "a"}}, None, "input"),
    "an id that the model has not": ({"input": [1, 999_999]}, "invalid_value", "999999"),
    "too many texts": ({"input": ["a"] * 2049}, None, "2049 texts and may have 2048"),
    "a long text": ({"input": ["a", "b " * 400]}, "context_length_exceeded", r"'input.1'.*256.*--truncate"),
    "a field of others": ({"input_type": "query"}, "unsupported_field", "input_type"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused_with_what_would_work(what: str, host: Host) -> None:
    body, code, message = REFUSED[what]
    reply = host.client.post("/v1/embeddings", json={"input": "a", **body})
    error = reply.json()["error"]
    assert reply.status_code == 400, error
    assert code in (None, error["code"])
    assert re.search(message, error["message"]), error["message"]


def test_a_text_that_is_cut_keeps_its_end_token(made: Callable[[str], Path], plain: PlainEmbedder) -> None:
    """As sentence-transformers cuts: the tokenizer's own token stays the last."""
    scorer: RewardScorer = open_scorer(
        str(made("embedder")),
        RewardSettings(embeds=True, truncate="right", max_length=8),
        detect(),
        PlanRequest(dtype="float32"),
    )
    text = "one two three four five six seven eight nine ten"
    ids = plain.ids(text)
    assert len(ids) > 8
    assert scorer.template.encode(text).token_ids == [*ids[:7], ids[-1]]
