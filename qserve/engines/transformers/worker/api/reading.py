"""How the answers to a chat request are read, and what binds them, from the request and the model's chat format."""

from __future__ import annotations

from collections.abc import Callable

from qserve.engines.transformers.worker.chat_format import ChatFormat
from qserve.engines.transformers.worker.engine import Engine
from qserve.engines.transformers.worker.parsing.hermes import HermesCall
from qserve.engines.transformers.worker.parsing.message import ReadingRules
from qserve.engines.transformers.worker.parsing.parts import BlockReader
from qserve.engines.transformers.worker.parsing.qwen3_coder import Qwen3CoderCall
from qserve.engines.transformers.worker.prompts.read_body import ChatFields
from qserve.engines.transformers.worker.prompts.thought_start import ThoughtStart
from qserve.engines.transformers.worker.sampling.grammar_state import AnswerGrammar
from qserve.grammar.spec import GrammarSpec

__all__ = ["answer_grammar", "reading_rules"]


def reading_rules(chat: ChatFormat, request: ChatFields, thought: ThoughtStart) -> ReadingRules:
    """`thought`: where the answer begins."""
    return ReadingRules(
        thinks=chat.thinking.thinks and thought != "closed",
        within_thought=thought == "open",
        new_block=_block_reader(chat, request) if request.offered_tools else None,
    )


def _block_reader(chat: ChatFormat, request: ChatFields) -> Callable[[], BlockReader]:
    if chat.tools != "qwen3_coder":
        return HermesCall
    return lambda: Qwen3CoderCall(request.offered_tools)


async def answer_grammar(
    engine: Engine, spec: GrammarSpec | None, client: str, thought: ThoughtStart = "closed"
) -> AnswerGrammar | None:
    """What binds the answers; None for nothing. It is made ready when it is the client's turn.

    Raises GrammarTooComplex.
    """
    if spec is None:
        return None
    chat = engine.chat_format
    return AnswerGrammar(
        await engine.grammars.ready(spec.grammar, spec.param, client),
        spec.begins,
        spec.only_one,
        chat.call_ids,
        "none" if chat.think_ids is None else thought,
        chat.think_ids or ((), ()),
    )
