"""Batches, tools, schemas, Responses and Messages on vLLM: what holds on qserve's own engine holds here."""

from __future__ import annotations

from tests.tiny.contracts.batches import *  # noqa: F403
from tests.tiny.contracts.chat import *  # noqa: F403
from tests.tiny.contracts.dialects import *  # noqa: F403
from tests.tiny.contracts.forms import *  # noqa: F403
from tests.tiny.contracts.overflow import *  # noqa: F403
