"""Has vLLM draw tokens that are known: those of an answer that another server began, before it died.

The server generates the answer once more from its beginning, so all that depends on its tokens comes out again: what
penalties and grammars count, a seed's place among its numbers, the text and its parts. A row whose next token is known
has no other choice. Both of vLLM's model runners have a list of what changes logits, to which one more is added; the
official flag (--logits-processors) would have each step of all requests wait for the tokens of the last one.
Source: vllm 0.32, v1/sample/logits_processor, v1/worker/gpu/sample/logits_processor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qserve.engines.vllm.launch.plugins.on_import import when_imported

__all__ = ["REPLAYED", "draw_what_is_known"]

REPLAYED = "qserve_replayed"
"""Of a request's `extra_args`: by choice, the tokens that are known. The engine's requests have one choice each."""

_FORBIDDEN = -float("inf")


def draw_what_is_known() -> None:
    """In each process of the server, before it imports the engine."""
    when_imported("vllm.v1.sample.logits_processor", _add_to_first_runner)
    when_imported("vllm.v1.worker.gpu.sample.logits_processor", _add_to_second_runner)


def _add_to_first_runner(module: Any) -> None:
    from vllm.v1.sample.logits_processor.builtin import process_dict_updates

    class ReplayedTokens(module.LogitsProcessor):  # type: ignore[misc]
        """Rows are places in the batch."""

        def __init__(self, *_: Any) -> None:
            self._known: dict[int, tuple[list[int], Sequence[int]]] = {}
            self._next: list[tuple[int, int]] = []

        def is_argmax_invariant(self) -> bool:
            return False

        def update_state(self, batch_update: Any) -> None:
            process_dict_updates(self._known, batch_update, lambda params, _, drawn: _with_drawn(params, drawn))
            if self._known or self._next:
                self._next = [
                    (row, known[len(drawn)]) for row, (known, drawn) in self._known.items() if len(drawn) < len(known)
                ]

        def apply(self, logits: Any) -> Any:
            for row, token_id in self._next:
                _allow_only(logits[row], token_id)
            return logits

    module.BUILTIN_LOGITS_PROCESSORS.append(ReplayedTokens)


def _with_drawn(params: Any, drawn: Sequence[int]) -> tuple[list[int], Sequence[int]] | None:
    known = _known_of(params)
    return (known, drawn) if len(drawn) < len(known) else None


def _add_to_second_runner(module: Any) -> None:
    build = getattr(module, "build_custom_logits_processors", None)
    if build is None:
        return

    class ReplayedTokens(module.LogitsProcessor):  # type: ignore[misc]
        """Slots stay a request's own while it is in the batch."""

        def __init__(self, _: Any, req_states: Any) -> None:
            self._prompt_len = req_states.prompt_len
            self._known: dict[int, list[int]] = {}

        def add_request(self, req_idx: int, sampling_params: Any) -> bool:
            self._known.pop(req_idx, None)
            if known := _known_of(sampling_params):
                self._known[req_idx] = known
            return bool(known)

        def apply(self, logits: Any, ctx: Any) -> Any:
            for row, slot in enumerate(ctx.idx_mapping_np.tolist() if self._known else ()):
                known = self._known.get(slot, ())
                drawn = int(ctx.seq_lens_upper_bound_np[row]) - int(self._prompt_len.np[slot])
                if 0 <= drawn < len(known):
                    _allow_only(logits[row], known[drawn])
            return logits

    def with_ours(vllm_config: Any, req_states: Any, is_pooling_model: bool, *others: Any, **named: Any) -> Any:
        built = build(vllm_config, req_states, is_pooling_model, *others, **named)
        if is_pooling_model or vllm_config.speculative_config is not None:
            return built
        return [*built, ReplayedTokens(vllm_config, module.LogitsProcRequestState.from_request_state(req_states))]

    module.build_custom_logits_processors = with_ours


def _known_of(params: Any) -> list[int]:
    choices = (getattr(params, "extra_args", None) or {}).get(REPLAYED) or ()
    return list(choices[0]) if choices else []


def _allow_only(row: Any, token_id: int) -> None:
    row.fill_(_FORBIDDEN)
    row[token_id] = 0.0
