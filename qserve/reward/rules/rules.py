"""Rules: functions from a response to a number from 0 to 1. Pure; they run in a separate process."""

from __future__ import annotations

import importlib.util
import json
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from qserve.errors import MissingExtra, UsageError
from qserve.reward.rules.sandbox import passes, require_sandbox

__all__ = ["RULES", "Rule", "make_rule"]

_JSON_BLOCK = re.compile(r"```(?:json)?[^\S\n]*\n(.*)\n[^\S\n]*```", re.DOTALL)
_CODE_BLOCK = re.compile(r"```(?:python|py)?[^\S\n]*\n(.*?)```", re.DOTALL)

Check = Callable[[str, str], float]
"""From a response and its reference (empty where the rule needs none) to a number from 0 to 1."""


@dataclass(frozen=True)
class Rule:
    """`options` are the YAML's words for it besides name, rule and weight."""

    kind: str
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def needs_reference(self) -> bool:
        return RULES[self.kind].needs_reference

    @property
    def takes_its_reference(self) -> bool:
        """Whether a reference that makes sense is right as an answer: not of code, whose reference are tests."""
        return self.needs_reference and self.kind != "code" and "extract" not in dict(self.options)

    def check(self) -> Check:
        """The function; packages are imported here. Raises UsageError or MissingExtra for options that can't be."""
        return RULES[self.kind].make(dict(self.options))


@dataclass(frozen=True)
class _Kind:
    options: tuple[str, ...]
    required: tuple[str, ...]
    needs_reference: bool
    make: Callable[[Mapping[str, Any]], Check]


def make_rule(kind: str, options: Mapping[str, Any], where: str) -> Rule:
    """A rule that is sure to work. Raises UsageError, which begins with `where`, for anything else."""
    if kind not in RULES:
        raise UsageError(f"{where}: there is no rule {kind!r}; the rules are {', '.join(RULES)}")
    known = RULES[kind]
    unknown = [name for name in options if name not in known.options]
    if unknown:
        takes = ", ".join(known.options) or "nothing but name, rule and weight"
        raise UsageError(f"{where}: the rule {kind} has no option {unknown[0]!r}; it takes {takes}")
    missing = [name for name in known.required if name not in options]
    if missing:
        raise UsageError(f"{where}: the rule {kind} needs {missing[0]!r}")
    rule = Rule(kind, tuple(options.items()))
    try:
        rule.check()
    except UsageError as error:
        raise error if isinstance(error, MissingExtra) else UsageError(f"{where}: {error}") from None
    return rule


def _exact(options: Mapping[str, Any]) -> Check:
    """The whole response, or what the first group of `extract` finds last, is the reference; white space at the ends
    does not count, nor does case with `ignore_case`."""
    extract = _pattern(options["extract"]) if "extract" in options else None

    def normal(text: str) -> str:
        return text.strip().lower() if options.get("ignore_case") else text.strip()

    def check(response: str, reference: str) -> float:
        found = _last(extract, response) if extract is not None else response
        return float(found is not None and normal(found) == normal(reference))

    return check


def _math(options: Mapping[str, Any]) -> Check:
    """What the response says last (boxed, in dollars, or a number) equals the reference, by math-verify."""
    if importlib.util.find_spec("math_verify") is None:
        raise MissingExtra("math-verify", "the rule math")

    def check(response: str, reference: str) -> float:
        from math_verify import parse, verify  # sympy: a second

        logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that it has no time limit; see below
        # Its own time limits are signals' and print; the process that runs this has one of its own.
        gold = parse(reference, parsing_timeout=None) or parse(f"${reference}$", parsing_timeout=None)
        return float(bool(gold) and verify(gold, parse(response, parsing_timeout=None), timeout_seconds=None))

    return check


def _regex(options: Mapping[str, Any]) -> Check:
    """`pattern` is found in the response; with `whole: true` it is all of it."""
    pattern = _pattern(options["pattern"])
    find = pattern.fullmatch if options.get("whole") else pattern.search
    return lambda response, reference: float(find(response) is not None)


def _json_schema(options: Mapping[str, Any]) -> Check:
    """The response is JSON that `schema` (an object) takes; fences of Markdown around it do not count."""
    if importlib.util.find_spec("jsonschema") is None:
        raise MissingExtra("jsonschema", "the rule json-schema")
    import jsonschema  # an extra

    schema = options["schema"]
    validator_class = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
    try:
        validator_class.check_schema(schema)
    except jsonschema.SchemaError as error:
        raise UsageError(f"'schema' is not a valid JSON schema: {error.message[:200]}") from None
    validator = validator_class(schema)

    def check(response: str, reference: str) -> float:
        fenced = _JSON_BLOCK.fullmatch(response.strip())
        try:
            return float(validator.is_valid(json.loads(fenced[1] if fenced is not None else response)))
        except (ValueError, RecursionError):
            return 0.0

    return check


def _code(options: Mapping[str, Any]) -> Check:
    """The last block of Python in the response (all of it where there is none) runs, and the reference after it, which
    holds tests: without an error, in a sandbox, within `timeout_s` and `memory_mib`."""
    timeout_s = _between(options.get("timeout_s", 3), "timeout_s", 0.1, 4)
    memory_mib = _between(options.get("memory_mib", 512), "memory_mib", 64, 65_536)
    require_sandbox()

    def check(response: str, reference: str) -> float:
        blocks = _CODE_BLOCK.findall(response)
        program = blocks[-1] if blocks else response
        return float(passes(program, reference, timeout_s=timeout_s, memory_bytes=int(memory_mib * (1 << 20))))

    return check


def _between(value: Any, name: str, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise UsageError(f"{name!r} is {value!r}; it takes a number from {low:g} to {high:g}")
    return float(value)


def _pattern(text: Any) -> re.Pattern[str]:
    try:
        return re.compile(str(text), re.DOTALL)
    except re.error as error:
        raise UsageError(f"{text!r} is not a regular expression: {error}") from None


def _last(pattern: re.Pattern[str], text: str) -> str | None:
    found = None
    for match in pattern.finditer(text):
        found = match[1] if pattern.groups else match[0]
    return found


RULES: dict[str, _Kind] = {
    "exact": _Kind(("extract", "ignore_case"), (), True, _exact),
    "math": _Kind((), (), True, _math),
    "regex": _Kind(("pattern", "whole"), ("pattern",), False, _regex),
    "code": _Kind(("timeout_s", "memory_mib"), (), True, _code),
    "json-schema": _Kind(("schema",), ("schema",), False, _json_schema),
}
