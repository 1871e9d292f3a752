"""`qserve train`: plan, prepare, train, check, keep."""

from __future__ import annotations

import contextlib
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from qserve.cli.command_line import without_secrets
from qserve.cli.options.command import Command, model_options, needed_model
from qserve.cli.options.json_output import add_json_flag, print_json
from qserve.cli.options.training import training_options
from qserve.cli.progress import ProgressLine, progress_line
from qserve.cli.train.beside import room_in
from qserve.cli.train.fitting import need_trl
from qserve.cli.train.flags import TrainFlags
from qserve.cli.train.follow import follow
from qserve.cli.train.options import METHODS, run_options
from qserve.cli.train.outputs import again_command, check_output, unstarted_removed
from qserve.cli.train.planned import PlannedRun
from qserve.cli.train.summary import Ended, show_summary, summary_json
from qserve.errors import UsageError
from qserve.hub.chat_template import read_template
from qserve.runs.training_commands import resume_command
from qserve.terminal.console import console_of
from qserve.training.data.prepare import PreparedData
from qserve.training.emit import emitted
from qserve.training.job import TrainingRun
from qserve.training.stop_signals import StopSignals

if TYPE_CHECKING:
    from qserve.training.outcome import Outcome
    from qserve.training.record import TrainingRecord

__all__ = ["command"]


@click.command("train", cls=Command)
@click.argument("method", type=click.Choice(METHODS))
@model_options()
@run_options
@training_options
@add_json_flag
def command(method: str, model: str | None, gpu: str | None, as_json: bool, **values: Any) -> None:
    """Train a model or a reward model with TRL, planned first and measured against the plan.

    A run that does not fit is refused with the changes after which it does; --auto takes the first. Ctrl-C saves the
    run and prints the command that resumes it. OUTPUT/run has the configuration, in TRL's and accelerate's own formats.

    \b
    qserve train reward demo --data demo --eval-share 0.3 --freeze-base
    qserve train reward Qwen/Qwen2.5-3B --data pairs.jsonl
    qserve train lora Qwen/Qwen3-8B --data conversations.jsonl
    qserve train grpo Qwen/Qwen3-4B --data prompts.jsonl --reward ./rm
    qserve train reward Qwen/Qwen2.5-3B --data pairs.jsonl --resume
    """
    model = needed_model(model, f"qserve train {method} Qwen/Qwen3-0.6B --data FILE")
    emit = values["emit"]
    if emit is None:
        need_trl()
        _refuse_described(gpu, method)
    with StopSignals().installed() as stop, progress_line() as line:
        try:
            with room_in(values["beside_service"], values["service_key"], values["meanwhile"]) as room:
                planned = PlannedRun.of(method, model, gpu, values, line, as_json=as_json)
                if emit is not None:
                    _emit(planned.run, emit, as_json)
                    return
                TrainFlags.check_rollouts(planned.run)
                if room is not None:
                    room.shrink(*planned.held_bytes)
                status = _train(planned, stop)
        except KeyboardInterrupt:
            click.echo("Stopped before the training began: nothing is saved.", err=True)
            status = stop.exit_status
    sys.exit(status)


def _refuse_described(gpu: str | None, method: str) -> None:
    if gpu not in (None, "none"):
        raise UsageError(
            "--gpu describes cards of another machine, and a run uses this machine's; plan with it: qserve plan train "
            f"--method {method} --gpu {gpu}, or write another trainer's command: --emit. --gpu none trains on the CPU"
        )


def _emit(run: TrainingRun, framework: str, as_json: bool) -> None:
    """Another trainer's command; of TRL's the files, too."""
    lines = emitted(run, framework)
    if framework == "trl":
        _write_for_trl(run)
    if as_json:
        print_json({"trainer": framework, "command": lines, "plan": dict(run.plan)})
    else:
        click.echo(lines)


def _write_for_trl(run: TrainingRun) -> None:
    """The files that TRL's command names: its configuration, accelerate's, and the data in TRL's format."""
    from qserve.training.configuration.files import write_configuration
    from qserve.training.configuration.trl import beyond_trl
    from qserve.training.data.prepare import prepare

    check_output(run, resume=False)
    with unstarted_removed(run):
        data = prepare(run.data, run.trainer, run.data_folder, run.folder, read_template(Path(run.model)))
        write_configuration(run, data)
    for line in (data.told, *data.notes, *beyond_trl(run)):
        click.echo(line, err=True)


def _prepared(planned: PlannedRun) -> PreparedData:
    """The data in TRL's format; of a run that is resumed what was made at its start."""
    from qserve.training.data.prepare import prepare, prepared

    run, line = planned.run, planned.line
    if (data := prepared(run.folder)) is None:
        line.phase("preparing the data")
        data = prepare(run.data, run.trainer, run.data_folder, run.folder, read_template(Path(run.model)))
    line.say(data.told)
    for note in data.notes:
        line.say(f"note: {note}")
    if run.trainer == "reward" and not data.num_eval:
        line.say("no pairs are held out, so the model is not evaluated; hold some out with --eval-share or --eval-data")
    return data


def _train(planned: PlannedRun, stop: StopSignals) -> int:
    """From where its record begins a signal is counted: from then on it is the summary that says what was saved."""
    from qserve.training.configuration.files import write_configuration
    from qserve.training.launch import launch
    from qserve.training.record import TrainingRecord

    run = planned.run
    with ExitStack() as stack:
        with unstarted_removed(run):
            data = _prepared(planned)
            _, accelerate_file = write_configuration(run, data)
            stack.enter_context(stop.counting())
            record = TrainingRecord(run, planned.state, without_secrets(["qserve", *sys.argv[1:]]), planned.hardware)
            job_file = run.write()
        events, ended = follow(launch(run, job_file, accelerate_file), record.progress, planned.line, stop)
        return _finish(planned, data, record, stop, events, ended)


def _finish(
    planned: PlannedRun,
    data: PreparedData,
    record: TrainingRecord,
    stop: StopSignals,
    events: list[dict[str, Any]],
    ended: int,
) -> int:
    """Checks what the process saved, keeps and tells it; the exit status."""
    from qserve.training.configuration.trl import epochs
    from qserve.training.launch import LOG
    from qserve.training.outcome import outcome_of

    run = planned.run
    outcome = outcome_of(events, ended, run.folder / LOG, planned.job, was_stopped=bool(stop.count))
    is_checked = outcome.state == "ended" and run.trainer == "reward" and data.num_eval
    check = _checked(run, planned.line, stop) if is_checked else None
    status = stop.exit_status if stop.count else int(outcome.state == "failed")
    kept = record.close(outcome, check, status)
    planned.line.end()
    _tell(planned, outcome, check, kept, again_command(epochs(run, data.num_train)), status)
    return status


def _tell(
    planned: PlannedRun, outcome: Outcome, check: dict[str, Any] | None, kept: str | None, again: str, status: int
) -> None:
    from qserve.training.checkpoints import last_checkpoint
    from qserve.training.record import document_of

    document, output = document_of(planned.run, outcome, check), planned.run.output
    ended = Ended(document, last_checkpoint(output), resume_command(output, sys.argv[1:]), again, kept)
    if planned.as_json:
        print_json(summary_json(ended, status))
    else:
        show_summary(ended, console_of(stderr=outcome.state == "failed"))


def _checked(run: TrainingRun, line: ProgressLine, stop: StopSignals) -> dict[str, Any] | None:
    """The saved checkpoint, scored as the reward host scores it, against the trainer's own last evaluation.

    A signal ends the check, not the command: None.
    """
    from qserve.training.check import check_saved

    line.phase("checking the saved model")
    with contextlib.suppress(KeyboardInterrupt), stop.raising():
        return check_saved(run)
    return None
