"""Whether a chat template writes a token that the model can't read: then each conversation would be refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from qserve.errors import BrokenCheckpoint
from qserve.hub.folder import read_config
from qserve.hub.token_rows import ADVICE, RowlessTokens, rowless_tokens
from qserve.prompts.template import ChatTemplate, TemplateRefused

__all__ = ["check_chat_template", "check_written"]

Messages = Sequence[Mapping[str, str]]

_SYSTEM, _USER, _ANSWER = ({"role": role, "content": "1"} for role in ("system", "user", "assistant"))
_ASKED: tuple[Messages, ...] = ((_USER,), (_SYSTEM, _USER), (_USER, _ANSWER, _USER))
_ANSWERED: tuple[Messages, ...] = ((_USER, _ANSWER), (_SYSTEM, _USER, _ANSWER), (_USER, _ANSWER, _USER, _ANSWER))
_VARIABLES: tuple[dict[str, Any], ...] = ({}, {"enable_thinking": True}, {"enable_thinking": False})


def check_chat_template(folder: Path, source: str) -> None:
    """Raises BrokenCheckpoint where the template `source` writes a token without a row in the model of `folder`."""
    if not source or not (folder / "config.json").is_file():
        return
    if (rowless := rowless_tokens(folder, read_config(folder))) is not None:
        check_written(source, rowless)


def check_written(
    source: str, rowless: RowlessTokens, special_tokens: Mapping[str, Any] | None = None, *, is_answered: bool = False
) -> None:
    """Raises BrokenCheckpoint where a plain conversation through the template `source` holds a token without a row.

    `special_tokens`: what the template finds by their names. `is_answered`: conversations end in an answer, as a reward
    model reads them.
    """
    template = ChatTemplate(source, special_tokens)
    for messages in _ANSWERED if is_answered else _ASKED:
        for variables in _VARIABLES:
            try:
                text = template.render(messages, add_generation_prompt=not is_answered, variables=variables)
            except TemplateRefused:
                continue
            if (token := rowless.written_in(text)) is not None:
                raise BrokenCheckpoint(
                    f"the chat template writes {token!r} (id {rowless.ids[token]}), which has no row in the embedding "
                    f"({rowless.num_rows} rows): every conversation would be refused. Take it out of the template, "
                    f"or {ADVICE}"
                )
