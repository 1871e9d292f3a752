"""Releases of TRL by which plans differ: the one that `qserve train` runs, and since when it does what it does."""

from __future__ import annotations

from qserve.core.release import Release, parse_release, shown_release
from qserve.packages import REQUIREMENTS

__all__ = ["OUR_TRL", "PPO_LEFT_WITH", "SKIPS_LOGITS_SINCE", "TILES_SINCE", "TRL_RELEASE"]

TRL_RELEASE: Release = parse_release(REQUIREMENTS["trl"].partition(">=")[2])[:2]
"""The release that `qserve train` runs: the least that qserve may be installed with, whose fields it writes."""
OUR_TRL = f"TRL {shown_release(TRL_RELEASE)}"
TILES_SINCE: Release = (1, 16)
"""Since then log-probabilities of all causal losses are computed in tiles, and never all logits held."""
SKIPS_LOGITS_SINCE: Release = (0, 29)
"""Since then SFT's evaluation skips Liger's logits, too: https://github.com/huggingface/trl/pull/5069."""
PPO_LEFT_WITH: Release = (1, 16)
"""It has no trainer for PPO since."""
