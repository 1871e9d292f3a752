"""Names and values that no deployment file can hold: a line break in one would be a line of the file."""

from __future__ import annotations

import re
import unicodedata

from qserve.errors import UsageError

__all__ = ["check_host", "check_image", "check_object_name", "check_text", "check_words"]

# Control characters, halves of characters (of file names that are no UTF-8), separators of lines and paragraphs.
_REFUSED = ("Cc", "Cs", "Zl", "Zp")
# No characters at all, which YAML refuses; and those that show a line in another order than it is read.
_OTHERS = frozenset("\ufffe\uffff\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_HOST = re.compile(r"[0-9A-Za-z._:-]+")
_IMAGE = re.compile(r"[0-9A-Za-z][0-9A-Za-z._:/@-]*")
# RFC 1123, as Kubernetes wants it of namespaces, claims and classes.
_OBJECT = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")


def check_text(what: str, text: str) -> None:
    """Raises UsageError where `text`, which is `what` (a flag, a file), has a character that no file may hold."""
    bad = next((one for one in text if unicodedata.category(one) in _REFUSED or one in _OTHERS), None)
    if bad is not None:
        raise UsageError(
            f"{what} is {text[:200]!r}: the character {bad!a} would end a line of the file, or can't be in a file; "
            "leave the character out, or rename what it names"
        )


def check_words(words: tuple[str, ...]) -> None:
    """The same of `--flag=value`, each by its flag."""
    for word in words:
        flag, _, value = word.partition("=")
        check_text("a flag", flag)
        check_text(flag, value)


def check_host(host: str) -> None:
    """Raises UsageError for what is neither an address nor a name of a machine."""
    _check("--host", host, _HOST, "an address or the name of a machine, for example 0.0.0.0")


def check_image(image: str) -> None:
    """Raises UsageError for what no registry could hold."""
    _check("--image", image, _IMAGE, "the name of an image, for example registry.example.com/qserve:1")


def check_object_name(flag: str, name: str) -> None:
    """Raises UsageError for what Kubernetes gives no name to."""
    _check(flag, name, _OBJECT, "a name of Kubernetes: a to z, digits, dashes and dots, at most 253 characters")


def _check(flag: str, text: str, allowed: re.Pattern[str], needed: str) -> None:
    if allowed.fullmatch(text) is None:
        raise UsageError(f"{flag} {text[:200]!r} is not {needed}")
