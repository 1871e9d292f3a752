"""Sentences that users read are plain: `python scripts/sentences.py` lists them all."""

from __future__ import annotations

import ast
import re

from scripts.sentences import sentences_of
from tests.house.sources import PACKAGE, tree_of

INSTEAD = {
    "Beside": "the name of the thing",
    "by hand": "yourself",
    "the truth": "what it is compared with",
    "wants its": "needs",
    "Why so": "Decisions",
}
QUAINT = re.compile(rf"(?<!\w)(?:{'|'.join(INSTEAD)})(?!\w)")
# The same in a source, where a string may go over lines.
ANYWHERE = re.compile("|".join(phrase.replace(" ", r"\W+") for phrase in INSTEAD))


def test_no_quaint_phrase_is_printed() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{line} {text}: say {INSTEAD[phrase]}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if ANYWHERE.search(path.read_text())  # to be quick
        for line, text in sentences_of(tree_of(path))
        for phrase in QUAINT.findall(text)
    ]
    assert found == []


def test_what_users_read_is_listed_and_what_they_do_not_is_not() -> None:
    source = '''
"""A docstring that nobody is shown."""
PATTERN = re.compile("one two three four")
QUERY = "SELECT one two three FROM four"

@click.command("x")
@click.option("--y", help="The help of this option.")
def command():
    """The help of this command."""
    raise UsageError(f"{name} is not a number; write " "for example 5")

def helper():
    """A docstring that nobody is shown."""
    log.warning("%s can't be written now", path)
    return "two words"
'''
    assert sorted(text for _, text in sentences_of(ast.parse(source))) == [
        "%s can't be written now",
        "The help of this command.",
        "The help of this option.",
        "{} is not a number; write for example 5",
    ]
