"""What rules and judges read of a text that a trainer put through the chat template."""

from __future__ import annotations

import pytest

from qserve.reward.protocols.job import Text, answer_of

ASKED = "<|im_start|>user\nWhat is 1+1?<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("content", "prompt", "meant"),
    [
        (f"{ASKED}It is 2.<|im_end|>\n", None, ("What is 1+1?", "It is 2.")),
        (f"{ASKED}It is 2.<|im_end|>\n<|endoftext|>", "What is 1+1?", ("What is 1+1?", "It is 2.")),
        (f"{ASKED}It is\n\n2.", None, ("What is 1+1?", "It is\n\n2.")),
        (f"{ASKED}<think>\n\n</think>\n\n2", None, ("What is 1+1?", "2")),
        (f"{ASKED}<think>\n1 and 1\n</think>\n\n2", None, ("What is 1+1?", "<think>\n1 and 1\n</think>\n\n2")),
        (
            f"<|im_start|>system\nBe brief.<|im_end|>\n{ASKED}2<|im_end|>",
            None,
            ("system: Be brief.\n\nuser: What is 1+1?", "2"),
        ),
        (f"{ASKED}2<|im_end|>\n", ASKED, ("What is 1+1?", "2")),
        ("1+1=It is 2<|endoftext|>", "1+1=", ("1+1=", "It is 2")),
        ("no template here", None, ("", "no template here")),
        ("<|im_start|>user\nno answer<|im_end|>\n", None, ("", "<|im_start|>user\nno answer")),
    ],
)
def test_prompt_and_answer_are_told_apart(content: str, prompt: str | None, meant: tuple[str, str]) -> None:
    assert answer_of(Text(content, "texts.0", prompt=prompt)) == meant
