"""A tokenizer with tokens that the embedding has no rows for: each way in refuses them by name, and nobody else fails.

The embedding of the demo has more rows than there are tokens; what is between is used by nobody and refused by nobody.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from qserve.demo import reward_model_path
from tests.tiny.rowless import PLAIN, SPECIAL, with_rowless_tokens
from tests.tiny.serving.called_here import ended
from tests.tiny.serving.served import START_LIMIT_S, Service, run

pytest.importorskip("lm_eval", reason="lm-eval is not installed: run make setup")
# What lm-eval's packages warn of is theirs.
pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.usefixtures("offline_hub")]

ROWS = 1280
TEMPLATE = (
    "{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{%- endif %}"
)
SAID = f"the token {PLAIN!r} (id {ROWS})"
NUMBER = f"(id {ROWS + 1})"


@pytest.fixture(scope="module")
def chat(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_rowless_tokens(demo, tmp_path_factory.mktemp("rowless") / "chat")


@pytest.fixture(scope="module")
def reward(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_rowless_tokens(Path(reward_model_path()), tmp_path_factory.mktemp("rowless") / "reward")


@pytest.fixture(scope="module")
def rowless(chat: Path, reward: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    names = ("--served-model-name", "demo", "--served-reward-name", "judge")
    service = Service(("--model", str(chat), "--reward", str(reward), *names), tmp_path_factory.mktemp("served"))
    try:
        yield service.until_ready()
    finally:
        service.end()


def user(content: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": content}]


BAD = f"say {PLAIN} twice"
PAIR = [*user("1+1"), {"role": "assistant", "content": BAD}]
CHATS: dict[str, tuple[str, dict[str, Any], str]] = {
    "chat": ("/v1/chat/completions", {"messages": user(BAD)}, SAID),
    "streamed": ("/v1/chat/completions", {"messages": user(BAD), "stream": True}, SAID),
    "system": ("/v1/chat/completions", {"messages": [{"role": "system", "content": BAD}, *user("1")]}, SAID),
    "special": ("/v1/chat/completions", {"messages": user(SPECIAL), "split_special_tokens": False}, NUMBER),
    "several": ("/v1/chat/completions", {"messages": user(BAD), "n": 3, "logprobs": True}, SAID),
    "answer to go on with": (
        "/v1/chat/completions",
        {"messages": PAIR, "continue_final_message": True, "add_generation_prompt": False},
        SAID,
    ),
    "biased": ("/v1/chat/completions", {"messages": user("1"), "logit_bias": {str(ROWS): 5}}, SAID),
    "stopped": ("/v1/chat/completions", {"messages": user("1"), "stop_token_ids": [3, ROWS + 1]}, NUMBER),
    "text": ("/v1/completions", {"prompt": BAD}, SAID),
    "texts": ("/v1/completions", {"prompt": ["fine", BAD]}, SAID),
    "ids": ("/v1/completions", {"prompt": [1, 2, ROWS + 1]}, f"{SPECIAL!r} {NUMBER}"),
    "unknown id": ("/v1/completions", {"prompt": [[1], [2, 5000]]}, "token id 5000"),
    "scored": ("/v1/completions", {"prompt": BAD, "echo": True, "logprobs": 1, "max_tokens": 0}, SAID),
    "messages": ("/v1/messages", {"messages": user(BAD), "max_tokens": 5}, SAID),
    "counted": ("/v1/messages/count_tokens", {"messages": user(BAD)}, SAID),
    "responses": ("/v1/responses", {"input": BAD}, SAID),
    "instructions": ("/v1/responses", {"input": "1", "instructions": BAD}, SAID),
}
IDS = [1, 2, ROWS]
REWARDS: dict[str, tuple[str, dict[str, Any]]] = {
    "texts": ("/v1/reward", {"texts": ["fine", BAD]}),
    "conversations": ("/v1/reward", {"conversations": [PAIR]}),
    "responses": ("/v1/reward", {"prompt": "1+1", "responses": ["2", BAD]}),
    "classify": ("/classify", {"input": BAD}),
    "classify ids": ("/classify", {"input": IDS}),
    "classify messages": ("/classify", {"messages": PAIR}),
    "pooling": ("/pooling", {"input": [BAD]}),
    "pooling ids": ("/pooling", {"input": [IDS]}),
    "score": ("/score", {"text_1": "a", "text_2": [BAD, "b"]}),
    "rerank": ("/rerank", {"query": "a", "documents": ["b", BAD]}),
    "get_reward": ("/get_reward", {"query": [BAD], "prompts": ["a"], "labels": [""]}),
    "swift": ("/v1/chat/completions", {"messages": PAIR}),
}


@pytest.mark.parametrize("name", CHATS)
def test_each_way_into_the_chat_model_names_the_token(rowless: Service, name: str) -> None:
    path, body, said = CHATS[name]
    reply = rowless.post(path, **body)
    assert reply.status_code == 400, reply.text
    assert said in reply.json()["error"]["message"]
    assert f"ids end at {ROWS - 1}" in reply.json()["error"]["message"]


@pytest.mark.parametrize("name", REWARDS)
def test_each_way_into_the_reward_model_names_the_token(rowless: Service, name: str) -> None:
    path, body = REWARDS[name]
    reply = rowless.post(path, **{**body, "model": "judge"})
    assert reply.status_code == 400, reply.text
    assert SAID in reply.text.replace('\\"', '"')


def test_nobody_else_fails_beside_them(rowless: Service) -> None:
    def asked(number: int) -> tuple[int, str]:
        path, body, _ = list(CHATS.values())[number % len(CHATS)]
        if number % 2:
            path, body = "/v1/chat/completions", {"messages": user(f"{number}+1"), "max_tokens": 8, "temperature": 0}
        reply = rowless.post(path, **body)
        return reply.status_code, reply.text

    def scored(number: int) -> tuple[int, str]:
        path, body = list(REWARDS.values())[number % len(REWARDS)]
        if number % 2:
            path, body = "/v1/reward", {"texts": [f"{number}+1"]}
        reply = rowless.post(path, **{**body, "model": "judge"})
        return reply.status_code, reply.text

    with ThreadPoolExecutor(24) as pool:
        for of in (asked, scored):
            found = list(pool.map(of, range(48)))
            assert {status for status, _ in found[1::2]} == {200}
            assert {status for status, _ in found[::2]} == {400}
    assert rowless.is_ready()


def test_padded_rows_and_structures_stay_fine(rowless: Service) -> None:
    """An id of a padded row is no client's mistake; and a structure may spell the text that has no row."""
    assert rowless.post("/v1/completions", prompt=[1, ROWS - 1], max_tokens=2).status_code == 200
    choice = {"structured_outputs": {"choice": [PLAIN, SPECIAL]}}
    reply = rowless.post("/v1/chat/completions", messages=user("1"), **choice, max_tokens=60)
    assert reply.status_code == 200, reply.text
    assert reply.json()["choices"][0]["message"]["content"] in (PLAIN, SPECIAL)
    found = rowless.post("/tokenize", prompt=BAD).json()["tokens"]
    assert ROWS in found, "it tells which id a text has"


def test_the_start_says_so_of_both(rowless: Service) -> None:
    said = " ".join(rowless.output.split())
    assert said.count(f"2 tokens without a row in the embedding, which has {ROWS}: {PLAIN!r} (id {ROWS})") == 2, said


def test_a_template_that_writes_one_is_refused(demo: Path, tmp_path: Path) -> None:
    """Before an answer that is asked on with; the other places: tests/unit/hub/test_token_rows.py."""
    written = TEMPLATE.replace("m.role +", f"m.role + ('{PLAIN}' if m.role == 'assistant' else '') +")
    folder = with_rowless_tokens(demo, tmp_path / "chat", written)
    status, output = run("--model", str(folder), folder=tmp_path / "up")
    assert status != 0 and "Traceback" not in output
    said = " ".join(output.split())
    assert "the chat template writes" in said and "no row in the embedding" in said


@pytest.fixture(autouse=True)
def kept_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QSERVE_STATE_DIR", str(tmp_path / "state"))


def test_a_reward_model_whose_template_writes_one_is_refused(tmp_path: Path) -> None:
    written = TEMPLATE.replace("m.role +", f"m.role + ('{SPECIAL}' if m.role == 'assistant' else '') +")
    folder = with_rowless_tokens(Path(reward_model_path()), tmp_path / "reward", written)
    texts = tmp_path / "texts.jsonl"
    texts.write_text(json.dumps({"messages": [*PAIR[:1], {"role": "assistant", "content": "2"}]}) + "\n")
    served = Service(("--reward", str(folder)), tmp_path / "up")
    try:
        for status, said in (
            ended("score", str(texts), "--reward", str(folder)),
            (served.ended(limit_s=START_LIMIT_S), served.output),
        ):
            assert status != 0 and f"writes {SPECIAL!r}" in " ".join(said.split()) and "Traceback" not in said, said
    finally:
        served.process.kill()


def test_score_keeps_the_good_lines(reward: Path, tmp_path: Path) -> None:
    texts = tmp_path / "texts.jsonl"
    lines = [{"text": "fine"}, {"text": BAD}, {"messages": PAIR}, {"prompt": "1", "responses": ["2", "3"]}]
    texts.write_text("".join(json.dumps(line) + "\n" for line in lines))
    rows = tmp_path / "rows.jsonl"
    status, said = ended("score", str(texts), "--reward", str(reward), "--output", str(rows))
    assert status == 6, said
    found = [json.loads(line) for line in rows.read_text().splitlines()]
    assert ["reward" in found[0], "rewards" in found[3]] == [True, True]
    assert all(SAID in line["error"] for line in found[1:3])
    assert "2 of 4 lines could not be scored" in said and "without a row" in said


TASK = """task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {name}.jsonl}}}}
test_split: test
doc_to_text: "{{{{question}}}}"
"""
CHOICE = """output_type: multiple_choice
doc_to_choice: choices
doc_to_target: gold
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
"""
TEXT = """output_type: generate_until
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["\\n"], max_gen_toks: 8}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
"""
QUESTIONS: list[dict[str, Any]] = [
    {"question": BAD, "choices": ["1", "2"], "gold": 1, "answer": "2"},
    {"question": "two and two", "choices": ["4", "5"], "gold": 0, "answer": "4"},
    {"question": "one", "choices": ["1", "2"], "gold": 7, "answer": "1"},
    {"question": "three", "choices": ["3", f"{PLAIN} 4"], "gold": 0, "answer": "3"},
    {"question": "four", "choices": ["5", "4"], "gold": 1, "answer": "4"},
]


def _evaluated(rowless: Service, folder: Path, name: str, kind: str) -> tuple[int, dict[str, Any], str]:
    (folder / f"{name}.jsonl").write_text("\n".join(json.dumps(one) for one in QUESTIONS))
    (folder / f"{name}.yaml").write_text(TASK.format(name=name) + kind)
    where = ("--url", rowless.url, "--served-model-name", "demo", "--out", str(folder / "out"))
    status, said = ended("eval", *where, "--tasks", str(folder / f"{name}.yaml"))
    assert "Traceback" not in said, said
    return status, json.loads((folder / "out" / "result.json").read_text())["lm_eval"], said


def test_an_evaluation_leaves_refused_choices_out(rowless: Service, tmp_path: Path) -> None:
    status, found, said = _evaluated(rowless, tmp_path, "choices", CHOICE)
    assert status == 6 and "choices: 3 of 5 items can't be scored" in said
    whys = found["unscorable"]["choices"]["whys"]
    assert list(whys) == ["0", "2", "3"] and "gold 7" in whys["2"], "items by their number in the data"
    assert SAID in whys["0"] and SAID in whys["3"]
    answered = [one for one in found["samples"]["choices"] if one["filtered_resps"]]
    assert [one["doc"]["question"] for one in answered] == ["two and two", "four"]
    assert found["n-samples"]["choices"]["effective"] == 2
    assert found["results"]["choices"]["acc,none"] == sum(one["acc"] for one in answered) / 2


def test_an_evaluation_keeps_the_other_answers(rowless: Service, tmp_path: Path) -> None:
    status, found, said = _evaluated(rowless, tmp_path, "texts", TEXT)
    assert status == 6 and SAID in said and "1 null" in said
    outcomes = [one["generations"][0]["outcome"] for one in found["samples"]["texts"]]
    assert outcomes[0] == "null" and "null" not in outcomes[1:]


def test_a_load_counts_them_as_failed(rowless: Service, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps({"prompt": one}) + "\n" for one in ["fine", "1+1", BAD, "2+2"] * 3))
    load = ("--dataset", str(file), "--num-prompts", "12", "--concurrency", "3", "--output-len", "4")
    status, said = ended("bench", "--url", rowless.url, "--model", "demo", *load)
    assert status == 0 and "Traceback" not in said, said
    assert "3 failed, HTTP 400" in said and SAID in said and "9 requests in" in said, said
