"""Kernels that read keys in their pages, by the packages that bring them: how each is found, and how it is called."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import is_offline_mode
from huggingface_hub.constants import HF_HUB_CACHE

from qserve.engines.transformers.kernels.attention_kernels import (
    FLASH_2,
    FLASH_3,
    HUB_FLASH_2,
    HUB_FLASH_3,
    HUB_VLLM_FLASH_3,
    TORCH_VARLEN,
    TRITON_PAGED,
)
from qserve.engines.transformers.worker.attention.pages import PagedKernel, PageStep

__all__ = ["found_in", "installed", "snapshots"]

# Modules that bring kernels, and the distributions that they come with.
_MODULES = {
    "flash_attn_interface": "flash-attn-3",
    "flash_attn": "flash-attn",
    "kernels": "kernels",
    "triton": "triton",
}
# Source: transformers 5.19, modeling_flash_attention_utils.py: FLASH_ATTN_KERNEL_VERSIONS.
_HUB_VERSIONS = {HUB_FLASH_3: 1, HUB_VLLM_FLASH_3: 1, HUB_FLASH_2: 3}


def found_in(device: torch.device, dtype: torch.dtype) -> dict[str, Callable[[], Iterator[PagedKernel]]]:
    """Where kernels for `device` come from, by name; one that passes arguments in two ways is there twice."""
    return {
        FLASH_3: _flash_3,
        TRITON_PAGED: partial(_triton, device, dtype),
        HUB_FLASH_3: partial(_hub, HUB_FLASH_3, _read_by_flash_3),
        HUB_VLLM_FLASH_3: partial(_hub, HUB_VLLM_FLASH_3, _read_by_vllm_flash_3),
        TORCH_VARLEN: _torch_varlen,
        FLASH_2: _flash_2,
        HUB_FLASH_2: partial(_hub, HUB_FLASH_2, _read_by_flash_2),
    }


def installed() -> frozenset[str]:
    """Of the packages that bring kernels, those that can be imported, by their distributions' names."""
    return frozenset(name for module, name in _MODULES.items() if importlib.util.find_spec(module) is not None)


def snapshots(name: str) -> list[str]:
    """Of a kernel of the hub, where it may not be fetched, what is on this machine: one that comes later is tried."""
    if name not in _HUB_VERSIONS or not is_offline_mode():
        return []
    root = Path(os.environ.get("KERNELS_CACHE") or HF_HUB_CACHE)
    return sorted(path.name for path in root.glob(f"*--{name.replace('/', '--')}/snapshots/*"))


def _torch_varlen() -> Iterator[PagedKernel]:
    """torch's own flash-attention with `block_table` (from torch 2.12 on); with or without bounds of the keys."""
    from torch.nn.attention.varlen import varlen_attn

    if "block_table" not in inspect.signature(varlen_attn).parameters:
        raise NotImplementedError(f"torch {torch.__version__} does not read page tables; torch 2.12 does")

    def read(
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        step: PageStep,
        scaling: float,
        *,
        with_bounds: bool,
    ) -> torch.Tensor:
        mixed = varlen_attn(
            query,
            keys,
            values,
            step.query_bounds,
            step.key_bounds if with_bounds else None,
            step.max_queries,
            step.max_keys,
            scale=scaling,
            window_size=(-1, 0),
            enable_gqa=True,
            seqused_k=step.num_keys,
            block_table=step.block_table,
        )
        assert isinstance(mixed, torch.Tensor)
        return mixed

    yield partial(read, with_bounds=False)
    yield partial(read, with_bounds=True)


def _triton(device: torch.device, dtype: torch.dtype) -> Iterator[PagedKernel]:
    """This project's own, for steps of decoding."""
    from qserve.engines.transformers.worker.attention.triton_decode import PagedDecode

    yield PagedDecode.on(device, dtype)


def _flash_3() -> Iterator[PagedKernel]:
    """flash-attn 3, for Hopper."""
    yield _read_by_flash_3(importlib.import_module("flash_attn_interface"))


def _flash_2() -> Iterator[PagedKernel]:
    """flash-attn 2, whose pages are whole multiples of 256 tokens."""
    yield _read_by_flash_2(importlib.import_module("flash_attn"))


def _hub(repository: str, reader: Callable[[Any], PagedKernel]) -> Iterator[PagedKernel]:
    """A kernel of Hugging Face's hub, built for this torch and card: fetched once, and not where HF_HUB_OFFLINE is set.

    Who installs the package `kernels` wants them; it takes none but those of organisations that it trusts.
    """
    try:
        module = importlib.import_module("kernels").get_kernel(repository, version=_HUB_VERSIONS[repository])
    except OSError as error:  # it is not on this machine, and can't be fetched: by another start, perhaps
        raise NotImplementedError(str(error)) from None if is_offline_mode() else error
    yield reader(module)


def _read_by_flash_3(module: Any) -> PagedKernel:
    def read(
        query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, step: PageStep, scaling: float
    ) -> torch.Tensor:
        mixed: torch.Tensor = module.flash_attn_with_kvcache(
            query,
            keys,
            values,
            cache_seqlens=step.num_keys,
            page_table=step.block_table,
            cu_seqlens_q=step.query_bounds,
            max_seqlen_q=step.max_queries,
            softmax_scale=scaling,
            causal=True,
        )
        return mixed

    return read


def _read_by_vllm_flash_3(module: Any) -> PagedKernel:
    def read(
        query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, step: PageStep, scaling: float
    ) -> torch.Tensor:
        mixed: torch.Tensor = module.flash_attn_varlen_func(
            query,
            keys,
            values,
            max_seqlen_q=step.max_queries,
            cu_seqlens_q=step.query_bounds,
            max_seqlen_k=step.max_keys,
            seqused_k=step.num_keys,
            softmax_scale=scaling,
            causal=True,
            block_table=step.block_table,
        )
        return mixed

    return read


def _read_by_flash_2(module: Any) -> PagedKernel:
    def read(
        query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, step: PageStep, scaling: float
    ) -> torch.Tensor:
        mixed: torch.Tensor = module.flash_attn_varlen_func(
            query,
            keys,
            values,
            step.query_bounds,
            step.key_bounds,
            step.max_queries,
            step.max_keys,
            softmax_scale=scaling,
            causal=True,
            block_table=step.block_table,
        )
        return mixed

    return read
