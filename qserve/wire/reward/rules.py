"""Rules between the fields of a reward request, as JSON Schema for /openapi.json: those of its validators.

What JSON Schema can't tell: as many queries as documents, or one.
"""

from __future__ import annotations

from typing import Any

from qserve.wire.schema_rules import absent, given, one_of_these, together

__all__ = [
    "CLASSIFY_SCHEMA",
    "OBJECT_SCHEMA",
    "PAIR_SCHEMA",
    "POOLING_SCHEMA",
    "PREDICT_INPUTS",
    "RERANK_HAS_NOT",
    "RERANK_SCHEMA",
    "REWARD_SCHEMA",
    "SCORED_PAIRS",
    "SCORE_SCHEMA",
    "SGLANG_HAS_NOT",
    "TEI_HAS_NOT",
]

_TEXT = ["string", "array"]
_WHOLE = {"conversations": "array", "texts": "array", "token_ids": "array", "pairs": "array"}
_BESIDE = ("tools", "chat_template_kwargs")
OBJECT_SCHEMA: dict[str, Any] = {
    "oneOf": [
        together(given(messages="array"), absent("text", "add_eos")),
        together(given(text="string"), absent("messages", *_BESIDE)),
    ]
}
REWARD_SCHEMA: dict[str, Any] = {
    "oneOf": [
        *(
            together(given(**{name: kind}), absent("prompt", "responses", *_BESIDE, *(set(_WHOLE) - {name})))
            for name, kind in _WHOLE.items()
        ),
        together(given(prompt=_TEXT, responses="array"), absent(*_WHOLE)),
    ]
}
PAIR_SCHEMA: dict[str, Any] = {
    "anyOf": [
        given(prompt=_TEXT), given(chosen="array", rejected="array"), given(chosen="string", rejected="string")
    ]
}  # fmt: skip
_ACTIVATION: dict[str, Any] = {
    "anyOf": [
        absent("activation"), absent("use_activation"),
        *({"properties": {"activation": {"const": one}, "use_activation": {"const": one}}} for one in (True, False)),
    ]
}  # fmt: skip
SGLANG_HAS_NOT = ("use_activation", "activation", "truncate_prompt_tokens")
CLASSIFY_SCHEMA: dict[str, Any] = {
    "allOf": [_ACTIVATION],
    "oneOf": [
        together(given(input=_TEXT), absent("messages", "text", "input_ids", "rid")),
        together(given(messages="array"), absent("input", "text", "input_ids", "rid")),
        together(given(text=_TEXT), absent("input", "messages", "input_ids", *SGLANG_HAS_NOT)),
        together(given(input_ids="array"), absent("input", "messages", "text", *SGLANG_HAS_NOT)),
    ],
}
POOLING_SCHEMA: dict[str, Any] = {"allOf": [_ACTIVATION], **one_of_these(input=_TEXT, messages="array")}
_SCORED = ("queries", "documents", "items", "text_1", "text_2", "data_1", "data_2")
SCORED_PAIRS = (("queries", "documents"), ("queries", "items"), ("text_1", "text_2"), ("data_1", "data_2"))
SCORE_SCHEMA: dict[str, Any] = {
    "allOf": [_ACTIVATION],
    "oneOf": [
        together(given(**dict.fromkeys(pair, _TEXT)), absent(*(name for name in _SCORED if name not in pair)))
        for pair in SCORED_PAIRS
    ],
}
TEI_HAS_NOT = ("top_n", "return_documents", "use_activation", "rank_fields")
RERANK_HAS_NOT = ("raw_scores", "return_text", "truncate", "truncation_direction")
RERANK_SCHEMA: dict[str, Any] = {
    "allOf": [_ACTIVATION],
    "oneOf": [
        together(given(documents=_TEXT), absent("texts", *RERANK_HAS_NOT)),
        together(given(texts="array"), absent("documents", *TEI_HAS_NOT)),
    ],
}
PREDICT_INPUTS: dict[str, Any] = {
    "anyOf": [
        {"type": "string", "minLength": 1},
        {"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1, "maxItems": 2},
        {
            "type": "array", "minItems": 1,
            "items": {"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1, "maxItems": 2},
        },
    ]
}  # fmt: skip
