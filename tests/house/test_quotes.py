"""Outputs of commands that pages quote are what the commands print, without a network."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.docs import CONSOLE_BLOCK, MARKED_BLOCK, output_of

ROOT = Path(__file__).parents[2]
QUOTES = [
    pytest.param(command, block, id=f"{page.relative_to(ROOT)}: {command}")
    for pattern, pages in ((CONSOLE_BLOCK, [ROOT / "README.md"]), (MARKED_BLOCK, sorted(ROOT.glob("docs/**/*.md"))))
    for page in pages
    for _, command, block in pattern.findall(page.read_text())
]


def test_readme_and_pages_quote_commands() -> None:
    assert len(QUOTES) >= 2


@pytest.mark.parametrize(("command", "block"), QUOTES)
def test_a_quoted_output_is_what_the_command_prints(command: str, block: str) -> None:
    assert f"{output_of(command)}\n" == block


def test_a_marked_block_is_found_and_a_plain_one_is_not() -> None:
    marked = "<!-- qserve plan --model demo -->\n```text\nfits\n```\n"
    assert MARKED_BLOCK.findall(f"{marked}```text\nother\n```\n") == [
        ("<!-- qserve plan --model demo -->\n```text\n", "qserve plan --model demo", "fits\n")
    ]
