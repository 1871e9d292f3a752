"""Every method once, on the demo chat model, in one process: importing TRL costs more than all of them.

    python -c "import gc; gc.disable(); from tests.tiny.training.methods import main; main()" FOLDER

Below FOLDER lies each run under its name; what a run ended with, where it failed, is in FOLDER/failures.json.
"""

from __future__ import annotations

import errno
import gc
import importlib.util
import json
import os
import runpy
import shlex
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "TOKENIZERS_PARALLELISM": "false"}
os.environ["DS_ACCELERATOR"] = "cpu"

import torch
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils.launch import prepare_deepspeed_cmd_env, prepare_multi_gpu_env
from click.testing import CliRunner
from datasets import arrow_dataset, disable_caching, fingerprint
from transformers import AutoModelForSequenceClassification

from qserve.cli.main import cli as main_command
from qserve.cli.progress import progress_line
from qserve.cli.train.command import command as train_command
from qserve.cli.train.planned import PlannedRun
from qserve.demo import chat_model_path, reward_model_path
from qserve.demo.preferences import write_held_out
from qserve.planner.training import TrainingRequest, VllmBeside
from qserve.planner.training.training_defaults import EXAMPLE
from qserve.training import check
from qserve.training.configuration.accelerate import cpu_environment
from qserve.training.configuration.files import write_configuration
from qserve.training.data.prepare import PreparedData, prepare
from qserve.training.data.scores import STEPS
from qserve.training.job import DataSource, RewardSource, Schedule, TrainingRun
from qserve.training.process import recorded
from qserve.training.process import run as process
from qserve.training.process.events import EventLog
from qserve.training.process.failures import failure_of

torch.set_num_threads(1)
FOLDER = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
PAIRS, RULES = FOLDER / "pairs.jsonl", FOLDER / "rules.yaml"
CHILD_LIMIT_S = 300
HAS_DEEPSPEED = importlib.util.find_spec("deepspeed") is not None  # built where it is installed, if it can be
# What two processes of a run would each import anew, sixteen times.
IN_EVERY_FORK = (
    "scipy.io",
    "torch.distributed.checkpoint",
    "torch.distributed.elastic.agent.server.api",
    "torch.distributed.fsdp",
    "torch.profiler",
    "transformers.models.qwen3.modeling_qwen3",
)
failures: dict[str, dict] = {}
checks: dict[str, dict | None] = {}


def made(
    name: str,
    method: str,
    data: Path = PAIRS,
    steps: int = 2,
    save_steps: int = 2,
    labels: tuple[str, ...] = (),
    model: str | None = None,
    **fields,
) -> TrainingRun:
    """A run of a few steps; `fields` are the run's, or the request's."""
    of_run = {key: fields.pop(key) for key in tuple(fields) if key in TrainingRun.__dataclass_fields__}
    request = TrainingRequest(
        method,
        precision="fp32",
        max_length=128,
        micro_batch=2,
        num_labels=len(labels) or None,
        **{"gradient_checkpointing": False, **fields},
    )
    # transformers evaluates after the last step: the short ones need no other.
    evaluated = steps if steps > 2 else 10 * steps
    schedule = Schedule(max_steps=steps, eval_steps=evaluated, save_steps=save_steps, learning_rate=1e-3)
    of_run = {"data": DataSource(str(data), eval_share=0.2, labels=labels), "schedule": schedule, **of_run}
    return TrainingRun(request, model or str(chat_model_path()), output=FOLDER / name, **of_run)


def trained(run: TrainingRun) -> None:
    """As `qserve train` has it, but here."""
    if not run.data_folder.exists():
        write_configuration(run, prepare(run.data, run.trainer, run.data_folder, run.folder))
    run.write()
    events = EventLog(run.events_file if os.environ.get("RANK", "0") == "0" else None)
    try:
        process.train(run, events)
    except Exception as error:
        failure = failure_of(error, run)
        if failure is None:
            raise
        failures[run.output.name] = failure


def example(name: str, *words: str) -> TrainingRun:
    """The example of the docs and of the Train page, with its defaults."""
    typed = [*shlex.split(EXAMPLE)[2:], "--gpu", "none", "--precision", "fp32", "--output", str(FOLDER / name), *words]
    values = train_command.make_context("train", typed).params
    method, model, gpu, as_json = (values.pop(one) for one in ("method", "model", "gpu", "as_json"))
    with progress_line() as line:
        return PlannedRun.of(method, model, gpu, values, line, as_json=as_json).run


def conversations() -> Path:
    file = FOLDER / "conversations.jsonl"
    rows = [json.loads(line) for line in PAIRS.read_text().splitlines()]
    file.write_text("".join(json.dumps({"prompt": one["prompt"], "completion": one["chosen"]}) + "\n" for one in rows))
    return file


def margined() -> Path:
    """The pairs, each with a margin of its own."""
    file = FOLDER / "margins.jsonl"
    rows = [
        {**json.loads(line), "margin": number % 3 / 2} for number, line in enumerate(PAIRS.read_text().splitlines())
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def scored() -> Path:
    """Both sides of each pair as single answers with two scores."""
    file = FOLDER / "scores.jsonl"
    pairs = [json.loads(line) for line in PAIRS.read_text().splitlines()]
    rows = [
        {"prompt": pair["prompt"], "response": pair[side], "scores": {"right": right, "length": 0.5}}
        for pair in pairs
        for side, right in (("chosen", 1), ("rejected", 0))
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def whole_texts() -> Path:
    """The pairs as texts without a prompt of their own, behind which TRL puts an EOS."""
    file = FOLDER / "texts.jsonl"
    pairs = [json.loads(line) for line in PAIRS.read_text().splitlines()]
    rows = [{side: f"{pair['prompt']}\n{pair[side]}" for side in ("chosen", "rejected")} for pair in pairs]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def padded_with_eos() -> str:
    """The demo as Qwen's base models are: one token is pad and end, and config.json names no pad token."""
    folder = FOLDER / "pad-is-eos"
    shutil.copytree(chat_model_path(), folder)
    for name, changed in (
        ("tokenizer_config.json", {"pad_token": "<|im_end|>"}),
        ("config.json", {"pad_token_id": None}),
    ):
        data = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({**data, **changed}))
    return str(folder)


def stepped() -> Path:
    """Two steps an answer: the question repeated, and the answer."""
    file = FOLDER / "steps.jsonl"
    pairs = [json.loads(line) for line in PAIRS.read_text().splitlines()]
    rows = [
        {"prompt": pair["prompt"], "completions": ["Let me see.", pair[side]], "labels": [True, side == "chosen"]}
        for pair in pairs
        for side in ("chosen", "rejected")
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def checked(run: TrainingRun) -> None:
    """Trained, and its saved model held against the trainer's rewards: by `qserve score`, in this process."""
    trained(run)

    def here(command: list[str], **options: Any) -> Any:
        if command[1:3] != ["-m", "qserve"]:
            return theirs(command, **options)
        told = CliRunner().invoke(main_command, command[3:])
        return SimpleNamespace(stdout=told.output, stderr="")

    check.subprocess.run, theirs = here, check.subprocess.run
    checks[run.output.name] = check.check_saved(run)
    check.subprocess.run = theirs


def parsed_for_a_card() -> None:
    """What is written for rollouts by vLLM, read by TRL's own parser: FOLDER/vllm.json. No card is asked for."""
    asked = made("card", "grpo", num_generations=2)
    request = replace(asked.request, vllm=VllmBeside("colocated", 0.31, sleep=True))
    run = replace(asked, request=request, device="cuda")
    file, _ = write_configuration(run, PreparedData(8, 8, 0, 0, ("prompt",), ""))
    from qserve.training.process.trainers import parse_configuration  # not in the rules' process

    _, args, _ = parse_configuration("grpo", file)
    told = {name: value for name, value in vars(args).items() if "vllm" in name}
    (FOLDER / "vllm.json").write_text(json.dumps(told, default=str))


def broken_save(after: int):
    """The disk fills up while the checkpoint of step `after` is written."""
    rename = recorded._rename

    def full(folder: Path, name: str) -> None:
        if name == f"checkpoint-{after}":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        rename(folder, name)

    return full


def in_child(run: TrainingRun, environment: dict[str, str], train: Callable[[TrainingRun], None] = trained) -> int:
    """Trains `run` in a fork of this process, which has all libraries; its process id."""
    child = os.fork()
    if child:
        return child
    signal.alarm(CHILD_LIMIT_S)  # one whose other has died would wait for it
    os.environ.update(environment)
    try:
        train(run)
    finally:
        os._exit(int(run.output.name in failures or sys.exc_info()[0] is not None))


def by_script(run: TrainingRun) -> None:
    """The script that is written for FSDP2 on a CPU, which knows nothing of qserve; how often it sharded a module is
    in FOLDER/NAME/sharded.
    """
    from accelerate.utils import fsdp_utils
    from torch.distributed import fsdp

    counted, whole = [], fsdp.fully_shard

    def counting(*args: object, **kwargs: object) -> object:
        counted.append(True)
        return whole(*args, **kwargs)

    fsdp.fully_shard = fsdp_utils.fully_shard = counting
    sys.argv = ["fsdp_on_cpu.py", "--config", str(run.folder / "train.yaml")]
    runpy.run_path(str(run.folder / "fsdp_on_cpu.py"), run_name="__main__")
    if os.environ["RANK"] == "0":
        (run.output / "sharded").write_text(str(len(counted)))


def by_two_processes(run: TrainingRun, train: Callable[[TrainingRun], None] = trained) -> None:
    """Over gloo, as torchrun would start them with what accelerate reads in the run's file."""
    if not run.data_folder.exists():
        write_configuration(run, prepare(run.data, run.trainer, run.data_folder, run.folder))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    common = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    common = {**by_accelerate(run), **cpu_environment(run), **common}
    children = [in_child(run, {**common, "RANK": rank, "LOCAL_RANK": rank}, train) for rank in ("0", "1")]
    if any(os.waitpid(child, 0)[1] for child in children):
        raise RuntimeError("a process of two failed")


def by_accelerate(run: TrainingRun) -> dict[str, str]:
    """What `accelerate launch` sets for the ranks from accelerate.yaml, by its own code."""
    if not run.shards_on_cpu:
        return {}
    parser = launch_command_parser()
    args = parser.parse_args(["--config_file", str(run.folder / "accelerate.yaml"), "script.py"])
    args, read, _ = _validate_launch_command(args)
    if args.use_fsdp and not args.cpu:
        return prepare_multi_gpu_env(args)
    assert args.use_deepspeed and not args.cpu
    args.deepspeed_fields_from_accelerate_config = ",".join(read.deepspeed_config)
    return prepare_deepspeed_cmd_env(args)[1]


def stopped_and_resumed(run: TrainingRun) -> None:
    """By the two processes after their first step, and by two others from its checkpoint on."""
    run.folder.mkdir(parents=True)
    run.stop_file.touch()
    by_two_processes(run)
    run.stop_file.unlink()
    by_two_processes(run)


def sharded() -> None:
    """The run `reward` of main, half of each batch in each of two processes."""
    fields = {"steps": 4, "save_steps": 4, "center_rewards": 0.01, "num_processes": 2}
    by_two_processes(made("ddp", "reward", **fields))
    stopped_and_resumed(made("fsdp", "reward", fsdp=True, **fields))
    by_two_processes(made("fsdp-script", "reward", fsdp=True, **fields), by_script)
    if HAS_DEEPSPEED:
        by_two_processes(made("zero-1", "reward", zero_stage=1, **fields))
        by_two_processes(made("zero-2", "reward", zero_stage=2, offload_optimizer="cpu", **fields))
        stopped_and_resumed(made("zero-3", "reward", zero_stage=3, **fields))


def events_of(run: TrainingRun) -> list[dict[str, Any]]:
    """What was logged so far; [] before the first event."""
    lines = run.events_file.read_text().splitlines() if run.events_file.exists() else []
    return [json.loads(line) for line in lines if line.strip()]


def killed_after(run: TrainingRun, step: int) -> None:
    """By SIGKILL, somewhere after the step is told."""
    child = in_child(run, {})
    while not any(one["event"] == "logged" and one["step"] >= step for one in events_of(run)):
        if os.waitpid(child, os.WNOHANG)[0]:
            raise RuntimeError("it ended before it was killed")
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def main() -> None:
    from qserve.training.process.trainers import trainer_class  # not in the rules' process

    write_held_out(PAIRS, 4)
    RULES.write_text("parts:\n  - {name: digits, rule: regex, pattern: '[0-9]'}\n")
    spoken = conversations()
    for name in ("reward", "scores", "steps", "sft", "dpo", "grpo"):  # before any fork
        trainer_class(name)
    if HAS_DEEPSPEED:
        importlib.import_module("deepspeed")
    for name in IN_EVERY_FORK:
        importlib.import_module(name)
    AutoModelForSequenceClassification.from_pretrained(str(chat_model_path()))  # compiles the patterns of its loading
    gc.collect()
    gc.enable()
    gc.freeze()  # every run collects garbage once or twice, and all of these libraries are none: half a second each
    disable_caching()  # writing what is mapped takes as long as mapping it
    for module in (fingerprint, arrow_dataset):  # a tenth of each run hashed what maps the rows, for that cache
        module.update_fingerprint = lambda *_: fingerprint.generate_random_fingerprint()
    sharded()  # first: a process that has trained alone can't join others
    killed = made("killed", "reward", steps=6)
    killed_after(killed, 3)
    trained(killed)  # goes on from step 2
    trained(made("reward", "reward", steps=4, save_steps=4, gradient_accumulation_steps=2, center_rewards=0.01))
    trained(made("reward-lora", "reward", margined(), lora_rank=4, label_smoothing=0.2, center_rewards=0.05))
    # Evaluated and saved at its end alone: ten evaluations take as long as the training.
    trained(example("reward-head", "--save-as", "reward-head", "--eval-steps", "75", "--save-steps", "75"))
    labels = ("right", "length")
    checked(made("labels", "reward", scored(), labels=labels, label_weights={"right": 1.0, "length": -2.0}))
    checked(made("labels-lora", "reward", scored(), labels=labels, lora_rank=4))
    checked(made("labels-head", "reward", scored(), labels=labels, freeze_base=True))
    checked(made("steps", "reward", stepped(), labels=STEPS, step_labels=True))
    checked(made("steps-head", "reward", stepped(), labels=STEPS, step_labels=True, freeze_base=True))
    base, texts = padded_with_eos(), whole_texts()
    checked(made("texts", "reward", texts, model=base))
    checked(made("texts-lora", "reward", texts, model=base, lora_rank=4))
    checked(made("texts-head", "reward", texts, model=base, freeze_base=True, save_as="reward-head"))
    trained(made("sft", "sft", spoken, gradient_checkpointing=True))
    trained(made("lora", "lora", spoken, optimizer="adamw-8bit"))
    trained(made("qlora", "qlora", spoken))
    trained(made("lora-int8", "lora", spoken, quant="int8"))
    trained(made("lora-fp16", "lora", spoken, quant="fp16"))
    trained(made("dpo", "dpo", beta=0.1))
    rewards = (RewardSource(str(reward_model_path()), 1.0), RewardSource(str(RULES), 0.5))
    trained(made("grpo", "grpo", completion_length=6, beta=0.0, num_generations=2, rewards=rewards))
    rate = Schedule(max_steps=3, learning_rate=1e30, save_steps=1)
    trained(made("nan", "reward", schedule=rate))
    full = made("full-disk", "reward", steps=6)
    whole, recorded._rename = recorded._rename, broken_save(4)
    trained(full)
    recorded._rename = whole
    trained(replace(full))  # goes on from step 2
    trained(replace(full))  # has nothing left to do
    (FOLDER / "failures.json").write_text(json.dumps(failures))
    parsed_for_a_card()
    (FOLDER / "checks.json").write_text(json.dumps(checks))
