"""Training plans: what a fine-tune, a reward model or an RL run with vLLM beside it needs on each card.

training_request, training_defaults → models (who is in memory) → states, saved_activations (bytes) →
card_memory (one card, phase by phase) → duration (hours) → planning (does it fit) → job (as it was typed) →
suggest (what to change). Figures that are not arithmetic are in training_constants.py.
"""

from __future__ import annotations

from qserve.planner.training.job import TrainingJob
from qserve.planner.training.planning import plan_training
from qserve.planner.training.suggest import (
    FittingChange,
    TrainingSuggestion,
    cheaper,
    fitting_jobs,
    training_suggestions,
)
from qserve.planner.training.training_plan import CardMemory, TrainingPlan
from qserve.planner.training.training_request import TrainingRequest, VllmBeside

__all__ = [
    "CardMemory",
    "FittingChange",
    "TrainingJob",
    "TrainingPlan",
    "TrainingRequest",
    "TrainingSuggestion",
    "VllmBeside",
    "cheaper",
    "fitting_jobs",
    "plan_training",
    "training_suggestions",
]
