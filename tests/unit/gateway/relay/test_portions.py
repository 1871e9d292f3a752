"""A client gets of portions what the engine says to the whole: by a small engine that knows both."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qserve.gateway.relay.merged import MergedAnswer
from qserve.gateway.relay.portions import MOST_BYTES, portions_of

CHAT, TEXT, TOKENS, CONVERSATIONS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/inference/v1/generate",
    "/v1/chat/completions/batch",
)


def _prompts(path: str, body: dict[str, Any]) -> list[Any]:
    if path == CONVERSATIONS:
        return list(body["messages"])
    prompt = body.get("prompt", body.get("messages", body.get("token_ids")))
    if path == TEXT and isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        return prompt
    return [prompt]


def _sequences(path: str, body: dict[str, Any]) -> Iterator[tuple[int, Any, list[str]]]:
    """Index, prompt, and the words that it draws: by the prompt and the seed counted on, as vLLM does."""
    params = body["sampling_params"] if path == TOKENS else body
    n = params.get("n") or 1
    for place, prompt in enumerate(_prompts(path, body)):
        for index in range(n):
            chance = random.Random(f"{json.dumps(prompt)} {params['seed'] + index}")
            yield place * n + index, prompt, [f"w{chance.randrange(99)} " for _ in range(chance.randint(1, 5))]


def _usage(prompts: list[Any], words: int) -> dict[str, Any]:
    num = sum(len(json.dumps(prompt)) for prompt in prompts)
    return {
        "prompt_tokens": num,
        "total_tokens": num + words,
        "completion_tokens": words,
        "prompt_tokens_details": {
            "cached_tokens": num,
            "created_cache_tokens": None,
            "multimodal_tokens": {"image": num},
        },
        "completion_tokens_details": {"reasoning_tokens": words},
    }


def _whole(path: str, body: dict[str, Any], name: str = "x") -> dict[str, Any]:
    some = list(_sequences(path, body))
    choices = [
        {"index": index, "text": "".join(words), "logprobs": {"top": [-0.10, 1e-7, len(words)]}}
        for index, _, words in some
    ]
    usage = _usage(_prompts(path, body), sum(len(words) for _, _, words in some))
    return {"id": name, "created": 7, "model": "m", "choices": choices, "usage": usage, "metrics": None}


def _stream(path: str, body: dict[str, Any], name: str = "x") -> Iterator[bytes]:
    """Word by word, all sequences in turns."""
    options = body.get("stream_options") or {}
    some = list(_sequences(path, body))
    count = 0
    for number in range(max(len(words) for _, _, words in some)):
        for index, _, words in some:
            if number >= len(words):
                continue
            count += 1
            choice = {
                "index": index,
                "text": words[number],
                "finish_reason": "stop" if words[number:][1:] == [] else None,
            }
            usage = {"usage": _usage(_prompts(path, body), count)} if options.get("continuous_usage_stats") else {}
            yield _event({"id": name, "created": 7, "choices": [choice], **usage})
    if options.get("include_usage"):
        yield _event({"id": name, "created": 7, "choices": [], "usage": _usage(_prompts(path, body), count)})
    yield b"data: [DONE]\n\n"


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def _parsed(events: bytes) -> list[Any]:
    assert events.endswith(b"data: [DONE]\n\n") and events.count(b"[DONE]") == 1
    return [json.loads(event[6:]) for event in events.split(b"\n\n")[:-2]]


_BODIES = st.one_of(
    st.builds(
        lambda text, n, seed: (CHAT, {"messages": [{"role": "user", "content": text}], "n": n, "seed": seed}),
        st.text(),
        st.integers(2, 9),
        st.integers(-9, 2**40),
    ),
    st.builds(
        lambda prompt, n, seed: (TEXT, {"prompt": prompt, "n": n, "seed": seed}),
        st.one_of(
            st.lists(st.text(), min_size=2, max_size=5),
            st.lists(st.lists(st.integers(0, 9), min_size=1), min_size=2, max_size=5),
        ),
        st.integers(1, 4),
        st.integers(0, 9),
    ),
    st.builds(lambda text, n: (TEXT, {"prompt": text, "n": n, "seed": 3}), st.text(), st.integers(2, 4)),
    st.builds(
        lambda n, seed: (TOKENS, {"token_ids": [1, 2], "sampling_params": {"n": n, "seed": seed, "top_k": 3}}),
        st.integers(2, 5),
        st.integers(0, 9),
    ),
    st.builds(
        lambda texts: (CONVERSATIONS, {"messages": [[{"role": "user", "content": text}] for text in texts], "seed": 1}),
        st.lists(st.text(), min_size=2, max_size=4),
    ),
)


@settings(max_examples=60, deadline=None)
@given(_BODIES, st.integers(0, 2**32))
def test_a_whole_answer_is_the_same_in_portions_whichever_ends_first(asked: tuple[str, Any], order: int) -> None:
    path, body = asked
    parted = portions_of(path, json.dumps(body).encode())
    assert parted is not None
    body_of, portions = parted
    merged = MergedAnswer()
    answers = [(portion, _whole(path, json.loads(body_of(portion)), f"p{portion.choice}")) for portion in portions]
    assert all(len(answer["choices"]) == 1 for _, answer in answers), "a portion is one sequence"
    random.Random(order).shuffle(answers)
    for portion, answer in answers:
        merged.add(portion, json.dumps(answer).encode())
    assert json.loads(merged.whole()) == _whole(path, body, "p0")


@settings(max_examples=60, deadline=None)
@given(
    _BODIES,
    st.sampled_from([{}, {"include_usage": True}, {"include_usage": True, "continuous_usage_stats": True}]),
    st.integers(0, 2**32),
)
def test_a_stream_is_the_same_in_portions_in_any_order(asked: tuple[str, Any], options: Any, order: int) -> None:
    path, body = asked
    body = {**body, "stream_options": options}
    parted = portions_of(path, json.dumps(body).encode())
    assert parted is not None
    body_of, portions = parted
    chance, merged = random.Random(order), MergedAnswer()
    streams = {portion: list(_stream(path, json.loads(body_of(portion)))) for portion in portions}
    said = b""
    while streams:
        portion = chance.choice(list(streams))
        count = chance.randint(1, 3)
        said += merged.events(portion, b"".join(streams[portion][:count]))
        streams[portion] = streams[portion][count:]
        streams = {one: rest for one, rest in streams.items() if rest}
    found, wanted = _parsed(said + merged.last_events()), _parsed(b"".join(_stream(path, body)))
    texts = [
        {
            index: "".join(one["text"] for event in events for one in event["choices"] if one["index"] == index)
            for index, _, _ in _sequences(path, body)
        }
        for events in (found, wanted)
    ]
    assert texts[0] == texts[1]
    assert len({event["id"] for event in found}) == 1
    assert found[-1].get("usage") == wanted[-1].get("usage")
    assert all(("usage" in event) == ("usage" in wanted[0]) for event in found[:-1])


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, {"n": 4, "use_beam_search": True}),
        (CHAT, {"n": 1}),
        (TEXT, {"prompt": ["a"]}),
        (CHAT, {"n": 4, "temperature": 0}),
        (CHAT, {"n": 4, "seed": 2**63 - 2}),
        (TEXT, {"prompt_embeds": ["x", "y"]}),
        ("/v1/embeddings", {"input": ["a", "b"]}),
        ("/v1/responses", {"n": 3}),
    ],
)
def test_what_can_not_be_parted_is_left_to_the_engine(path: str, fields: dict[str, Any]) -> None:
    assert portions_of(path, json.dumps({"model": "m", **fields}).encode()) is None


def test_a_large_body_is_not_parted_since_others_wait_while_it_is_read() -> None:
    body = {"model": "m", "prompt": "x", "n": 128, "metadata": "x" * MOST_BYTES}
    assert portions_of(TEXT, json.dumps(body).encode()) is None
    assert portions_of(TEXT, json.dumps({**body, "metadata": "x"}).encode()) is not None


def test_the_error_of_a_portion_ends_the_stream() -> None:
    parted = portions_of(CHAT, b'{"n": 2}')
    assert parted is not None
    merged, (first, second) = MergedAnswer(), parted[1]
    assert merged.events(first, _event({"choices": [{"index": 0}]}))
    assert not merged.has_failed
    error = _event({"error": {"message": "no memory"}})
    assert merged.events(second, error) == error
    assert merged.has_failed and merged.last_events() == b""
