"""Print the flags of the installed vLLM as JSON:     python -m qserve.engines.vllm.launch.print_flags MODULE FILE

The only code of qserve that imports vLLM, in a process of its own, which takes about ten seconds.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    """Write {option: {"dest", "nargs", "choices"}} of the OpenAI server's parser to FILE."""
    module, file = sys.argv[1:]
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = importlib.import_module(module).make_arg_parser(FlexibleArgumentParser())
    Path(file).write_text(json.dumps(flags_of(parser)))


def flags_of(parser: argparse.ArgumentParser) -> dict[str, dict[str, Any]]:
    """Of every option string: the setting that it writes, how many values it takes, and which."""
    return {
        option: {
            "dest": action.dest,
            "nargs": action.nargs,
            "choices": None if action.choices is None else [str(choice) for choice in action.choices],
        }
        # What a release still takes and no longer shows is in no action's `option_strings` (`--no-enable-…` of 0.33).
        for option, action in sorted(parser._option_string_actions.items())
    }


if __name__ == "__main__":
    main()
