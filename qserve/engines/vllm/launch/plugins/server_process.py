"""vLLM's server with fewer walks of the garbage collector.

    python -m qserve.engines.vllm.launch.plugins.server_process MODULE FLAG…

torch, transformers and vLLM make a million objects that all stay, and Python walks them again and again while they
come: a quarter of the processor time of these imports, in each process. vLLM's children import this file before
anything else (multiprocessing imports the main module of their parent), so it holds for them as well, and they import
vLLM's engine without the API server.

It imports the standard library only, and MODULE runs as `python -m MODULE FLAG…` would. Of vLLM four things are
changed: what it takes for checkpoints whose tokenizer has tokens that no row of the embedding stands for
(`token_rows`), and, in its children as well, which blanks and characters the JSON of schemas has (`schema_grammars`),
what is drawn where an answer is continued (`replayed_tokens`), and which adapters are the same (`adapter_versions`).
"""

from __future__ import annotations

import gc
import importlib.util
import os
import runpy
import sys

from qserve.engines.vllm.launch.plugins import adapter_versions, replayed_tokens, schema_grammars, token_rows

__all__ = ["serve"]

# New objects until they are walked, 700 by default. What is freed by its count, nearly all of a request, never waits.
_NEW_OBJECTS = 50_000


def serve(module: str) -> None:
    """Runs `module` as the program, with what follows it in sys.argv; ends as it does."""
    if num_rows := os.environ.get(token_rows.VARIABLE):
        token_rows.refuse_rowless_ids(int(num_rows))
    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.origin is not None
    sys.argv = [spec.origin, *sys.argv[2:]]
    runpy.run_module(module, run_name="__main__")


gc.set_threshold(_NEW_OBJECTS)
schema_grammars.write_valid_json(blanks=not os.environ.get(schema_grammars.VARIABLE))
replayed_tokens.draw_what_is_known()
if os.environ.get(adapter_versions.VARIABLE):
    adapter_versions.part_versions()
if __name__ == "__main__":
    serve(sys.argv[1])
