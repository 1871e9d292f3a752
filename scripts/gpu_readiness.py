"""What `qserve plan` says for machines with cards, as docs/results/gpu-readiness.md: installed, chosen, started.

python scripts/gpu_readiness.py            # writes the page
python scripts/gpu_readiness.py --check    # fails where the page is not what the planner says today
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from click.testing import CliRunner  # noqa: E402  # after the path

from qserve.cli.main import cli  # noqa: E402
from qserve.core.hardware import CpuFeatures, Hardware  # noqa: E402
from qserve.packages import SERVE_PACKAGES, install_command  # noqa: E402
from qserve.units import GIB  # noqa: E402

# Speeds are planned elsewhere, and of these cards nobody measured any.
_SPEED = re.compile(r"Speed, |TTFT |TPOT |E2E |rate |· Speed is estimated|· --users ")
# What of a layer a card can't hold lies in RAM: always this much, whoever else uses the machine that makes the page.
_HOST = Hardware((), 24 * GIB, 20 * GIB, 16, CpuFeatures("a CPU of 16 cores"), disk_free_bytes=500 * GIB)
PAGE = ROOT / "docs" / "results" / "gpu-readiness.md"


@dataclass(frozen=True)
class Scenario:
    """A heading, the arguments of `qserve plan`, and what an operator should see in the answer."""

    title: str
    arguments: str
    read: str


_32B = "--model Qwen/Qwen3-32B"
SCENARIOS = (
    Scenario(
        "RTX 4090, 4 bit, vLLM",
        f"{_32B} --gpu rtx-4090 --quant 4bit",
        "The calibrated AWQ checkpoint is taken, and one long conversation fits; a second one waits.",
    ),
    Scenario(
        "RTX 4090, 4 bit, transformers engine",
        f"{_32B} --gpu rtx-4090 --quant 4bit --engine transformers",
        "AWQ would need gptqmodel, which no set-up installs: bitsandbytes makes NF4 of the 16-bit files, "
        "which are 65 GB to download.",
    ),
    Scenario(
        "H200, bf16, vLLM", f"{_32B} --gpu h200 --quant bf16", "The whole length, several times over, on one card."
    ),
    Scenario(
        "H200, fp8, vLLM",
        f"{_32B} --gpu h200 --quant fp8",
        "The official FP8 checkpoint: half of the weights' bytes become cache.",
    ),
    Scenario(
        "H200, int8, vLLM",
        f"{_32B} --gpu h200 --quant int8",
        "vLLM has no int8 of this model to load and makes none: the refusal names what runs.",
    ),
    Scenario("H200, 4 bit, vLLM", f"{_32B} --gpu h200 --quant 4bit", "AWQ through Marlin."),
    Scenario(
        "H200, nf4, vLLM",
        f"{_32B} --gpu h200 --quant bnb-nf4",
        "NF4 takes vLLM's plugin, which has to be installed beside it.",
    ),
    Scenario(
        "H200, bf16, transformers engine",
        f"{_32B} --gpu h200 --quant bf16 --engine transformers",
        "Sequences and steps follow what the card has left.",
    ),
    Scenario(
        "H200, fp8, transformers engine",
        f"{_32B} --gpu h200 --quant fp8 --engine transformers",
        "Weights stay in fp8 and our own products multiply by them, without a package; steps are captured.",
    ),
    Scenario(
        "H200, int8, transformers engine",
        f"{_32B} --gpu h200 --quant int8 --engine transformers",
        "bitsandbytes holds LLM.int8; our own products read it beside rows in 16 bit, in captured steps.",
    ),
    Scenario(
        "H200, nf4, transformers engine",
        f"{_32B} --gpu h200 --quant bnb-nf4 --engine transformers",
        "bitsandbytes holds NF4; what multiplies by it is tried on the card at start. Steps are captured.",
    ),
    Scenario(
        "Two A100 of 40 GB",
        f"{_32B} --gpu a100-40gb:2",
        "What auto makes of 80 GB on two cards: the quality that leaves a cache worth having.",
    ),
    Scenario(
        "Eight H100",
        f"{_32B} --gpu h100-sxm:8",
        "One card would hold the model with one request at once and its length cut: more are used, and the note "
        "says how to have fewer.",
    ),
    Scenario(
        "A chat model and a reward model on one A100 of 80 GB",
        "--model Qwen/Qwen2.5-14B-Instruct --reward Qwen/Qwen2.5-3B --gpu a100-80gb",
        "Each plan has the other's bytes as those of a neighbour, so that both workers keep to their shares.",
    ),
    Scenario(
        "Layers in RAM beside 24 GB",
        "--model Qwen/Qwen3-14B --gpu rtx-4090 --quant bf16 --engine transformers --offload cpu",
        "On a machine with 24 GB of RAM: the layers that the card can't hold lie there and cross the bus for "
        "every token.",
    ),
    Scenario(
        "RTX 5090, 35B-A3B in NVFP4",
        "--model RedHatAI/Qwen3.6-35B-A3B-NVFP4 --gpu rtx-5090",
        "Planned by its name where nobody can look. Logs of this class held up to 1.4 GiB more than counted: "
        "that much is kept as a safety margin.",
    ),
)


def main() -> int:
    page = _page()
    if "--check" in sys.argv:
        if PAGE.read_text() == page:
            return 0
        print(f"{PAGE.name} is not what the planner says; run python scripts/gpu_readiness.py")
        return 1
    PAGE.write_text(page)
    return 0


def _page() -> str:
    head = (
        "# Ready for cards: what would be installed, chosen and started\n\n"
        "    python scripts/gpu_readiness.py\n\n"
        "**No card was there when this was written: these are plans, not measurements.** Throughput, real memory and "
        "start-up times\nof these machines are missing; `make gpu` (docs/results/gpu.md) measures them where a card "
        "is. Each answer is read as\nan operator would: what to install, what is downloaded, what is started, and what "
        "to expect of it.\n"
    )
    return head + "".join(_section(scenario) for scenario in SCENARIOS)


def _section(scenario: Scenario) -> str:
    printed = _plan(scenario.arguments)
    as_json = _plan(f"{scenario.arguments} --json")
    facts = _facts(json.loads(as_json)) if as_json.startswith("{") else ""
    return (
        f"\n## {scenario.title}\n\n{scenario.read}\n\n    qserve plan {scenario.arguments}\n{facts}\n"
        f"```text\n{printed}\n```\n"
    )


def _plan(arguments: str) -> str:
    """What the command prints, at 110 columns, offline; stable from machine to machine for cards that are described."""
    environment = {"HF_HUB_OFFLINE": "1", "COLUMNS": "110", "NO_COLOR": "1", "TERM": "dumb"}
    with mock.patch("qserve.detect.detect", lambda **_: _HOST):
        done = CliRunner(env=environment).invoke(cli, ["plan", *shlex.split(arguments), "--no-learn"])
    output = done.output or f"qserve: {done.exception}"
    lines = output.rstrip().splitlines()
    return "\n".join(line.rstrip() for line in lines if not _SPEED.match(line))


def _facts(answer: dict[str, Any]) -> str:
    plans = [answer["chat"], answer["reward"]] if "chat" in answer else [answer]
    return "\n" + "\n".join(_rows(plan) for plan in plans) + "\n"


def _rows(plan: dict[str, Any]) -> str:
    engine, quant = plan["engine"], plan["quant"]
    started = "not: it does not fit"
    if plan["fits"] and engine == "vllm":
        started = "`vllm serve … " + " ".join(shlex.quote(word) for word in plan["engine_args"]) + "`"
    elif plan["fits"]:
        limits = plan["workload"]
        started = f"qserve's own worker, {limits['max_num_seqs']} sequences of {limits['max_model_len']} tokens at most"
    how = "quantized while loading" if quant["in_flight"] else "as it is stored"
    return (
        f"- installed: `{_installed(engine, quant['scheme'])}`\n"
        f"- chosen: {quant['checkpoint']}, {quant['scheme']}, {how}\n- started: {started}"
    )


def _installed(engine: str, scheme: str) -> str:
    packages = ["vllm"] if engine == "vllm" else list(SERVE_PACKAGES)
    if scheme.startswith("bnb"):
        packages += ["vllm-bnb-plugin", "bitsandbytes"] if engine == "vllm" else ["bitsandbytes"]
    return install_command(*packages)


if __name__ == "__main__":
    sys.exit(main())
