"""`qserve quantize`: a checkpoint in fewer bits, planned before and described after."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from qserve.cli.env import environments_folder
from qserve.cli.options.command import Command, model_options, needed_model
from qserve.cli.options.json_output import add_json_flag, print_json
from qserve.cli.options.numbers import Count
from qserve.cli.progress import ProgressLine, progress_line, resumable
from qserve.errors import UsageError
from qserve.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from qserve.derive.quantize.calibration import Texts
    from qserve.derive.quantize.methods import Method
    from qserve.derive.quantize.plan import QuantizePlan
    from qserve.derive.quantize.run import Made, Settings

__all__ = ["command"]

_WAYS = ("w4a16", "awq", "fp8", "w8a8", "nf4")


@click.command("quantize", cls=Command)
@model_options()
@click.option("--to", type=click.Choice(_WAYS), required=True, help="What is made; 4 bit: w4a16, awq, nf4.")
@click.option("--out", type=click.Path(path_type=Path), help="A new folder for the quantized checkpoint.")
@click.option(
    "--texts",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Texts to calibrate on: .jsonl with text or messages, or .txt [bundled ones].",
)
@click.option("--num-samples", type=Count(min=1), default=256, show_default=True, help="Rows of these texts at most.")
@click.option("--max-length", type=Count(min=16), default=512, show_default=True, help="Tokens of such a row at most.")
@click.option("--group-size", type=click.Choice(["32", "64", "128"]), help="4 bit: columns that share a scale.")
@click.option("--seed", type=Count(), default=0, show_default=True, help="Draws the rows.")
@click.option("--anyway", is_flag=True, help="Although such a checkpoint of the model is published.")
@click.option("--plan-only", is_flag=True, help="Say what it takes and make nothing.")
@click.option("--state-dir", type=click.Path(path_type=Path), envvar="QSERVE_STATE_DIR", help="[~/.local/state/qserve]")
@add_json_flag
def command(
    model: str | None,
    to: str,
    out: Path | None,
    texts: Path | None,
    num_samples: int,
    max_length: int,
    group_size: str | None,
    seed: int,
    anyway: bool,
    plan_only: bool,
    state_dir: Path | None,
    as_json: bool,
) -> None:
    """Quantize a model that generates text: calibrated, with the modules left out that must not be rounded.

    llm-compressor does it in an environment of its own, which is made first where it is not there; nf4 is done by
    bitsandbytes. RAM and disk are checked before. The result has a model card.

    \b
    qserve quantize ./my-model --to w4a16 --out ./my-model-w4a16
    qserve quantize ./my-model --to awq --texts chats.jsonl --out ./q
    qserve compare ./my-model --quants bf16 --made ./my-model-w4a16
    """
    from qserve.derive.output import check_disk, check_memory, check_new
    from qserve.derive.quantize.calibration import bundled_texts, demo_texts, texts_in
    from qserve.derive.quantize.methods import METHODS
    from qserve.derive.quantize.plan import check_sibling, plan_quantize
    from qserve.derive.quantize.run import Settings
    from qserve.derive.source import source_of
    from qserve.hub.resolve import id_of

    named, method = needed_model(model, f"qserve quantize ./my-model --to {to} --out FOLDER"), METHODS[to]
    if out is None and not plan_only:
        raise UsageError(f"where to is not named; write qserve quantize {named} --to {to} --out FOLDER")
    if texts is not None and not method.is_calibrated:
        raise UsageError(f"--texts: {to} is not calibrated ({method.how}); leave it out")
    if out is not None:
        check_new(out)
    if not anyway:
        check_sibling(id_of(named), method)
    if method.is_calibrated:
        chosen = texts_in(texts) if texts is not None else demo_texts() if named == "demo" else bundled_texts()
    with progress_line() as line, resumable("Nothing was written"):
        source = source_of(named, line.phase, line.arrived)
        plan = plan_quantize(source, method, None if group_size is None else int(group_size), max_length, num_samples)
        for sentence in _told(plan):
            line.say(sentence)
        check_memory(plan.memory_bytes, "quantizing", "--num-samples and --max-length take less, or a larger machine")
        if plan_only or out is None:
            return
        check_disk(out, plan.num_bytes, "the quantized checkpoint")
        settings = Settings(max_length, num_samples, seed, _device())
        made = _made(plan, out, chosen if method.is_calibrated else None, settings, state_dir, line)
    _show(plan, out, made, named, as_json=as_json)


def _device() -> str:
    from qserve.detect import detect

    return "cuda" if any(device.kind == "cuda" for device in detect().devices) else "cpu"


def _told(plan: QuantizePlan) -> Iterator[str]:
    """What is made, of what, and what runs it here."""
    groups = f", {plan.group_size} columns a group" if plan.group_size else ""
    yield (
        f"{plan.source.name}: {format_bytes(plan.source_bytes)} become {format_bytes(plan.num_bytes)} "
        f"({plan.method.how}{groups}), with up to {format_bytes(plan.memory_bytes)} of RAM; how long it takes is told "
        "after the first layer"
    )
    yield f"in 16 bit stay {', '.join(one.name for one in plan.left_out)}"
    yield from _engines(plan.method)


def _engines(method: Method) -> Iterator[str]:
    """For each engine whether it runs the result on this machine."""
    from qserve.detect import detect
    from qserve.detect.engine_checks import engine_checks
    from qserve.detect.packages import Packages
    from qserve.planner.engine import own_engines

    hardware, packages = detect(), Packages.installed()
    device = (hardware.devices or (hardware.cpu_device,))[0]
    for engine in own_engines():
        runs = engine.planner.runs_stored(method.scheme, device, hardware.cpu)
        why = engine_checks(engine.name).why_not_stored(method.scheme, hardware, packages) if runs else "no kernels"
        yield f"{engine.planner.title}: {'runs it here' if why is None else f'does not run it here ({why})'}"


def _made(
    plan: QuantizePlan, out: Path, texts: Texts | None, settings: Settings, state_dir: Path | None, line: ProgressLine
) -> Made:
    from qserve.derive.quantize.run import Progress, quantize
    from qserve.environments.making import environment_of, ready

    log = environments_folder(state_dir).parent / "quantize" / f"{out.name}.log"
    progress = Progress(line.phase, line.count)

    def run(python: Path) -> Made:
        return quantize(
            plan,
            out,
            python,
            texts,
            settings,
            log,
            progress,
            lambda folder, made: _write_card(plan, folder, out.name, texts, made),
        )

    if plan.method.environment is None:
        return run(Path(sys.executable))
    environment = environment_of(plan.method.environment, environments_folder(state_dir))
    line.phase(f"environment {environment.name}")
    ready(environment, line.tell)
    with environment.used():
        return run(environment.python)


def _write_card(plan: QuantizePlan, folder: Path, name: str, texts: Texts | None, made: Made) -> None:
    from qserve.derive.card import ModelCard, versions_of

    num_bytes = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    rows = {
        "source": plan.source.told,
        "scheme": f"{plan.method.name}: {plan.method.how}",
        **({"group size": str(plan.group_size)} if plan.group_size else {}),
        "weights": f"{format_bytes(num_bytes)}, of {format_bytes(plan.source_bytes)}",
    }
    if texts is not None:
        rows["calibration"] = f"{made.num_tokens:,} tokens in {made.num_rows:,} rows of {texts.source}"
    left_out = {f"`{one.pattern}`": one.why for one in plan.left_out}
    versions = {**versions_of(), **made.versions}
    sections = {"How it was made": rows, "In 16 bit": left_out, "Versions": versions}
    opening = f"{plan.source.name}, quantized by `qserve quantize --to {plan.method.name}`."
    ModelCard(name, plan.source.hub_id, "quantized", opening, sections, (plan.method.name,)).write(folder)


def _show(plan: QuantizePlan, out: Path, made: Made, model: str, *, as_json: bool) -> None:
    num_bytes = sum(file.stat().st_size for file in out.glob("*.safetensors"))
    if as_json:
        figures = {"bytes": num_bytes, "planned_bytes": plan.num_bytes, "source_bytes": plan.source_bytes}
        memory = {"peak_bytes": made.peak_bytes, "planned_peak_bytes": plan.memory_bytes, "seconds": made.seconds}
        print_json({"folder": str(out), "scheme": plan.method.scheme, **figures, **memory})
        return
    where = shlex.quote(str(out))
    click.echo(
        f"Made    {out}: {format_bytes(num_bytes)} (planned {format_bytes(plan.num_bytes)}) in "
        f"{format_seconds(made.seconds)}, {format_bytes(made.peak_bytes)} of RAM"
    )
    click.echo(f"Compare qserve compare {shlex.quote(model)} --quants bf16 --made {where}")
    click.echo(f"Next    qserve up --model {where}")
