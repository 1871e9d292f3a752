"""What is printed of the installed engine's parser: every option that it takes."""

from __future__ import annotations

import argparse

from qserve.engines.vllm.launch.print_flags import flags_of


def test_options_that_help_hides_are_printed_too() -> None:
    """As vLLM 0.33 does with `--no-enable-…`: registered, and gone from the action's own list."""
    parser = argparse.ArgumentParser()
    action = parser.add_argument("--enable-lora", action=argparse.BooleanOptionalAction)
    action.option_strings = ["--enable-lora", "--disable-lora"]
    parser.add_argument("--load", choices=("a", "b"), nargs="+")
    found = flags_of(parser)
    assert found["--no-enable-lora"] == {"dest": "enable_lora", "nargs": 0, "choices": None}
    assert found["--load"] == {"dest": "load", "nargs": "+", "choices": ["a", "b"]}
