"""A run as it was typed, planned: on this machine, with its data looked at, and in the folder that it is kept in."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from qserve.cli.options.training import training_request
from qserve.cli.progress import ProgressLine
from qserve.cli.train.fitting import fitting_request
from qserve.cli.train.flags import TrainFlags, data_at, split_reward
from qserve.cli.train.machine import completed, devices_of, with_engine
from qserve.cli.train.outputs import check_output, new_output, newest_resumable
from qserve.core.checkpoint import Checkpoint
from qserve.core.hardware import Hardware
from qserve.errors import UsageError
from qserve.hub import resolve
from qserve.hub.revisions import split_revision
from qserve.hub.served_folder import clean_folder
from qserve.planner.training import TrainingJob
from qserve.planner.training.training_defaults import default_learning_rate, default_precision
from qserve.service.chat import check_template_to_train
from qserve.service.machine import hardware_of
from qserve.state_folder import state_folder
from qserve.training.data.prepare import check_source
from qserve.training.job import RewardSource, TrainingRun

__all__ = ["PlannedRun"]


@dataclass(frozen=True)
class PlannedRun:
    """What was typed, planned: the run, and what its end is told by."""

    run: TrainingRun
    job: TrainingJob
    hardware: Hardware
    state: Path
    line: ProgressLine
    as_json: bool

    @property
    def held_bytes(self) -> tuple[int, int]:
        """What it takes of the RAM, and of each card, as planned."""
        used, host = [card["used_bytes"] for card in self.run.plan["cards"]], self.run.plan["host_bytes"]
        on_cpu = self.job.devices[0].kind == "cpu"
        return (host + sum(used), 0) if on_cpu else (host, max(used))

    @classmethod
    def of(
        cls, method: str, model: str, gpu: str | None, values: dict[str, Any], line: ProgressLine, *, as_json: bool
    ) -> PlannedRun:
        """Planned and shown; on standard error where the object of --json is to be on standard output."""
        line.phase(f"reading {model}")
        flags = TrainFlags.of(values)
        hardware, emit, state = hardware_of(gpu), flags.emit, state_folder(flags.state_dir)
        checkpoint = resolve(model)
        check_template_to_train(checkpoint.folder)
        if emit is not None:
            _refuse_lost_revision(emit, model, checkpoint, "--revision")
            flags = replace(flags, rewards=tuple(_reward_elsewhere(emit, text) for text in flags.rewards))
        precision = values["precision"] or default_precision(values["zero_stage"], on_cpu=not hardware.devices)
        devices = devices_of(hardware, flags.gpus)
        request = training_request({**values, "method": method, "precision": precision}, len(devices))
        request = completed(request, hardware, emit=emit)
        flags.check(request)
        labels: tuple[str, ...] = ()
        if emit is None:
            request = with_engine(request, flags.vllm, hardware)
            line.phase(f"reading the first rows of {flags.data}")
            labels = check_source(data_at(flags.source), method, flags.score_names)
            request = flags.labelled(request, labels)
            if devices[0].kind == "cpu":
                request = replace(request, runtime_bytes=_calibrated(state, method))
        line.phase("planning")
        ram_bytes = hardware.ram_available_bytes if emit is None else None
        word = checkpoint.packed_word
        job = TrainingJob(model, checkpoint.spec, gpu, devices, request, ram_bytes=ram_bytes, packed_word=word)
        job, plan = fitting_request(
            job, flags.auto, flags.source, checkpoint.told, elsewhere=emit is not None, as_json=as_json
        )
        rate = flags.learning_rate or default_learning_rate(plan.request, job.spec.hidden_size)
        flags = replace(flags, learning_rate=rate)
        folder = clean_folder(checkpoint.folder) if checkpoint.folder else checkpoint.id
        output = _output(flags, state, method)
        run = replace(flags.run(plan.request, str(folder), output, devices, labels), plan=plan.to_json())
        if flags.resume and flags.output is None:
            run = replace(run, output=newest_resumable(state, run))
        if emit is None:
            check_output(run, flags.resume)
        if emit is None and checkpoint.folder is None:
            run = replace(run, model=_downloaded(checkpoint, line))
        return cls(run, job, hardware, state, line, as_json)


def _refuse_lost_revision(emit: str, model: str, checkpoint: Checkpoint, where: str) -> None:
    """Raises UsageError for a model at a revision that no other trainer can be told: an id has none there."""
    if checkpoint.folder is None and split_revision(model)[1] is not None:
        raise UsageError(
            f"--emit {emit}: {model} is not on this machine, and the other trainer is told an id without its "
            f"revision; fetch it here first (qserve pull ID --no-plan --revision REVISION), or leave {where} out"
        )


def _reward_elsewhere(emit: str, text: str) -> str:
    """A reward as --reward has it, with the folder of a checkpoint at a revision in place of its name."""
    _, target = split_reward(text)
    by_qserve = emit == "trl"  # its script calls qserve, which reads the revision
    if by_qserve or RewardSource(target).is_served or split_revision(target)[1] is None:
        return text
    checkpoint = resolve(target)
    _refuse_lost_revision(emit, target, checkpoint, f"the revision of --reward {target}")
    assert checkpoint.folder is not None, "refused otherwise"
    return text.removesuffix(target) + str(clean_folder(checkpoint.folder))


def _calibrated(state: Path, method: str) -> int | None:
    from qserve.training.calibration import calibrated_runtime

    return calibrated_runtime(state, method)


def _downloaded(checkpoint: Checkpoint, line: ProgressLine) -> str:
    """Its folder; `line` says how much of it is there."""
    from qserve.hub.download import download

    line.phase(f"downloading {checkpoint.id}")
    folder = download(checkpoint, line.arrived).folder
    assert folder is not None, "a download has a folder"
    return str(clean_folder(folder))


def _output(flags: TrainFlags, state: Path, method: str) -> Path:
    if flags.output is not None:
        return flags.output.expanduser().absolute()
    return new_output(state, method)
