"""Section: what to do next, as one command."""

from __future__ import annotations

import shlex
from pathlib import Path

from qserve.report.blocks import Code, Section
from qserve.report.facts import RunReport
from qserve.report.sections.training import training_warnings
from qserve.runs.training_commands import resume_command, serve_command

__all__ = ["next_step"]


def next_step(report: RunReport) -> Section:
    """Always there."""
    why, command = _after_training(report) or _after_a_fault(report) or _measure(report) or _share(report)
    return Section("next", "Next step", (Code("next", why, (command,)),))


def _after_training(report: RunReport) -> tuple[str, str] | None:
    if not report.trainings:
        return None
    document = report.trainings[-1].document
    output = str(document["output"])
    if document["state"] == "ended" and training_warnings(report):
        return None  # the warning says what to change
    if document["state"] == "ended":
        return "Serve what was trained", serve_command(document["method"], output)
    if report.run.state == "running":
        return "Follow the run", f"qserve report {report.run.id}"
    return "Continue from the last checkpoint", resume_command(Path(output), report.run.command[1:])


def _after_a_fault(report: RunReport) -> tuple[str, str] | None:
    """The log of the worker that failed last."""
    failed = [event.worker for event in report.events if event.is_fault and event.worker]
    names = failed or ([one.name for one in report.run.workers] if report.run.exit_status or _has_died(report) else [])
    if not names:
        return None
    return f"Find the cause in the log of {names[-1]}", f"less {shlex.quote(f'{report.run.folder}/{names[-1]}.log')}"


def _has_died(report: RunReport) -> bool:
    return report.run.state == "died"


def _measure(report: RunReport) -> tuple[str, str] | None:
    """Of a service that answers: its speed, then its answers."""
    run = report.run
    if run.state != "running" or not run.url or not run.workers:
        return None
    of_chat = any(worker.plan.get("kv_cache_tokens") for worker in run.workers)
    if not report.benches:
        endpoint = "" if of_chat else " --endpoint reward"
        return "Measure how fast it is", f"qserve bench --url {run.url}{endpoint}"
    if of_chat and not report.evals:
        return "Measure how good its answers are", f"qserve eval --url {run.url} --suite quick"
    return None


def _share(report: RunReport) -> tuple[str, str]:
    return "Send the report as one file", f"qserve report {report.run.id} --format html --output report.html"
