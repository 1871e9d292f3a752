"""Training batches hold what is to be learned and nothing else; a short run leaves a checkpoint that loads."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from qserve.demo import chat_model_path
from qserve.demo.batches import IGNORED, LENGTHS, training_batches
from qserve.demo.conversations import sample_conversation
from qserve.demo.train_chat import Recipe, train

TOKENIZER = Tokenizer.from_file(str(chat_model_path() / "tokenizer.json"))


def test_labels_are_the_answers_shifted_by_one() -> None:
    rng = Random(0)
    spoken = {
        "".join(text for text, learned in sample_conversation(rng).pieces() if learned): None for _ in range(3000)
    }
    batch = next(training_batches(TOKENIZER, tokens_per_batch=512, seed=0))
    assert batch.input_ids.shape == batch.labels.shape
    assert batch.input_ids.shape[1] in LENGTHS
    for ids, labels in zip(batch.input_ids, batch.labels, strict=True):
        learned = labels != IGNORED
        assert TOKENIZER.decode(labels[learned].tolist(), skip_special_tokens=False) in spoken
        # Where a label and the next input are both known they are the same token.
        inner = learned[:-1]
        following, expected = ids[1:][inner], labels[:-1][inner]
        assert torch.equal(following[following != 0], expected[following != 0])


def test_batches_are_the_same_for_the_same_seed() -> None:
    first, again = (next(training_batches(TOKENIZER, tokens_per_batch=512, seed=3)) for _ in range(2))
    assert torch.equal(first.input_ids, again.input_ids)
    assert torch.equal(first.labels, again.labels)


def test_a_short_run_leaves_a_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(Recipe(minutes=0.03, tokens_per_batch=512, report_num=5), tmp_path / "chat")
    assert "held-out exact match" in capsys.readouterr().out
    model, info = AutoModelForCausalLM.from_pretrained(tmp_path / "chat", dtype="auto", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert model.config.head_dim == 64
    assert {path.name for path in tmp_path.iterdir()} == {"chat"}, "nothing half-written stays behind"
