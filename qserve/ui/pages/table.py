"""The pages, in the order of their tabs."""

from __future__ import annotations

from qserve.ui.pages.chat import ChatPage
from qserve.ui.pages.memory import MemoryPage
from qserve.ui.pages.page import Page
from qserve.ui.pages.plan import PlanPage
from qserve.ui.pages.score import ScorePage
from qserve.ui.pages.train import TrainPage

__all__ = ["PAGES"]

PAGES: tuple[type[Page], ...] = (ChatPage, ScorePage, MemoryPage, TrainPage, PlanPage)
