"""Flags of vLLM among `--engine-args` that memory depends on: they belong into the plan, wherever they were given."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from qserve.core.families import FAMILIES
from qserve.engines.vllm.plan.flag_table import flag_table, setting_of
from qserve.engines.vllm.plan.options import VllmOptions
from qserve.errors import UsageError
from qserve.planner.engine import changed_request, option_value
from qserve.planner.request import PlanRequest

__all__ = ["MTP_METHODS", "template_flag", "with_counted_flags"]

_CHAT_TEMPLATE = "--chat-template"
_SWITCHES = (
    "--enable-lora",
    "--fully-sharded-loras",
    "--skip-mm-profiling",
    "--enforce-eager",
    "--language-model-only",
    "--enable-sleep-mode",
)
_NUMBERS = (
    "--max-loras",
    "--max-lora-rank",
    "--max-model-len",
    "--max-num-seqs",
    "--max-num-batched-tokens",
    "--block-size",
    "--kv-cache-memory-bytes",
    "--tensor-parallel-size",
    "--pipeline-parallel-size",
    "--max-cudagraph-capture-size",
)
_TEXTS = (
    "--limit-mm-per-prompt",
    "--mm-processor-kwargs",
    "--dtype",
    "--kv-cache-dtype",
    "--mamba-ssm-cache-dtype",
    "--hf-overrides",
    "--performance-mode",
)
_SHORT = {"-tp": "--tensor-parallel-size", "-pp": "--pipeline-parallel-size", "-sc": "--speculative-config"}
# Of one MTP head; every other method drafts with weights, caches or buffers that no plan counts.
MTP_METHODS = tuple({family.vllm.mtp_method for family in FAMILIES.values()})  # no set: what a user gives may be a list
_NOTHING = (None, False, "auto", "balanced", 0)


def with_counted_flags(request: PlanRequest, engine_args: str) -> PlanRequest:
    """The request with what `engine_args` asks vLLM for and the plan counts; flags of qserve's own win.

    What can't be read is left to the engine's own parser, which names it. Raises UsageError for what changes memory
    and is not counted, and for what contradicts itself (`--max-loras` without `--enable-lora`).
    """
    if not engine_args or request.engine not in (None, VllmOptions.engine):
        return request
    words = _words(engine_args)
    _refuse_uncounted(words)
    found = {name: value for name, value in _found(words).items() if not _is_unset(name, value)}
    unset = {name: value for name, value in found.items() if _is_unset(name, option_value(request, name))}
    return changed_request(request, **unset)


def template_flag(words: Sequence[str]) -> str | None:
    """The value of vLLM's own flag among `words`: the last one counts."""
    found = None
    for index, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name.replace("_", "-") == _CHAT_TEMPLATE:
            found = value if equals else next(iter(words[index + 1 :]), None)
    return found


def _is_unset(name: str, value: Any) -> bool:
    return value is None if name == "enable_prefix_caching" else value in _NOTHING


def _refuse_uncounted(words: list[str]) -> None:
    table = flag_table()
    for word, values in _options(words):
        setting, key = setting_of(word)
        why = table.why_refused(setting, values, key) if setting in table.known else None
        if why is not None:
            raise UsageError(f"--engine-args {' '.join((word, *values))}: {why}")
        own = f"--{setting.replace('_', '-')}"
        counted = (*_SWITCHES, *_NUMBERS, *_TEXTS, *_OTHERS)
        if (
            setting in table.planned
            and own not in counted
            and values not in (["auto"], ["None"])
            and "--no-" not in word
        ):
            raise UsageError(
                f"--engine-args {' '.join((word, *values))}: the plan does not count it there; use qserve's "
                f"{table.planned[setting]}"
            )


_OTHERS = (
    "--gpu-memory-utilization",
    "--lora-target-modules",
    "--enable-prefix-caching",
    "--speculative-config",
    "--spec-method",
    "--spec-model",
    "--spec-tokens",
    "--enable-chunked-prefill",
)


def _options(words: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Each option with the values behind it, as far as they can be told without the engine's parser."""
    place = 0
    while place < len(words):
        word, place = words[place], place + 1
        if not word.startswith("-"):
            continue
        if re.match(r"-O=?\d", word):
            yield "-O", [word[-1]]
            continue
        name, equals, value = word.partition("=")
        values = [value] if equals else []
        while not equals and place < len(words) and not re.match(r"--?[A-Za-z]", words[place]):
            values.append(words[place])
            place += 1
        yield name, values


def _words(engine_args: str) -> list[str]:
    """Words with flags in one spelling: vLLM takes _ for - and = for a blank."""
    try:
        words = shlex.split(engine_args)
    except ValueError:
        return []
    return [_on_one_word(_spelled(word)) for word in words]


def _spelled(word: str) -> str:
    head, equals, value = word.partition("=")
    name, dot, key = head.partition(".")
    return (name.replace("_", "-") if name.startswith("--") else _SHORT.get(name, name)) + dot + key + equals + value


def _on_one_word(word: str) -> str:
    """`--hf-overrides.a.b=c` as JSON; other dotted keys stay."""
    found = re.match(r"--hf-overrides\.([\w.]+)=(.*)$", word)
    return f"--hf-overrides={json.dumps(_tree(found[1], found[2]))}" if found else word


def _tree(key: str, value: str) -> dict[str, Any]:
    head, _, rest = key.partition(".")
    return {head: _tree(rest, value) if rest else _json(value)}


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _found(words: list[str]) -> dict[str, Any]:
    import argparse  # most commands name none of these

    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for flag in _SWITCHES:
        parser.add_argument(flag, action="store_true")
    for flag in _NUMBERS:
        parser.add_argument(flag, type=_number)
    for flag in (*_TEXTS, "--speculative-config", "--spec-method", "--spec-model"):
        parser.add_argument(flag)
    parser.add_argument("--gpu-memory-utilization", "--device-memory-utilization", type=float)
    parser.add_argument("--spec-tokens", type=int)
    parser.add_argument("--enable-prefix-caching", action=argparse.BooleanOptionalAction)
    # As 0.33 shows the negative.
    parser.add_argument("--disable-prefix-caching", action="store_const", const=False, dest="enable_prefix_caching")
    parser.add_argument("--lora-target-modules", nargs="+")
    try:
        values = vars(parser.parse_known_args(words)[0])
    except argparse.ArgumentError:
        return {}
    targets = values["lora_target_modules"]
    drafts = _drafts(*(values.pop(name) for name in ("speculative_config", "spec_method", "spec_model", "spec_tokens")))
    return {**values, "lora_target_modules": ",".join(targets) if targets else None, "num_speculative_tokens": drafts}


def _number(text: str) -> int | None:
    """8192, 8k, 8K; None for -1 and auto, which leave it to the engine."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmMgG]?)(?:i?B?)", text)
    if found is None:
        return None
    power = " kmg".index(found[2].lower() or " ")
    return int(float(found[1]) * (1024 if found[2].isupper() else 1000) ** power)


def _drafts(config: str | None, method: str | None, model: str | None, tokens: int | None) -> int:
    """Tokens that the MTP head drafts; UsageError for drafts of anything else."""
    if config is not None:
        read = _json(config)
        if not isinstance(read, dict):
            return 0
        method, model, tokens = read.get("method"), read.get("model"), read.get("num_speculative_tokens")
    if method is None and model is None:
        return int(tokens or 0)
    if method not in MTP_METHODS or model is not None:
        what = f"drafts by {method or 'a model'}" + (f" ({model})" if model else "")
        raise UsageError(
            f"--engine-args asks for {what}; the plan does not count the weights, cache and buffers of that. "
            "Use --num-speculative-tokens, which drafts with the model's own MTP head, or --num-ngram-tokens, which "
            "drafts from the text: both are counted"
        )
    return int(tokens or 1)
