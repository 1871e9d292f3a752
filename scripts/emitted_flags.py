"""Every flag that `qserve train --emit` writes, held to the parsers of the releases that it is written for.

    pip download --no-deps -d wheels ms-swift==4.6.0 openrlhf==0.11.2 verl==0.9.1
    python scripts/emitted_flags.py wheels

The wheels are read, not installed: none of the three shares this environment. Prints the number of flags that were
checked, and ends with status 1 where one is unknown.
"""

from __future__ import annotations

import ast
import re
import shlex
import sys
import zipfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from qserve.errors import UsageError
from qserve.planner.training import TrainingRequest, VllmBeside
from qserve.training.emit import emitted
from qserve.training.job import DataSource, RewardSource, TrainingRun

# Of transformers' TrainingArguments and TRL's configurations, which ms-swift's dataclasses extend.
_INHERITED = {
    "output_dir",
    "learning_rate",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "gradient_checkpointing",
    "beta",
    "deepspeed",
    "num_train_epochs",
}


def main() -> None:
    """Reads the folder of wheels that is the only argument."""
    wheels = Path(sys.argv[1])
    known = {
        "ms-swift": lambda run: _swift(wheels),
        "openrlhf": lambda run: _openrlhf(wheels, run),
        "verl": lambda run: _verl(wheels),
    }
    checked, unknown = 0, []
    for framework, run in product(known, _runs()):
        try:
            words = shlex.split(emitted(run, framework).replace("\\\n", " "))
        except UsageError:
            continue
        allowed = known[framework](run)
        for flag in _flags(framework, words):
            checked += 1
            if flag not in allowed:
                unknown.append(f"{framework} {run.method}: {flag}")
    print(f"{checked} flags checked, {len(unknown)} unknown")
    print("\n".join(sorted(set(unknown))))
    sys.exit(bool(unknown))


def _runs() -> Iterator[TrainingRun]:
    """Every method with every option that changes a command."""
    for method in ("sft", "lora", "qlora", "reward", "dpo", "grpo", "ppo"):
        engines: list[VllmBeside | None] = [None]
        if method in ("grpo", "ppo"):
            engines += [VllmBeside("colocated", 0.4, sleep=True), VllmBeside("separate", 0.9)]
        for stage, vllm, rank in product((0, 2, 3), engines, (0, 16)):
            offload: Any = "cpu" if stage else "none"
            request = TrainingRequest(
                method, zero_stage=stage, offload_optimizer=offload, lora_rank=rank, vllm=vllm, precision="mixed"
            )
            for target in ("http://127.0.0.1:8000", "/models/reward"):
                yield TrainingRun(
                    request,
                    "/models/policy",
                    DataSource("data.parquet"),
                    Path("/out"),
                    device="cuda",
                    num_processes=4,
                    rewards=(RewardSource(target),) if method in ("grpo", "ppo") else (),
                )


def _flags(framework: str, words: list[str]) -> list[str]:
    if framework == "verl":
        return [word.partition("=")[0] for word in words[3:]]
    return [word.removeprefix("--") for word in words if word.startswith("--") and word != "--module"]


def _wheel(folder: Path, name: str) -> zipfile.ZipFile:
    return zipfile.ZipFile(next(folder.glob(f"{name}-*.whl")))


def _swift(folder: Path) -> set[str]:
    """Annotated fields of every class in its arguments, and of the mixins that they extend."""
    wheel = _wheel(folder, "ms_swift")
    places = ("swift/arguments/", "swift/rlhf_trainers/arg", "swift/trainers/arg")
    files = [name for name in wheel.namelist() if name.startswith(places)]
    fields = set(_INHERITED)
    for name in files:
        if name.endswith(".py"):
            tree = ast.parse(wheel.read(name))
            classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
            fields |= {
                line.target.id
                for one in classes
                for line in one.body
                if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
            }
    return fields


def _openrlhf(folder: Path, run: TrainingRun) -> set[str]:
    """What the script of the method adds to its parser, once for each role where it loops over them."""
    name = {"reward": "train_rm", "dpo": "train_dpo", "grpo": "train_ppo_ray", "ppo": "train_ppo_ray"}
    wheel = _wheel(folder, "openrlhf")
    script = name.get(run.method, "train_sft")
    (file,) = (one for one in wheel.namelist() if one.endswith(f"openrlhf/cli/{script}.py"))
    text = wheel.read(file).decode()
    by_role = re.findall(r'f"--\{prefix\}\.([a-z_.A-Z0-9]+)"', text)
    return {
        *re.findall(r'"--([a-z_.A-Z0-9]+)"', text),
        *(f"{role}.{one}" for role in ("actor", "critic") for one in by_role),
    }


def _verl(folder: Path) -> set[str]:
    """Paths of every setting in the configuration that main_ppo composes, and of its groups."""
    wheel = _wheel(folder, "verl")
    (file,) = (one for one in wheel.namelist() if one.endswith("config/_generated_ppo_trainer.yaml"))
    return set(_paths(yaml.safe_load(wheel.read(file)), ""))


def _paths(tree: dict[str, Any], lead: str) -> Iterator[str]:
    for name, value in tree.items():
        yield f"{lead}{name}"
        if isinstance(value, dict):
            yield from _paths(value, f"{lead}{name}.")


if __name__ == "__main__":
    main()
