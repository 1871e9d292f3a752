"""Section: commands that reproduce the run."""

from __future__ import annotations

import shlex

from qserve.report.blocks import Block, Code, Section, Text
from qserve.report.facts import RunReport

__all__ = ["reproduce"]


def reproduce(report: RunReport) -> Section:
    """The command, what the engine was told, and the command that made this page."""
    run = report.run
    blocks: list[Block] = [Code("command", "This run", (shlex.join(run.command),))]
    for worker in run.workers:
        arguments = tuple(str(one) for one in worker.plan.get("engine_args", ()))
        if arguments:
            blocks.append(Code(f"engine_args_{worker.name}", f"What {worker.name}'s engine was told",
                               (shlex.join(arguments),)))  # fmt: skip
    versions = " · ".join(f"{name} {version}" for name, version in run.versions.items())
    if versions:
        blocks.append(Text(f"With {versions}."))
    blocks.append(Code("report", "This page", (f"qserve report {run.id} --format html --output report.html",)))
    blocks.append(Text(f"The workers' logs are in {run.folder}."))
    return Section("reproduce", "How to reproduce", tuple(blocks))
