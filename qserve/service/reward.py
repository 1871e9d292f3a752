"""The reward or embedding model of a service: its checkpoint, a judge in its place, and the request of its plan."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from qserve.core.checkpoint import Checkpoint
from qserve.core.hardware import Hardware
from qserve.core.model_spec import Head
from qserve.errors import BrokenCheckpoint, ModelNotFound, UsageError
from qserve.hub import resolve
from qserve.hub.bundled import bundled_config
from qserve.packages import why_no_server
from qserve.planner import PlanRequest, make_plan
from qserve.planner.engine import engine_named, with_same_rounding
from qserve.service.machine import Machine
from qserve.service.request import RewardRequest, ServiceRequest

if TYPE_CHECKING:
    from qserve.reward.checkpoints import RewardCheckpoint

__all__ = ["RewardModel", "as_scorer", "find_reward_model", "scoring_request", "with_judge"]


@dataclass(frozen=True)
class RewardModel:
    """`planned` is what a plan counts; `trained` is None for a model that has yet to become a reward model."""

    planned: Checkpoint
    trained: RewardCheckpoint | None

    @property
    def computes(self) -> bool:
        """Whether there is a model to compute with; rules and judges have none."""
        return self.trained is None or self.trained.format != "none"

    @property
    def notes(self) -> tuple[str, ...]:
        """What was found odd in the checkpoint."""
        return self.trained.notes if self.trained is not None else ()


def with_judge(request: ServiceRequest, folder: Path) -> ServiceRequest:
    """The request; for `--reward CHECKPOINT --judge TEMPLATE` with that checkpoint as its chat model, and as its reward
    model a recipe in `folder` whose only part is the judge.

    Raises UsageError if another chat model is named: a service has one.
    """
    reward = request.reward
    if reward is None or reward.settings.judge is None:
        return request
    import yaml

    from qserve.reward.judges.template import BUNDLED, read_template
    from qserve.reward.recipe.config import SERVED

    template, judge = reward.settings.judge, reward.checkpoint
    if request.model not in (None, judge):
        raise UsageError(
            f"--judge: {judge} would be a second chat model next to {request.model}, and a service has one; leave "
            "--model out, or serve the judge by itself and name its address in a recipe: {judge: pointwise, url: …} "
            "(docs/reward.md)"
        )
    if read_template(template, f"--judge {template}", Path.cwd()).needs_rubric:
        raise UsageError(
            f"--judge {template}: the template asks for a rubric, which a recipe gives: {{judge: {template}, url: "
            "served, rubric: …} (docs/reward.md)"
        )
    named = template if template in BUNDLED else str(Path(template).expanduser().absolute())
    recipe = folder / "judge.yaml"
    recipe.write_text(yaml.safe_dump({"parts": [{"name": "judge", "judge": named, "url": SERVED}]}))
    scored = replace(
        reward,
        checkpoint=str(recipe),
        settings=replace(reward.settings, judge=None),
        names=reward.names or (f"{judge}-judge",),
    )
    return replace(request, model=judge, reward=scored)


def find_reward_model(request: ServiceRequest, machine: Machine) -> RewardModel | None:
    """The checkpoint that --reward or --embed names, of the hub by its headers alone; None without. On a machine that
    does not serve it, any model will do for --reward: it may be planned before it is trained.

    Raises ModelNotFound or BrokenCheckpoint, and UsageError for a judge that is the chat model of a service without
    one.
    """
    reward = request.reward
    if reward is None:
        return None
    from qserve.reward.find import find_reward  # imports YAML and Jinja

    try:
        trained = find_reward(reward.checkpoint, reward.settings, asks_hub=_asks_hub(reward, machine))
    except (ModelNotFound, BrokenCheckpoint) as error:
        if machine.serves or (reward.settings.embeds and isinstance(error, BrokenCheckpoint)):
            raise
        return RewardModel(_planned_alone(reward), None)
    _check_judges(request, reward, trained)
    planned = trained.planned()
    if trained.recipe is not None and reward.names:  # of a judge it is a file of this process alone
        planned = replace(planned, id=reward.names[0])
    return RewardModel(planned, trained)


def _asks_hub(reward: RewardRequest, machine: Machine) -> bool:
    """Not for a known model that is planned before it is trained: its dimensions are bundled."""
    return machine.serves or reward.settings.embeds or bundled_config(reward.checkpoint) is None


def _planned_alone(reward: RewardRequest) -> Checkpoint:
    """What is planned before its files are here."""
    found = resolve(reward.checkpoint)
    if not reward.settings.embeds:
        return as_scorer(found)
    return replace(found, spec=replace(found.spec, head=Head("score", 1)), tensors=None)


def as_scorer(checkpoint: Checkpoint) -> Checkpoint:
    """A language model in the place of a reward model, with a head of one score: it has yet to be trained."""
    if checkpoint.spec.head.kind == "score":
        return checkpoint
    note = f"{checkpoint.id} has no reward head yet: planned as if it had one"
    spec = replace(checkpoint.spec, head=Head("score", 1))
    return replace(checkpoint, spec=spec, tensors=None, messages=(*checkpoint.messages, note))


def _check_judges(request: ServiceRequest, reward: RewardRequest, trained: RewardCheckpoint) -> None:
    if request.model is not None or trained.recipe is None:
        return
    from qserve.reward.recipe import read_recipe
    from qserve.reward.recipe.config import SERVED

    if read_recipe(trained.recipe).asks_served:
        raise UsageError(
            f"{reward.checkpoint}: a judge in it is the chat model of the same service (url: {SERVED}), and none is "
            "named; add --model"
        )


def scoring_request(request: ServiceRequest, model: RewardModel, machine: Machine, hardware: Hardware) -> PlanRequest:
    """What is fixed of the reward model's plan.

    Raises UsageError if its engine does not score with it as it was trained, or can't on a machine that serves it.
    """
    reward = request.reward
    assert reward is not None, "there is a reward model"
    planner = engine_named(reward.engine).planner
    fixed = PlanRequest(quant=reward.quant, engine=reward.engine, max_model_len=_max_length(reward, model))
    if reward.settings.embeds and request.model is None:  # beside a chat model it is that one's
        fixed = replace(fixed, dtype=request.plan.dtype)
    fixed = planner.for_scoring(with_same_rounding(fixed, request.plan), hardware)
    if machine.packages is not None:
        from qserve.detect.engine_checks import engine_checks

        fixed = replace(fixed, engine_version=engine_checks(reward.engine).release(machine.packages))
    if model.trained is not None and (why := _why_not(reward, model.trained, machine, hardware, fixed)) is not None:
        raise UsageError(f"--reward-engine {reward.engine}: {why}")
    return planner.with_scoring_cache(fixed, lambda one: make_plan(model.planned, hardware, one))


def _max_length(reward: RewardRequest, model: RewardModel) -> int | None:
    """What the user fixed, else what an embedding model's folder does below its number of positions."""
    if reward.settings.max_length is not None or model.trained is None or model.trained.vectors is None:
        return reward.settings.max_length
    own = model.trained.vectors.max_length
    return own if own is not None and own < model.planned.spec.max_position_embeddings else None


def _why_not(
    reward: RewardRequest, trained: RewardCheckpoint, machine: Machine, hardware: Hardware, fixed: PlanRequest
) -> str | None:
    """Why the engine does not score with it, on a machine that serves it also why it can't be served there."""
    if why_no_server() is not None:  # the light wheel has no scorers, and plans alone
        return None
    from qserve.reward.engines import reward_engine  # imports what runs the engine

    engine = reward_engine(reward.engine)
    why = engine.why_not_scored(trained, reward.settings)
    if why is None and machine.serves and machine.packages is not None:
        why = engine.why_not(trained, reward.settings, hardware, fixed, machine.packages)
    return why
