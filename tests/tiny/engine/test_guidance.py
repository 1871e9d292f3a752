"""The sampler under a grammar: random logits make valid answers, thoughts go before them, and all else is free."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import jsonschema
import pytest
import torch
from tokenizers import Tokenizer

from qserve.demo import chat_model_path
from qserve.engines.transformers.worker.grammar.compiled import Grammars
from qserve.engines.transformers.worker.sampling.adjust import Adjustment
from qserve.engines.transformers.worker.sampling.batch import BatchSampler, choose_one
from qserve.engines.transformers.worker.sampling.grammar_state import AnswerGrammar
from qserve.engines.transformers.worker.sampling.params import SamplingParams
from qserve.engines.transformers.worker.sampling.sampler import SequenceSampler
from qserve.grammar.structured import structured_grammar
from qserve.grammar.tool_calls import tool_call_grammar
from qserve.model.failures import SequenceFailed
from qserve.wire.structured import StructuredOutputs
from qserve.wire.tools import Tool

TOKENIZER = Tokenizer.from_file(str(chat_model_path() / "tokenizer.json"))
END, OPEN, CLOSE, CALL = (TOKENIZER.token_to_id(one) for one in ("<|im_end|>", "<think>", "</think>", "<tool_call>"))
VOCAB = TOKENIZER.get_vocab_size()
GRAMMARS = Grammars(TOKENIZER, VOCAB, [END])
SCHEMA = {
    "type": "object",
    "required": ["a", "b"],
    "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 999}, "b": {"enum": ["x", "y"]}},
}
TOOL = Tool.model_validate({"type": "function", "function": {"name": "f", "parameters": SCHEMA}})


def guide(grammar: str, **fields: Any) -> AnswerGrammar:
    ready = asyncio.run(GRAMMARS.ready(grammar))
    return AnswerGrammar(ready, call_ids=(CALL,), think_ids=((OPEN,), (CLOSE,)), **fields)


def structured(**fields: Any) -> AnswerGrammar:
    return guide(structured_grammar(StructuredOutputs.model_validate({"json": SCHEMA})), **fields)


def sampler(of: AnswerGrammar | None, seed: int = 0, **params: Any) -> SequenceSampler:
    given = SamplingParams(seed=seed, stop_token_ids=frozenset({END}), grammar=of, **params)
    return SequenceSampler(given, [1, 2])


def drawn(of: SequenceSampler, logits: torch.Generator, lift: dict[int, dict[int, float]] | None = None) -> list[int]:
    """Tokens from random logits up to the end; `lift` adds to some of a step."""
    ids: list[int] = []
    while not ids or (ids[-1] != END and len(ids) < 300):
        row = torch.randn(VOCAB, generator=logits)
        for token, more in (lift or {}).get(len(ids), {}).items():
            row[token] += more
        ids.append(choose_one(of, row).token_id)
    return ids


def noise(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def text(ids: list[int]) -> str:
    return str(TOKENIZER.decode(ids, skip_special_tokens=False))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_random_logits_make_valid_answers(temperature: float) -> None:
    for seed in range(20):
        params: dict[str, Any] = {"temperature": temperature, "min_tokens": 40, "frequency_penalty": 1.0}
        ids = drawn(sampler(structured(), seed, **params), noise(seed))
        jsonschema.validate(json.loads(text(ids[:-1])), SCHEMA)


def test_a_seed_draws_the_same_again_and_copies_do_not_disturb_each_other() -> None:
    of = structured()
    first, second = sampler(of, 3), sampler(of, 3)
    together = [(choose_one(first, row), choose_one(second, row)) for row in torch.randn(4, VOCAB, generator=noise(1))]
    assert all(one == other for one, other in together)


def test_the_grammar_begins_after_the_thought() -> None:
    of = structured(thought="unknown")
    ids = drawn(sampler(of), noise(1), {0: {OPEN: 99}, 5: {CLOSE: 99}})
    assert (ids[0], ids[5]) == (OPEN, CLOSE)
    jsonschema.validate(json.loads(text(ids[6:-1])), SCHEMA)


def test_an_answer_does_not_end_within_its_thought() -> None:
    for start in ("open", "unknown"):
        ids = drawn(sampler(structured(thought=start)), noise(2), {0: {OPEN: 99}, 3: {END: 99}})
        assert ids[3] == CLOSE
        jsonschema.validate(json.loads(text(ids[4:-1])), SCHEMA)


def test_calls_are_bound_and_all_around_them_is_free() -> None:
    spec = tool_call_grammar([TOOL], "auto", "hermes", is_parallel=True)
    one = sampler(guide(spec.grammar, begins="tool_call"), temperature=0.0)
    assert one.is_plain_greedy, "no step costs more for what may come"
    ids = drawn(one, noise(3), {4: {CALL: 99}, **{step: {END: 99} for step in range(60, 300)}})
    before, _, rest = text(ids).partition("<tool_call>")
    call, _, after = rest.partition("</tool_call>")
    assert before and len(after) > 20
    jsonschema.validate(json.loads(call)["arguments"], SCHEMA)


def test_one_call_ends_the_answer_where_calls_are_not_parallel() -> None:
    spec = tool_call_grammar([TOOL], "auto", "qwen3_coder", is_parallel=False)
    ids = drawn(sampler(guide(spec.grammar, begins="tool_call", only_one=True)), noise(4), {2: {CALL: 99}})
    assert text(ids).endswith("</function>\n</tool_call><|im_end|>")


def test_without_a_grammar_nothing_is_masked() -> None:
    row = torch.randn(VOCAB, generator=noise(5))
    assert choose_one(sampler(None, temperature=0.0), row).token_id == int(row.argmax())


def test_a_grammar_that_can_t_go_on_fails_its_own_sequence() -> None:
    one = sampler(structured())
    one.record(END)  # what the grammar does not allow
    with pytest.raises(SequenceFailed, match="can't be followed"):
        choose_one(one, torch.randn(VOCAB, generator=noise(6)))


def test_all_logits_are_asked_for_where_the_likeliest_is_not_allowed() -> None:
    """Of a head that leaves unlikely tokens out: the same answers, and mostly without a second product."""
    asked, short, whole = [], sampler(structured(), temperature=0.0), sampler(structured(), temperature=0.0)
    wanted = [(short.num_wanted, short.num_wanted_first)]
    noise, batch, tokens = torch.Generator().manual_seed(5), BatchSampler(), [0]
    while tokens[-1] != END:
        row = torch.randn(1, VOCAB, generator=noise)
        few = row if short.num_wanted_first is None else torch.where(row == row.amax(), row, float("-inf"))
        (choice,) = batch.draw([short], few, lambda row=row: asked.append(1) or row).choices()
        assert choice == choose_one(whole, row[0])
        tokens.append(choice.token_id)
        wanted.append((short.num_wanted, short.num_wanted_first))
    assert wanted[0] == (None, 1) and (None, None) in wanted and 0 < len(asked) < len(tokens)


def test_the_likeliest_allowed_token_is_taken_without_laying_the_mask_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Greedy answers on a CPU: the same tokens as by the mask, which log-probabilities still need."""
    plain, masked = sampler(structured(), temperature=0.0), sampler(structured(), temperature=0.0, num_logprobs=0)
    noise = torch.Generator().manual_seed(3)
    meant = drawn(masked, noise)
    monkeypatch.setattr(Adjustment, "_bind_on_host", lambda *_: pytest.fail("a mask was laid on"))
    assert drawn(plain, noise.manual_seed(3)) == meant
    assert meant[-1] == END and len(meant) > 10
