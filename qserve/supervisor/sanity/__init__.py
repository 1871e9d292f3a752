"""Checks whether a served model predicts text or noise.

losses.py   the check of one worker
checks.py   runs it for all workers while the service starts
"""

from qserve.supervisor.sanity.losses import LIMIT_S, NOISE_SHARE, TEXTS, Sanity, check_sanity

__all__ = ["LIMIT_S", "NOISE_SHARE", "TEXTS", "Sanity", "check_sanity"]
