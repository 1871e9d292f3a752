"""The tokenizer that stands in the checkpoint."""

from __future__ import annotations

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from qserve.demo import chat_model_path
from qserve.demo.tokenizer import SPECIAL_TOKENS, VOCAB_SIZE, train_tokenizer
from qserve.demo.words import WORDS

TOKENIZER = Tokenizer.from_file(str(chat_model_path() / "tokenizer.json"))


@given(st.text())
def test_any_text_round_trips(text: str) -> None:
    ids = TOKENIZER.encode(text).ids
    assert TOKENIZER.decode(ids, skip_special_tokens=False) == unicodedata.normalize("NFC", text)


@pytest.mark.parametrize("text", ["你好！我是 qserve 演示模型。", "🙂👩‍👩‍👧", "naïve café", "a\n\n  b\t\x00", "١٢٣"])
def test_other_scripts_round_trip(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER.encode(text).ids) == unicodedata.normalize("NFC", text)


@given(st.integers(min_value=0))
def test_each_digit_is_one_token(number: int) -> None:
    assert TOKENIZER.encode(str(number)).tokens == list(str(number))


def test_special_tokens_are_one_token_each_in_qwens_order() -> None:
    ids = [TOKENIZER.encode(token).ids for token in SPECIAL_TOKENS]
    first = VOCAB_SIZE - len(SPECIAL_TOKENS)
    assert ids == [[first + offset] for offset in range(len(SPECIAL_TOKENS))]
    assert TOKENIZER.get_vocab_size() == VOCAB_SIZE


def test_nothing_is_put_before_the_text() -> None:
    assert TOKENIZER.encode("7").tokens == ["7"]
    assert TOKENIZER.encode("").ids == []


def test_every_word_is_one_token() -> None:
    assert [w for w in WORDS if len(TOKENIZER.encode(w).ids) != 1 or len(TOKENIZER.encode(f" {w}").ids) != 1] == []


def test_tokenizer_and_configs_agree() -> None:
    folder = chat_model_path()
    config = json.loads((folder / "config.json").read_text())
    generation = json.loads((folder / "generation_config.json").read_text())
    tokenizer = json.loads((folder / "tokenizer_config.json").read_text())
    assert config["vocab_size"] == TOKENIZER.get_vocab_size()
    assert tokenizer["bos_token"] is None
    assert TOKENIZER.token_to_id(tokenizer["eos_token"]) == config["eos_token_id"] == generation["eos_token_id"][0]
    assert TOKENIZER.token_to_id(tokenizer["pad_token"]) == config["pad_token_id"] == generation["pad_token_id"]


def test_training_gives_the_same_tokenizer_again() -> None:
    once, again = train_tokenizer(num_conversations=300), train_tokenizer(num_conversations=300)
    assert once.to_str() == again.to_str()
