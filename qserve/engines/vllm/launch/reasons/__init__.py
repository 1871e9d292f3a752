"""Rules for error messages of vLLM at start, one per cause, the most specific first.

Each rule has a real log line in tests/unit/engines/vllm/launch.
"""

from __future__ import annotations

from qserve.engines.vllm.launch.reasons import checkpoint, flags, machine, memory, model
from qserve.engines.vllm.launch.reasons.rule import Rule

__all__ = ["RULES", "Rule"]

RULES: tuple[Rule, ...] = (*memory.RULES, *model.RULES, *flags.RULES, *checkpoint.RULES, *machine.RULES)
"""In the order in which they are tried."""
