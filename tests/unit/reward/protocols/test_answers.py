"""What each client sends, as its source writes it, to the texts that are scored, and the scores in its words again."""

from __future__ import annotations

import base64
import json
import math
import struct

import pytest

from qserve.reward.items import Score
from qserve.reward.protocols.job import ModelInfo, Scored
from qserve.reward.protocols.table import PROTOCOLS
from qserve.wire.errors import ApiError

ABOUT = ModelInfo("rm", {"template_hash": "abc", "mean": 1.0, "std": 2.0})
PRM = ModelInfo("prm", {"step_token": "<extra_0>"})
QUESTION = [{"role": "user", "content": "2+2?"}]
USAGE = {"prompt_tokens": 20, "completion_tokens": 0, "total_tokens": 20}


def asked(path, body, about=ABOUT):
    """(texts, tell): what is scored, and the answer for rewards."""
    protocol = PROTOCOLS[path]
    job = protocol.job(protocol.schema.model_validate_json(json.dumps(body)), about)

    def tell(*rewards, steps=None):
        each = [Score(value, steps, 10, False, 9) for value in rewards]
        answer = job.answer(Scored(each, about.model, {"truncated": 0}, 1.5, 1700000000))
        return json.loads(json.dumps(answer))

    return [text.content for text in job.texts], tell, job


def turns(prompt, answer):
    return ({"role": "user", "content": prompt}, {"role": "assistant", "content": answer})


def sigmoid(value):
    return 1 / (1 + math.exp(-value))


def test_conversations():
    body = {"model": "rm", "conversations": [[*QUESTION, {"role": "assistant", "content": "4"}]]}
    texts, tell, _ = asked("/v1/reward", body)
    assert texts == [turns("2+2?", "4")]
    answer = tell(0.5)
    assert answer["data"] == [{"index": 0, "reward": 0.5, "num_tokens": 10, "truncated": False, "position": 9}]
    assert (answer["object"], answer["model"], answer["latency_ms"]) == ("list", "rm", 1.5)
    assert answer["usage"] == {"prompt_tokens": 10, "completion_tokens": 0, "total_tokens": 10}
    assert answer["meta"] == {"truncated": 0}
    assert not {"ranking", "pairs"} & set(answer)


def test_answers_to_one_prompt_are_ranked():
    texts, tell, _ = asked("/v1/reward", {"prompt": "2+2?", "responses": ["5", "4", "four"]})
    assert texts == [turns("2+2?", "5"), turns("2+2?", "4"), turns("2+2?", "four")]
    assert tell(-1.0, 2.0, 0.5)["ranking"] == [1, 2, 0]
    assert tell(1.0, 1.0, 1.0)["ranking"] == [0, 1, 2]


def test_a_prompt_may_be_a_conversation():
    prompt = [{"role": "system", "content": "Be brief."}, *QUESTION]
    texts, _, _ = asked("/v1/reward", {"prompt": prompt, "responses": ["4"]})
    assert [message["role"] for message in texts[0]] == ["system", "user", "assistant"]


def test_texts_and_token_ids_go_as_they_are():
    assert asked("/v1/reward", {"texts": ["<|im_start|>a"]})[0] == ["<|im_start|>a"]
    assert asked("/v1/reward", {"token_ids": [[1, 2], [3]]})[0] == [(1, 2), (3,)]


def test_pairs_have_a_margin_and_a_probability():
    pairs = [{"prompt": "2+2?", "chosen": "4", "rejected": "5"}]
    texts, tell, _ = asked("/v1/reward", {"pairs": pairs})
    assert texts == [turns("2+2?", "4"), turns("2+2?", "5")]
    (pair,) = tell(3.0, 1.0)["pairs"]
    assert pair == {
        "index": 0,
        "chosen_reward": 3.0,
        "rejected_reward": 1.0,
        "margin": 2.0,
        "probability": pytest.approx(sigmoid(2)),
    }


def test_pairs_as_preference_data_sets_have_them():
    chosen, rejected = (
        [*QUESTION, {"role": "assistant", "content": "4"}],
        [*QUESTION, {"role": "assistant", "content": "5"}],
    )
    assert asked("/v1/reward", {"pairs": [{"chosen": chosen, "rejected": rejected}]})[0] == [
        turns("2+2?", "4"),
        turns("2+2?", "5"),
    ]
    short = {"prompt": QUESTION, "chosen": chosen[1:], "rejected": rejected[1:]}
    assert asked("/v1/reward", {"pairs": [short]})[0] == [turns("2+2?", "4"), turns("2+2?", "5")]


def test_steps_are_ended_by_the_model_s_token():
    texts, tell, _ = asked("/v1/reward", {"prompt": "2+2?", "responses": [["First.", "Then."]]}, PRM)
    assert texts == [turns("2+2?", "First.<extra_0>Then.<extra_0>")]
    row = tell(0.75, steps=(0.25, 0.75))["data"][0]
    assert (row["reward"], row["steps"]) == (0.75, [0.25, 0.75])


def test_normalization_by_the_checkpoint_or_by_hand():
    by_checkpoint = {"texts": ["a"], "normalize": True}
    assert asked("/v1/reward", by_checkpoint)[1](5.0)["data"][0]["reward"] == 2.0
    by_hand = {"texts": ["a"], "normalize": {"mean": 0, "std": 10}}
    assert asked("/v1/reward", by_hand)[1](5.0)["data"][0]["reward"] == 0.5
    pair = {"pairs": [{"prompt": "q", "chosen": "a", "rejected": "b"}], "normalize": True}
    (row,) = asked("/v1/reward", pair)[1](5.0, 1.0)["pairs"]
    assert row["margin"] == 2.0
    assert row["probability"] == pytest.approx(sigmoid(4)), "of the rewards as the head gives them"


def test_native_limits_reach_the_job():
    job = asked("/v1/reward", {"texts": ["a"], "truncate": "left", "max_length": 7})[2]
    assert (job.truncate, job.max_length) == ("left", 7)


def test_openrlhf():
    """utils/remote_rm_utils.py: request_api_wrapper(url, {"query": …, "prompts": …, "labels": …})."""
    texts, tell, _ = asked("/get_reward", {"query": ["a", "b"], "prompts": ["", ""], "labels": ["4", None]})
    answer = tell(1.0, -2.0)
    assert texts == ["a", "b"]
    assert answer["rewards"] == answer["scores"] == [1.0, -2.0]
    assert answer["extra_logs"] == {"reward_tokens": [10, 10]}


@pytest.mark.parametrize(
    ("given", "texts"), [("a", ["a"]), (["a", "b"], ["a", "b"]), ([1, 2], [(1, 2)]), ([[1, 2], [3]], [(1, 2), (3,)])]
)
def test_vllm_classify_takes_every_kind_of_input(given, texts):
    assert asked("/classify", {"model": "rm", "input": given})[0] == texts


def test_vllm_classify():
    _, tell, _ = asked("/classify", {"model": "rm", "input": ["a", "b"]})
    answer = tell(2.0, -3.0)
    assert answer["data"][0] == {"index": 0, "label": "LABEL_0", "probs": [pytest.approx(sigmoid(2))], "num_classes": 1}
    assert answer["usage"] == USAGE
    assert answer["object"] == "list"


@pytest.mark.parametrize("field", ["use_activation", "activation"])
def test_verl_on_vllm_reads_the_raw_reward(field):
    """experimental/reward_loop/reward_loop.py; `activation` is what verl sent up to 0.7."""
    body = {"model": "rm", "input": "text", field: False, "add_special_tokens": False}
    assert asked("/classify", body)[1](2.5)["data"][-1]["probs"][-1] == 2.5


def test_verl_on_sglang_reads_an_embedding():
    assert asked("/v1/embeddings", {"model": "rm", "input": "t"})[1](2.5)["data"][-1]["embedding"][-1] == 2.5


def test_openai_s_client_asks_for_base64():
    answer = asked("/v1/embeddings", {"model": "rm", "input": ["t"], "encoding_format": "base64"})[1](2.5)
    assert struct.unpack("<f", base64.b64decode(answer["data"][0]["embedding"])) == (2.5,)


def test_vllm_classify_of_messages():
    body = {"model": "rm", "messages": [*QUESTION, {"role": "assistant", "content": "4"}]}
    assert asked("/classify", body)[0] == [turns("2+2?", "4")]


def test_vllm_truncation():
    job = asked("/classify", {"input": "a", "truncate_prompt_tokens": 5, "truncation_side": "left"})[2]
    assert (job.truncate, job.max_length) == ("left", 5)
    job = asked("/classify", {"input": "a", "truncate_prompt_tokens": -1})[2]
    assert (job.truncate, job.max_length) == ("right", None)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/classify", {"input": "a"}),
        ("/pooling", {"model": "rm", "input": "a"}),
        ("/score", {"text_1": "a", "text_2": ["b"]}),
        ("/rerank", {"query": "a", "documents": ["b"]}),
    ],
)
def test_no_more_can_be_kept_than_the_model_reads(path, body):
    about = ModelInfo("rm", {"max_length": 512})
    for kept, length in ((-1, None), (1, 1), (512, 512)):
        assert asked(path, {**body, "truncate_prompt_tokens": kept}, about)[2].max_length == length
    for kept in (513, 10**9):
        with pytest.raises(ApiError, match=rf"is {kept}, but this model reads at most 512 tokens") as refused:
            asked(path, {**body, "truncate_prompt_tokens": kept}, about)
        assert (refused.value.status, refused.value.param) == (400, "truncate_prompt_tokens")
    asked(path, {**body, "truncate_prompt_tokens": 513})  # rules and judges read what they are given


def test_vllm_pooling_of_the_text_and_of_each_token():
    _, tell, job = asked("/pooling", {"model": "rm", "input": "a", "use_activation": False})
    assert tell(2.0)["data"] == [{"index": 0, "object": "pooling", "data": [2.0]}]
    assert not job.texts[0].every_token
    body = {"model": "rm", "input": "a", "task": "token_classify", "use_activation": False}
    _, tell, job = asked("/pooling", body)
    assert tell(2.0, steps=(1.0, 2.0))["data"][0]["data"] == [[1.0], [2.0]]
    assert job.texts[0].every_token


@pytest.mark.parametrize(
    "names", [("queries", "documents"), ("queries", "items"), ("text_1", "text_2"), ("data_1", "data_2")]
)
@pytest.mark.parametrize("path", ["/score", "/v1/score"])
def test_vllm_score(path, names):
    texts, tell, _ = asked(path, {"model": "rm", names[0]: "q", names[1]: ["a", "b"], "use_activation": False})
    assert texts == [turns("q", "a"), turns("q", "b")]
    assert [row["score"] for row in tell(1.0, 2.0)["data"]] == [1.0, 2.0]


def test_vllm_score_of_one_query_each():
    texts, _, _ = asked("/score", {"queries": ["p", "q"], "documents": ["a", "b"]})
    assert texts == [turns("p", "a"), turns("q", "b")]


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_vllm_rerank(path):
    texts, tell, _ = asked(path, {"model": "rm", "query": "q", "documents": ["a", "b", "c"], "top_n": 2})
    assert texts == [turns("q", "a"), turns("q", "b"), turns("q", "c")]
    answer = tell(1.0, 800.0, 900.0)
    assert [row["index"] for row in answer["results"]] == [2, 1], "sigmoid of both is 1.0; the order is the rewards'"
    assert answer["results"][0] == {"index": 2, "document": {"text": "c"}, "relevance_score": 1.0}
    assert answer["usage"] == {"prompt_tokens": 30, "total_tokens": 30}


def test_sglang_classify():
    """The native endpoint: a list for a list, one object for one text."""
    texts, tell, _ = asked("/classify", {"model": "rm", "text": ["a", "b"]})
    assert texts == ["a", "b"]
    answer = tell(1.5, 2.5)
    assert [one["embedding"][0] for one in answer] == [1.5, 2.5]
    assert answer[0]["meta_info"]["prompt_tokens"] == 10
    assert answer[0]["meta_info"]["e2e_latency"] == 0.0015
    single = asked("/classify", {"text": "a", "rid": "mine"})[1](1.5)
    assert (single["embedding"], single["meta_info"]["id"]) == ([1.5], "mine")
    assert asked("/classify", {"input_ids": [[1, 2]]})[0] == [(1, 2)]
    assert isinstance(asked("/classify", {"input_ids": [1, 2]})[1](1.5), dict)


def test_tei_predict():
    """router/src/http/types.rs: a string, a pair, or a batch of lists of one or two strings."""
    texts, tell, job = asked("/predict", {"inputs": "a"})
    assert (texts, tell(2.0)) == (["a"], [{"score": pytest.approx(sigmoid(2)), "label": "LABEL_0"}])
    assert job.truncate is None
    texts, tell, _ = asked("/predict", {"inputs": ["q", "a"], "raw_scores": True})
    assert (texts, tell(2.0)) == ([turns("q", "a")], [{"score": 2.0, "label": "LABEL_0"}])
    texts, tell, job = asked("/predict", {"inputs": [["a"], ["q", "b"]], "raw_scores": True, "truncate": True})
    assert texts == ["a", turns("q", "b")]
    assert tell(1.0, 2.0) == [[{"score": 1.0, "label": "LABEL_0"}], [{"score": 2.0, "label": "LABEL_0"}]]
    assert job.truncate == "right"


def test_tei_rerank():
    texts, tell, _ = asked("/rerank", {"query": "q", "texts": ["a", "b"], "raw_scores": True, "return_text": True})
    assert texts == [turns("q", "a"), turns("q", "b")]
    assert tell(1.0, 2.0) == [{"index": 1, "score": 2.0, "text": "b"}, {"index": 0, "score": 1.0, "text": "a"}]
    assert asked("/rerank", {"query": "q", "texts": ["a"]})[1](2.0) == [
        {"index": 0, "score": pytest.approx(sigmoid(2))}
    ]


def test_swift():
    body = {
        "model": "rm",
        "messages": [*QUESTION, {"role": "assistant", "content": "4"}],
        "max_tokens": 5,
        "temperature": 0,
    }
    texts, tell, _ = asked("/v1/chat/completions", body)
    assert texts == [turns("2+2?", "4")]
    answer = tell(-1.25)
    assert json.loads(answer["choices"][0]["message"]["content"]) == -1.25
    assert (answer["object"], answer["choices"][0]["finish_reason"]) == ("chat.completion", "stop")


def test_llama_factory():
    """train/ppo/ppo_utils.py: get_rewards_from_server sends the model name "model"."""
    texts, tell, job = asked("/v1/score/evaluation", {"model": "model", "messages": ["a", "b"], "max_length": 9})
    assert texts == ["a", "b"]
    assert tell(1.0, 2.0)["scores"] == [1.0, 2.0]
    assert tell(1.0, 2.0)["object"] == "score.evaluation"
    assert (job.truncate, job.max_length) == ("right", 9)


def test_a_probability_is_not_squeezed_again():
    assert asked("/classify", {"input": "a"}, PRM)[1](0.75)["data"][0]["probs"] == [0.75]
    assert asked("/predict", {"inputs": "a"}, PRM)[1](0.75)[0]["score"] == 0.75


def test_large_rewards_do_not_overflow():
    assert asked("/predict", {"inputs": [["a"], ["b"]]})[1](-1000.0, 1000.0)[0][0]["score"] == 0.0
