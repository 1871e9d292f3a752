"""Section: what to run for the same again."""

from __future__ import annotations

import shlex

from qserve.report.blocks import Block, Code, Section, Text
from qserve.report.facts import RunReport

__all__ = ["reproduce"]


def reproduce(report: RunReport) -> Section:
    """The command, the engine's arguments, and the command that makes this page."""
    run = report.run
    blocks: list[Block] = [Code("command", "This run", (shlex.join(run.command),))]
    for worker in run.workers:
        arguments = tuple(str(one) for one in worker.plan.get("engine_args", ()))
        if arguments:
            blocks.append(
                Code(f"engine_args_{worker.name}", f"Arguments of {worker.name}'s engine", (shlex.join(arguments),))
            )
    versions = " · ".join(f"{name} {version}" for name, version in run.versions.items())
    if versions:
        blocks.append(Text(f"Versions: {versions}."))
    blocks.append(Code("report", "This page", (f"qserve report {run.id} --format html --output report.html",)))
    blocks.append(Text(f"Logs of the workers: {run.folder}"))
    return Section("reproduce", "How to reproduce", tuple(blocks))
