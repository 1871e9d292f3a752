"""Options that `plan` and `up` share, spelled as vLLM spells them, and what becomes of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import click

from qserve.cli.device_map_file import DeviceMapParam
from qserve.cli.numbers import FiniteRange
from qserve.core.hardware import Hardware
from qserve.errors import UsageError
from qserve.planner.request import PlanRequest
from qserve.units import parse_bytes

__all__ = ["hardware_of", "plan_options", "request_of"]

Function = TypeVar("Function", bound=Callable[..., Any])


class _Bytes(click.ParamType):  # type: ignore[type-arg]
    """A size in memory: 23.6GiB, 512MiB, plain bytes."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return value if isinstance(value, int) else parse_bytes(value)
        except UsageError as error:
            self.fail(str(error), param, ctx)


_POSITIVE = click.IntRange(min=1)

# In the order of --help. The names are PlanRequest's fields.
_OPTIONS = (
    click.option("--quant", default="auto", show_default=True, help="auto, fp16, bf16, fp8, int8, 4bit or a scheme."),
    click.option("--dtype", help="Compute in float16, bfloat16 or float32 [the checkpoint's own]."),
    click.option("--engine", type=click.Choice(["vllm", "transformers"]), help="[vllm with a card, else transformers]"),
    click.option("--engine-version", help="Plan for this release of the engine."),
    click.option("--max-model-len", type=_POSITIVE, help="Prompt and answer of one request, in tokens."),
    click.option("--max-num-seqs", type=_POSITIVE, help="Requests that run at once."),
    click.option("--max-num-batched-tokens", type=_POSITIVE, help="Tokens of one step."),
    click.option(
        "--gpu-memory-utilization",
        type=FiniteRange(0, 1, min_open=True),
        help="Share of the whole card (not of what is free) that vLLM may take.",
    ),
    click.option("--kv-cache-memory-bytes", type=_Bytes(), help="KV cache per device, for example 6GiB."),
    click.option("--kv-cache-dtype", default="auto", show_default=True, help="auto, bfloat16, fp8, fp8_e5m2, …"),
    click.option("--tensor-parallel-size", type=_POSITIVE, help="Cards that share every layer."),
    click.option("--pipeline-parallel-size", type=_POSITIVE, help="Stages of layers, one after the other."),
    click.option("--prompt-len", type=_POSITIVE, help="The part of max_model_len that arrives as one prompt."),
    click.option("--prompt-logprobs", is_flag=True, help="Leave room for log-probabilities of prompts (lm-eval)."),
    click.option("--enforce-eager", is_flag=True, help="No CUDA graphs: less memory, slower decoding."),
    click.option(
        "--enable-prefix-caching/--no-enable-prefix-caching", default=None, help="[on, for hybrids by release]"
    ),
    click.option(
        "--num-speculative-tokens", type=click.IntRange(min=0), default=0, help="Tokens that the MTP head drafts."
    ),
    click.option("--language-model-only", is_flag=True, help="Leave the vision encoder out."),
    click.option(
        "--limit-mm-per-prompt", help='Images and videos of one prompt, as JSON: \'{"image": 4, "video": 0}\'.'
    ),
    click.option("--mm-processor-kwargs", help="Their largest size, as JSON: '{\"max_pixels\": 1003520}'."),
    click.option("--skip-mm-profiling", is_flag=True, help="vLLM leaves images out of what it measures at start-up."),
    click.option(
        "--warm-compile-cache",
        is_flag=True,
        help="vLLM kept the compiled code of an earlier start: the profile run copies no embedding.",
    ),
    click.option("--mamba-ssm-cache-dtype", help="Recurrent state of hybrids, for example bfloat16."),
    click.option(
        "--max-cudagraph-capture-size", type=_POSITIVE, help="Largest batch that vLLM captures as a CUDA graph [512]."
    ),
    click.option(
        "--hf-overrides",
        help="Keys of config.json that stretch the context, as JSON: '{\"rope_parameters\": {…}}' (YaRN).",
    ),
    click.option("--block-size", type=_POSITIVE, help="Tokens of a KV block."),
    click.option("--enable-lora", is_flag=True, help="Make room for LoRA adapters in vLLM."),
    click.option("--max-loras", type=_POSITIVE, help="Adapters that run at once [1]."),
    click.option("--max-lora-rank", type=_POSITIVE, help="The largest adapter's rank [16]."),
    click.option("--fully-sharded-loras", is_flag=True, help="Share the whole of an adapter out over the cards."),
    click.option("--lora-target-modules", help="What adapters may change: qkv_proj,o_proj [every linear layer]."),
    click.option(
        "--offload",
        type=click.Choice(["none", "cpu", "disk"]),
        default="none",
        show_default=True,
        help="Let the transformers engine put layers in RAM, or in RAM and on disk.",
    ),
    click.option(
        "--device-map",
        type=DeviceMapParam(),
        help="How the transformers engine lays layers over devices: auto, balanced, sequential, or a JSON or YAML file "
        "of modules and devices.",
    ),
    click.option(
        "--no-learn",
        is_flag=True,
        envvar="QSERVE_NO_LEARN",
        help="Plan without what earlier runs on this machine measured (qserve runs residuals).",
    ),
    click.option(
        "--max-memory",
        help="What the transformers engine may take of each device: 0=20GiB,1=20GiB,cpu=64GiB [all that is free].",
    ),
)


def plan_options(function: Function) -> Function:
    """Adds every option of a `PlanRequest`, and --gpu."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return click.option(
        "--gpu", help="Plan for cards that are not here: rtx-4090:2, or memory=23.6GiB,sm=128. `none`: the CPU."
    )(function)


def request_of(values: dict[str, Any]) -> PlanRequest:
    """The request of a command's keyword arguments; others among them are left alone.

    Raises UsageError for values that contradict each other.
    """
    known = {name: values[name] for name in PlanRequest.__dataclass_fields__ if name in values}
    request = PlanRequest(**known)
    if request.prompt_len and request.max_model_len and request.prompt_len > request.max_model_len:
        raise UsageError(
            f"--prompt-len {request.prompt_len} is more than --max-model-len {request.max_model_len}, which counts "
            "prompt and answer together; raise --max-model-len"
        )
    return request


def hardware_of(gpu: str | None) -> Hardware:
    """This machine, with the cards that `gpu` describes in place of its own (`none`: without any)."""
    from qserve.core.hardware import parse_gpu
    from qserve.detect import detect

    machine = detect()
    if gpu is None:
        return machine
    return replace(machine, devices=() if gpu == "none" else parse_gpu(gpu), notes=())
