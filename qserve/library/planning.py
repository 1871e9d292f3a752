"""`qserve.plan`: the plan of a service, without a process and without torch."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from qserve.errors import UsageError
from qserve.library.flags import flags_of
from qserve.planner import plan as planned
from qserve.service.knowledge import Knowledge
from qserve.service.machine import Machine
from qserve.service.next_command import Flags, flags_in, with_serving_command
from qserve.service.plan import plan_service
from qserve.service.request import SERVICE_OPTIONS, ServiceRequest, misplaced_options, plan_options
from qserve.state_folder import state_folder

__all__ = ["OF_THE_SERVER", "Plan", "plan"]

OF_THE_SERVER = frozenset(
    {
        "admin_key_file",
        "api_key_file",
        "cors_origin",
        "drain_timeout",
        "host",
        "keep_files_days",
        "keep_files_gib",
        "keep_responses_mib",
        "keep_responses_minutes",
        "keep_runs_days",
        "keep_runs_gib",
        "keys",
        "log_format",
        "log_level",
        "max_body_mib",
        "max_file_mib",
        "max_queue",
        "otlp_traces_endpoint",
        "port",
        "ready_file",
        "resume_wait",
        "shared_prefix_cache",
        "start_timeout",
        "strict",
        "takeover",
        "verbose",
    }
)
"""Options of `qserve up` that no plan depends on; a plan's next command has them."""
_OF_KNOWLEDGE = ("no_learn", "state_dir")


@dataclass(frozen=True, repr=False)
class Plan(planned.Plan):
    """A plan that prints as `qserve plan` does; a notebook shows it with bars.

    `reward` is the plan of the reward or embedding model beside it, None without, and `role` says which (`reward`,
    `embed`); `where`: how the two share the machine, in words. `fits` is of both.
    """

    reward: planned.Plan | None = None
    where: str = ""
    role: str = "reward"

    @property
    def _models(self) -> tuple[planned.Plan, ...]:
        values = {one.name: getattr(self, one.name) for one in fields(planned.Plan)}
        first = planned.Plan(**{**values, "fits": self.why_not is None})
        return (first,) if self.reward is None else (first, self.reward)

    def __str__(self) -> str:
        from qserve.terminal.service import service_text  # rich, which a plan that nobody prints does without

        return service_text(self._models, self.where)

    def __repr__(self) -> str:
        return " + ".join(map(repr, self._models))

    def _repr_html_(self) -> str:
        return "".join(one._repr_html_() for one in self._models)

    def to_json(self) -> dict[str, Any]:
        """The object that `qserve plan --json` prints."""
        beside = {} if self.reward is None else {"fits": self.fits, self.role: self.reward.to_json()}
        return {**self._models[0].to_json(), **beside}


def plan(model: str | None = None, *, gpu: str | None = None, **options: Any) -> Plan:
    """Does `model` fit, with which quantization, placement and limits, and how fast?

    Args:
        model: a folder, a hub id, a short name, or `demo`; None: a reward model alone (`reward=`), or an
            embedding model (`embed=`).
        gpu: cards that are not here (`rtx-4090:2`), `none` for the CPU; None: this machine's own.
        options: the flags of `qserve plan` by name: `quant`, `max_model_len`, `reward`, `replicas`, `users`, …

    A plan that does not fit is a plan: `fits` is False, `why_not` and `suggestions` say the rest (of a reward model
    those of `reward`); `print` shows what the command prints. What earlier runs on this machine measured is taken into
    account, unless `no_learn=True`. Raises UsageError, ModelNotFound, BrokenCheckpoint or UnknownArchitecture for what
    can't be planned, DoesNotFit for replicas that do not fit.

    """
    _check_known(options)
    _check_placed(model, options)
    request, machine = ServiceRequest.from_flags({"model": model, **options}), Machine.named(gpu)
    given = options.get("state_dir")
    state = state_folder(Path(given) if given is not None else None)
    known = Knowledge.of(machine, state, is_off=bool(options.get("no_learn")), warn=warnings.warn)
    service = plan_service(request, machine, known)
    first, *others = (one.whole for one in service.models)
    flags = _flags_of({"model": model, **options})
    if service.fits and flags is not None:
        first = with_serving_command(first, flags, gpu, service.hardware)
    values = {one.name: getattr(first, one.name) for one in fields(first)} | {"fits": service.fits}
    return Plan(**values, reward=others[0] if others else None, where=service.where, role=service.role)


def _flags_of(options: Mapping[str, Any]) -> Flags | None:
    """As `qserve up` takes them: what is off stands there only where a flag turns it off. None where no flag can say
    one of them: a mapping, which the command reads from a file.
    """
    if any(isinstance(value, Mapping) for value in options.values()):
        return None
    switches = {"ui", *(one.name for one in plan_options() if one.kind == "switch")}
    given = {name: value for name, value in options.items() if value is not False or name in switches}
    words = (word.partition("=") for word in flags_of(given))
    return flags_in((flag, value if equals else None) for flag, equals, value in words)


def _check_placed(model: str | None, options: Mapping[str, Any]) -> None:
    """Raises UsageError for an option that would change nothing, as the command does."""
    for names, why in misplaced_options(model, *(options.get(name) for name in ("reward", "judge", "embed"))):
        if strange := [name for name in names if options.get(name) not in (None, False, ())]:
            raise UsageError(f"{', '.join(strange)}: {why}")


def _check_known(options: Mapping[str, Any]) -> None:
    """Raises UsageError for a name that is no option of `qserve plan`."""
    known = {*(one.name for one in plan_options()), *SERVICE_OPTIONS, *OF_THE_SERVER, *_OF_KNOWLEDGE} - {"model"}
    unknown = sorted(set(options) - known)
    if unknown:
        raise UsageError(f"qserve.plan has no option {unknown[0]!r}; it takes {', '.join(sorted(known))}")
