"""What a reward model is asked, in the words of each client: one pydantic model per path.

Paths that two systems share have one model with the fields of both (`/classify`, `/rerank`), told apart by the field
that only one of them has. Read from public source: vLLM 0.32 `entrypoints/pooling`, SGLang `EmbeddingReqInput`,
text-embeddings-inference `router/src/http/types.rs`, OpenRLHF `utils/remote_rm_utils.py`, verl `reward_loop.py`,
LLaMA-Factory `api/protocol.py`, ms-swift's deployed reward models.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from qserve.wire.openai import (
    ChatMessage,
    NonEmptyString,
    OnlyFalse,
    OnlyOne,
    OnlyZero,
    TextFormat,
    TokenIds,
    Wire,
)
from qserve.wire.reward_rules import (
    CLASSIFY_SCHEMA,
    PAIR_SCHEMA,
    POOLING_SCHEMA,
    PREDICT_INPUTS,
    RERANK_HAS_NOT,
    RERANK_SCHEMA,
    REWARD_SCHEMA,
    SCORE_SCHEMA,
    SCORED_PAIRS,
    SGLANG_HAS_NOT,
    TEI_HAS_NOT,
)

__all__ = [
    "BULK_PLACES",
    "MAX_TEXTS",
    "ChatRequest",
    "ClassifyRequest",
    "EmbeddingRequest",
    "GetRewardRequest",
    "Normalization",
    "PoolingRequest",
    "PredictRequest",
    "PreferencePair",
    "RerankRequest",
    "RewardRequest",
    "ScoreEvaluationRequest",
    "ScoreRequest",
    "num_places",
]

MAX_TEXTS = 32_768
"""Texts of one request. More would keep gigabytes of objects in memory while nobody gains by it: send several."""
_TEXTS_A_PLACE = 64
BULK_PLACES = 16
"""Places in the queue that a request with a thousand texts or more takes. The worker shares its time out between
requests; the places bound how many of them it holds."""

Conversation = Annotated[list[ChatMessage], Field(min_length=1, fail_fast=True)]
Conversations = Annotated[list[Conversation], Field(min_length=1, max_length=MAX_TEXTS, fail_fast=True)]
# A text that is scored has at least one token; whoever makes a job of it says so with its place.
Scored = Annotated[str, WithJsonSchema({"type": "string", "minLength": 1})]
Strings = Annotated[list[str], Field(min_length=1, fail_fast=True)]
ScoredStrings = Annotated[list[Scored], Field(min_length=1, fail_fast=True)]
Input = Scored | TokenIds | ScoredStrings | Annotated[list[TokenIds], Field(min_length=1, fail_fast=True)]
Texts = str | Strings
ScoredTexts = Scored | ScoredStrings
Cut = Literal["left", "right"]
"""Which end of a text that is too long is cut off, as `--truncate` says it."""


def one_of(value: Wire, *names: str) -> str:
    """The one of these fields that was given; raises where there is none or more than one."""
    given = [name for name in names if getattr(value, name) is not None]
    if len(given) != 1:
        wanted = ", ".join(f"'{name}'" for name in names)
        have = " and ".join(f"'{name}'" for name in given) if given else "none"
        raise PydanticCustomError("one_of", f"give one of {wanted}; this request has {have}")
    return given[0]


def num_places(num_texts: int) -> int:
    """Places in the queue of a request: one for every 64 texts begun."""
    return min(BULK_PLACES, -(-num_texts // _TEXTS_A_PLACE))


class _RewardFields(Wire):
    """`model` may be left out where one reward model is served."""

    model: NonEmptyString | None = None
    user: str | None = Field(None, description="harmless: taken and not used")

    @model_validator(mode="after")
    def _not_too_many(self) -> Self:
        if (count := self.num_texts()) > MAX_TEXTS:
            raise PydanticCustomError(
                "too_many_texts", f"the request has {count} texts and may have {MAX_TEXTS}; send several requests"
            )
        return self

    def num_texts(self) -> int:
        """Texts to score: a pair is two."""
        raise NotImplementedError


class Normalization(Wire):
    """(reward - mean) / std. The bounds keep every quotient a number that JSON has."""

    mean: float = Field(ge=-1e30, le=1e30)
    std: float = Field(ge=1e-30)


class PreferencePair(Wire):
    """Two answers to one prompt. Without a prompt, both are whole conversations, as preference data sets have them."""

    model_config = ConfigDict(json_schema_extra=PAIR_SCHEMA)

    prompt: str | Conversation | None = None
    chosen: str | Conversation
    rejected: str | Conversation

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.prompt is None and (isinstance(self.chosen, str) or isinstance(self.rejected, str)):
            raise PydanticCustomError("pair", "a pair without 'prompt' needs conversations as 'chosen' and 'rejected'")
        return self


class RewardRequest(_RewardFields):
    """POST /v1/reward: whole texts, or several answers to one prompt, or pairs of them.

    An answer that is a list of strings is a list of steps: a process reward model scores each.
    """

    model_config = ConfigDict(json_schema_extra=REWARD_SCHEMA)

    conversations: Conversations | None = None
    texts: ScoredStrings | None = Field(None, description="templated already")
    token_ids: Annotated[list[TokenIds], Field(min_length=1, fail_fast=True)] | None = None
    prompt: str | Conversation | None = None
    responses: Annotated[list[Scored | ScoredStrings], Field(min_length=1, fail_fast=True)] | None = None
    references: str | Strings | None = Field(
        None, description="for rules and judges: what answers are compared with, one for all or one for each (or pair)"
    )
    pairs: Annotated[list[PreferencePair], Field(min_length=1, max_length=MAX_TEXTS // 2, fail_fast=True)] | None = None
    normalize: bool | Normalization = False
    truncate: Literal["left", "right", "refuse"] | None = None
    max_length: int | None = Field(None, ge=1)

    @model_validator(mode="after")
    def _check(self) -> Self:
        what = one_of(self, "conversations", "texts", "token_ids", "responses", "pairs")
        if (what == "responses") != (self.prompt is not None):
            raise PydanticCustomError("prompt", "'prompt' and 'responses' belong together")
        return self

    def num_texts(self) -> int:
        if self.pairs is not None:
            return 2 * len(self.pairs)
        return len(self.conversations or self.texts or self.token_ids or self.responses or ())


class _VllmFields(_RewardFields):
    """Fields of vLLM's pooling requests. `activation` is what vLLM up to 0.11 and verl call `use_activation`."""

    use_activation: bool | None = None
    activation: bool | None = None
    truncate_prompt_tokens: int | None = Field(None, ge=-1)
    truncation_side: Cut | None = None
    add_special_tokens: bool | None = Field(None, description="harmless: the text's own BOS is never doubled")
    priority: OnlyZero | None = None

    @model_validator(mode="after")
    def _same_activation(self) -> Self:
        if None not in (self.use_activation, self.activation) and self.use_activation != self.activation:
            raise PydanticCustomError("activation", "'activation' is the old name of 'use_activation'; they differ")
        return self

    @property
    def raw(self) -> bool:
        """Whether the reward is wanted as the head gives it; else its sigmoid, vLLM's default."""
        return False in (self.use_activation, self.activation)


class ClassifyRequest(_VllmFields):
    """POST /classify: vLLM's (`input` or `messages`), and SGLang's (`text` or `input_ids`)."""

    model_config = ConfigDict(json_schema_extra=CLASSIFY_SCHEMA)

    input: Input | None = None
    messages: Conversation | None = None
    add_generation_prompt: OnlyFalse | None = None
    text: ScoredTexts | None = None
    input_ids: TokenIds | Annotated[list[TokenIds], Field(min_length=1, fail_fast=True)] | None = None
    rid: str | Strings | None = Field(None, description="SGLang's name of the request; comes back in meta_info")

    @model_validator(mode="after")
    def _check(self) -> Self:
        what = one_of(self, "input", "messages", "text", "input_ids")
        if what in ("text", "input_ids"):
            _refuse(self, "SGLang's /classify", *SGLANG_HAS_NOT)
        elif self.rid is not None:
            raise PydanticCustomError("rid", "'rid' belongs to SGLang's /classify, with 'text' or 'input_ids'")
        return self

    @property
    def is_sglang(self) -> bool:
        return self.text is not None or self.input_ids is not None

    def num_texts(self) -> int:
        return 1 if self.messages is not None else num_texts(self.input or self.text or self.input_ids)


class PoolingRequest(_VllmFields):
    """POST /pooling: the reward of each text, or with `token_classify` the head's value at each of its tokens."""

    model_config = ConfigDict(json_schema_extra=POOLING_SCHEMA)

    input: Input | None = None
    messages: Conversation | None = None
    add_generation_prompt: OnlyFalse | None = None
    task: Literal["classify", "token_classify"] | None = None
    encoding_format: Literal["float"] | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        one_of(self, "input", "messages")
        return self

    def num_texts(self) -> int:
        return 1 if self.messages is not None else num_texts(self.input)


class EmbeddingRequest(_RewardFields):
    """POST /v1/embeddings: the reward as a vector of one number, which is how verl asks an SGLang server for it."""

    input: Input
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: OnlyOne | None = None

    def num_texts(self) -> int:
        return num_texts(self.input)


class ScoreRequest(_VllmFields):
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


class RerankRequest(_VllmFields):
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

    @model_validator(mode="after")
    def _check(self) -> Self:
        if one_of(self, "documents", "texts") == "texts":
            _refuse(self, "text-embeddings-inference's /rerank", *TEI_HAS_NOT)
        else:
            _refuse(self, "/rerank with 'documents'", *RERANK_HAS_NOT)
        return self

    def num_texts(self) -> int:
        return len(as_list(self.documents if self.texts is None else self.texts))


class PredictRequest(_RewardFields):
    """POST /predict of text-embeddings-inference: one text, a pair of strings, or a batch of lists of one or two."""

    inputs: Annotated[
        str | Strings | Annotated[list[Strings], Field(min_length=1, fail_fast=True)],
        WithJsonSchema(PREDICT_INPUTS),
    ]
    parameters: Annotated[dict[str, Any], Field(max_length=0)] | None = None
    raw_scores: bool = False
    truncate: bool = False
    truncation_direction: Literal["left", "right", "Left", "Right"] = "Right"

    @model_validator(mode="after")
    def _check(self) -> Self:
        for one in self.batch():
            if len(one) > 2:
                raise PydanticCustomError("inputs", "a text is one string or a pair of them; 'inputs' holds more")
        return self

    def batch(self) -> list[list[str]]:
        """Each text as a list of one string or two."""
        if isinstance(self.inputs, str):
            return [[self.inputs]]
        lists = self.inputs if self.is_batch else [self.inputs]
        return [[str(part) for part in one] for one in lists]

    @property
    def is_batch(self) -> bool:
        return isinstance(self.inputs, list) and isinstance(self.inputs[0], list)

    def num_texts(self) -> int:
        return len(self.batch())


class GetRewardRequest(_RewardFields):
    """POST /get_reward of OpenRLHF: templated texts. The rest is for other reward functions."""

    query: ScoredTexts
    prompts: Any = Field(None, description="where rules or judges read the answer: what of the query is the prompt")
    labels: Any = Field(None, description="references, where rules or judges compare with one; else harmless")

    def num_texts(self) -> int:
        return num_texts(self.query)


class ScoreEvaluationRequest(_RewardFields):
    """POST /v1/score/evaluation of LLaMA-Factory, whose PPO trainer sends the model name "model"."""

    messages: ScoredStrings
    max_length: int | None = Field(None, ge=1)

    def num_texts(self) -> int:
        return len(self.messages)


class ChatRequest(_RewardFields):
    """POST /v1/chat/completions on a reward model, as ms-swift deploys it: the answer's content is the reward.

    How to sample is of no meaning where nothing is generated; these fields are taken and not used.
    """

    model: NonEmptyString
    messages: Conversation
    stream: OnlyFalse = False
    n: OnlyOne = 1
    max_tokens: int | None = Field(None, description="harmless: nothing is generated")
    max_completion_tokens: int | None = Field(None, description="harmless: nothing is generated")
    temperature: float | None = Field(None, description="harmless: nothing is generated")
    top_p: float | None = Field(None, description="harmless: nothing is generated")
    top_k: int | None = Field(None, description="harmless: nothing is generated")
    repetition_penalty: float | None = Field(None, description="harmless: nothing is generated")
    seed: int | None = Field(None, description="harmless: nothing is generated")
    stop: str | list[str] | None = Field(None, description="harmless: nothing is generated")
    metadata: dict[str, str] | None = Field(None, description="harmless: taken and not used")
    response_format: TextFormat | None = None

    def num_texts(self) -> int:
        return 1


def as_list(value: str | list[str] | None) -> list[str]:
    """One text, or several."""
    return [value] if isinstance(value, str) else list(value or ())


def num_texts(value: Any) -> int:
    """How many texts a string, token ids, or a list of either is."""
    return len(value) if isinstance(value, list) and not isinstance(value[0], int) else 1


def _refuse(value: Wire, where: str, *names: str) -> None:
    for name in names:
        if getattr(value, name) is not None:
            raise PydanticCustomError("unsupported_field", f"'{name}' is no field of {where}", {"field": name})
