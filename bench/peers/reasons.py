"""Why a peer's test does not pass here, by the test and by what it says."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["reason_of"]


@dataclass(frozen=True)
class _Rule:
    """A reason for tests whose name, and whose words, match; `engine`: for one engine alone."""

    reason: str
    test: str = ""
    said: str = ""
    engine: str = ""

    def fits(self, engine: str, test: str, said: str) -> bool:
        is_meant = self.engine in ("", engine) and re.search(self.test, test) is not None
        return is_meant and re.search(self.said, said, re.DOTALL) is not None


_OWN = "transformers"
_LARGE = "needs a model that knows more than the demo: it calls, thinks, ends or answers otherwise"
_CONTEXT = "asks for a longer context than the demo's 2,048 tokens"
_VLLMS_FIELD = "a field of vLLM's, refused by name on this engine"
_ONE_SCORE = "asks for a classifier's labels or a cross-encoder's order; the demo reward model has one score"
_MODELS = "for another model's features, an adapter, or a file that is fetched"
_CLOSED = "a route that is closed here (docs/api.md), or another model's: 404 or 400 with the reason"
_STRICT = "unknown fields, roles and numbers as text are taken in silence by the peer, and refused by name here"
_WORDS = "asks for the peer's own words of an error; status and code are OpenAI's here"
_SGLANGS = "a field of SGLang's own"
_INSIDE = "a test of the peer's own classes, or of its process's output"
_RULES: tuple[_Rule, ...] = (
    _Rule(
        _MODELS,
        said=r"zephyr-lora|granite|source_lang_code|amazonaws|couldn't connect|MagicMock|collection failure",
    ),
    _Rule(_INSIDE, said=r"Bad file descriptor|has no attribute 'to_str'|_convert_to_chat|fixture '|def test_.*file "),
    _Rule(_INSIDE, test=r"large_max_new_tokens|tool_result_image|custom_logit_processor|test_score_api_"),
    _Rule(_CLOSED, said=r"/tokenizer_info|/invocations|/v1/score|'scores' not found|KeyError: 'type'"),
    _Rule(
        _CLOSED,
        test=r"test_score_(text|token|error)|token_ids_logprob|test_invocations|kv_transfer|test_tokenizer_info",
    ),
    _Rule(
        _VLLMS_FIELD,
        engine=_OWN,
        said=r"is not supported: the transformers engine has no such field|'echo' is not a field",
    ),
    _Rule(
        _VLLMS_FIELD,
        engine=_OWN,
        said=r"prompt_logprobs|prompt_token_ids|top_logprobs|repetition_penalty|enable_response",
    ),
    _Rule(_VLLMS_FIELD, engine=_OWN, said=r"url: \S+/tokenize"),
    _Rule("OpenAI's API asks for a model; the peer takes its own", said=r"'model' is missing"),
    _Rule(_CONTEXT, said=r"maximum context length|prompt is too long|cannot be greater than max_model_len"),
    _Rule("its server has a shorter context, and it asks at that bound", test=r"request_length_validation"),
    _Rule("'max_tokens_per_doc' of a rerank has no effect (docs/api.md)", test=r"max_tokens_per_doc"),
    _Rule(_CONTEXT, test=r"api_max_model_len|truncate_prompt_tokens"),
    _Rule(_SGLANGS, said=r"'ebnf'|'regex'|matched_stop|reasoning_content"),
    _Rule(_SGLANGS, test=r"matched_stop|stop_regex|test_penalty|test_ebnf|test_regex"),
    _Rule(_STRICT, said=r"extra_field|my-custom-role|'logprobs' is 'true'"),
    _Rule(_WORDS, said=r"'BadRequestError'|greater_than_equal|KeyError: '(detail|error|data)'|logit_bias|'seed' is"),
    _Rule(
        _WORDS,
        test=r"pooling_not_supported|pooling/.*::test_basic|empty_prompt|out_of_vocab|test_score\[|test_rerank\[",
    ),
    _Rule(_ONE_SCORE, test=r"pooling/|test_rerank_(batch|single)"),
    _Rule("lists every model that is served: the demo has two", test=r"test_model_list"),
    _Rule(
        "another number of tokens: the demo's tokenizer adds none",
        said=r"assert \d+ == \d+",
        test=r"single_completion|tokeniz",
    ),
    _Rule(
        _LARGE,
        test=r"tool|function|reasoning|thinking|structured|response_format|json|complex_message|max_tokens|chat",
    ),
    _Rule(_LARGE, said=r"Didn't receive a `response.completed`"),
    _Rule(
        _LARGE,
        test=r"streaming|responses/|test_completion|matched_stop|ignore_eos|session|prefill|pythonic|messages",
    ),
)  # fmt: skip


def reason_of(engine: str, test: str, said: str) -> str | None:
    """The first that fits; None: there is none yet."""
    return next((rule.reason for rule in _RULES if rule.fits(engine, test, said)), None)
