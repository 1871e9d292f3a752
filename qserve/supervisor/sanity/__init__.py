"""Checks whether a served model predicts text or noise.

losses.py   asked and judged
checks.py   of all workers, beside the ready screen
"""

from qserve.supervisor.sanity.losses import LIMIT_S, NOISE_SHARE, TEXTS, Sanity, check_sanity

__all__ = ["LIMIT_S", "NOISE_SHARE", "TEXTS", "Sanity", "check_sanity"]
