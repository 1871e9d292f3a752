"""What all tests share."""

from __future__ import annotations

from hypothesis import settings

# The same examples each time, and no deadline: a busy machine is no failure.
settings.register_profile("qserve", deadline=None, derandomize=True, database=None)
settings.load_profile("qserve")
