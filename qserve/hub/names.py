"""Short names of models: which hub ids `qwen3-32b`, `Qwen3-32B-AWQ` or Ollama's `qwen3:32b` can mean."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable

from qserve.errors import ModelNotFound

__all__ = ["matching_ids", "meant_id", "near_ids"]

# Endings that Ollama leaves out of its tags: its `qwen2.5:7b` is the instruct model, `qwen1.5:32b` the chat model.
_LEFT_OUT_OF_TAGS = ("", "-instruct", "-chat")
_SLIP, _CLOSE = 0.93, 0.6
# Shorter parts are in names of every kind.
_SHORTEST_PART = 3


def matching_ids(name: str, known: Iterable[str]) -> tuple[str, ...]:
    """The ids of `known` that `name` can mean, in their order; upper and lower case are the same.

    A name with an organisation is compared whole, one without it to the part after the organisation.
    """
    wanted = name.lower()
    if "/" in wanted:
        return tuple(one for one in known if one.lower() == wanted)
    family, colon, tag = wanted.partition(":")
    names = {f"{family}-{tag}{ending}" for ending in _LEFT_OUT_OF_TAGS} if colon else {wanted}
    return tuple(one for one in known if _name(one) in names)


def meant_id(name: str, known: Collection[str]) -> str | None:
    """The id of `known` that is meant by a short name, or by one in other letters; None for one of them, and for a name
    that is none. Raises ModelNotFound if it can be several.
    """
    if name in known:
        return None
    found = matching_ids(name, known)
    if len(found) > 1:
        raise ModelNotFound(f"{name!r} can be {', '.join(found[:-1])} or {found[-1]}; write one of these")
    return found[0] if found else None


def near_ids(name: str, known: Iterable[str], most: int = 4) -> tuple[str, ...]:
    """Ids of `known` that were probably meant.

    Those that have `name` in them, those that differ by a slip, those that it adds something to ("qwen3-8b-instruct"),
    then those written much like it.
    """
    ids = tuple(dict.fromkeys(known))
    wanted = _name(name).replace(":", "-")
    by_name = {_name(one): one for one in reversed(ids)}
    containing = [one for one in ids if len(wanted) >= _SHORTEST_PART and wanted in one.lower()]
    begun = sorted((one for one in by_name if wanted.startswith(f"{one}-")), key=len, reverse=True)
    slips, close = (difflib.get_close_matches(wanted, by_name, n=most, cutoff=cutoff) for cutoff in (_SLIP, _CLOSE))
    return tuple(dict.fromkeys([*containing, *(by_name[one] for one in (*slips, *begun, *close))]))[:most]


def _name(model_id: str) -> str:
    """The part after the organisation, in lower case."""
    return model_id.rpartition("/")[2].lower()
