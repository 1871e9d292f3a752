"""The version of qserve: here, so that who tells it imports nothing else."""

from __future__ import annotations

__version__ = "0.1.0"
