"""What the browser keeps, what the API is sent, and what is shown of it."""

from __future__ import annotations

import re

import pytest

from qserve.ui.chat.conversation import Answer, Conversation, split_thinking
from qserve.ui.chat.transcript import messages_of, new_drafts, turn_of

DONE = {"finish_reason": "stop", "model": "m"}


def talk(*pairs: tuple[str, str]) -> Conversation:
    conversation = Conversation(system="Be brief.")
    for question, answer in pairs:
        conversation = conversation.asked(question, 1).answered([[Answer(content=answer, **DONE)]])
    return conversation


def shown(conversation: Conversation, side: int = 0, language: str = "en") -> list[str]:
    return [
        " ".join(part["text"] for part in message["content"]) for message in messages_of(conversation, side, language)
    ]


@pytest.mark.parametrize(
    ("content", "thinking", "answer"),
    [
        ("42", "", "42"),
        ("<think>\nadd\n</think>\n\n42", "add", "42"),
        ("<think>still at it", "still at it", ""),
        ("the template opened it\n</think>\n42", "the template opened it", "42"),
        ("use the <think> tag", "", "use the <think> tag"),
        ("  indented", "", "  indented"),
    ],
)
def test_thinking_is_told_from_the_answer(content: str, thinking: str, answer: str) -> None:
    assert split_thinking(content) == (thinking, answer)


def test_json_gives_the_same_conversation_back() -> None:
    conversation = talk(("你好 👋", "<think>x</think>42")).asked("again", 2)
    assert Conversation.from_json(conversation.to_json()) == conversation
    assert conversation.to_json()["title"] == "你好 👋"


@pytest.mark.parametrize(
    "data", [None, "", {}, {"version": 2}, {"version": 1, "turns": 3}, {"version": 1, "turns": [{}]}]
)
def test_anything_else_is_a_new_conversation(data: object) -> None:
    assert Conversation.from_json(data).turns == ()


def test_the_api_is_sent_answers_without_thinking_and_none_that_failed() -> None:
    conversation = talk(("a", "<think>x</think>b")).asked("c", 1).answered([[Answer(error="broken")]])
    assert conversation.messages(0) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
    ]


def test_each_side_goes_on_from_its_own_first_answer() -> None:
    conversation = (
        Conversation().asked("a", 2).answered([[Answer(content="l"), Answer(content="no")], [Answer(content="r")]])
    )
    assert [conversation.messages(side)[-1]["content"] for side in (0, 1)] == ["l", "r"]


def test_stopped_marks_what_was_not_finished() -> None:
    conversation = Conversation().asked("a", 1).answered([[Answer(content="l"), Answer(content="x", **DONE)]]).stopped()
    assert [one.finish_reason for one in conversation.turns[0].sides[0]] == ["stopped", "stop"]


def test_a_message_knows_its_turn() -> None:
    conversation = talk(("a", "1"), ("b", "2")).asked("c", 1)
    assert [turn_of(conversation, 0, index) for index in range(5)] == [0, 0, 1, 1, 2]
    assert [turn_of(conversation, 1, index) for index in range(5)] == [0, 0, 1, 1, 2]


@pytest.mark.parametrize("side", [0, 1])
def test_a_second_side_shows_what_it_continues_from(side: int) -> None:
    """Switched on, off and on again in the middle: on no side are two questions next to each other."""
    one, two = [[Answer(content="l", **DONE)]], [[Answer(content="L", **DONE)], [Answer(content="R", **DONE)]]
    failed = [[Answer(error="broken", finish_reason="error")]]
    conversation = Conversation()
    for answers in (one, two, failed, one, two):
        conversation = conversation.asked("q", len(answers)).answered(answers)
    messages = messages_of(conversation, side, "en")
    assert [message["role"] for message in messages] == ["user", "assistant"] * 5
    shown = ["".join(part["text"] for part in message["content"]) for message in messages[1::2]]
    assert [f">{text}<" in told for text, told in zip(("l", "LR"[side], "broken", "l", "LR"[side]), shown, strict=True)]
    assert [one["content"] for one in conversation.messages(side) if one["role"] == "assistant"] == [
        "l",
        "LR"[side],
        "l",
        "LR"[side],
    ]
    copied = [re.findall(r"qs-of-[\d-]+", told) for told in shown]
    assert copied == [["qs-of-0-0-0"], [f"qs-of-1-{side}-0"], [], ["qs-of-3-0-0"], [f"qs-of-4-{side}-0"]]


def test_a_question_that_was_stopped_before_a_word_is_no_part_of_the_next() -> None:
    conversation = Conversation().asked("a", 2).stopped().asked("b", 1)
    assert [message["role"] for message in messages_of(conversation, 0, "en")] == ["user", "assistant", "user"]


@pytest.mark.parametrize(
    ("temperature", "told"),
    [
        (None, "All 4 answers are identical. Set a higher temperature"),
        (0.7, "All 4 answers are identical at temperature 0.7. Set a higher one"),
        (0.0, "at temperature 0 the model always picks the likeliest token. Set a higher"),
    ],
)
def test_answers_that_are_all_the_same_are_one_with_the_reason(temperature: float | None, told: str) -> None:
    answers = [Answer(content="42", reward=1.0, temperature=temperature, **DONE)] * 4
    answer = shown(Conversation().asked("q", 1).answered([answers]))[1]
    assert "<details" not in answer and "best of 4" in answer and told in answer


def test_answers_that_say_the_same_are_folded_once() -> None:
    answers = [Answer(content=text, reward=3.0 - i, **DONE) for i, text in enumerate(("a", "a", "b", "b", "c"))]
    answer = shown(Conversation().asked("q", 1).answered([answers]))[1]
    head, *folded = answer.split("<details")
    assert "2 identical" in head and "Set a" not in answer
    assert [one.split("</summary>")[0].split("<summary>")[1] for one in folded] == [
        "#3 of 5 · reward 1.000 · 2 identical",
        "#5 of 5 · reward -1.000",
    ]


def test_answers_that_fail_alike_are_one_failure() -> None:
    answers = [Answer(error="no", finish_reason="error")] * 3
    answer = shown(Conversation().asked("q", 1).answered([answers]))[1]
    assert answer.count("qs-retry") == 1 and "identical" not in answer and "qs-other" not in answer


def test_answers_that_grow_are_not_compared() -> None:
    whole, growing = Answer(content="4", **DONE), Answer(content="4")
    answer = shown(Conversation().asked("q", 1).answered([[whole, whole, growing]]))[1]
    assert answer.count("<details") == 2


def test_the_best_is_shown_and_the_others_are_folded_with_their_rewards() -> None:
    answers = [Answer(content=text, reward=reward, **DONE) for text, reward in (("good", 1.5), ("bad", -2.0))]
    answer = shown(Conversation().asked("q", 1).answered([answers]))[1]
    head, folded = answer.split("<details")
    assert "good" in head and "reward 1.500" in head and "best of 2" in head
    assert "bad" in folded and "#2 of 2 · reward -2.000" in folded


def test_an_open_fence_swallows_nothing_that_is_folded() -> None:
    thinking = shown(Conversation().asked("q", 1).answered([[Answer(content="<think>```py\nx")]]))[1]
    assert "<code>x</code></pre></div></div></details>" in thinking
    assert '<details class="qs-thought" open>' in thinking and "Thinking …" in thinking


def test_what_is_drawn_of_a_growing_answer_is_what_is_drawn_of_the_whole() -> None:
    text = "# Title\n\nSome *words*.\n\n- a\n- b\n\n```py\nx = 1\n\ny\n```\n\n$x$ end"
    drafts = new_drafts()
    for length in range(len(text) + 1):
        growing = Conversation().asked("q", 1).answered([[Answer(content=text[:length])]])
        drawn = messages_of(growing, 0, "en", drafts)[1]["content"][0]["text"]
    whole = Conversation().asked("q", 1).answered([[Answer(content=text, **DONE)]])
    assert drawn == messages_of(whole, 0, "en")[1]["content"][0]["text"]


def test_an_answer_that_was_continued_may_be_the_best_no_longer() -> None:
    answers = [Answer(content=text, reward=reward, **DONE) for text, reward in (("first", 0.5), ("other", 2.0))]
    assert "best of 2" not in shown(Conversation().asked("q", 1).answered([answers]))[1]


def test_what_a_user_writes_is_no_html() -> None:
    first = shown(Conversation().asked("<b>x</b> `<i>`\n```\n<u>\n```", 1))[0]
    assert "&lt;b&gt;x&lt;/b&gt;" in first and "<code>&lt;i&gt;</code>" in first and "&lt;u&gt;" in first
    assert not {"<b>", "<i>", "<u>"} & set(re.findall("<[^>]*>", first))


def test_an_error_is_told_and_escaped() -> None:
    answer = shown(Conversation().asked("q", 1).answered([[Answer(error="<b>no</b>", finish_reason="error")]]))[1]
    assert "&lt;b&gt;no&lt;/b&gt;" in answer and "qs-copy" not in answer


def test_what_came_before_an_error_is_kept_and_can_be_continued() -> None:
    broken = Answer(content="1, 2", error="gone", error_code="broken", finish_reason="error")
    english, chinese = (
        shown(Conversation().asked("q", 1).answered([[broken]]), language=language)[1] for language in ("en", "zh-CN")
    )
    assert "1, 2" in english and "What had arrived is kept." in english and "gone" not in english
    assert "qs-retry" in english and "qs-write-on" in english and "已收到的内容会保留" in chinese


def test_figures_speak_the_readers_language() -> None:
    answer = Answer(content="x", ttft_ms=12.4, tokens_per_s=30.04, prompt_tokens=3, completion_tokens=5, **DONE)
    conversation = Conversation().asked("q", 1).answered([[answer]])
    assert "30.0 tokens/s" in shown(conversation)[1] and "first token after 12 ms" in shown(conversation)[1]
    assert "首词元 12 毫秒" in shown(conversation, language="zh-CN")[1]
