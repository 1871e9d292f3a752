"""What is asked of a service: models, limits, load, replicas. Made once from a command's flags."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from qserve.errors import UsageError
from qserve.hub.revisions import with_revisions
from qserve.planner.engine import SCORER, engines, option_kinds, plan_request
from qserve.planner.options import Option, options_of
from qserve.planner.request import PlanRequest
from qserve.reward.settings import EMBED_FLAGS, FLAGS, RewardSettings
from qserve.service.load import NO_LOAD, SpeedRequest, speed_request_of
from qserve.service.replicas import NumReplicas
from qserve.units import GIB

__all__ = [
    "LOAD_OPTIONS",
    "PACKED_CACHE_GIB",
    "SERVICE_OPTIONS",
    "RewardRequest",
    "ServiceRequest",
    "misplaced_options",
    "plan_options",
    "plan_request_of",
]

PACKED_CACHE_GIB = 32.0
_OF_CHAT = ("model", "revision", "served_model_name", "replicas", "engine_args", "load_format", "verify_quant")
_OF_REWARD = (
    "reward",
    "reward_revision",
    "served_reward_name",
    "reward_quant",
    "reward_engine",
    "reward_replicas",
    *FLAGS,
)
_OF_EMBED = ("embed", "embed_revision", "served_embed_name", "embed_quant", "embed_replicas")
LOAD_OPTIONS = (
    "input_tokens",
    "output_tokens",
    "concurrency",
    "burst",
    "rps",
    "users",
    "think_time",
    "trace",
    "num_prompts",
    "prefix_share",
    "ttft",
    "tpot",
    "prices",
)
_OF_HOST = ("ui", "gateway_processes", "packed_cache_gib", "min_free_ram")
SERVICE_OPTIONS = (*_OF_CHAT, *_OF_REWARD, *_OF_EMBED, *LOAD_OPTIONS, *_OF_HOST)
"""Names of the options that `ServiceRequest.from_flags` reads, beside those of a `PlanRequest` and of the engines."""


@dataclass(frozen=True)
class RewardRequest:
    """A reward model, or an embedding model if its settings say so: its checkpoint as named, and how it is to score."""

    checkpoint: str
    quant: str = "auto"
    engine: str = SCORER
    settings: RewardSettings = field(default_factory=RewardSettings)
    replicas: int = 1
    names: tuple[str, ...] = ()

    @property
    def role(self) -> Literal["reward", "embed"]:
        """What its workers are for; the flag that names it is called so, too."""
        return "embed" if self.settings.embeds else "reward"


@dataclass(frozen=True)
class ServiceRequest:
    """A service: a chat model, a reward model or an embedding model, or a chat model and one of these.

    Attributes:
        model: the chat model as named; None: none.
        plan: what is fixed of the chat model's plan; its rounding on a CPU holds for the other as well.
        reward: the reward model or the embedding model, which the same host runs; None: none.
        replicas: of the chat model; None: one, or as many as the layout for a load has.
        speed: the load, its targets and prices.
        names: of the chat model in requests; (): its own.
        engine_args: further flags of the engine, as one string. Those that memory depends on are in `plan`.
        load_format: dummy runs on random weights.
        verify_quant: measure what quantizing while loading costs.
        has_ui: the web UI may be opened.
        num_gateways: processes that relay requests.
        packed_cache_bytes: bound of the cache of packed weights; 0: off.
        min_free_bytes: RAM that stays free while it serves; None: by the size of the RAM, 0: none.
    """

    model: str | None
    plan: PlanRequest = field(default_factory=PlanRequest)
    reward: RewardRequest | None = None
    replicas: NumReplicas | None = None
    speed: SpeedRequest = NO_LOAD
    names: tuple[str, ...] = ()
    engine_args: str = ""
    load_format: Literal["auto", "dummy"] = "auto"
    verify_quant: bool = False
    has_ui: bool = True
    num_gateways: int = 1
    packed_cache_bytes: int = int(PACKED_CACHE_GIB * GIB)
    min_free_bytes: int | None = None

    @property
    def num_rewards(self) -> int:
        """Replicas of the reward or embedding model; 1 without one."""
        return 1 if self.reward is None else self.reward.replicas

    @classmethod
    def from_flags(cls, values: Mapping[str, Any]) -> ServiceRequest:
        """The request in a command's keyword arguments; what is not there has its default, other names are left alone.

        Raises UsageError for values that contradict each other, and for flags of the engine that no plan counts.
        """
        values = with_revisions(values)
        engine_args, packed_gib = values.get("engine_args") or "", values.get("packed_cache_gib")
        return cls(
            model=values.get("model"),
            plan=_with_engine_args(plan_request_of(values), engine_args),
            reward=_embed_of(values) if values.get("embed") is not None else _reward_of(values),
            replicas=values.get("replicas"),
            speed=speed_request_of(values),
            names=tuple(values.get("served_model_name") or ()),
            engine_args=engine_args,
            load_format=values.get("load_format") or "auto",
            verify_quant=bool(values.get("verify_quant")),
            has_ui=values.get("ui") is not False,
            num_gateways=values.get("gateway_processes") or 1,
            packed_cache_bytes=int((PACKED_CACHE_GIB if packed_gib is None else packed_gib) * GIB),
            min_free_bytes=values.get("min_free_ram"),
        )


def _with_engine_args(request: PlanRequest, engine_args: str) -> PlanRequest:
    for engine in engines():
        request = engine.planner.with_engine_args(request, engine_args)
    return request


def _reward_of(values: Mapping[str, Any]) -> RewardRequest | None:
    if values.get("reward") is None:
        return None
    settings = {name: values[name] for name in FLAGS if values.get(name) is not None}
    return RewardRequest(
        values["reward"],
        values.get("reward_quant") or "auto",
        values.get("reward_engine") or SCORER,
        RewardSettings(**settings),
        values.get("reward_replicas") or 1,
        tuple(values.get("served_reward_name") or ()),
    )


def _embed_of(values: Mapping[str, Any]) -> RewardRequest:
    """Raises UsageError beside a reward model: one memory plan is for two models."""
    if values.get("reward") is not None:
        raise UsageError(
            f"--embed {values['embed']} and --reward {values['reward']}: these flags plan one of the two beside a chat "
            "model. For more models, list each in a file under models: and give it with --config (docs/many_models.md)"
        )
    settings = {name: values[name] for name in EMBED_FLAGS if values.get(name) is not None}
    return RewardRequest(
        values["embed"],
        values.get("embed_quant") or "auto",
        SCORER,
        RewardSettings(**settings, embeds=True),
        values.get("embed_replicas") or 1,
        tuple(values.get("served_embed_name") or ()),
    )


Misplaced = tuple[tuple[str, ...], str]


def misplaced_options(
    model: str | None, reward: str | None, judge: str | None, embed: str | None = None
) -> list[Misplaced]:
    """Options that would change nothing in a service of these models, each time with when they would.

    A judge is the chat model as well.
    """
    has_chat = model is not None or (judge is not None and reward is not None)
    if not has_chat and reward is None and embed is None:
        return []
    found: list[Misplaced] = []
    if embed is None:
        found.append((_OF_EMBED[1:], "for an embedding model, and none is named; add --embed, or leave it out"))
    if reward is None:
        names = tuple(one for one in _OF_REWARD[1:] if embed is None or one not in EMBED_FLAGS)
        found.append((names, "for a reward model, and none is named; add --reward, or leave it out"))
    if reward is not None or embed is not None:
        found.append(_of_chat_alone("a reward model" if embed is None else "an embedding model", has_chat))
    return found


def _of_chat_alone(beside: str, has_chat: bool) -> Misplaced:
    if has_chat:
        return LOAD_OPTIONS, f"for a load on a chat model without {beside}; leave it out"
    of_both = ("cpu_activations",) if beside == "a reward model" else ("cpu_activations", "dtype")
    own = tuple(one.name for one in plan_options() if one.name not in of_both)
    takes = "--reward-quant, --reward-engine" if beside == "a reward model" else "--embed-quant, --dtype"
    return (*_OF_CHAT[1:], *LOAD_OPTIONS, *own, "strict"), (
        f"for a chat model, and none is named; add --model, or leave it out ({beside} takes {takes}, --max-length, …)"
    )


def plan_options() -> list[Option]:
    """The options of a `PlanRequest` that all engines share, then those of each engine."""
    held: tuple[type[Any], ...] = (PlanRequest, *option_kinds())
    return [one for holder in held for one in options_of(holder)]


def plan_request_of(values: Mapping[str, Any]) -> PlanRequest:
    """The plan's request in a command's keyword arguments; other arguments are left alone.

    Raises UsageError for values that contradict each other.
    """
    request = plan_request(**{one.name: values[one.name] for one in plan_options() if one.name in values})
    if request.prompt_len and request.max_model_len and request.prompt_len > request.max_model_len:
        raise UsageError(
            f"--prompt-len {request.prompt_len} is more than --max-model-len {request.max_model_len}, which counts "
            "prompt and answer together; raise --max-model-len"
        )
    return request
