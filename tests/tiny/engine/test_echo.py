"""An echoed prompt with log-probabilities is made a few tokens at a time: others' streams go on in between."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace

import msgspec
import pytest
from tokenizers import Tokenizer

from qserve.demo import chat_model_path
from qserve.engines.transformers.worker.api.completions import CompletionAnswer, _Choice
from qserve.engines.transformers.worker.api.legacy_logprobs import LegacyLogprobs
from qserve.engines.transformers.worker.batching.prompt_logprobs import ScoredPrompt
from qserve.engines.transformers.worker.prompts.passed_fields import completion_fields
from qserve.engines.transformers.worker.prompts.token_text import TokenText
from qserve.engines.transformers.worker.sampling.params import SamplingParams
from qserve.wire.errors import ApiError
from qserve.wire.openai import CompletionRequest

NUM_TOKENS = 4000
TOKENIZER = Tokenizer.from_file(str(chat_model_path() / "tokenizer.json"))


async def test_others_get_their_turn_every_few_tokens():
    engine = SimpleNamespace(tokenizer=TOKENIZER)
    choice = _Choice(engine, LegacyLogprobs(TokenText(TOKENIZER)), {})
    prompt = [200 + index % 500 for index in range(NUM_TOKENS)]
    top = tuple((token, -float(token)) for token in range(300, 320))
    scored = ScoredPrompt([None, *[-1.5] * (NUM_TOKENS - 1)], [(), *[top] * (NUM_TOKENS - 1)], None)
    making, num_turns = asyncio.create_task(choice.echo(prompt, scored)), 0
    while not making.done():
        await asyncio.sleep(0)
        num_turns += 1
    assert num_turns >= NUM_TOKENS / 128
    entry = json.loads(msgspec.json.encode(choice.take(0)))
    assert entry["text"] == TOKENIZER.decode(prompt)
    logprobs = entry["logprobs"]
    assert {len(part) for part in logprobs.values()} == {NUM_TOKENS}
    assert (logprobs["token_logprobs"][0], logprobs["top_logprobs"][0]) == (None, None)
    assert logprobs["top_logprobs"][1][logprobs["tokens"][1]] == -1.5 and len(logprobs["top_logprobs"][1]) in (20, 21)


@pytest.mark.parametrize(
    ("fields", "num_prompts", "num_tokens", "is_refused"),
    [
        ({"logprobs": 20}, 1, 2048, False),
        ({"logprobs": 20}, 100, 1000, True),
        ({"logprobs": 1}, 100, 1000, False),
        ({"logprobs": 1, "n": 8}, 100, 1000, True),
        ({}, 2048, 1000, False),
    ],
)
def test_an_answer_holds_a_bounded_number_of_log_probabilities(fields, num_prompts, num_tokens, is_refused):
    engine = SimpleNamespace(
        max_model_len=2048,
        tokenizer=SimpleNamespace(convert_ids_to_tokens=TOKENIZER.id_to_token),
        vocab_size=1280,
        eos_token_ids=frozenset(),
        defaults=SamplingParams(),
        token_text=TokenText(TOKENIZER),
        check_length=lambda num_prompt_tokens, max_tokens: max_tokens,
    )
    request = completion_fields(CompletionRequest(model="m", prompt="", echo=True, max_tokens=1, **fields))
    prompts = [[5] * num_tokens] * num_prompts
    if not is_refused:
        CompletionAnswer(engine, request, prompts)
        return
    with pytest.raises(ApiError) as refused:
        CompletionAnswer(engine, request, prompts)
    assert (refused.value.status, refused.value.code) == (400, "too_many_logprobs")
