"""The traps between a client's messages and the tokens of training."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from qserve.demo import chat_model_path
from qserve.errors import UsageError
from qserve.reward.checkpoints import recognise
from qserve.reward.failures import TextRefused
from qserve.reward.items import ScoreItem
from qserve.reward.scoring.template import RewardTemplate
from qserve.reward.settings import RewardSettings
from qserve.wire.errors import from_failure
from tests.tiny.reward.conftest import Opener

CONVERSATION = [{"role": "user", "content": "What is 1+1?"}, {"role": "assistant", "content": "2"}]
# What matters of Qwen3's own template: an empty think block before the last answer, a line break after it.
QWEN3 = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if loop.last and m.role == 'assistant' %}<think>\n\n</think>\n\n{% endif %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}"
)


def template_over(path: Path, tokenizer: Any = None, max_length: int = 512, **settings: Any) -> RewardTemplate:
    given = RewardSettings(**settings)
    checkpoint = recognise(path, given)
    return RewardTemplate(
        tokenizer or AutoTokenizer.from_pretrained(checkpoint.tokenizer), checkpoint, given, max_length
    )


@pytest.fixture(scope="module")
def model(made: Callable[[str], Path]) -> Path:
    return made("sequence-classification")


def test_messages_become_the_tokens_of_trl_s_trainer(model: Path) -> None:
    """RewardTrainer tokenizes a conversation by the chat template as it is, the line break at its end included."""
    tokenizer = AutoTokenizer.from_pretrained(chat_model_path())
    meant = tokenizer.apply_chat_template(CONVERSATION, tokenize=True, return_dict=True)["input_ids"]
    assert template_over(model).encode(CONVERSATION).token_ids == meant
    assert tokenizer.decode(meant[-2:]) == "<|im_end|>\n"


def test_qwen3_s_template_is_kept_with_its_think_block_and_its_line_break(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "template.jinja"
    file.write_text(QWEN3)
    template = template_over(model, template=str(file))
    text = template.render(CONVERSATION)
    assert text.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n2<|im_end|>\n")
    assert template.template_hash == hashlib.sha256(QWEN3.encode()).hexdigest()[:16]
    assert template.template_hash != template_over(model).template_hash


def test_text_that_was_templated_already_has_the_same_tokens(model: Path) -> None:
    template = template_over(model)
    assert template.encode(template.render(CONVERSATION)) == template.encode(CONVERSATION)


def test_token_ids_are_taken_as_they_are(model: Path) -> None:
    assert template_over(model).encode([5, 6, 7]).token_ids == [5, 6, 7]


def bos_tokenizer() -> Any:
    """A tokenizer that adds BOS, under a template that writes it too."""
    tokenizer = Tokenizer(models.WordLevel({"<s>": 0, "</s>": 1, "a": 2, "b": 3, "[UNK]": 4}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    template = "{{ bos_token }}{% for m in messages %}{{ m.content }} {% endfor %}"
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", chat_template=template
    )


def test_bos_is_not_doubled(model: Path) -> None:
    template = template_over(model, bos_tokenizer())
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    assert template.encode(messages).token_ids == [0, 2, 3]
    assert template.encode("<s>a b").token_ids == [0, 2, 3]
    assert template.encode("a b").token_ids == [0, 2, 3]


def test_openrlhf_ends_every_text_with_eos(made: Callable[[str], Path]) -> None:
    template = template_over(made("openrlhf"), max_length=8, truncate="right")
    eos = AutoTokenizer.from_pretrained(chat_model_path()).eos_token_id
    assert template.encode("1+1").token_ids[-1] == eos
    assert template.encode("1+1<|im_end|>\n").token_ids == template.encode("1+1").token_ids
    whole = template_over(made("openrlhf")).encode(CONVERSATION).token_ids
    assert (whole[-1], whole.count(eos)) == (eos, 2)
    cut = template.encode("What is 12 and 30 and 40 and 50 and 60?")
    assert (len(cut.token_ids), cut.token_ids[-1], cut.truncated) == (8, eos, True)


def test_truncation_is_chosen_and_told(model: Path) -> None:
    ids = list(range(10, 30))
    left, right = (template_over(model, max_length=8, truncate=side).encode(ids) for side in ("left", "right"))
    assert (left.token_ids, left.truncated) == (ids[-8:], True)
    assert (right.token_ids, right.truncated) == (ids[:8], True)
    refusing = template_over(model, max_length=8)
    with pytest.raises(TextRefused, match=r"is 8 tokens\. However, your text has 20 tokens") as caught:
        refusing.encode(ids)
    assert caught.value.code == "context_length_exceeded"
    assert refusing.encode(ids, truncate="left").token_ids == ids[-8:]
    assert refusing.encode(ids, truncate="left", max_length=5).token_ids == ids[-5:]
    assert not refusing.encode(ids[:8]).truncated


BAD: dict[str, tuple[Any, str]] = {
    "an empty text": ("", "the text is empty"),
    "no ids": ([], "the text is empty"),
    "an id outside the vocabulary": ([1, 10_000_000], "the token id 10000000, which has no row"),
    "a negative id": ([-1], "-1 is not a token id"),
    "a truth value": ([True], "True is not a token id"),
    "a role that is none": ([{"role": "judge", "content": "a"}], r"messages\[0\] has the role 'judge'"),
    "no role": ([{"content": "a"}], "has the role None"),
}


@pytest.mark.parametrize("what", BAD)
def test_what_can_t_be_encoded_is_a_400(what: str, model: Path) -> None:
    content, message = BAD[what]
    with pytest.raises(TextRefused, match=message) as caught:
        template_over(model).encode(content)
    assert from_failure(caught.value.code, "").status == 400


def test_without_a_template_messages_are_refused_and_text_is_scored(model: Path, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(chat_model_path())
    tokenizer.chat_template = None
    template = template_over(model, tokenizer)
    with pytest.raises(TextRefused, match=r"has no chat template.*--template FILE"):
        template.encode(CONVERSATION)
    assert template.encode("1+1").token_ids
    with pytest.raises(UsageError, match=r"--template .* can't be read"):
        template_over(model, template=str(tmp_path / "nowhere.jinja"))


def test_conversations_with_tools_have_a_template_of_their_own(model: Path) -> None:
    """As TRL renders them: transformers takes `tool_use` among named ones."""
    tokenizer = AutoTokenizer.from_pretrained(chat_model_path())
    tokenizer.chat_template = {"default": "plain", "tool_use": "{{ tools[0].function.name }}"}
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    template = template_over(model, tokenizer)
    assert (template.render(CONVERSATION), template.render(CONVERSATION, {"tools": tools})) == ("plain", "f")
    meant = tokenizer.apply_chat_template(CONVERSATION, tools=tools, tokenize=False)
    assert template.render(CONVERSATION, {"tools": tools}) == meant


def test_pooling_is_a_setting_that_is_recorded(opened: Opener) -> None:
    by_name = {
        name: opened("sequence-classification", **settings)
        for name, settings in {
            "not-pad": {},
            "last": {"pooling": "last"},
            "eos": {"pooling": "eos"},
            "position -2": {"pooling": "position", "position": -2},
            "mean": {"pooling": "mean"},
        }.items()
    }
    ids = by_name["last"].template.encode(CONVERSATION).token_ids
    scores = {name: scorer.score_now([ScoreItem(ids)])[0] for name, scorer in by_name.items()}
    assert [scorer.meta["pooling"] for scorer in by_name.values()] == list(by_name)
    assert scores["last"].position == len(ids) - 1
    assert scores["eos"].position == scores["position -2"].position == len(ids) - 2
    assert scores["eos"].reward == pytest.approx(scores["position -2"].reward, abs=1e-6)
    assert scores["mean"].position == -1
    assert len({round(score.reward, 4) for score in scores.values()}) == 3
    with pytest.raises(TextRefused, match="no end-of-sequence token"):
        by_name["eos"].score_now([ScoreItem([5, 6])])
    with pytest.raises(TextRefused, match="position 9 is outside the text, which has 2 tokens"):
        by_name["last"].score_now([ScoreItem([5, 6], positions=(9,))])


def test_positions_of_a_request_give_its_steps(opened: Opener) -> None:
    scorer = opened("sequence-classification")
    ids = scorer.template.encode(CONVERSATION).token_ids
    (score,) = scorer.score_now([ScoreItem(ids, positions=(3, -1))])
    (short,) = scorer.score_now([ScoreItem(ids[:4])])
    (whole,) = scorer.score_now([ScoreItem(ids)])
    assert score.steps == pytest.approx((short.reward, whole.reward), abs=1e-5)
    assert score.reward == score.steps[1]


def test_meta_is_plain_json(opened: Opener) -> None:
    meta = opened("openrlhf").meta
    assert json.loads(json.dumps(meta)) == meta
    assert (meta["mean"], meta["std"]) == (0.25, 1.5)
