"""The tokenizer that an evaluation counts and cuts prompts with."""

from __future__ import annotations

from typing import Any

from qserve.errors import UsageError
from qserve.hub.revisions import split_revision

__all__ = ["load_tokenizer"]


def load_tokenizer(name: str) -> Any:
    """transformers' tokenizer of a folder or hub id, at a revision that stands behind it.

    Raises UsageError where there is none.
    """
    from transformers import AutoTokenizer

    model_id, revision = split_revision(name, "--tokenizer")
    try:
        return AutoTokenizer.from_pretrained(model_id, **({} if revision is None else {"revision": revision}))
    except (OSError, ValueError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UsageError(
            f"--tokenizer {name} can't be loaded ({reason}); it takes a folder with tokenizer.json, or a hub id. "
            "Leave it out for a qserve server, which has its own"
        ) from None
