"""`qserve merge`: a LoRA adapter into its base model."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from qserve.cli.options.command import Command
from qserve.cli.options.completions import ModelName
from qserve.cli.options.json_output import add_json_flag, print_json
from qserve.cli.progress import ProgressLine, progress_line, resumable
from qserve.errors import ModelNotFound, UsageError
from qserve.hub.revisions import at_revision
from qserve.units import format_bytes

if TYPE_CHECKING:
    from qserve.derive.card import ModelCard
    from qserve.derive.merge.adapter import Adapter
    from qserve.derive.merge.plan import MergePlan
    from qserve.derive.source import Source

__all__ = ["command"]


@click.command("merge", cls=Command)
@click.argument("adapter", type=click.Path(path_type=Path))
@click.option("--into", type=ModelName(), help="The base model: a folder or a hub id [what the adapter names].")
@click.option("--out", type=click.Path(path_type=Path), help="A new folder for the merged checkpoint.")
@add_json_flag
def command(adapter: Path, into: str | None, out: Path | None, as_json: bool) -> None:
    """Merge ADAPTER, a LoRA adapter of peft, into its base model: a chat model or a reward model.

    Weights are added in fp32 and keep the base's precision; tensors without an adapter, also those of vision towers and
    MTP heads, are copied as they are. RAM and disk are checked first. A quantized base is refused.

    \b
    qserve merge ./adapter --out ./merged
    qserve merge ./adapter --into Qwen/Qwen3-8B --out ./merged
    """
    if out is None:
        raise UsageError(f"where to is not named; write qserve merge {adapter} --out FOLDER")
    from qserve.derive.merge.adapter import read_adapter
    from qserve.derive.merge.plan import plan_merge
    from qserve.derive.output import check_disk, check_memory, check_new

    check_new(out)
    trained = read_adapter(adapter)
    with progress_line() as line, resumable("Nothing was written"):
        base = _base(trained, into, line)
        plan = plan_merge(trained, base.folder, base.checkpoint.id)
        check_disk(out, plan.num_bytes, "the merged checkpoint")
        check_memory(plan.memory_bytes, "merging", "end what else runs here, or merge on another machine")
        line.say(
            f"{len(plan.changes.names):,} of {len(plan.tensors):,} tensors change; it takes "
            f"{format_bytes(plan.num_bytes)} on disk and up to {format_bytes(plan.memory_bytes)} of RAM"
        )
        line.phase("merging")
        from qserve.derive.merge.run import merge  # torch

        merge(plan, out, _card(plan, base, out), lambda done, total: line.tell(_of(done, total)))
    steps = _next_steps(plan, out)
    if as_json:
        print_json({"folder": str(out), "base": base.told, "is_reward": plan.is_reward, "bytes": plan.num_bytes})
        return
    click.echo(f"Merged  {out}: {format_bytes(plan.num_bytes)}")
    for label, step in steps:
        click.echo(f"{label:<7} {step}")


def _base(adapter: Adapter, into: str | None, line: ProgressLine) -> Source:
    from qserve.derive.source import source_of

    named = into or _named_base(adapter)
    line.phase(f"looking for {named}", is_short=True)
    try:
        return source_of(named, line.phase, line.arrived)
    except ModelNotFound as error:
        if into is not None:
            raise
        raise ModelNotFound(
            f"{adapter.folder} was trained on {adapter.base!r}, which is not to be had: {error}; name it: --into MODEL"
        ) from None


def _named_base(adapter: Adapter) -> str:
    if adapter.base is None:
        raise ModelNotFound(f"{adapter.folder} names no base model; name the one that it was trained on: --into MODEL")
    beside = adapter.folder / adapter.base
    if beside.is_dir():
        return str(beside)
    is_folder = Path(adapter.base).expanduser().is_dir()
    return adapter.base if is_folder else at_revision(adapter.base, adapter.revision)


def _card(plan: MergePlan, base: Source, out: Path) -> ModelCard:
    from qserve.derive.card import ModelCard, versions_of

    config, adapter = plan.adapter.config, plan.adapter.folder.resolve().name
    rows = {
        "base": base.told,
        "adapter": f"{adapter}: LoRA of rank {config.get('r')}, alpha {config.get('lora_alpha')}",
        "tensors changed": f"{len(plan.changes.names)} of {len(plan.tensors)}",
        "weights": format_bytes(plan.num_bytes),
        "arithmetic": "the product of the factors is added in fp32, then rounded to the base's precision",
    }
    return ModelCard(
        out.name,
        base.hub_id,
        "finetune",
        f"{base.name} with the LoRA adapter {adapter} merged into its weights by `qserve merge`.",
        {"How it was made": rows, "Versions": versions_of("torch", "peft", "safetensors")},
        ("reward-model",) if plan.is_reward else (),
    )


def _next_steps(plan: MergePlan, out: Path) -> list[tuple[str, str]]:
    where = shlex.quote(str(out))
    if plan.is_reward:
        return [("Check", f"qserve reward check --reward {where}"), ("Next", f"qserve up --reward {where}")]
    return [("Next", f"qserve up --model {where}")]


def _of(done: int, total: int) -> str:
    return f"{format_bytes(done)} of {format_bytes(total)}"
