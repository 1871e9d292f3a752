"""`qserve train`: plan, prepare, train, check, keep."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import click

from qserve.cli.options.chat_templates import check_template_to_train
from qserve.cli.options.command import Command, model_options, needed_model
from qserve.cli.options.planning import hardware_of
from qserve.cli.options.training import training_options, training_request
from qserve.cli.state import state_folder
from qserve.cli.train.fitting import default_precision, fitting_request, need_trl
from qserve.cli.train.flags import TrainFlags, source_at
from qserve.cli.train.follow import follow, show_summary
from qserve.cli.train.machine import completed, devices_of, with_engine
from qserve.cli.train.options import METHODS, run_options
from qserve.cli.up.recording import without_secrets
from qserve.core.checkpoint import Checkpoint
from qserve.core.hardware import Hardware
from qserve.errors import UsageError
from qserve.hub import resolve
from qserve.hub.chat_template import read_template
from qserve.hub.served_folder import clean_folder
from qserve.planner.training import TrainingJob
from qserve.planner.training.request import Method
from qserve.training.data.prepare import check_source
from qserve.training.emit import emitted
from qserve.training.job import TrainingRun

__all__ = ["command"]


@click.command("train", cls=Command)
@click.argument("method", type=click.Choice(METHODS))
@model_options()
@run_options
@training_options(None)
def command(method: str, model: str | None, gpu: str | None, **values: Any) -> None:
    """Train a model or a reward model with TRL, planned first and measured against the plan.

    What does not fit is refused with the changes that would, cheapest first; --auto takes the first. Ctrl-C saves,
    --resume goes on. The configuration that was used lies in OUTPUT/run, in TRL's and accelerate's own formats.

    \b
    qserve train reward Qwen/Qwen2.5-3B --data pairs.jsonl
    qserve train lora Qwen/Qwen3-8B --data conversations.jsonl
    qserve train grpo Qwen/Qwen3-4B --data prompts.jsonl --reward ./rm
    qserve up --reward my-reward-model
    """
    model = needed_model(model, f"qserve train {method} Qwen/Qwen3-0.6B --data FILE")
    hardware, emit = hardware_of(gpu), values["emit"]
    if emit is None:
        need_trl()
        _refuse_described(gpu, method)
    checkpoint = resolve(model)
    check_template_to_train(checkpoint.folder)
    values["precision"] = values["precision"] or default_precision(hardware, values["zero_stage"])
    request = completed(training_request({**values, "method": cast("Method", method)}), hardware, emit=emit)
    flags, devices = TrainFlags(values), devices_of(hardware, values["gpus"])
    flags.check(request)
    output = _output(values, method)
    labels: tuple[str, ...] = ()
    if emit is None:
        request = with_engine(request, values["vllm"], hardware)
        labels = check_source(source_at(values["data"]), method, flags.labels)
        request = flags.labelled(request, labels)
        if devices[0].kind == "cpu":
            request = replace(request, runtime_bytes=_learned(state_folder(values["state_dir"]), method))
    ram_bytes = hardware.ram_available_bytes if emit is None else None
    job = TrainingJob(model, checkpoint.spec, gpu, devices, request, ram_bytes=ram_bytes)
    job, plan = fitting_request(job, values["auto"], values["data"], checkpoint.messages, elsewhere=emit is not None)
    folder = clean_folder(checkpoint.folder) if checkpoint.folder else checkpoint.id
    made = flags.run(plan.request, str(folder), output, devices, labels)
    run = replace(made, plan=plan.to_json())
    if emit is not None:
        lines = emitted(run, emit)
        if emit == "trl":
            _write_for_trl(run)
        click.echo(lines)
        return
    flags.check_rollouts(run)
    if checkpoint.folder is None:
        run = replace(run, model=_downloaded(checkpoint))
    _refuse_used_output(run, values["resume"])
    sys.exit(_train(run, job, state_folder(values["state_dir"]), hardware))


def _learned(state: Path, method: str) -> int | None:
    from qserve.training.learned import learned_runtime

    return learned_runtime(state, method)


def _refuse_described(gpu: str | None, method: str) -> None:
    if gpu not in (None, "none"):
        raise UsageError(
            "--gpu describes cards that are not here, and a run takes those that are; plan with it: qserve plan train "
            f"--method {method} --gpu {gpu}, or write another trainer's command: --emit. --gpu none trains on the CPU"
        )


def _write_for_trl(run: TrainingRun) -> None:
    """The files that TRL's command names: its configuration, accelerate's, and the data in TRL's format."""
    from qserve.training.configuration.files import write_configuration
    from qserve.training.configuration.trl import beyond_trl
    from qserve.training.data.prepare import prepare

    _refuse_used_output(run, resume=False)
    data = prepare(run.data, run.trainer, run.data_folder, run.folder, read_template(Path(run.model)))
    write_configuration(run, data)
    for line in (data.told, *data.notes, *beyond_trl(run)):
        click.echo(line, err=True)


def _downloaded(checkpoint: Checkpoint) -> str:
    from qserve.hub.download import download

    folder = download(checkpoint).folder
    assert folder is not None, "a download has a folder"
    return str(clean_folder(folder))


def _output(values: dict[str, Any], method: str) -> Path:
    if values["output"] is not None:
        return Path(values["output"]).expanduser().absolute()
    if values["resume"]:
        raise UsageError("--resume goes on from the checkpoints in a folder; name it: --output FOLDER")
    name = f"{method}-{time.strftime('%Y%m%d-%H%M%S')}"
    return (state_folder(values["state_dir"]) / "training" / name).absolute()


def _refuse_used_output(run: TrainingRun, resume: bool) -> None:
    """Nothing is trained over: an output of another run, or of this one without --resume, stays as it is."""
    earlier = run.folder / "job.json"
    if not resume:
        if run.output.exists() and any(run.output.iterdir()):
            what = "holds a run already: go on with it by --resume" if earlier.exists() else "is not empty"
            raise UsageError(f"{run.output} {what}, or name another --output")
        return
    if not earlier.exists():
        raise UsageError(f"{run.output} holds no run to go on with; start one without --resume")
    changed = run.changes_since(TrainingRun.read(earlier))
    if changed:
        raise UsageError(
            f"--resume goes on with the run in {run.output}, and this command differs from it in {', '.join(changed)}; "
            "give the flags that it was started with (steps, epochs and how often is saved may change)"
        )


def _train(run: TrainingRun, job: TrainingJob, state: Path, hardware: Hardware) -> int:
    from qserve.training.configuration.files import write_configuration
    from qserve.training.data.prepare import prepare, prepared
    from qserve.training.launch import LOG, launch
    from qserve.training.outcome import outcome_of
    from qserve.training.record import TrainingRecord

    data = prepared(run.folder)
    if data is None:
        data = prepare(run.data, run.trainer, run.data_folder, run.folder, read_template(Path(run.model)))
    click.echo(data.told)
    for note in data.notes:
        click.echo(f"note: {note}", err=True)
    if run.trainer == "reward" and not data.num_eval:
        click.echo("no pairs are held out, so nothing will say how good it is; --eval-share or --eval-data", err=True)
    _, accelerate_file = write_configuration(run, data)
    record = TrainingRecord(run, state, without_secrets(["qserve", *sys.argv[1:]]), hardware)
    events, status = follow(launch(run, run.write(), accelerate_file), record.progress)
    outcome = outcome_of(events, status, run.folder / LOG, job)
    check = _checked(run) if outcome.state == "ended" and run.trainer == "reward" and data.num_eval else None
    exit_status = int(outcome.state == "failed")
    show_summary(run, outcome, check, record.close(outcome, check, exit_status))
    return exit_status


def _checked(run: TrainingRun) -> dict[str, Any] | None:
    """The saved checkpoint, scored as the reward host scores it, against the trainer's own last evaluation."""
    from qserve.training.check import check_saved

    return check_saved(run)
