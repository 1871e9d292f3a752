"""How the weights of one checkpoint are stored: by which scheme, with which groups, and which modules otherwise."""

from __future__ import annotations

from dataclasses import dataclass

from qserve.core.quantization.module_names import matcher_of

__all__ = ["CheckpointQuantization"]


@dataclass(frozen=True)
class CheckpointQuantization:
    """How a checkpoint stores its weights: most of them by one scheme, by name some by another or in 16 bit.

    `group_size` is 0 where scales are per channel or tensor, `block` the edge of an fp8 block (0: none), `per_row` one
    scale a row. `skipped` are patterns of modules that stay in 16 bit (module_names.py), `overrides` patterns of
    those that are stored otherwise, `only` of those that this is about (empty: every other). `covers_every_linear`:
    lm_head, router, encoder and drafter too, where nothing skips them. `double_quant`: bitsandbytes' 4-bit scales are
    quantized themselves. `kv_cache_dtype` is what the file asks of the cache. `in_panels`: as a CPU's products hold it
    (qserve/model/cpu/matrix.h), not as it is stored. `covers_drafter`: layers of the MTP head are stored as the model's
    are, but for those that are skipped. `covers_tables`: so are tables of n-grams, with one scale each.
    """

    scheme: str
    bits: int
    group_size: int = 0
    block: int = 0
    symmetric: bool = False
    double_quant: bool = False
    skipped: tuple[str, ...] = ()
    experts_only: bool = False
    per_row: bool = False
    overrides: tuple[tuple[tuple[str, ...], CheckpointQuantization], ...] = ()
    only: tuple[str, ...] = ()
    covers_every_linear: bool = False
    kv_cache_dtype: str | None = None
    in_panels: bool = False
    covers_drafter: bool = False
    covers_tables: bool = False

    @property
    def is_mixed(self) -> bool:
        """Whether it depends on a module's name how it is stored."""
        return bool(self.skipped or self.overrides or self.only)

    @property
    def schemes(self) -> frozenset[str]:
        """Of all of its modules."""
        return frozenset({self.scheme, *(other.scheme for _, other in self.overrides)})

    def of_module(self, module: str, is_usual: bool = True) -> CheckpointQuantization | None:
        """How `module` is stored; None in 16 bit. One that is not usually quantized must be named to be."""
        if matcher_of(self.skipped).matches(module):
            return None
        for patterns, other in self.overrides:
            if matcher_of(patterns).matches(module):
                return other
        if self.only:
            return self if matcher_of(self.only).matches(module) else None
        return self if is_usual or self.covers_every_linear else None

    def of_table(self, module: str) -> CheckpointQuantization | None:
        """How a table of n-grams is stored; None in 16 bit. It is no linear layer: what is about those leaves it."""
        found = self.of_module(module, self.covers_tables)
        is_named = bool(self.only) or found is not self
        return found if is_named or self.covers_tables else None
