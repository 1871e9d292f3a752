"""What a training run is asked to do: the flags of `qserve plan train`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from qserve.errors import UsageError
from qserve.planner.training.training_constants import OPTIMIZERS, PRECISIONS

__all__ = ["KbitFp32", "Method", "Offload", "TrainingRequest", "VllmBeside"]

Method = Literal["sft", "lora", "qlora", "reward", "dpo", "ppo", "grpo"]
Tuning = Literal["full", "lora", "qlora", "head"]
Offload = Literal["none", "cpu", "nvme"]
Attention = Literal["sdpa", "flash", "eager"]
Base = Literal["bf16", "fp16", "int8", "4bit"]
KbitFp32 = Literal["none", "norms", "all"]


@dataclass(frozen=True)
class VllmBeside:
    """The engine that generates rollouts.

    colocated: one engine a trainer card (or one over `tensor_parallel_size` of them) in the same memory; `sleep`:
    it gives back weights and KV while the trainer works. separate: `num_gpus` cards of its own, the last ones.
    Without a fraction the plan computes it, and whether the engine sleeps (rollouts.py).
    """

    mode: Literal["colocated", "separate"]
    gpu_memory_utilization: float | None = None
    tensor_parallel_size: int = 1
    num_gpus: int = 1
    sleep: bool = False

    @property
    def fraction(self) -> float:
        """Of a card, in a request that was planned."""
        assert self.gpu_memory_utilization is not None
        return self.gpu_memory_utilization


_OVER_ALL_TOKENS = ("sft", "lora", "qlora")
_SHARDED_OPTIMIZERS = ("adamw", "adamw-fused", "sgd")
"""torch's own, which step over DTensors."""


@dataclass(frozen=True)
class TrainingRequest:
    """One training run, per device.

    `micro_batch` is per_device_train_batch_size; for `reward` and `dpo` it counts pairs, each two sequences (with
    `num_labels` texts).
    `max_length` is in tokens, prompt and completion together; `completion_length` the part whose log-probabilities a
    policy loss needs (None: all). `mean_length`: the data's mean length where batches are not padded to one length
    (None: they are). `freeze_base` trains the head only. `load_in_4bit`: adapters of any method on an nf4 base, as
    qlora has them. `lora_targets`: "all-linear" or "attention". `train_embeddings` is PEFT's modules_to_save of
    embedding and lm_head. `num_labels`: a reward model learns so many scores of single texts (None: one reward, from
    pairs); `step_labels`: each of its steps is good or bad. `quant` is what the frozen base of adapters is held in
    (None: as the precision has it). `kbit_fp32`: what prepare_model_for_kbit_training left in fp32 of a bitsandbytes
    base: "norms", or "all" that is not quantized, embedding and lm_head too.
    `fsdp`: torch's fully_shard (FSDP2), which divides weights, gradients and states among the ranks as ZeRO-3 does.
    `fused_loss`: Liger's linear cross-entropy, which never holds all logits
    (use_liger_kernel=True) while it trains; `evaluation`: held-out rows are scored during the run with all logits, in
    micro-batches of the same size; `tiled_loss`: TRL 1.16 and later, whose log-probabilities are computed in tiles.
    `beta` > 0 keeps a reference model (grpo, ppo); dpo always has one.
    """

    method: Method
    micro_batch: int = 1
    max_length: int = 2048
    completion_length: int | None = None
    mean_length: int | None = None
    gradient_accumulation_steps: int = 1
    gradient_checkpointing: bool = True
    freeze_base: bool = False
    optimizer: str = "adamw"
    precision: str = "mixed"
    zero_stage: int = 0
    offload_optimizer: Offload = "none"
    offload_param: Offload = "none"
    fsdp: bool = False
    lora_rank: int = 0
    lora_targets: Literal["all-linear", "attention", "qkv"] = "all-linear"
    load_in_4bit: bool = False
    quant: Base | None = None
    kbit_fp32: KbitFp32 = "none"
    num_labels: int | None = None
    step_labels: bool = False
    train_embeddings: bool = False
    attention: Attention = "sdpa"
    fused_loss: bool = False
    evaluation: bool = False
    tiled_loss: bool = False
    beta: float = 0.04
    vllm: VllmBeside | None = None
    upcast_logits: bool = True
    """transformers' own models compute the loss in fp32; remote code of 2023 did not."""
    runtime_bytes: int | None = None
    """Overrides the memory of context and libraries (old CUDA releases, or 0 where only torch's own is asked for)."""

    def __post_init__(self) -> None:
        self._check_labels()
        _one_of("--method", self.method, get_args(Method))
        _one_of("--optimizer", self.optimizer, tuple(OPTIMIZERS))
        _one_of("--precision", self.precision, tuple(PRECISIONS))
        _one_of("--quant", self.quant or "bf16", get_args(Base))
        _one_of("--zero", self.zero_stage, (0, 1, 2, 3))
        _at_least_one("--micro-batch", self.micro_batch)
        _at_least_one("--max-length", self.max_length)
        _at_least_one("--gradient-accumulation-steps", self.gradient_accumulation_steps)
        if self.completion_length is not None and not 1 <= self.completion_length <= self.max_length:
            raise UsageError(
                f"--completion-length is {self.completion_length}, but must be from 1 to --max-length "
                f"{self.max_length}, which counts prompt and completion together"
            )
        if self.offload_param != "none" and self.zero_stage != 3:
            raise UsageError("--offload-param moves ZeRO-3's shards of the weights; add --zero 3")
        if self.offload_optimizer != "none" and self.zero_stage == 0:
            raise UsageError("--offload-optimizer is DeepSpeed's; add --zero 1, 2 or 3")
        self._check_fsdp()
        if self.freeze_base and self.method != "reward":
            raise UsageError(f"--freeze-base trains the reward head only; --method {self.method} has none to train")
        if self.freeze_base and self.load_in_4bit:
            raise UsageError("--freeze-base trains the head alone and needs no adapters; leave --load-in-4bit out")
        if self.quant is not None and self.tuning in ("full", "head"):
            raise UsageError(f"--quant {self.quant} is for the frozen base of adapters; add --lora-rank 16")
        if self.quant not in (None, "4bit") and (self.method == "qlora" or self.load_in_4bit):
            raise UsageError(
                f"qlora and --load-in-4bit are nf4; with --quant {self.quant} take lora, or --lora-rank 16"
            )
        self._check_kbit()
        if self.vllm is not None and self.method not in ("ppo", "grpo"):
            raise UsageError(f"--vllm generates rollouts, and --method {self.method} has none; use ppo or grpo")
        share = self.vllm.gpu_memory_utilization if self.vllm is not None else None
        if share is not None and not 0 < share <= 1:
            raise UsageError(
                f"--gpu-memory-utilization is {share}, but must be a share of the card, above 0 and at most 1"
            )

    def _check_labels(self) -> None:
        if self.step_labels and (self.num_labels != 2 or self.tuning in ("lora", "qlora")):
            raise UsageError(
                "--step-labels trains a head of two labels (--num-labels 2), with all weights or with --freeze-base; "
                "adapters can't add the step token: leave --lora-rank out"
            )
        if self.num_labels is None:
            return
        _at_least_one("--num-labels", self.num_labels)
        if self.method != "reward":
            raise UsageError(f"--num-labels is for reward models; leave it out with {self.method}")

    def _check_kbit(self) -> None:
        _one_of("--kbit-fp32", self.kbit_fp32, get_args(KbitFp32))
        if self.kbit_fp32 == "none":
            return
        if self.tuning in ("full", "head") or self.base in ("bf16", "fp16"):
            held = f"{self.base} is not" if self.base else "this run quantizes none"
            raise UsageError(
                f"--kbit-fp32 is for a base that bitsandbytes quantizes, and {held}; add --quant 4bit or int8 with "
                "--lora-rank 16, or leave --kbit-fp32 out"
            )
        if self.zero_stage:
            raise UsageError(
                f"--kbit-fp32 with --zero {self.zero_stage}: DeepSpeed casts what is in fp32 to 16 bit again; "
                "leave one of them out"
            )

    def _check_fsdp(self) -> None:
        if not self.fsdp:
            return
        if self.zero_stage:
            raise UsageError(f"--fsdp shards without DeepSpeed; take it or --zero {self.zero_stage}, not both")
        if self.base in ("int8", "4bit"):
            raise UsageError(f"--fsdp leaves a base in {self.base} whole on every card; take --zero, or --quant bf16")
        if self.optimizer not in _SHARDED_OPTIMIZERS:
            raise UsageError(
                f"--fsdp updates shards, which --optimizer {self.optimizer} does not support; take "
                + ", ".join(_SHARDED_OPTIMIZERS)
            )

    @property
    def sharding_stage(self) -> int:
        """What the ranks divide among them, as ZeRO counts it: 1 optimizer states, 2 gradients too, 3 weights too."""
        return 3 if self.fsdp else self.zero_stage

    @property
    def tuning(self) -> Tuning:
        """What is trained: all weights, adapters, adapters on 4-bit weights, or the head alone."""
        if self.freeze_base:
            return "head"
        if self.method == "qlora" or self.load_in_4bit:
            return "qlora"
        if self.method != "lora" and not self.lora_rank:
            return "full"
        return "qlora" if self.quant == "4bit" else "lora"

    @property
    def base(self) -> Base | None:
        """What the frozen base of adapters is held in; nf4 under every name that it goes by."""
        return "4bit" if self.method == "qlora" or self.load_in_4bit else self.quant

    @property
    def frozen_bytes(self) -> int:
        """Of a parameter that is neither trained nor quantized."""
        if self.kbit_fp32 == "all":
            return 4
        return 2 if self.base in ("bf16", "fp16") else PRECISIONS[self.precision].frozen_bytes

    @property
    def activation_bytes(self) -> int:
        """Of an element of what layers pass on: fp32 all through, unless the base is in 16 bit."""
        return 4 if self.precision == "fp32" and self.base not in ("bf16", "fp16") else 2

    @property
    def scores_all_logits(self) -> bool:
        """Whether an evaluation holds logits that the training pass does not: of a loss over all tokens, which Liger
        fuses in training alone. DPO's and GRPO's trainers call Liger's loss themselves, in both.
        """
        return self.evaluation and self.fused_loss and not self.tiled_loss and self.method in _OVER_ALL_TOKENS

    @property
    def rank(self) -> int:
        """The LoRA rank; PEFT's default of 8 where none was named."""
        return self.lora_rank or 8

    @property
    def sequences(self) -> int:
        """Sequences in one forward pass of one device: a pair is two."""
        is_paired = self.method == "dpo" or (self.method == "reward" and self.num_labels is None)
        return self.micro_batch * (2 if is_paired else 1)

    @property
    def tokens(self) -> int:
        """Tokens in one forward pass of one device."""
        return self.sequences * self.max_length

    @property
    def logit_tokens(self) -> int:
        """Positions whose logits the loss needs: none with a reward head, the completion's in RL."""
        if self.method == "reward":
            return 0
        in_policy_loss = self.method in ("ppo", "grpo")
        return self.sequences * ((self.completion_length or self.max_length) if in_policy_loss else self.max_length)


def _one_of(flag: str, value: object, allowed: tuple[object, ...]) -> None:
    if value not in allowed:
        raise UsageError(f"{flag} is {value!r}; it takes {', '.join(str(name) for name in allowed)}")


def _at_least_one(flag: str, value: int) -> None:
    if value < 1:
        raise UsageError(f"{flag} is {value}, but must be at least 1")
