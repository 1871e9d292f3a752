"""Prompts of exactly so many tokens, by the demo's tokenizer and by a server's counting."""

from __future__ import annotations

import itertools
import json
import random

import pytest
from tokenizers import Tokenizer

from qserve.bench.connection import Address
from qserve.bench.counting import Counter, counter_of, local_counter
from qserve.bench.dataset import FromFile, read_dataset
from qserve.bench.prompts import Synthetic, TextMaker
from qserve.demo import chat_model_path
from qserve.errors import UsageError
from tests.unit.client.servers import answer, serving


@pytest.fixture(scope="module")
def counter():
    return local_counter(chat_model_path())


@pytest.fixture(scope="module")
def maker(counter):
    return TextMaker(counter)


def taken(source, number, seed=0):
    return list(itertools.islice(source.prompts(random.Random(seed)), number))


@pytest.mark.parametrize("num_tokens", [1, 2, 17, 256, 1000])
def test_a_text_has_exactly_so_many_tokens(maker, num_tokens):
    tokenizer = Tokenizer.from_file(str(chat_model_path() / "tokenizer.json"))
    for seed in range(5):
        text = maker.text(num_tokens, random.Random(seed))
        assert len(tokenizer.encode(text, add_special_tokens=False).ids) == num_tokens


def test_a_shared_prefix_comes_on_top(maker, counter):
    prefix = maker.text(40, random.Random(9))
    first, second = taken(Synthetic(maker, 20, 8, prefix, 40), 2)
    assert first.text.startswith(prefix)
    assert second.text.startswith(prefix)
    assert first.text != second.text
    assert counter.count(first.text) == first.prompt_tokens == 60


def test_the_same_seed_gives_the_same_prompts(maker):
    source = Synthetic(maker, 20, 8, range_ratio=0.5)
    assert taken(source, 5) == taken(source, 5)
    assert taken(source, 5) != taken(source, 5, seed=1)


def test_lengths_vary_within_the_ratio(maker, counter):
    prompts = taken(Synthetic(maker, 100, 40, range_ratio=0.5), 60)
    lengths = {counter.count(prompt.text) for prompt in prompts}
    assert min(lengths) >= 50
    assert max(lengths) <= 150
    assert len(lengths) > 10
    assert all(20 <= prompt.output_len <= 60 for prompt in prompts)


def test_best_of_gives_answers_of_the_output_length(maker, counter):
    (prompt,) = taken(Synthetic(maker, 10, 30, best_of=4), 1)
    assert [counter.count(answer) for answer in prompt.answers] == [30] * 4
    assert len(set(prompt.answers)) == 4


def test_where_bytes_are_tokens_letters_are_taken():
    maker = TextMaker(Counter(lambda text: len(text.encode()), "bytes"))
    prefix = maker.text(5, random.Random(1))
    assert len(maker.text(50, random.Random(0))) == 50
    assert [len(prompt.text) for prompt in taken(Synthetic(maker, 20, 8, prefix, 5), 3)] == [25] * 3


def test_a_tokenizer_that_adds_to_itself_is_still_met_exactly():
    """One more token a text than its words, as a tokenizer with a BOS of its own would count."""
    maker = TextMaker(Counter(lambda text: 1 + len(text.split()), "a test"))
    assert len(maker.text(10, random.Random(0)).split()) == 9


def test_a_server_is_asked_only_until_it_can_be_trusted():
    asked = []

    def count(text):
        asked.append(text)
        return len(text.split())

    maker = TextMaker(Counter(count, "a server", is_remote=True))
    rng = random.Random(0)
    assert {len(maker.text(5, rng).split()) for _ in range(200)} == {5}
    assert len(asked) < 25


def test_a_folder_without_a_tokenizer_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"tokenizer\.json"):
        local_counter(tmp_path)


SHAREGPT = """[{"conversations": [{"from": "human", "value": "one two"}, {"from": "gpt", "value": "a b c"}]},
{"conversations": []}, {"conversations": [{"from": "gpt", "value": "only an answer"}]},
{"conversations": [{"from": "human", "value": ""}, {"from": "gpt", "value": "to nothing"}]},
{"conversations": [{"from": "system", "value": "be kind"}, {"from": "human", "value": "three"}]}]"""
WORDS = Counter(lambda text: len(text.split()), "words")


def from_file(tmp_path, text, output_len=None, prefix="", best_of=0):
    (tmp_path / "data").write_text(text)
    return FromFile(read_dataset(tmp_path / "data"), WORDS, output_len, prefix, best_of)


def test_sharegpt_asks_first_questions_and_takes_the_answers_length(tmp_path):
    prompts = {prompt.text: prompt for prompt in taken(from_file(tmp_path, SHAREGPT), 2)}
    assert set(prompts) == {"one two", "three"}
    assert prompts["one two"].output_len == 3
    assert prompts["one two"].prompt_tokens == 2
    assert [turn["role"] for turn in prompts["three"].messages] == ["system", "user"]
    assert {prompt.output_len for prompt in taken(from_file(tmp_path, SHAREGPT, output_len=9), 2)} == {9}


def test_json_lines_of_several_shapes(tmp_path):
    lines = (
        '{"prompt": "a"}\n{"messages": [{"role": "user", "content": "b"}]}\n"c"\n'
        '{"question": "d", "output_tokens": 5}\n{"prompt": "e", "responses": ["x", "y"]}\n'
    )
    prompts = {prompt.text: prompt for prompt in taken(from_file(tmp_path, lines), 5)}
    assert set(prompts) == {"a", "b", "c", "d", "e"}
    assert prompts["d"].output_len == 5
    assert prompts["e"].answers == ("x", "y")


def test_parts_of_a_turn_are_sent_as_they_are_and_counted_as_text(tmp_path):
    parts = '[{"type": "text", "text": "one two"}, {"type": "text", "text": " three"}]'
    (prompt,) = taken(from_file(tmp_path, f'{{"messages": [{{"role": "user", "content": {parts}}}]}}'), 1)
    assert prompt.prompt_tokens == 3
    assert list(prompt.messages) == [{"role": "user", "content": json.loads(parts)}]


def test_a_file_that_is_too_short_is_read_again(tmp_path):
    assert len(taken(from_file(tmp_path, '{"prompt": "a"}\n'), 7)) == 7


def test_a_prefix_stands_before_every_prompt_of_a_file(tmp_path):
    for prompt in taken(from_file(tmp_path, SHAREGPT, prefix="shared words"), 4):
        assert prompt.text.startswith("shared words ")
        assert not prompt.messages or prompt.messages[-1]["content"] == prompt.text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("[]", "has no prompt"),
        ('[{"prompt": "a"},', "begins like a JSON list, but is not one"),
        ('{"prompt": "a"}\n\n{oops', "line 3 is not valid JSON"),
        ('{"words": 3}', r"line 1 has none of prompt, .*it has words"),
        ('["a", 3]', "entry 2 is '3', which is neither a text nor an object"),
        ('{"prompt": ""}', "line 1 has an empty prompt"),
        ('{"prompt": "a", "output_len": "many"}', "output_len 'many', which is not a number of tokens"),
        ('{"prompt": "a", "max_tokens": -1}', "max_tokens -1, which is not a number of tokens"),
        ('{"prompt": "a", "responses": "xyz"}', "'responses' that are not a list of texts"),
        ('{"conversations": "a"}', "'conversations' that are not a list of turns"),
        ('{"messages": ["a"]}', "'messages' that are not a list of turns"),
    ],
)
def test_a_file_without_prompts_is_refused(tmp_path, text, said):
    with pytest.raises(UsageError, match=said):
        from_file(tmp_path, text)


def test_the_tokenizer_of_a_model_of_any_name_is_asked_for():
    with serving(answer(b"{}", 404), answer(b'{"tokens": [1]}'), answer(b'{"tokens": [1, 2]}')) as server:
        counted = counter_of(Address.of(server.url), "sk-1", "a/模 型", None)
        assert (counted.source, counted.count("a b")) == ("the server's /tokenize", 2)
        counted.close()
    assert server.requests[0].startswith(b"GET /v1/qserve/tokenizer/a/%E6%A8%A1%20%E5%9E%8B ")
