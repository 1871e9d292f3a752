"""Plans the models of `qserve up` on one memory budget, and finds or downloads their weights."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from qserve.cli.up.judging import with_judge
from qserve.cli.up.models import ModelsToServe
from qserve.core.checkpoint import Checkpoint
from qserve.core.hardware import Hardware
from qserve.detect.packages import Packages
from qserve.errors import BrokenCheckpoint, QserveError, UsageError
from qserve.hub import resolve
from qserve.planner import Plan, PlanRequest
from qserve.planner.engine import with_same_rounding
from qserve.planner.fits import check_fits
from qserve.planner.replicas import ReplicaPlan, plan_both, plan_replicas
from qserve.planner.share import make_shared_plan
from qserve.planner.speed.choice.one_stream import with_one_stream
from qserve.planner.speed.estimate import device_of, replica_of
from qserve.planner.speed.learned import NOTHING_MEASURED, Measured
from qserve.planner.speed.quantization import weighed_by_speed
from qserve.planner.speed.request import NO_LOAD, SpeedRequest
from qserve.planner.speed.served_replicas import plan_served
from qserve.planner.speed.terms.engine_costs import has_speed
from qserve.reward.checkpoints import RewardCheckpoint
from qserve.reward.engines import reward_engine
from qserve.reward.find import find_reward
from qserve.reward.recipe import read_recipe
from qserve.reward.recipe.config import SERVED
from qserve.supervisor import Hosted
from qserve.supervisor.choice import choose_engine
from qserve.supervisor.screen import Screen

__all__ = ["ModelsToServe", "plan_models"]

_REWARD_REPLICAS = "--reward-replicas"
_WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.gguf")


def plan_models(
    wanted: ModelsToServe, hardware: Hardware, request: PlanRequest, reward_quant: str, screen: Screen,
    measured: Callable[[Checkpoint], Measured] = lambda checkpoint: NOTHING_MEASURED,
    speed: SpeedRequest = NO_LOAD,
) -> list[Hosted]:  # fmt: skip
    """The chat model, the reward model, or both on one memory budget. `measured`: the measured speed of the machine.

    A load in `speed` decides the layout of a chat model that has the cards to itself.

    Raises UsageError, ModelNotFound, BrokenCheckpoint or DoesNotFit, each with what would work.
    """
    if wanted.model is None and wanted.reward is None:
        raise UsageError(
            "no model is named; write it after the command, qserve up Qwen/Qwen3-8B, or name a reward model with "
            "--reward"
        )
    wanted = with_judge(wanted)
    reward = find_reward(wanted.reward, wanted.settings) if wanted.reward is not None else None
    _check_judges(wanted, reward)
    for note in () if reward is None else reward.notes:
        screen.note(note)
    reward_request = with_same_rounding(_reward_request(wanted, reward, hardware, reward_quant), request)
    if wanted.model is None:
        assert reward is not None, "one of the two was named"
        scored = plan_replicas(reward.planned(), hardware, reward_request, wanted.reward_replicas, _REWARD_REPLICAS)
        return _replicas(_reward(wanted, reward, scored[0].plan), scored)
    chat = resolve(wanted.model)
    _refuse_classifier(wanted, chat)
    for message in chat.messages:
        screen.note(message)
    request, why = choose_engine(chat, hardware, request, Packages.installed())
    known = measured(chat)
    weighed = weighed_by_speed(chat, hardware, request, known)
    request = weighed.request
    if weighed.why:
        screen.note(weighed.why)
    if reward is None:
        answering = plan_served(chat, hardware, request, wanted.replicas, replace(speed, measured=known))
        hosted = _replicas(_chat(wanted, chat, answering[0].plan, screen), answering)
    elif wanted.replicas in (None, 1) and wanted.reward_replicas == 1:
        shared = make_shared_plan(chat, reward.planned(), hardware, request, reward_request)
        for plan in (shared.reward, shared.chat):
            check_fits(plan)
        screen.note(shared.where)
        hosted = [
            replace(_chat(wanted, chat, shared.chat, screen), cards=shared.chat_cards),
            replace(_reward(wanted, reward, shared.reward), cards=shared.reward_cards),
        ]
    else:
        counts = (wanted.replicas or 1, wanted.reward_replicas)
        both = plan_both(chat, reward.planned(), hardware, (request, reward_request), counts)
        screen.note(both.where)
        hosted = [
            *_replicas(_chat(wanted, chat, both.chat[0].plan, screen), both.chat),
            *_replicas(_reward(wanted, reward, both.reward[0].plan), both.reward),
        ]
    hosted = [_with_speed(one, chat, hardware, known) if one.role == "chat" else one for one in hosted]
    plan = hosted[0].plan
    screen.note(f"engine: {plan.engine} {plan.engine_version} ({why})")
    screen.note(f"weights: {plan.quant.scheme} ({plan.quant.reason})")
    if plan.cpu_activations == "int8":
        screen.note("activations: rounded to 8 bits in groups of 64 (--cpu-activations exact leaves them in 16)")
    for note in plan.notes:
        if note not in chat.messages:  # printed above
            screen.note(f"· {note}")
    return hosted


def _check_judges(wanted: ModelsToServe, reward: RewardCheckpoint | None) -> None:
    """Raises UsageError if a judge is the chat model of this service, and there is none."""
    recipe = reward.recipe if reward is not None else None
    if wanted.model is None and recipe is not None and read_recipe(recipe).asks_served:
        raise UsageError(
            f"{wanted.reward}: a judge in it is the chat model of the same service (url: {SERVED}), and none is "
            "named; add --model"
        )


def _replicas(one: Hosted, plans: Sequence[ReplicaPlan]) -> list[Hosted]:
    """One copy of `one` per plan, with its plan, cards and cores."""
    if len(plans) == 1:
        return [replace(one, plan=plans[0].plan, num_cores=plans[0].num_cores)]
    return [
        replace(one, plan=each.plan, cards=each.cards, num_cores=each.num_cores, index=index, num_replicas=len(plans))
        for index, each in enumerate(plans)
    ]


def _with_speed(hosted: Hosted, checkpoint: Checkpoint, hardware: Hardware, measured: Measured) -> Hosted:
    """With its planned latency, for the comparison with the measured one."""
    device = device_of(hosted.plan, hardware)
    if device is None or not has_speed(hosted.plan.engine):
        return hosted
    plan = hosted.plan if hosted.plan.speed else with_one_stream(hosted.plan, checkpoint, hardware, measured)
    return replace(hosted, plan=plan, speed=replica_of(plan, checkpoint.spec, device, measured))


def _refuse_classifier(wanted: ModelsToServe, checkpoint: Checkpoint) -> None:
    """Raises UsageError for a checkpoint without a language-model head; --reward is named where it was tried."""
    if checkpoint.spec.head.kind == "lm":
        return
    what = f"{checkpoint.id} is a {checkpoint.spec.architecture}, which has no language-model head and writes no text"
    try:
        find_reward(str(wanted.model), wanted.settings)
    except QserveError as error:
        raise UsageError(f"{what}; as a reward model it can't be served either: {error}") from None
    raise UsageError(f"{what}; serve it as a reward model: qserve up --reward {wanted.model}")


def _chat(wanted: ModelsToServe, checkpoint: Checkpoint, plan: Plan, screen: Screen) -> Hosted:
    is_dummy = wanted.load_format == "dummy"
    folder = _config_only(checkpoint, wanted.configs) if is_dummy else _folder_of(checkpoint, plan, screen)
    return Hosted(
        "chat",
        folder,
        tuple(dict.fromkeys(wanted.model_names)) or (checkpoint.id,),
        plan,
        load_format=wanted.load_format,
    )


def _reward(wanted: ModelsToServe, reward: RewardCheckpoint, plan: Plan) -> Hosted:
    """`demo` names a chat model and a reward model; behind one port they need names of their own."""
    name = "demo-reward" if reward.id == "demo" else reward.id
    names = wanted.reward_names or (name,)
    settings = replace(wanted.settings, recipe=str(reward.recipe)) if reward.recipe is not None else wanted.settings
    return Hosted("reward", reward.path, names, plan, reward=settings, tokenizer=reward.tokenizer)


def _reward_request(
    wanted: ModelsToServe, reward: RewardCheckpoint | None, hardware: Hardware, quant: str
) -> PlanRequest:
    """The request for the reward model. Raises UsageError if the engine can't score it as it was trained."""
    request = PlanRequest(quant=quant, engine=wanted.reward_engine, max_model_len=wanted.settings.max_length)
    if reward is None:
        return request
    return reward_engine(wanted.reward_engine).request(reward, wanted.settings, hardware, request, Packages.installed())


def _folder_of(checkpoint: Checkpoint, plan: Plan, screen: Screen) -> Path:
    """The folder of the weights that the plan loads (the model's or a quantized sibling's), downloaded if need be."""
    if plan.quant.checkpoint != checkpoint.id:
        checkpoint = resolve(plan.quant.checkpoint)
    if checkpoint.folder is None:
        from qserve.hub.download import download

        name = checkpoint.id
        screen.phase(f"fetching {name} from the hub")
        checkpoint = download(checkpoint, lambda told: screen.progress(f"fetching {name}: {told}"))
    assert checkpoint.folder is not None, "a download has a folder"
    if not any(any(checkpoint.folder.glob(kind)) for kind in _WEIGHTS):
        raise BrokenCheckpoint(
            f"{checkpoint.folder} has no weights ({', '.join(_WEIGHTS)}); download it again, or use random "
            "weights: --load-format dummy"
        )
    return checkpoint.folder


def _config_only(checkpoint: Checkpoint, configs: Path) -> Path:
    """A folder with config.json: the checkpoint's own, or one made from its bundled dimensions."""
    if checkpoint.folder is not None:
        return checkpoint.folder
    (configs / "config.json").write_text(json.dumps(dict(checkpoint.config)))
    return configs
