"""Why a peer's test does not pass here: rules over what it says, or over what a named test asks for.

No rule takes whatever is left: a failure of a kind that nobody has looked at has no reason, and is told as such.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["reason_of"]


@dataclass(frozen=True)
class _Rule:
    """A reason for tests that say this (`said`), all of them or those named (`test`); `engine`: for one alone."""

    reason: str
    said: str = ""
    test: str = ""
    engine: str = ""

    def fits(self, engine: str, test: str, said: str) -> bool:
        is_meant = self.engine in ("", engine) and re.search(self.test, test) is not None
        return is_meant and re.search(self.said, said, re.DOTALL) is not None


_OWN, _VLLM = "transformers", "vllm"
_NO_CALL = "the demo answers where the test wants a call of its own accord (`auto`)"
_NO_THOUGHT = "the demo doesn't think about what is asked, and the test wants a thought"
_WRONG = "the demo's answer follows the structure or the question's form, and is not the one that is meant"
_OTHER_LIMIT = "the test's server has a limit of its own (512, 1,000 tokens, 100 of a pair), and it asks at that bound"
_WORDS = "the status is the one that is asked for, the words are the peer's own"
_REFUSED = "refused by name here (docs/api.md); the peer takes it in silence"
_OF_VLLM = "a field that the transformers engine refuses by name (docs/api.md); with vLLM it is served"
_OF_SGLANG = "a field, a route or a shape of SGLang's own, which neither OpenAI's API nor vLLM has"
_CLOSED = "a route of vLLM's that is closed here, with its reason (docs/api.md)"
_ONE_SCORE = "asks for a classifier of two labels; a reward model has one score"
_VOCABULARY = "sends or expects token ids of its own model's vocabulary; the demo has 1,280"
_INSIDE = "a test of the peer's own classes, or of what its process writes"
_FETCHED = "its model's tokenizer, configuration or picture is fetched"
_TWO_MODELS = "two models are served, the demo's chat first and its reward; the test's server has one"
_THINKS_FIRST = "the demo thinks before a structure, in the 10 to 1,024 tokens that it has"
_ORDER = "the last event of a stream has an end and no text, as OpenAI's; the test reads text there"
_RULES: tuple[_Rule, ...] = (
    # What the test is made of.
    _Rule("an adapter that is fetched (zephyr-lora)", r"'zephyr-lora' is not served"),
    _Rule(_FETCHED, r"amazonaws|couldn't connect|collection failure"),
    _Rule(_INSIDE, r"Bad file descriptor|has no attribute 'to_str'|_convert_to_chat|'MagicMock' and 'MagicMock'"),
    _Rule("a base class that is no test by itself", r"'TestJSONModeMixin' object has no attribute 'client'"),
    _Rule("held against a cross-encoder that vLLM's own fixtures load (`hf_runner`)", r"failed on setup.*hf_model"),
    # What is refused or closed.
    _Rule(_CLOSED, r"Not Found for url: \S+/(invocations|tokenizer_info)"),
    _Rule(_OF_VLLM, r"the transformers engine has no such field|'echo' is not supported here", engine=_OWN),
    _Rule(_OF_VLLM, r"'enable_response_messages' is not a field", engine=_OWN),
    _Rule(_REFUSED, r"'messages\.0\.extra_field' is not a field|'my-custom-role'|'logprobs' is 'true'"),
    _Rule("prefill and decode run in one engine: 'kv_transfer_params' is refused", r"'kv_transfer_params' is not"),
    _Rule("fields of TranslateGemma's template", r"source_lang_code' is not a field"),
    _Rule(
        "asks for the log-probabilities of all tokens, by flags of its server; here 20 are the most",
        r"'prompt_logprobs' is -1|Requested (prompt|sample) logprobs of \d+, which is greater",
    ),
    _Rule("a conversation that ends with the user has no answer", r"400 .*/classify", r"test_(invoc\w+_)?chat"),
    _Rule("OpenAI's API asks for a model; vLLM fills in the name of its only one", r"'model' is missing"),
    # What the peer says in other words, or calls by another type.
    _Rule(_WORDS, r"greater_than_equal|'invalid_request_error' == 'BadRequestError'|must be a non-negative integer"),
    _Rule(_WORDS, r"'1280' in \"Error code: 400|'bad2' in \"Error code: 400|Regex pattern did not match"),
    _Rule(_WORDS, r"not found in \"Error code: 400|\"invalid 'parameters' schema\" not found in ['\"]error code: 400"),
    _Rule("vLLM draws one answer at temperature 0, and says so", r"vLLM gives one answer where 'temperature' is 0"),
    _Rule(
        "vLLM wants `add_generation_prompt: false` said beside `continue_final_message`",
        r"continue_final_message and add_generation_prompt are not compatible",
        engine=_VLLM,
    ),
    _Rule("a `previous_response_id` that it does not know is a 404 of vLLM's", r"404 != 400", "test_error$", _VLLM),
    # What SGLang has alone.
    _Rule(_OF_SGLANG, r"'(ebnf|regex)' is not a field|'matched_stop'|'scores' not found"),
    _Rule("SGLang says null in each event; DeepSeek's and vLLM's deltas hold what they add", r"'reasoning_content'"),
    _Rule(_OF_SGLANG, r"KeyError: 'choices'", "stop_regex"),
    _Rule(_OF_SGLANG, r"'ResponseUsage' object has no attribute 'prompt_tokens'"),
    _Rule(_OF_SGLANG, r"404 != (200|400)", "token_ids_logprob"),
    _Rule(_OF_SGLANG, r"5 != [12]", "test_rerank_(single|batch)"),
    _Rule(_OF_SGLANG, r"KeyError: 'type'", "test_score_error_handling"),
    _Rule("two tools may have a `$defs` of the same name: each keeps its own", r"not raised", "conflicting_defs"),
    # What another server is started with, or another model is.
    _Rule(_OTHER_LIMIT, r"BadRequestError not raised|Timeout", "request_length_validation"),
    _Rule(_OTHER_LIMIT, r"200 == 400", "max_model_len|test_truncate_prompt"),
    _Rule(_TWO_MODELS, r"assert 2 == 1\b.*Model\(id", "test_model_list"),
    _Rule(_TWO_MODELS, r"chat' == .*reward'", "test_basic"),
    _Rule("a reward model with one score serves /score, /rerank and token scores", r"'(detail|error)'", "pooling/"),
    _Rule(_ONE_SCORE, r"'LABEL_0' in \['Default'|assert 1 == 2\b|close to activation"),
    _Rule("the demo's reward is no cross-encoder: it has another order", r"assert \S+e-\d+ >= 0\.9"),
    _Rule(_VOCABULARY, r"400 .*/classify", "test_completion_request"),
    _Rule(_VOCABULARY, r"out-of-vocab token ids|assert 5 == 6\b.*prompt_tokens"),
    _Rule(
        "the likeliest tokens are the demo's own: another one than the prompt's is among them",
        r"assert 2 == 1\b.*'decoded_token'",
        "more_than_one_prompt_logprobs",
    ),
    # What a model of two million parameters doesn't know.
    _Rule(_NO_THOUGHT, r"[Rr]easoning|'message' == 'reasoning'|reasoning_tokens"),
    _Rule(
        "the call is there, and the test wants a thought before it, which the demo hasn't",
        r"None is not None",
        r"test_function_tool_use\[required",
    ),
    _Rule(_NO_CALL, r"None is not None", r"test_function_tool_use\[auto|forced_tool_choice\[auto"),
    _Rule(_NO_CALL, r"'(stop|end_turn)' == 'tool_|tool_calls found|got none|Expected tool_use|startswith.*<tool_call>"),
    _Rule(_NO_CALL, r"assert 0 (==|>=) \d|None != 'add'|was not found in the streaming", "tool|function"),
    _Rule(_NO_CALL, r"'NoneType' object is not subscriptable", "function_call_strict"),
    _Rule(_NO_CALL, r"tool_calls should be a non-empty list", "function_calling_format"),
    _Rule("vLLM shows a call that is cut at max_tokens as text", "unexpectedly None", "complex_parameters", _VLLM),
    _Rule("one call follows the schemas, and the test wants two", r"1 != 2 : Expected 2 tool calls"),
    _Rule(_THINKS_FIRST, r"assert None in \['Python'|'' != ''|'ThinkingBlock' object has no attribute 'text'"),
    _Rule(_THINKS_FIRST, r"'NoneType' has no len|not valid JSON. Error: Expecting value: line 1", "json_mode"),
    _Rule(_THINKS_FIRST, r"None is not None", "test_response_format_json_object", _VLLM),
    _Rule("the structure is cut at max_tokens", r"JSONDecodeError: Expecting", "structured_outputs_json"),
    _Rule(_WRONG, r"'result': 2|'Python' != 'Python'|'312' in|'30' in|== '2'|== 'science fair'|startswith.*SmartHome"),
    _Rule(_WRONG, r"should contain either 'Paris' or 'France'|Parameter a should be 5"),
    _Rule("the demo's answer ends of itself before its limit", r"'stop' == 'length'|'completed' == 'incomplete'"),
    _Rule(
        "the demo's answer has no end of its own",
        r"'response\.incomplete' ==|'incomplete' in \('completed'|Timeout|`response\.completed`|got: length",
        "test_streaming_output_consistency|test_response_completion|test_finish_stop_eos",
    ),
    _Rule("the demo's answer is one token, and the test reads a second", r"list index out of", "_completion"),
    _Rule(_ORDER, r"assert None\b.*ChoiceDelta\(|no logprobs in response"),
    _Rule("the flag that tells cached tokens was not set; it is since", "None is not None", "cache_usage", _VLLM),
    _Rule("`cache_creation_input_tokens` is 0 here: nobody asks for caching", r"assert 0 > 0", "cache_usage"),
)


def reason_of(engine: str, test: str, said: str) -> str | None:
    """The first that fits; None: there is none yet."""
    return next((rule.reason for rule in _RULES if rule.fits(engine, test, said)), None)
