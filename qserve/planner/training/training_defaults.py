"""What a run takes where nothing is said: precision, loss, learning rate, rows of an optimizer step, epochs. Flags
overrule them. `qserve plan train` and `qserve train` take both from here, so that what is planned is what runs.

- Rates of full training, at the width of an 8B model: TRL's own (2e-5 for SFT, trl/scripts/sft.py; 1e-6 for DPO and
  GRPO, its configurations), and for reward models 2e-5, between OpenRLHF's 9e-6 (for Llama-3-8B, its README) and TRL's
  1e-4 (RewardConfig). Adam's rate shrinks with the width: half as wide, twice the rate (Yang et al. 2022,
  https://arxiv.org/abs/2203.03466).
- Adapters learn at ten times the rate of all weights (Schulman et al. 2025,
  https://thinkingmachines.ai/blog/lora); a head alone does as well.
- A step over 8 rows: half of TRL's examples (2 a device, 8 times), since small data needs the steps, and adapters do
  worse with large batches (Schulman et al.). GRPO needs whole groups of rollouts.
- One epoch; of little data up to three, transformers' own number, until there are a hundred steps.
"""

from __future__ import annotations

import math
from dataclasses import replace

from qserve.core.release import Release
from qserve.planner.training.training_request import KbitFp32, TrainingRequest
from qserve.planner.training.trl_releases import SKIPS_LOGITS_SINCE, TILES_SINCE, TRL_RELEASE

__all__ = [
    "EXAMPLE",
    "default_epochs",
    "default_evaluation",
    "default_kbit_fp32",
    "default_learning_rate",
    "default_precision",
    "default_tiled_loss",
    "num_trainers",
    "with_accumulation",
]

EXAMPLE = "qserve train reward --model demo --data demo --eval-share 0.3 --micro-batch 8 --freeze-base"
"""A head on what comes with qserve, seconds on a laptop, which learns with these defaults: a test trains it."""
_RATES = {"dpo": 1e-6, "grpo": 1e-6, "ppo": 1e-6}
_RATE = 2e-5
"""Of SFT with or without adapters, and of reward models."""
_OF_ADAPTERS = 10
_WIDTH = 4096
_TILES_SINCE = {"sft": (1, 7), "lora": (1, 7), "qlora": (1, 7)}
"""SFT's chunked cross-entropy is the default from https://github.com/huggingface/trl/pull/5846 on; the others:
TILES_SINCE."""
_Releases = tuple[Release, Release]
_PREPARED: dict[str, _Releases] = {"": ((0, 7, 2), (0, 26)), "dpo": ((0, 7, 2), (0, 29)), "grpo": ((0, 22), (0, 26))}
"""From this release of TRL on, and no longer from that one, its trainers prepared a quantized base ("": SFT, rewards),
which put its norms in fp32. https://github.com/huggingface/trl: #728, #3882, #4577, DPO until #3906."""
_ALL_IN_FP32: dict[tuple[str, str], _Releases] = {
    ("sft", "int8"): ((0, 7, 2), (0, 25)),
    ("sft", "4bit"): ((0, 7, 2), (0, 7, 5)),
    ("dpo", "int8"): ((0, 7, 2), (0, 29)),
    ("dpo", "4bit"): ((0, 7, 2), (0, 7, 8)),
    ("reward", "int8"): ((0, 7, 2), (0, 25)),
    ("reward", "4bit"): ((0, 7, 2), (0, 22)),
    ("grpo", "int8"): ((0, 22), (0, 25)),
}
"""The same of PEFT's own preparation, which casts embedding and lm_head too, where nothing cast them to bf16 again:
#1110 (SFT), #1143 (DPO) and #3882 (rewards) did for nf4, and #4335 brought a preparation of TRL's own."""
_ROWS_A_STEP, _ROLLOUTS_A_STEP = 8, 32
_LEAST_STEPS, _MOST_EPOCHS = 100, 3


def default_precision(zero_stage: int, *, on_cpu: bool) -> str:
    """fp32 on a CPU, whose results can be repeated bit by bit; DeepSpeed's on ZeRO; else autocast over fp32 weights."""
    if on_cpu:
        return "fp32"
    return "mixed" if zero_stage else "amp"


def default_tiled_loss(method: str, trl: Release = TRL_RELEASE) -> bool:
    """TRL computes log-probabilities of all its causal losses in tiles since TILES_SINCE, and SFT's before; a reward
    head has none, and PPO is other trainers'.
    """
    return method not in ("reward", "ppo") and trl >= _TILES_SINCE.get(method, TILES_SINCE)


def default_evaluation(method: str, trl: Release = TRL_RELEASE) -> bool:
    """Whether that release holds all logits when it scores held-out rows of a run with Liger's loss."""
    return method in _TILES_SINCE and trl < SKIPS_LOGITS_SINCE


def default_kbit_fp32(method: str, base: str | None, trl: Release = TRL_RELEASE) -> KbitFp32:
    """What that release of TRL leaves in fp32 of a base that bitsandbytes quantizes, in a run in bf16."""
    if base not in ("int8", "4bit") or method == "ppo":
        return "none"
    trainer = method if method in ("reward", "dpo", "grpo") else "sft"
    if _within(trl, _ALL_IN_FP32.get((trainer, base))):
        return "all"
    return "norms" if _within(trl, _PREPARED.get(trainer, _PREPARED[""])) else "none"


def _within(release: Release, span: _Releases | None) -> bool:
    return span is not None and span[0] <= release < span[1]


def default_learning_rate(request: TrainingRequest, hidden_size: int = _WIDTH) -> float:
    """Of Adam, to two digits."""
    rate = _RATES.get(request.method, _RATE) * _WIDTH / hidden_size
    return float(f"{rate if request.tuning == 'full' else _OF_ADAPTERS * rate:.1e}")


def num_trainers(request: TrainingRequest, num_devices: int) -> int:
    """Of so many cards or processes those that train."""
    separate = request.vllm is not None and request.vllm.mode == "separate"
    return max(1, num_devices - (request.vllm.num_gpus if separate and request.vllm else 0))


def with_accumulation(request: TrainingRequest, num_devices: int, num_generations: int = 8) -> TrainingRequest:
    """The request with as many micro-batches an optimizer step as make up its rows."""
    together = request.micro_batch * num_trainers(request, num_devices)
    is_grpo = request.method == "grpo"
    steps = math.ceil((_ROLLOUTS_A_STEP if is_grpo else _ROWS_A_STEP) / together)
    if is_grpo:
        whole = math.lcm(together, num_generations) // together
        steps = math.ceil(steps / whole) * whole
    return replace(request, gradient_accumulation_steps=steps)


def default_epochs(num_rows: int, rows_a_step: int) -> float:
    """How often the data is gone through."""
    steps = max(1, math.ceil(num_rows / rows_a_step))
    return float(min(_MOST_EPOCHS, math.ceil(_LEAST_STEPS / steps)))
