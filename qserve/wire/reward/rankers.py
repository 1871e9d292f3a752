"""What rankers are asked, a query with its documents: /score and /rerank."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from qserve.wire.reward.fields import ScoredStrings, ScoredTexts, Texts, VllmFields, as_list, one_of, refuse
from qserve.wire.reward.rules import RERANK_HAS_NOT, RERANK_SCHEMA, SCORE_SCHEMA, SCORED_PAIRS, TEI_HAS_NOT

__all__ = ["RerankRequest", "ScoreRequest"]


class ScoreRequest(VllmFields):
    """POST /score, /v1/score: each document as the answer to its query; one query goes with every document."""

    model_config = ConfigDict(json_schema_extra=SCORE_SCHEMA)

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
        if (first, second) not in SCORED_PAIRS:
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


class RerankRequest(VllmFields):
    """POST /rerank: vLLM's and Cohere's (`documents`), and text-embeddings-inference's (`texts`)."""

    model_config = ConfigDict(json_schema_extra=RERANK_SCHEMA)

    query: str
    documents: ScoredTexts | None = None
    top_n: int | None = Field(None, ge=0)
    return_documents: bool | None = None
    texts: ScoredStrings | None = None
    raw_scores: bool | None = None
    return_text: bool | None = None
    truncate: bool | None = None
    truncation_direction: Literal["left", "right", "Left", "Right"] | None = None
    max_tokens_per_doc: int | None = Field(None, ge=1, description="harmless: Cohere's; texts are never cut unasked")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if one_of(self, "documents", "texts") == "texts":
            refuse(self, "text-embeddings-inference's /rerank", *TEI_HAS_NOT)
        else:
            refuse(self, "/rerank with 'documents'", *RERANK_HAS_NOT)
        return self

    def num_texts(self) -> int:
        return len(as_list(self.documents if self.texts is None else self.texts))
