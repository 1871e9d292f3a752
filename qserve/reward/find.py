"""Resolves the value of --reward to a checkpoint, from files and headers, without torch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from qserve.core.hardware import Hardware
from qserve.errors import BrokenCheckpoint, DoesNotFit, ModelNotFound, UsageError
from qserve.hub import cache
from qserve.hub.named_templates import check_template_file, check_templates, without_default
from qserve.hub.resolve import told_revisions
from qserve.hub.revisions import split_revision
from qserve.planner import Plan, PlanRequest, make_plan
from qserve.reward.checkpoints import HeadLayer, RewardCheckpoint, RewardHead, StoredTensor, recognise
from qserve.reward.recipe import Recipe, is_recipe, read_recipe
from qserve.reward.recipe.config import WITHOUT_MODEL
from qserve.reward.settings import FLAGS, RewardSettings

__all__ = ["find_reward", "plan_reward"]

# The smallest body that a plan can be made of: rules and judges have none, and its tensors are left out.
NO_MODEL = {
    "model_type": "qwen3",
    "architectures": [WITHOUT_MODEL],
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "vocab_size": 8,
    "max_position_embeddings": 32768,
}


def find_reward(reward: str, settings: RewardSettings) -> RewardCheckpoint:
    """The reward model that `reward` names: a folder, a single file, a hub id in the local cache, or `demo`.

    Raises ModelNotFound or BrokenCheckpoint with what was found.
    """
    if settings.judge is not None:
        raise UsageError(
            f"--judge {settings.judge}: a judge generates its verdicts, which needs a server: start qserve up --reward "
            f"{reward} --judge {settings.judge}, and give its address with --url"
        )
    if is_recipe(reward):
        recipe = read_recipe(Path(reward).expanduser().absolute())
        return _of_recipe(recipe, reward, settings)
    name, revision = split_revision(reward, "--reward-revision")
    asked = "" if revision is None else reward
    checkpoint = replace(recognise(_path_of(name, revision), settings, name), asked=asked)
    _check_template(checkpoint, settings)
    return checkpoint


def _path_of(reward: str, revision: str | None) -> Path:
    """Where it is. Raises ModelNotFound, of a revision with those that the cache has."""
    if reward == "demo":
        from qserve.demo import reward_model_path  # pulls in the demo package only for the demo

        return reward_model_path()
    path = Path(reward).expanduser()
    if not path.exists() and (snapshot := cache.snapshot(reward, revision)) is not None:
        path = snapshot
    if not path.exists() and revision is not None:
        known = told_revisions(reward)
        raise ModelNotFound(
            f"{reward!r} at revision {revision!r} is not in the local Hugging Face cache"
            f"{f', which has {known}' if known else ''}; name one that is there with --reward-revision, or fetch it "
            f"(qserve pull {reward} --no-plan --revision {revision})"
        )
    if not path.exists():
        raise ModelNotFound(
            f"{reward!r} is not a folder, not a file and not in the local Hugging Face cache; --reward takes a folder, "
            "a single file with --base, a hub id with its files in that cache (qserve pull ID --no-plan), or demo"
        )
    return path


def _check_template(checkpoint: RewardCheckpoint, settings: RewardSettings) -> None:
    """Raises BrokenCheckpoint where no conversation can be rendered by the template that is used."""
    if (file := settings.template or checkpoint.template) is not None:
        check_template_file(Path(file).expanduser())
        return
    instead = "give another with --template FILE"
    check_templates(checkpoint.tokenizer, instead)
    if (missing := without_default(checkpoint.tokenizer)) is not None:
        raise BrokenCheckpoint(f"{checkpoint.id}: {missing}, or {instead}")


def _of_recipe(recipe: Recipe, reward: str, settings: RewardSettings) -> RewardCheckpoint:
    """The model that the file names, or a stand-in without weights where rules and judges are all of it."""
    if recipe.model is not None:
        return replace(find_reward(recipe.model.path, settings), id=reward, recipe=recipe.file)
    set_flags = [name for name in FLAGS if getattr(settings, name) != getattr(RewardSettings(), name)]
    if set_flags:
        flag = f"--{set_flags[0].replace('_', '-')}"
        raise UsageError(f"{flag} is for a model, but {reward} names none; leave it out")
    nothing = RewardHead("none", (HeadLayer(StoredTensor("none", "F32", (1, 1), recipe.file), None),))
    return RewardCheckpoint(
        reward, "none", recipe.file.parent, NO_MODEL, (), "", nothing, recipe.file.parent, recipe=recipe.file
    )


def plan_reward(checkpoint: RewardCheckpoint, hardware: Hardware, request: PlanRequest) -> Plan:
    """Weights, and the activations of one row of texts. Raises DoesNotFit with what is missing and suggestions."""
    plan = make_plan(checkpoint.planned(), hardware, replace(request, engine="transformers"))
    if not plan.fits:
        ways = "; ".join(suggestion.change for suggestion in plan.suggestions)
        raise DoesNotFit(f"{checkpoint.id}: {plan.why_not}{f'. What would fit: {ways}' if ways else ''}")
    return plan
