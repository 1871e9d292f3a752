"""Renders and tokenizes a client's conversation as in training.

The traps, each held by a test: a template may put tokens after the answer (Qwen3's ends in `<|im_end|>` and a line
break) or before it (its empty think block); a tokenizer that adds BOS doubles one that the text has already; OpenRLHF
makes EOS the last token whatever the text says. What was done is in `meta`, with the hash of the template.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from qserve.errors import BrokenCheckpoint, UsageError
from qserve.hub.chat_template import template_of
from qserve.hub.token_rows import ADVICE, rowless_tokens, without_row
from qserve.prompts.written_tokens import check_written
from qserve.reward.answers import check_answered
from qserve.reward.checkpoints import RewardCheckpoint
from qserve.reward.failures import TextRefused, too_long
from qserve.reward.items import TokenizedText
from qserve.reward.scoring.size_bound import SizeBound
from qserve.reward.settings import RewardSettings, Truncation

__all__ = ["RewardTemplate"]

_ROLES = ("system", "developer", "user", "assistant", "tool")

Message = Mapping[str, Any]
Content = str | Sequence[int] | Sequence[Message] | Mapping[str, Any]


class RewardTemplate:
    """Messages, text or token ids to at most `max_length` tokens. Cheap to call, keeps no state."""

    def __init__(self, tokenizer: Any, checkpoint: RewardCheckpoint, settings: RewardSettings, max_length: int) -> None:
        self.max_length = max_length
        self.truncate: Truncation = settings.truncate
        self._tokenizer = tokenizer
        own = checkpoint.template
        given = _read_template(settings.template or (str(own) if own else None))
        self._template = given or template_of(tokenizer)
        self._tool_template = given or template_of(tokenizer, with_tools=True)
        self._forced_eos_id = tokenizer.eos_token_id if checkpoint.forced_eos else None
        self._end_id = self._forced_eos_id if checkpoint.vectors is None else _end_id(tokenizer)
        self._size_bound = SizeBound(tokenizer)
        self._vocab_size = int(checkpoint.config.get("vocab_size", 0))
        self._check_own_tokens(checkpoint)
        self.template_hash = hashlib.sha256((self._template or "").encode()).hexdigest()[:16]

    def _check_own_tokens(self, checkpoint: RewardCheckpoint) -> None:
        """Raises BrokenCheckpoint where each text would get a token that the model has no row for."""
        rowless = rowless_tokens(checkpoint.tokenizer, checkpoint.config)
        if rowless is not None and self._template is not None:
            check_written(self._template, rowless, self._tokenizer.special_tokens_map, is_answered=True)
        ends = [] if self._forced_eos_id is None else [self._forced_eos_id]
        if (found := without_row(ends, self._vocab_size, self._tokenizer.convert_ids_to_tokens)) is not None:
            raise BrokenCheckpoint(f"{checkpoint.id}: each text ends with {found}; {ADVICE}")

    def render(self, messages: Sequence[Message], fields: Mapping[str, Any] | None = None) -> str:
        """The text of a conversation, by the model's own chat template, as a trainer renders it: no generation prompt.

        `fields` has what else the template is given: `tools`, `chat_template_kwargs`. Raises TextRefused for a role
        that is none, for tools where the template knows none, and for what the template itself refuses.
        """
        fields = fields or {}
        if not messages:
            raise TextRefused("the conversation is empty; send at least one message", "invalid_value", "messages")
        template = self._tool_template if fields.get("tools") else self._template
        if template is None:
            raise TextRefused(
                "the model's tokenizer has no chat template, so messages can't be rendered as in training; send the "
                "templated text, or serve with --template FILE",
                "no_chat_template",
                "messages",
            )
        for index, message in enumerate(messages):
            if message.get("role") not in _ROLES:
                raise TextRefused(
                    f"messages[{index}] has the role {message.get('role')!r}; allowed are {', '.join(_ROLES)}",
                    "invalid_value",
                    f"messages[{index}].role",
                )
        self._refuse_unwritten(messages, fields, template)
        try:
            text = self._tokenizer.apply_chat_template(
                [dict(message) for message in messages],
                fields.get("tools") or None,
                chat_template=template,
                tokenize=False,
                **(fields.get("chat_template_kwargs") or {}),
            )
        except (TemplateError, TypeError, KeyError, ValueError) as error:
            raise TextRefused(
                f"the chat template refused these messages: {error}", "invalid_value", "messages"
            ) from None
        return str(text)

    @staticmethod
    def _refuse_unwritten(messages: Sequence[Message], fields: Mapping[str, Any], template: str) -> None:
        """A template that knows no tools would leave them out, and an answer that calls one would be an empty one."""
        held = {"tools": bool(fields.get("tools")), "tool_calls": any(one.get("tool_calls") for one in messages)}
        for name, is_held in held.items():
            if is_held and name not in template:
                message = (
                    f"the chat template does not read '{name}', so the model can't see them; serve with --template"
                )
                raise TextRefused(message, "invalid_value", name)

    def encode(
        self, content: Content, *, truncate: Truncation | None = None, max_length: int | None = None
    ) -> TokenizedText:
        """Token ids of a text, of messages, or of token ids as they are; of an object {"messages", "tools"?,
        "chat_template_kwargs"?}, or {"text", "add_eos"?}: a whole text, ended by EOS as TRL ends those of a pair.

        `truncate` and `max_length` go before the model's own settings; a larger `max_length` than those has no effect.
        Raises TextRefused for a text without tokens, for ids outside the vocabulary, and for a text that is too
        long where nothing may be cut off.
        """
        limit = min(self.max_length, max_length or self.max_length)
        cut = truncate or self.truncate
        ids = self._ids(content, limit, cut)
        if len(ids) > limit and cut == "refuse":
            raise too_long(len(ids), limit)
        if len(ids) <= limit:
            return TokenizedText(self._readable(ids), truncated=False)
        shorter = ids[-limit:] if cut == "left" else ids[:limit]
        if self._end_id is not None:
            shorter[-1] = self._end_id
        return TokenizedText(self._readable(shorter), truncated=True)

    def _readable(self, ids: list[int]) -> list[int]:
        """`ids`. Raises TextRefused for a token that the model has no row for."""
        if (found := without_row(ids, self._vocab_size, self._tokenizer.convert_ids_to_tokens)) is not None:
            raise TextRefused(f"the text has {found}", "invalid_value", "input")
        return ids

    def beginning(self, text: str, num_tokens: int) -> str:
        """The longest beginning of a text that has so many tokens at most, and one character at least.

        Cut between characters: tokens that are decoded and encoded again may be others.
        """
        per_token = self._size_bound.bytes_per_token
        kept = text if per_token is None else text[: per_token * (num_tokens + 1)]
        while True:
            offsets = self._tokenizer(kept, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
            if len(offsets) <= num_tokens or len(kept) == 1:
                return kept
            kept = kept[: max(1, min(offsets[num_tokens - 1][1], offsets[num_tokens][0], len(kept) - 1))]

    def _ids(self, content: Content, limit: int, cut: Truncation) -> list[int]:
        fields: Mapping[str, Any] = {}
        if isinstance(content, Mapping):
            fields = content
            content = self._ended(fields) if "text" in fields else fields["messages"]
        if isinstance(content, str):
            ids = self._of_text(content, limit, cut, add_special_tokens=True)
        elif content and isinstance(content[0], Mapping):
            messages: Sequence[Message] = content  # type: ignore[assignment]
            text = self.render(messages, fields)
            check_answered(messages, "messages")
            # The template has written BOS already, where the model has one.
            ids = self._of_text(text, limit, cut, add_special_tokens=False)
        else:
            if len(content) > limit and cut == "refuse":
                raise too_long(len(content), limit)
            ids = self._checked(content)  # type: ignore[arg-type]
        if not ids:
            raise TextRefused("the text is empty: it has no tokens to score", "empty_input", "input")
        return ids

    def _ended(self, whole: Mapping[str, Any]) -> str:
        text, eos = str(whole["text"]), self._tokenizer.eos_token or ""
        return text if not whole.get("add_eos") or text.endswith(eos) else text + eos

    def _of_text(self, text: str, limit: int, cut: Truncation, *, add_special_tokens: bool) -> list[int]:
        tokenizer = self._tokenizer
        if self._forced_eos_id is not None:
            text = text.rstrip("\n")
            text = text if text.endswith(tokenizer.eos_token) else text + tokenizer.eos_token
        if tokenizer.bos_token and text.startswith(tokenizer.bos_token):
            add_special_tokens = False
        if self._size_bound.exceeds(text, limit):
            text = self._shorter(text, limit, cut)
        ids: list[int] = tokenizer.encode(text, add_special_tokens=add_special_tokens)
        return ids

    def _shorter(self, text: str, limit: int, cut: Truncation) -> str:
        """Of a text that is sure to be cut, more than can be kept of it. Raises TextRefused where it may not be.

        Twice the characters that fit and a token more, so that where it is cut here is far from where it is cut then.
        """
        per_token = self._size_bound.bytes_per_token or 1
        if cut == "refuse":
            raise too_long(limit + 1, limit, f"it has {len(text)} characters")
        num_kept = 2 * per_token * (limit + 1)
        return text[-num_kept:] if cut == "left" else text[:num_kept]

    def _checked(self, ids: Sequence[int]) -> list[int]:
        wrong = next((i for i in ids if isinstance(i, bool) or not isinstance(i, int) or i < 0), None)
        if wrong is not None:
            raise TextRefused(
                f"{wrong!r} is not a token id of the model; ids are whole numbers from 0 to {self._vocab_size - 1}",
                "invalid_value",
                "input",
            )
        return list(ids)


def _end_id(tokenizer: Any) -> int | None:
    """The token that the tokenizer itself puts at the end of each text, where an embedding model is read."""
    ended, plain = (tokenizer.encode("a", add_special_tokens=adds) for adds in (True, False))
    return None if ended[-1:] == plain[-1:] else int(ended[-1])


def _read_template(file: str | None) -> str | None:
    if file is None:
        return None
    try:
        return Path(file).expanduser().read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise UsageError(
            f"--template {file!r} can't be read ({reason}); it takes a file with a Jinja template"
        ) from None
