"""Merges the user's flags of vLLM (`--engine-args "…"`) with those that qserve decided."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from qserve.engines.vllm.launch.parser import Argument, FlagParser
from qserve.engines.vllm.plan.counted_flags import MTP_METHODS
from qserve.engines.vllm.plan.flag_table import flag_table, is_negative
from qserve.errors import UsageError

__all__ = ["COMPACT_JSON", "merged", "schema_library", "writes_blanks"]

# How vLLM writes JSON of a schema, unless the user says otherwise: no blanks, by the backend that can do that.
COMPACT_JSON = {"backend": "xgrammar", "disable_any_whitespace": True}

_OF_DRAFTS = ("speculative_config", "spec_method", "spec_tokens")
_SAYS_NOTHING = (
    "--no-enforce-eager",
    "--no-language-model-only",
    "--no-enable-lora",
    "--disable-lora",
    "--no-fully-sharded-loras",
    "--no-skip-mm-profiling",
)


def merged(own: Sequence[str], defaults: Sequence[str], words: Sequence[str], parser: FlagParser) -> tuple[str, ...]:
    """One command line of what was decided, what is merely usual, and what the user adds.

    Args:
        own: what the plan led to and what qserve needs; it stands.
        defaults: what the user's words may replace.
        words: the user's.
        parser: the installed engine's; all three are checked against it.

    Raises UsageError for a flag of the user's that is qserve's, that contradicts the plan (both are named), or that
    the engine does not know.

    """
    decided = {argument.flag.dest: argument for argument in parser.parse(own)}
    added = [_with_backend(argument) for argument in parser.parse(words) if _adds(argument, decided)]
    for argument in added:
        _check_adapters(argument)
    replaced = {argument.flag.dest for argument in added}
    usual = [argument for argument in parser.parse(defaults) if argument.flag.dest not in replaced]
    return (*own, *(word for argument in (*usual, *added) for word in argument.words))


def schema_library(words: Sequence[str], parser: FlagParser) -> str:
    """What holds answers to JSON schemas under this command line; "" where vLLM chooses it by the first request."""
    backend = _structures(words, parser).get("backend")
    return backend if isinstance(backend, str) and backend != "auto" else ""


def writes_blanks(words: Sequence[str], parser: FlagParser) -> bool:
    """Whether JSON of a schema may have blanks between any of its tokens under this command line."""
    return not _structures(words, parser).get("disable_any_whitespace")


def _structures(words: Sequence[str], parser: FlagParser) -> dict[str, Any]:
    """The configuration of structured outputs, however it is spelled."""
    config: dict[str, Any] = {}
    for argument in parser.parse(words):
        if argument.flag.dest == "structured_outputs_config" and len(argument.values) == 1:
            value = _number(argument.values[0])
            config |= {argument.key: value} if argument.key else value if isinstance(value, dict) else {}
    return config


def _with_backend(argument: Argument) -> Argument:
    """`{"disable_any_whitespace": true}` alone stops a start: it is only for backends that are named."""
    if argument.flag.dest != "structured_outputs_config" or len(argument.values) != 1 or argument.key:
        return argument
    config = _number(argument.values[0])
    if (
        not isinstance(config, dict)
        or not config.get("disable_any_whitespace")
        or config.get("backend", "auto") != "auto"
    ):
        return argument
    value = json.dumps({**config, "backend": COMPACT_JSON["backend"]})
    return replace(argument, values=(value,), words=(argument.flag.name, value))


def _adds(argument: Argument, decided: Mapping[str, Argument]) -> bool:
    """Whether this flag of the user's is new; False where it says what is decided anyway."""
    dest, written = argument.flag.dest, f"--engine-args {' '.join(argument.words)}"
    table = flag_table()
    mine = decided.get(dest)
    why = table.why_refused(dest, argument.values, argument.key)
    if why is not None and not (mine is None and _is_nothing(argument)):
        raise UsageError(f"{written}: {why}")
    if mine is not None and (_meaning(mine) == _meaning(argument) or dest == "hf_overrides"):
        return False
    if dest in _OF_DRAFTS and _drafts_as_planned(argument, decided.get("speculative_config")):
        return False
    if dest in table.planned and not (mine is None and _is_nothing(argument)):
        raise UsageError(
            f"{written} contradicts the plan, which has {_written(mine, dest)}; use qserve's {table.planned[dest]}, so "
            "that it is counted"
        )
    if mine is not None:
        raise UsageError(f"{written} contradicts {_written(mine, dest)}, which qserve needs; leave it out")
    return True


def _drafts_as_planned(argument: Argument, mine: Argument | None) -> bool:
    """Whether a flag of speculative decoding says what the plan has, in another of vLLM's spellings."""
    if mine is None:
        return False
    planned, (value,) = json.loads(mine.values[0]), argument.values
    if argument.flag.dest == "spec_method":
        return value == planned["method"] or (planned["method"] == "mtp" and value in MTP_METHODS)
    if argument.flag.dest == "spec_tokens":
        return bool(_number(value) == planned["num_speculative_tokens"])
    config = _number(value)
    if not isinstance(config, dict):
        return False
    method = config.get("method", "mtp")
    return {**config, "method": "mtp" if method in MTP_METHODS else method} == dict(planned)


def _check_adapters(argument: Argument) -> None:
    """vLLM looks for an adapter's folder once the model is loaded, half a minute later."""
    if argument.flag.dest != "lora_modules":
        return
    for value in argument.values:
        path = json.loads(value).get("path", "") if value.startswith("{") else value.partition("=")[2]
        if path.startswith(("/", ".", "~")) and not (Path(path).expanduser() / "adapter_config.json").is_file():
            raise UsageError(
                f"--engine-args --lora-modules {value}: {path} has no adapter_config.json; name the adapter's folder"
            )


def _written(mine: Argument | None, dest: str) -> str:
    return " ".join(mine.words) if mine is not None else f"no --{dest.replace('_', '-')}"


def _is_nothing(argument: Argument) -> bool:
    """`--no-enforce-eager` beside a plan without --enforce-eager says nothing; so does `--quantization None`."""
    return argument.flag.name in _SAYS_NOTHING or argument.values in (("auto",), ("None",), ("balanced",))


def _meaning(argument: Argument) -> Any:
    """Two arguments with the same meaning are equal: 8k and 8000, 0.90 and 0.9, JSON in any spacing."""
    if not argument.values:
        return not is_negative(argument.flag.name, argument.flag.dest)
    return argument.key, tuple(_number(value) for value in argument.values)


def _number(text: str) -> Any:
    short = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmMgG])(i?B?)", text)
    if short is not None:
        power = "kmg".index(short[2].lower()) + 1
        return float(short[1]) * (1000 if short[2].islower() else 1024) ** power
    try:
        return json.loads(text)
    except ValueError:
        return text
