"""The process that reads bodies: `python -m …worker.prompts.process SETTINGS.json CPU_SECONDS`

A chat template is a program that came with the checkpoint, and a text is whatever a client sends; both may take time
and memory without bound. Here they have bounds: CPU time per body, the kernel's for it included, and address space.
What goes beyond is refused, and the process ends, so that its memory is given back. Nothing in it holds the interpreter
of the worker.

It is asked as `qserve.worker.framed_process` says.
"""

from __future__ import annotations

import json
import logging
import math
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from qserve.engines.transformers.worker.prompts.read import BodyReader
from qserve.engines.transformers.worker.prompts.read_body import ReadBody
from qserve.engines.transformers.worker.prompts.reader_settings import ReaderSettings
from qserve.wire.errors import ApiError
from qserve.wire.prompt_size import ContextLimits
from qserve.worker.framed_process import frames, send_frame
from qserve.worker.process import end_with_parent

__all__ = ["main"]

# A body that took more than this ends the process: the allocator would keep most of it.
_MAX_TAKEN_KIB = 256 * 1024
# Beyond the CPU time of a body, for a call of C that hears of no signal.
_IN_C_S = 0.5
_TEMPLATED = frozenset({"chat", "messages", "responses", "count_tokens", "input_tokens"})


# Read before any client's: the first body pays for compiling the template and for imports, too.
_FIRST_BODIES = {
    "chat": b'{"model": "m", "messages": [{"role": "user", "content": "a"}]}',
    "completion": b'{"model": "m", "prompt": "a"}',
}


class _TooSlow(BaseException):
    """The CPU time of this body is spent. It is raised in the middle of anything, and no `except Exception` is to take
    it for an error of its own: a template's exceptions are its refusals.
    """


def main(settings: ReaderSettings, cpu_s: float, source: BinaryIO, sink: BinaryIO) -> None:
    """A frame in, a frame out, until there are no more, or until a body took too much."""
    reader = _reader(settings)
    resource.setrlimit(resource.RLIMIT_AS, (settings.address_space_bytes, settings.address_space_bytes))
    signal.signal(signal.SIGPROF, _raise_too_slow)
    broken = _warm_up(reader, cpu_s)
    most_kib = _peak_kib() + _MAX_TAKEN_KIB
    for head, body in frames(source):
        if broken is not None and head["what"] in _TEMPLATED:
            send_frame(sink, broken)
            continue
        answer, parts, is_spent = _bounded(getattr(reader, head["what"]), body, cpu_s)
        is_last = is_spent or _peak_kib() > most_kib
        send_frame(sink, {**answer, "is_last": is_last}, parts)
        if is_last:
            return


def _warm_up(reader: BodyReader, cpu_s: float) -> dict[str, Any] | None:
    """The refusal of every conversation, where the template has no end for the shortest one: each that is tried would
    hold up all others for the whole time that it may take, and then for a new process.
    """
    broken = None
    for what, body in _FIRST_BODIES.items():
        answer, _, is_spent = _bounded(getattr(reader, what), body, cpu_s)  # refused or not
        if is_spent and what in _TEMPLATED:
            broken = answer
            broken["error"]["message"] += "; it fails even for a single word, so this model's template is broken"
    return broken


def _peak_kib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _bounded(
    read: Callable[[bytes], ReadBody[Any] | bytes], body: bytes, cpu_s: float
) -> tuple[dict[str, Any], list[bytes], bool]:
    """The answer's head and bytes, and whether the process should end."""
    limits = _end_after(cpu_s + _IN_C_S)
    signal.setitimer(signal.ITIMER_PROF, cpu_s)
    try:
        result = read(body)
        signal.setitimer(signal.ITIMER_PROF, 0)
        head, parts = ({}, [result]) if isinstance(result, bytes) else result.to_frame()
        return head, parts, False
    except ApiError as error:
        refusal, is_spent = error, False
    except _TooSlow:
        refusal, is_spent = ApiError(400, _too_slow(cpu_s), "prompt_too_slow"), True
    except MemoryError:
        refusal, is_spent = ApiError(400, _TOO_LARGE, "prompt_too_large"), True
    except Exception as error:
        logging.getLogger("qserve.worker").exception("reading a request failed")
        refusal, is_spent = ApiError(500, f"reading this request failed: {error}", "internal_error"), True
    except BaseException as error:  # the tokenizer panicked: its class is no Exception
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise
        refusal, is_spent = ApiError(400, f"the tokenizer can't take this text: {error}", "not_tokenizable"), True
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_CPU, limits)
    return {"error": refusal.fields}, [], is_spent


def _end_after(cpu_s: float) -> tuple[int, int]:
    """Have the kernel end this process (SIGXCPU) once it took so much more: no handler runs within one call of C.

    Returns the limits that were set before.
    """
    used = resource.getrusage(resource.RUSAGE_SELF)
    limits = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(used.ru_utime + used.ru_stime + cpu_s), limits[1]))
    return limits


_TOO_LARGE = "the chat template and the tokenizer need more memory for this request than is allowed"


def _too_slow(cpu_s: float) -> str:
    return f"the chat template and the tokenizer took more than {cpu_s:g} s for this request; shorten the prompt"


def _raise_too_slow(*_: object) -> None:
    raise _TooSlow


def _reader(settings: ReaderSettings) -> BodyReader:
    from tokenizers import Tokenizer

    from qserve.engines.transformers.worker.prompts.tokenize import PromptTokenizer
    from qserve.prompts.template import ChatTemplate

    tokenizer = Tokenizer.from_file(settings.tokenizer)
    limits = ContextLimits(**settings.limits)  # type: ignore[arg-type]
    sources = (settings.template, settings.tool_template)
    templates = {
        source: ChatTemplate(source, settings.special_tokens) for source in dict.fromkeys(sources) if source is not None
    }
    template, tool_template = (None if source is None else templates[source] for source in sources)
    return BodyReader(
        PromptTokenizer(tokenizer, limits),
        template,
        tool_template,
        tokenizer.id_to_token,
        lambda ids: str(tokenizer.decode(ids, skip_special_tokens=False)),
        max_model_len=limits.max_model_len,
        vocab_size=settings.vocab_size,
        named_templates=tuple(settings.named_templates),
    )


if __name__ == "__main__":
    end_with_parent()
    told = ReaderSettings(**json.loads(Path(sys.argv[1]).read_text()))
    main(told, float(sys.argv[2]), sys.stdin.buffer, sys.stdout.buffer)
