"""Checks of an engine against this machine before it starts. An engine without checks runs everywhere."""

from __future__ import annotations

from qserve.core.checkpoint import Checkpoint
from qserve.core.hardware import Hardware
from qserve.detect.packages import Packages
from qserve.planner.engine import engine_named, load_attribute
from qserve.planner.plan import Plan
from qserve.planner.request import PlanRequest

__all__ = ["EngineChecks", "engine_checks", "why_not_scheme", "why_not_served"]


class EngineChecks:
    """Each method reads metadata only. A reason is half a sentence with the command that helps; None: none."""

    def installed(self, packages: Packages) -> str:
        """What is installed of it, for people."""
        return "installed"

    def release(self, packages: Packages) -> str | None:
        """The installed release, where a plan for it differs from one for the tested release."""
        return None

    def why_not_installed(self, hardware: Hardware, packages: Packages) -> str | None:
        """Why it serves nothing here as it is installed."""
        return None

    def why_not_asked(
        self, checkpoint: Checkpoint, hardware: Hardware, request: PlanRequest, packages: Packages
    ) -> str | None:
        """Why it can't serve this request, before anything is planned."""
        return self.why_not_installed(hardware, packages)

    def why_not_served(self, plan: Plan, packages: Packages) -> str | None:
        """Why its own plan can't be served with what is installed."""
        return None

    def why_not_stored(self, scheme: str, hardware: Hardware, packages: Packages) -> str | None:
        """Why it can't run a checkpoint that is stored in `scheme`, which it loads, on this machine."""
        return None


def engine_checks(engine: str) -> EngineChecks:
    """Those of a registered engine. Raises UsageError for a name that nobody registered."""
    dotted = engine_named(engine).checks
    checks: EngineChecks = load_attribute(dotted)() if dotted else EngineChecks()
    return checks


def why_not_served(plan: Plan, packages: Packages) -> str | None:
    """Why a plan can't be served with what is installed, and the command that helps; None where it can."""
    return engine_checks(plan.engine).why_not_served(plan, packages)


def why_not_scheme(scheme: str, engine: str, hardware: Hardware, packages: Packages) -> str | None:
    """Why `engine` can't run a checkpoint that is stored in `scheme` on this machine; None where it can."""
    if not engine_named(engine).planner.loads(scheme):
        return f"not in {engine}"
    return engine_checks(engine).why_not_stored(scheme, hardware, packages)
