"""Which modules stay in 16 bit, by the roles that tensors have by their names; and the size of the others' groups."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from qserve.core.tensors import Tensor, role_of
from qserve.errors import UsageError

__all__ = ["LeftOut", "group_size_of", "is_quantized", "left_out_of"]

_GROUPS = (128, 64, 32)
"""Those that engines have kernels for, the smallest result first."""
_MOST_BITS_OF_STATES = 4


@dataclass(frozen=True)
class LeftOut:
    """Modules that stay in 16 bit.

    Attributes:
        pattern: as compressed-tensors takes it: a name, or re: and a regular expression of the whole of it.
        name: of the module, without what stands before it, as bitsandbytes takes it.
        why: in a few words.
    """

    pattern: str
    name: str
    why: str


# Where a name has the first, its module is left out. A router that is rounded sends tokens to other experts; what
# linear attention keeps from token to token adds its errors up.
_RULES = (
    ("lm_head.", LeftOut("lm_head", "lm_head", "the head, of which each answer's tokens are chosen")),
    (".mlp.gate.", LeftOut(r"re:.*mlp\.gate$", "mlp.gate", "routers choose the experts")),
    (".shared_expert_gate.", LeftOut(r"re:.*shared_expert_gate$", "shared_expert_gate", "gates of shared experts")),
    ("visual.", LeftOut(r"re:.*visual\..*", "visual", "the image encoder")),
    ("audio_tower.", LeftOut(r"re:.*audio_tower\..*", "audio_tower", "the audio encoder")),
    ("mtp.", LeftOut(r"re:.*mtp\..*", "mtp", "the head that drafts tokens")),
)
_ALL_OF_STATES = LeftOut(r"re:.*linear_attn\..*", "linear_attn", "linear attention, in 4 bit all of it")
_SMALL_OF_STATES = LeftOut(
    r"re:.*linear_attn\.(in_proj_a|in_proj_b|in_proj_ba|conv1d)$",
    "linear_attn.in_proj_b",
    "decay and gates of linear attention",
)
_IN_16_BIT = ("embedding", "norm", "ngram_table", "stream_gate", "head", "vision", "audio", "talker", "mtp", "router")


def left_out_of(names: Iterable[str], bits: int) -> tuple[LeftOut, ...]:
    """Of a model whose tensors are called so, in so many bits; those alone that it has. The head is always there: one
    that is the embedding has no tensor."""
    every = tuple(names)
    head, *others = _RULES
    found = [head[1], *(one for part, one in others if any(part in name for name in every))]
    if any(".linear_attn." in name for name in every):
        found.append(_ALL_OF_STATES if bits <= _MOST_BITS_OF_STATES else _SMALL_OF_STATES)
    return tuple(found)


def is_quantized(tensor: Tensor, bits: int) -> bool:
    """Whether the weight is stored in `bits`: a linear layer's of attention, MLP or expert, that no rule leaves out."""
    role = role_of(tensor.name)
    if len(tensor.shape) != 2 or not tensor.name.endswith(".weight") or role in (*_IN_16_BIT, "lm_head"):
        return False
    is_of_states = ".linear_attn." in tensor.name
    return role != "linear_state" and not (is_of_states and bits <= _MOST_BITS_OF_STATES)


def group_size_of(tensors: Iterable[Tensor], asked: int | None, bits: int) -> int:
    """Columns that share a scale: what was asked for, else the largest that divides every quantized weight's columns.

    Raises UsageError where none does.
    """
    columns = sorted({tensor.shape[1] for tensor in tensors if is_quantized(tensor, bits)})
    fitting = [size for size in _GROUPS if all(width % size == 0 for width in columns)]
    if asked is not None and asked not in fitting:
        raise UsageError(
            f"--group-size {asked}: weights have {', '.join(map(str, columns))} columns; groups that divide them are "
            f"{', '.join(map(str, fitting)) or 'none of 128, 64, 32'}"
        )
    if not fitting:
        raise UsageError(
            f"weights have {', '.join(map(str, columns))} columns, which no group of 128, 64 or 32 divides; --to fp8 "
            "and --to w8a8 have scales for whole rows"
        )
    return asked or fitting[0]
