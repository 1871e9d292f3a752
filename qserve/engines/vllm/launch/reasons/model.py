"""What the installed vLLM does not load: a quantization, a dtype, an architecture."""

from __future__ import annotations

import re

from qserve.detect.packages import Packages
from qserve.engines.vllm.detect import install_plugin_command
from qserve.engines.vllm.launch.failure import Failure, FailureKind
from qserve.engines.vllm.launch.reasons.rule import Rule, rule, says

__all__ = ["RULES"]


def _plugin(_: re.Match[str]) -> Failure:
    packages = Packages.installed()
    return Failure(
        FailureKind.MISSING_PLUGIN,
        "This quantization needs vllm-bnb-plugin: bitsandbytes left vLLM's core in 0.28. Install it: "
        f"{install_plugin_command(packages)}. Or take a quantized checkpoint (--quant awq), or --engine transformers.",
    )


RULES: tuple[Rule, ...] = (
    rule(r"Unknown quantization method: '?bitsandbytes", _plugin),
    rule(
        r"Unknown quantization method: '?(?P<name>[\w-]+)|Quantization method '?(?P<other>[\w-]+)'? is not supported",
        says(
            FailureKind.QUANTIZATION,
            "This vLLM does not support quantization {name}{other}. Take another checkpoint of the model (--quant awq, "
            "fp8), or --engine transformers.",
        ),
    ),
    rule(
        r"no longer supports online quantization\. Please use `--quantization (?P<name>\w+)`",
        says(
            FailureKind.QUANTIZATION,
            "This release of vLLM quantizes while loading with --quantization {name}; give qserve --quant fp8, which "
            "passes it on.",
        ),
    ),
    rule(
        r"[Tt]he quantization method (?P<name>[\w-]+) is not supported for the current GPU\. Minimum capability: "
        r"(?P<least>\d+)\. Current capability: (?P<have>\d+)",
        says(
            FailureKind.QUANTIZATION,
            "The card is of compute capability {have}, and {name} needs {least}. Use --quant 4bit or awq, or 16 bit.",
        ),
    ),
    rule(
        r"(?P<name>[\w-]+) quantization is currently not supported in (?P<device>\w+)",
        says(
            FailureKind.QUANTIZATION,
            "vLLM does not run {name} on a {device}. Use --quant bf16 or bnb-nf4, or --engine transformers.",
        ),
    ),
    rule(
        r"(?P<dtype>[\w.]+) is not supported for quantization method (?P<name>[\w-]+)\. Supported dtypes: (?P<may>.*)",
        says(FailureKind.QUANTIZATION, "{name} does not compute in {dtype}; --dtype takes {may} with it."),
    ),
    rule(
        r"No module named '(?P<name>torchvision[\w.]*)'|(?P<other>torchvision::nms) does not exist",
        says(
            FailureKind.IMPORT,
            "vLLM needs torchvision for this model, and there is no build of it for a CPU torch. Serve it with "
            "--engine transformers, or on a machine with a card.",
        ),
    ),
    rule(
        r"Model architecture (?P<name>\w+) was supported in vLLM until v(?P<until>[\d.]+)",
        says(FailureKind.ARCHITECTURE, "{name} left vLLM after {until}. Serve it with --engine transformers."),
    ),
    rule(
        r"Model architectures \[(?P<names>[^\]]*)\] (?:are not supported|failed to be inspected)",
        says(
            FailureKind.ARCHITECTURE,
            "This vLLM has no model {names}. Update vLLM, or serve it with --engine transformers if that supports it.",
        ),
    ),
    rule(
        r"has model type `(?P<name>\w+)` but Transformers does not recognize this architecture",
        says(
            FailureKind.ARCHITECTURE,
            "Neither vLLM nor the installed transformers knows the model type {name} that config.json names. It may be "
            "newer than both; update them, or check the folder.",
        ),
    ),
)
