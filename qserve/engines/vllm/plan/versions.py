"""vLLM releases as the planner tells them apart: what changed in the account of memory, and when."""

from __future__ import annotations

from dataclasses import dataclass

from qserve.core.model_spec import ModelSpec
from qserve.core.release import parse_release, shown_release
from qserve.errors import UsageError

__all__ = ["NEWEST_RELEASE", "OLDEST_RELEASE", "TESTED_RELEASE", "VllmVersion", "check_knows"]

TESTED_RELEASE = "0.32.0"
"""The release that qserve is tested with, which constraints.txt pins: planned for where nobody names another."""

OLDEST_RELEASE = "0.26.0"
NEWEST_RELEASE = "0.33.0"
"""The releases that qserve drives: from the last one for torch 2.11, which pyproject.toml allows, to the newest whose
sources and flags were read."""


def check_knows(spec: ModelSpec, engine_version: str) -> None:
    """Raises UsageError for a release of vLLM that is older than the model's code in it, or later than it."""
    first, gone = spec.family.vllm.since, spec.family.vllm.gone
    if gone is not None and parse_release(engine_version) >= gone:
        raise UsageError(
            f"{spec.architecture or spec.family.name} left vLLM in {shown_release(gone)}, and {engine_version} is "
            "planned; --engine-version plans an earlier one, which qserve does not serve"
        )
    if first is not None and parse_release(engine_version) < first:
        raise UsageError(
            f"--engine-version {engine_version}: vLLM has {spec.architecture or spec.family.name} from "
            f"{shown_release(first)} on; give that or a later one"
        )


@dataclass(frozen=True)
class VllmVersion:
    """One release. Each property names the first release that behaves so; sources stand beside the constants.

    `has_flashinfer`: the package is installed beside it, and the card is one that it has kernels for.
    """

    release: tuple[int, int, int]
    has_flashinfer: bool = False

    @classmethod
    def parse(cls, text: str) -> VllmVersion:
        """Raises UsageError outside 0.5 to 0.x: older ones account differently, and nobody measured them."""
        release = parse_release(text)
        if release >= (4, 0):
            raise UsageError(f"--engine-version {text} is not a release of vLLM; give --engine transformers with it")
        if release < (0, 5):
            raise UsageError(f"--engine-version {text}: vLLM before 0.5 is not planned for; use {TESTED_RELEASE}")
        return cls(release)

    @property
    def is_unknown(self) -> bool:
        """Newer than the newest that the planner was held against."""
        return self.release[:2] > parse_release(NEWEST_RELEASE)[:2]

    def is_v0_engine(self, compute_capability: tuple[int, int] | None) -> bool:
        """The first engine, with its own defaults: 256 sequences, a whole prompt in one step.

        Up to 0.10 it stayed for cards before Ampere.
        """
        is_old_card = compute_capability is not None and compute_capability < (8, 0)
        return self.release < (0, 8) or (is_old_card and self.release < (0, 11))

    @property
    def least_capability(self) -> tuple[int, int]:
        """Of the cards that its wheels hold kernels for: torch 2.11, which 0.20 brought, has none for Volta.

        Sources: requirements of its wheels; core/wheels.py; CUDA_SUPPORTED_ARCHS in vLLM's CMakeLists.txt begins
        at 7.0 for CUDA 12 and at 7.5 for 13 (vllm#39878).
        """
        return (7, 5) if self.release >= (0, 20) else (7, 0)

    @property
    def multiplies_yarn(self) -> bool:
        """The context is `factor` times the original one; later max_position_embeddings says it alone (vllm#56446)."""
        return self.release < (0, 30)

    @property
    def samples_with_triton(self) -> bool:
        """Top-k/top-p without sorting the vocabulary: 14 instead of 38 bytes per sequence and token."""
        return self.release >= (0, 17)

    @property
    def samples_with_flashinfer(self) -> bool:
        """Whether the profile run samples by FlashInfer alone, which sorts nothing either, where it is installed.

        Source: vllm 0.8.5 to 0.10 v1/sample/ops/topk_topp_sampler.py (VLLM_USE_FLASHINFER_SAMPLER unset means yes);
        from 0.11 to 0.20 it must be asked for. From 0.21 on it is the default again (vllm#40376), and the profile run
        takes Triton's way as well, which needs more; qserve starts vLLM without it (`launch/compiled_kernels.py`).
        """
        return self.has_flashinfer and (0, 8, 5) <= self.release < (0, 11)

    @property
    def profiles_sampled_steps(self) -> bool:
        """The second runner's profile run samples with every setting as well. Source: vllm 0.33 gpu/model_runner.py."""
        return self.release >= (0, 33)

    @property
    def is_older_than_driven(self) -> bool:
        return self.release < parse_release(OLDEST_RELEASE)

    @property
    def holds_single_scales(self) -> bool:
        """bitsandbytes' double quantization is undone while loading: an absmax takes 4 bytes, not one (vllm#19742)."""
        return self.release >= (0, 9, 2)

    @property
    def keeps_moe_workspace(self) -> bool:
        """Fused experts work in buffers that stay allocated, beside everything else."""
        return self.release >= (0, 13)

    def runs_model_runner_v2(self, spec: ModelSpec) -> bool:
        """Whether the second model runner serves this model by default, as it went from model to model.

        Some families first (`InVllm.second_runner`), everything dense in 0.25 (vllm#44443), hybrids and all experts in
        0.29 (vllm#53183).
        """
        if spec.is_hybrid or self.release >= (0, 29):
            return self.release >= (0, 29)
        first = spec.family.vllm.second_runner
        if first is None or spec.architecture != spec.family.causal_lm:
            return spec.moe is None and self.release >= (0, 25)
        plain, quantized = first
        return self.release >= (quantized if spec.quantization else plain)

    def subtracts_cuda_graphs(self, spec: ModelSpec) -> bool:
        """CUDA graphs are estimated and taken from the KV cache; before, they came out of what was left over.

        0.20's logs say "enabled (default since v0.21.0)", and take them already. The second model runner estimated 0
        until 0.29 (vllm#49224).
        """
        return self.release >= ((0, 29) if self.runs_model_runner_v2(spec) else (0, 20))

    def largest_capture(self, on_datacenter_blackwell: bool) -> int:
        """Tokens of the largest CUDA graph by default (vllm#49390, merged after 0.26; a log of 0.31 shows 1024)."""
        return 1024 if on_datacenter_blackwell and self.release >= (0, 27) else 512

    @property
    def captures_decode_sizes(self) -> bool:
        """Sizes of graphs hold the largest decode step itself, and with drafts multiples of 1 + k: read in 0.32."""
        return self.release >= (0, 32)

    @property
    def sizes_flashinfer_workspace(self) -> bool:
        """FlashInfer's workspace grows with the step and the heads (vllm#48428, vllm#50780); before, a fixed size."""
        return self.release >= (0, 26)

    @property
    def shares_audio_encoder(self) -> bool:
        """Ranks share Qwen3-Omni's audio encoder, which was the library's before (vllm#32167, merged after 0.13)."""
        return self.release >= (0, 14)

    @property
    def gathers_encoder_heads(self) -> bool:
        """Ranks that share a vision encoder gather q, k and v of all heads (vllm#28271, merged after 0.11.0)."""
        return self.release < (0, 12)

    @property
    def captures_slim_experts(self) -> bool:
        """A captured layer of experts takes no more than a dense one: seen in 0.28, not in 0.19; between: unknown."""
        return self.release >= (0, 28)

    @property
    def compiles_inside_profile(self) -> bool:
        """The first start compiles inside the profile run, and Inductor's benchmark copies what it reads (vllm#54122).

        Seen from 0.24 on; older logs of small max_num_seqs do not show it.
        """
        return self.release >= (0, 22)

    @property
    def charges_what_is_gone(self) -> bool:
        """The account takes all that is gone from the card since the start (the log's "consumed memory").

        Before, it took the weights, the profile run's peak of torch, and what is no torch tensor: buffers made after
        the weights were charged to nobody. Source: vllm gpu_worker.py, determine_available_memory.
        """
        return self.release >= (0, 27)

    @property
    def pins_freed_segments(self) -> bool:
        """Whether a segment that the profile run freed may stay, as a block lies in it, and be charged.

        Later releases limit splits in the profile run, and 0.32 says why. Source: vllm gpu_worker.py,
        determine_available_memory; that it holds for 0.31: Qwen3-8B-AWQ on one card with the same flags on one day has
        3.25 GiB of cache at a first start of 0.30.0 and 4.34 of 0.31.0, a copy of its embedding more.
        """
        return self.charges_what_is_gone and self.release < (0, 31)

    @property
    def adapts_experts(self) -> bool:
        """--enable-lora makes buffers for routed experts (vllm#21229)."""
        return self.release >= (0, 11, 1)

    @property
    def captures_without_adapters(self) -> bool:
        """With --enable-lora every graph is captured twice, with and without adapters (vllm#25914)."""
        return self.release >= (0, 11, 1)

    @property
    def default_utilization(self) -> float:
        return 0.92 if self.release >= (0, 22) else 0.9

    @property
    def logs_tokens_from_concurrency(self) -> bool:
        """'GPU KV cache size' of a hybrid is concurrency · max_model_len; before, blocks // groups · block size."""
        return self.release >= (0, 20, 2)

    @property
    def limits_block_splits(self) -> bool:
        """Weights are loaded with the allocator's max_split_size at 20 MiB (vllm#41268, after 0.20)."""
        return self.release >= (0, 21)

    @property
    def bitsandbytes_is_plugin(self) -> bool:
        return self.release >= (0, 28)

    @property
    def caches_prefixes_of_hybrids(self) -> bool:
        """Whether prefix caching (mamba cache mode `align`) is on for hybrids by default: from 0.28 on, vllm#50991."""
        return self.release >= (0, 28)

    def joins_worker_on_cpu(self, num_ranks: int, numa_nodes: int) -> bool:
        """Whether one rank on a CPU computes in the engine's own process, as `launch/cpu_processes.py` asks for.

        A third of what a start imports, and of what its processes hold, is not there then. Several memory nodes keep
        the worker apart, whose threads vLLM binds to one of them. Source: vllm 0.32 platforms/cpu.py, which takes the
        executor for several processes unless VLLM_ENABLE_V1_MULTIPROCESSING=0; the release that this was run with.
        """
        return self.release >= (0, 32) and num_ranks == 1 and numa_nodes == 1
