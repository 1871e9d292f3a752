"""Text as a client sees it: whole characters, stop strings that never leak, tokens and back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import openai
import pytest
from transformers import AutoTokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode

from qserve.demo import chat_model_path
from tests.tiny.serving.plain_transformers import id_of_label
from tests.tiny.serving.served import Service

PROMPT = "<|im_start|>user\nWhat is qserve?<|im_end|>\n<|im_start|>assistant\n"


def complete(client: openai.OpenAI, prompt: Any = PROMPT, **fields: Any) -> Any:
    return client.completions.create(model="demo", prompt=prompt, **{"max_tokens": 40, "temperature": 0, **fields})


def pieces(client: openai.OpenAI, prompt: Any = PROMPT, **fields: Any) -> list[str]:
    chunks = complete(client, prompt, stream=True, **fields)
    return [choice.text for chunk in chunks for choice in chunk.choices]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(chat_model_path())


@pytest.fixture(scope="module")
def greedy(client: openai.OpenAI) -> str:
    """What the demo says about itself, without end."""
    return complete(client, extra_body={"ignore_eos": True}).choices[0].text


def forced(token_ids: Iterable[int]) -> dict[str, Any]:
    """Fields that make the model say exactly these tokens, each once: falling biases, and a penalty on what was said.

    The steps between the biases are larger than what the model's own logits differ by, so there is room for four.
    """
    ids = list(token_ids)
    assert len(set(ids)) == len(ids) <= 4
    bias = dict.fromkeys(map(str, range(1280)), -100.0)
    bias |= {str(token_id): 100.0 - 25 * rank for rank, token_id in enumerate(ids)}
    return {"logit_bias": bias, "max_tokens": len(ids), "extra_body": {"repetition_penalty": 10.0, "ignore_eos": True}}


def byte_ids(tokenizer: Any, text: str) -> list[int]:
    """The single-byte tokens that spell `text`."""
    letters = bytes_to_unicode()
    return [tokenizer.convert_tokens_to_ids(letters[byte]) for byte in text.encode()]


@pytest.mark.parametrize("text", ["漢", "🚀", "é1", "1漢"])
def test_characters_of_many_tokens_arrive_whole(client: openai.OpenAI, tokenizer: Any, text: str) -> None:
    ids = byte_ids(tokenizer, text)
    came = [piece for piece in pieces(client, "x", **forced(ids)) if piece]
    assert "".join(came) == text
    assert len(came) == len(text), "each character comes at once, and as soon as it is complete"


def test_a_character_that_the_end_cuts_off_is_replaced_not_dropped(client: openai.OpenAI, tokenizer: Any) -> None:
    ids = byte_ids(tokenizer, "a漢")[:-1]
    assert "".join(pieces(client, "x", **forced(ids))) == "a�"
    assert complete(client, "x", **forced(ids)).choices[0].text == "a�"


@pytest.mark.parametrize("seed", range(6))
def test_stream_of_wild_bytes_joins_to_the_whole_answer(client: openai.OpenAI, tokenizer: Any, seed: int) -> None:
    """Bytes at random: whole characters, halves of them, and rubbish."""
    bias = {str(token_id): 60.0 for token_id in byte_ids(tokenizer, "漢🚀é你 a")[:16]}
    fields: dict[str, Any] = {"temperature": 2.0, "seed": seed, "logit_bias": bias, "max_tokens": 80}
    whole = complete(client, "x", logprobs=0, **fields).choices[0]
    assert "".join(pieces(client, "x", **fields)) == whole.text
    ids = [id_of_label(tokenizer, label) for label in whole.logprobs.tokens]
    assert tokenizer.decode(ids, skip_special_tokens=True) == whole.text


def test_special_tokens_show_only_when_asked_for(client: openai.OpenAI, tokenizer: Any) -> None:
    ids = tokenizer.encode("a<think><|box_start|>b")
    assert complete(client, "x", **forced(ids)).choices[0].text == "a<think>b"
    fields = forced(ids)
    fields["extra_body"]["skip_special_tokens"] = False
    assert complete(client, "x", **fields).choices[0].text == "a<think><|box_start|>b"
    assert "".join(pieces(client, "x", **fields)) == "a<think><|box_start|>b"


@pytest.mark.parametrize("as_list", [False, True])
def test_stop_cuts_before_the_string(client: openai.OpenAI, greedy: str, as_list: bool) -> None:
    stop = greedy[7:10]
    answer = complete(client, stop=["\x07", stop] if as_list else stop).choices[0]
    assert (answer.text, answer.finish_reason) == (greedy[: greedy.index(stop)], "stop")


def test_the_first_of_several_stop_strings_counts(client: openai.OpenAI, greedy: str) -> None:
    stops = [greedy[12:15], greedy[5:8]]
    answer = complete(client, stop=stops).choices[0]
    assert answer.text == greedy[: min(greedy.index(stop) for stop in stops)]


def test_stop_across_token_borders(client: openai.OpenAI, tokenizer: Any) -> None:
    """Every letter is a token of its own here."""
    ids = byte_ids(tokenizer, "abcd")
    whole = complete(client, "x", stop="bc", **forced(ids)).choices[0]
    assert (whole.text, whole.finish_reason) == ("a", "stop")
    came = pieces(client, "x", stop="bc", **forced(ids))
    assert "".join(came) == "a"


def test_stop_inside_one_token(client: openai.OpenAI, tokenizer: Any) -> None:
    ids = [id_of_label(tokenizer, word) for word in ("Reverse", " the", " word")]
    assert complete(client, "x", stop="ver", **forced(ids)).choices[0].text == "Re"


def test_stop_that_only_begins_is_shown_after_all(client: openai.OpenAI, tokenizer: Any) -> None:
    ids = byte_ids(tokenizer, "abcd")
    answer = complete(client, "x", stop="cdX", **forced(ids)).choices[0]
    assert (answer.text, answer.finish_reason) == ("abcd", "length")
    assert "".join(pieces(client, "x", stop="cdX", **forced(ids))) == "abcd"


def test_stop_at_the_last_token_is_a_stop(client: openai.OpenAI, tokenizer: Any) -> None:
    ids = byte_ids(tokenizer, "abcd")
    answer = complete(client, "x", stop="cd", **forced(ids)).choices[0]
    assert (answer.text, answer.finish_reason) == ("ab", "stop")


def test_stop_of_several_bytes_a_character(client: openai.OpenAI, tokenizer: Any) -> None:
    ids = byte_ids(tokenizer, "1漢")
    assert "".join(pieces(client, "x", stop="漢", **forced(ids))) == "1"
    assert "".join(pieces(client, "x", stop="1漢!", **forced(ids))) == "1漢"


def test_include_stop_str_in_output(client: openai.OpenAI, tokenizer: Any) -> None:
    fields = forced(byte_ids(tokenizer, "abcd"))
    fields["extra_body"]["include_stop_str_in_output"] = True
    assert complete(client, "x", stop="bc", **fields).choices[0].text == "abc"
    assert "".join(pieces(client, "x", stop="bc", **fields)) == "abc"


def test_stop_string_ends_the_work_too(client: openai.OpenAI, service: Service, greedy: str) -> None:
    usage = complete(client, stop=greedy[5:8], max_tokens=1500, extra_body={"ignore_eos": True}).usage
    assert usage.completion_tokens < 15
    assert service.num_running() == 0


def test_streamed_logprobs_have_the_offsets_of_the_whole_answer(client: openai.OpenAI) -> None:
    whole = complete(client, logprobs=1, max_tokens=12).choices[0].logprobs
    chunks = [chunk.choices[0].logprobs for chunk in complete(client, logprobs=1, max_tokens=12, stream=True)]
    parts = [part for part in chunks if part is not None]
    assert [token for part in parts for token in part.tokens] == whole.tokens
    assert [offset for part in parts for offset in part.text_offset] == whole.text_offset


def test_text_offsets_point_into_the_text(client: openai.OpenAI) -> None:
    choice = complete(client, logprobs=0, max_tokens=12, extra_body={"ignore_eos": True}).choices[0]
    for token, offset in zip(choice.logprobs.tokens, choice.logprobs.text_offset, strict=True):
        if not token.startswith(("bytes:", "<|")):
            assert choice.text[offset : offset + len(token)] == token


@pytest.mark.parametrize("text", ["What is 12+30?", " two  spaces\n\n\ttab", "漢字 🚀 é", "", "<|im_start|>user\nhi"])
def test_tokenize_and_detokenize_are_inverse(service: Service, tokenizer: Any, text: str) -> None:
    answer = service.post("/tokenize", prompt=text, return_token_strs=True).json()
    assert answer["tokens"] == tokenizer.encode(text)
    assert answer["count"] == len(answer["tokens"]) == len(answer["token_strs"])
    assert answer["max_model_len"] == 2048
    assert service.post("/detokenize", tokens=answer["tokens"]).json() == {"prompt": text}


def test_detokenize_refuses_ids_outside_the_vocabulary(service: Service) -> None:
    answer = service.post("/detokenize", tokens=[1280])
    assert answer.status_code == 400
    assert "1279" in answer.json()["error"]["message"]


def test_token_prompts_are_taken_as_they_are(client: openai.OpenAI, tokenizer: Any) -> None:
    ids = tokenizer.encode(PROMPT)
    assert complete(client, ids).choices[0].text == complete(client).choices[0].text
    assert complete(client, ids).usage.prompt_tokens == len(ids)
    both = complete(client, [ids, ids[:5]])
    assert [choice.index for choice in both.choices] == [0, 1]
    assert both.usage.prompt_tokens == len(ids) + 5


def test_an_empty_prompt_is_refused(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="empty"):
        complete(client, "")
