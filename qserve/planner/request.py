"""What the user fixed; everything that is None is the planner's to choose."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, TypeVar

from qserve.errors import UsageError
from qserve.planner.calibration import Residual
from qserve.planner.options import EngineOptions, Option, option, options_of

__all__ = ["DTYPES", "PlanRequest", "check_word"]

DTYPES = ("bfloat16", "float16", "float32", "bf16", "fp16", "fp32", "half", "float")

Options = TypeVar("Options", bound=EngineOptions)


@dataclass(frozen=True)
class PlanRequest:
    """The options that all engines share, in the spelling of the engines, and `options`: those of one engine each.

    `engine_version` is a release of the engine ("0.32.0"). `prompt_logprobs` asks for memory for `echo` with `logprobs`
    (lm-eval). `qserve.planner.engine.plan_request` makes one of options by their names, whosever they are.
    """

    quant: str = option("text", "Quantization: auto, fp16, bf16, fp8, int8, 4bit, or an exact scheme.", "auto")
    dtype: str | None = option("text", "Compute in float16, bfloat16 or float32 [the checkpoint's own].")
    engine: str | None = option("engine", "What runs the model [vllm with a card, else transformers].")
    engine_version: str | None = option("text", "Plan for this release of the engine.")
    max_model_len: int | None = option("count", "Longest prompt and answer together, in tokens [what fits].")
    context: int | None = option("count", "Serve so many tokens, by YaRN where the model has fewer positions.")
    hf_overrides: str | None = option(
        "text", "Keys of config.json that extend the context, as JSON: '{\"rope_parameters\": {…}}'."
    )
    max_num_seqs: int | None = option("count", "Most requests that run at once.")
    max_num_batched_tokens: int | None = option("count", "Most tokens of one step.")
    kv_cache_memory_bytes: int | None = option("bytes", "KV cache per device, for example 6GiB.")
    prompt_len: int | None = option("count", "The part of max_model_len that arrives as one prompt.")
    prompt_logprobs: bool = option("flag", "Leave room for log-probabilities of prompts (lm-eval).", False)
    options: tuple[EngineOptions, ...] = ()
    """One object an engine at most; an engine without one has its defaults."""
    learned: tuple[Residual, ...] = ()
    """What earlier runs measured, from which `planner/calibrate.py` takes what holds here; no flag sets it."""

    def __post_init__(self) -> None:
        """Raises UsageError for an unknown dtype, overrides that are no object, and what contradicts --context.

        A length beside --context stays: then there are more positions than a request may have.
        """
        check_word("--dtype", self.dtype, DTYPES)
        self.overrides  # noqa: B018 (it raises)
        if self.context is None:
            return
        if self.hf_overrides is not None:
            raise UsageError(f"--context {self.context} writes the keys of --hf-overrides itself; give one of the two")
        if (self.max_model_len or 0) > self.context:
            raise UsageError(
                f"--max-model-len {self.max_model_len} is more than --context {self.context}, which is all that there "
                "is; raise --context, or leave --max-model-len out"
            )
        object.__setattr__(self, "max_model_len", self.max_model_len or self.context)

    def of(self, kind: type[Options]) -> Options:
        """The options of one engine: those that were given, else its defaults."""
        held = (*self.options, _defaults(kind))  # type: ignore[arg-type]  # a class is hashable
        return next(given for given in held if isinstance(given, kind))

    def with_options(self, changed: EngineOptions) -> PlanRequest:
        """The request with `changed` in the place of that engine's options; those of others stay."""
        others = tuple(given for given in self.options if type(given) is not type(changed))
        return replace(self, options=others if changed == type(changed)() else (*others, changed))

    def for_engine(self, engine: str) -> PlanRequest:
        """The same request for `engine`, without a release and without the options of other engines."""
        kept = tuple(given for given in self.options if given.engine == engine)
        return replace(self, engine=engine, engine_version=None, options=kept)

    def given_to_others(self, engine: str) -> dict[str, tuple[Option, ...]]:
        """Options that ask for something and that `engine` does not read, by the engine whose they are."""
        found = {given.engine: tuple(given.given()) for given in self.options if given.engine != engine}
        return {name: options for name, options in found.items() if options}

    @property
    def overrides(self) -> Mapping[str, Any]:
        """Keys that --hf-overrides puts in the place of config.json's own; UsageError for anything but an object."""
        try:
            read = json.loads(self.hf_overrides or "{}")
        except ValueError:
            read = None
        if not isinstance(read, dict):
            raise UsageError(f"--hf-overrides {self.hf_overrides!r} is not a JSON object of keys of config.json")
        return read

    def words(self) -> list[str]:
        """The request as flags of `qserve plan`: what is not its default."""
        return [word for flag, value in self.flags().items() for word in (flag, value) if word is not None]

    def flags(self) -> dict[str, str | None]:
        """The same, each flag with its value; None: a switch."""
        held: tuple[PlanRequest | EngineOptions, ...] = (self, *self.options)
        found = dict(given for holder in held for given in _flags(holder))
        if self.max_model_len == self.context:
            found.pop("--max-model-len", None)  # the other flag says it
        return found


@cache
def _defaults(kind: Callable[[], EngineOptions]) -> EngineOptions:
    return kind()


def _flags(holder: PlanRequest | EngineOptions) -> Iterator[tuple[str, str | None]]:
    for one in options_of(type(holder)):
        value = getattr(holder, one.name)
        if isinstance(value, bool) and value != one.default:
            yield one.flag if value else f"--no-{one.flag.removeprefix('--')}", None
        elif value != one.default:
            yield one.flag, str(value)


def check_word(flag: str, value: str | None, known: tuple[str, ...]) -> None:
    """Raises UsageError for a value that is neither None, auto, nor `known`."""
    if value not in (None, "auto", *known):
        raise UsageError(f"{flag} {value!r} is unknown; it takes auto or one of {', '.join(known)}")
