"""What rankers are asked, a query with its documents: /score and /rerank."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from qserve.wire.openai import NonEmptyString, Wire
from qserve.wire.reward.documents import Document
from qserve.wire.reward.fields import (
    ACTIVATION_SCHEMA,
    STRING_OR_LIST,
    Scored,
    ScoredTexts,
    Texts,
    VllmFields,
    as_list,
    one_of,
    refuse,
)
from qserve.wire.schema_rules import absent, given, together

__all__ = ["RerankRequest", "ScoreRequest"]

Documents = Scored | Annotated[list[Scored | Document], Field(min_length=1, fail_fast=True)]


_SCORED = ("queries", "documents", "items", "text_1", "text_2", "data_1", "data_2")
_SCORED_PAIRS = (("queries", "documents"), ("queries", "items"), ("text_1", "text_2"), ("data_1", "data_2"))
# JSON Schema can't tell that there are as many queries as documents, or one.
_SCORE_SCHEMA: dict[str, Any] = {
    "allOf": [ACTIVATION_SCHEMA],
    "oneOf": [
        together(given(**dict.fromkeys(pair, STRING_OR_LIST)), absent(*(name for name in _SCORED if name not in pair)))
        for pair in _SCORED_PAIRS
    ],
}
_TEI_HAS_NOT = ("top_n", "return_documents", "use_activation", "rank_fields")
_RERANK_HAS_NOT = ("raw_scores", "return_text", "truncate", "truncation_direction")
_RERANK_SCHEMA: dict[str, Any] = {
    "allOf": [ACTIVATION_SCHEMA],
    "oneOf": [
        together(given(documents=STRING_OR_LIST), absent("texts", *_RERANK_HAS_NOT)),
        together(given(texts="array"), absent("documents", *_TEI_HAS_NOT)),
    ],
}


class RankerFields(VllmFields):
    """How much of a query and of a document is read, as vLLM and Cohere have it."""

    max_tokens_per_query: int | None = Field(
        None, ge=0, description="the query is cut off after so many tokens; 0: never"
    )
    max_tokens_per_doc: int | None = Field(None, ge=0, description="the same for each document")


class ScoreRequest(RankerFields):
    """POST /score, /v1/score: each document as the answer to its query; one query goes with every document."""

    model_config = ConfigDict(json_schema_extra=_SCORE_SCHEMA)

    queries: Texts | None = None
    documents: ScoredTexts | None = None
    items: ScoredTexts | None = None
    text_1: Texts | None = None
    text_2: ScoredTexts | None = None
    data_1: Texts | None = None
    data_2: ScoredTexts | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        first, second = one_of(self, "queries", "text_1", "data_1"), one_of(self, *_SECOND)
        if (first, second) not in _SCORED_PAIRS:
            raise PydanticCustomError("pair", f"'{first}' does not go with '{second}'")
        queries, documents = self.pairs()
        if len(queries) not in (1, len(documents)):
            raise PydanticCustomError(
                "pairs", f"{len(queries)} queries for {len(documents)} documents; give one query, or one for each"
            )
        return self

    def pairs(self) -> tuple[list[str], list[str]]:
        """(queries, documents)."""
        first, second = one_of(self, "queries", "text_1", "data_1"), one_of(self, *_SECOND)
        return as_list(getattr(self, first)), as_list(getattr(self, second))

    def num_texts(self) -> int:
        return len(self.pairs()[1])


_SECOND = ("documents", "items", "text_2", "data_2")


class RerankRequest(RankerFields):
    """POST /rerank: vLLM's, Cohere's and Jina's (`documents`), and text-embeddings-inference's (`texts`)."""

    model_config = ConfigDict(json_schema_extra=_RERANK_SCHEMA)
    refused: ClassVar[Mapping[str, str]] = {
        **Wire.refused,
        "max_chunks_per_doc": "documents are not cut into chunks; 'max_tokens_per_doc' cuts them off",
    }

    query: str | Document
    documents: Documents | None = None
    rank_fields: Annotated[list[NonEmptyString], Field(min_length=1, max_length=64, fail_fast=True)] | None = Field(
        None, description="Cohere's: the fields of each document that are scored, in this order [text]"
    )
    top_n: int | None = Field(None, ge=0, description="return this many of the best; 0, or more than there are: all")
    return_documents: bool | None = None
    texts: Annotated[list[Scored | Document], Field(min_length=1, fail_fast=True)] | None = None
    raw_scores: bool | None = None
    return_text: bool | None = None
    truncate: bool | None = None
    truncation_direction: Literal["left", "right", "Left", "Right"] | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if one_of(self, "documents", "texts") == "texts":
            refuse(self, "text-embeddings-inference's /rerank", *_TEI_HAS_NOT)
        else:
            refuse(self, "/rerank with 'documents'", *_RERANK_HAS_NOT)
        for index, one in enumerate(self.listed()):
            if isinstance(one, Document):
                one.check(f"{'texts' if self.documents is None else 'documents'}.{index}", self.rank_fields)
        if isinstance(self.query, Document):
            self.query.check("query", None)
        return self

    def listed(self) -> list[str | Document]:
        """The documents as they were given."""
        several = self.texts if self.documents is None else self.documents
        return [several] if isinstance(several, str) else list(several or ())

    def document_texts(self) -> list[str]:
        """What is scored of each."""
        return [one if isinstance(one, str) else one.scored(self.rank_fields) for one in self.listed()]

    def query_text(self) -> str:
        """The query."""
        return self.query if isinstance(self.query, str) else self.query.scored(None)

    def num_texts(self) -> int:
        return len(self.listed())
