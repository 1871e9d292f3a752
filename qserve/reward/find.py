"""Resolves the value of --reward to a checkpoint, from files and headers, without torch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from qserve.core.hardware import Hardware
from qserve.errors import BrokenCheckpoint, DoesNotFit, ModelNotFound, UsageError
from qserve.hub import cache
from qserve.hub.bounded import read_json
from qserve.hub.named_templates import check_template_file, check_templates, without_default
from qserve.hub.resolve import is_offline, may_ask_hub, told_revisions
from qserve.hub.revisions import at_revision, split_revision
from qserve.hub.weight_names import ADAPTER
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


def find_reward(reward: str, settings: RewardSettings, *, asks_hub: bool = False) -> RewardCheckpoint:
    """The reward model that `reward` names: a folder, a single file, a hub id in the local cache, or `demo`; with
    `settings.embeds` an embedding model.

    `asks_hub`: of an id that is not in the cache the hub is asked, for headers alone (`to_fetch` names what is to be
    fetched before it is loaded). Raises ModelNotFound or BrokenCheckpoint with what was found.
    """
    if settings.judge is not None:
        raise UsageError(
            f"--judge {settings.judge}: a judge generates its verdicts, which needs a server: start qserve up --reward "
            f"{reward} --judge {settings.judge}, and give its address with --url"
        )
    if is_recipe(reward) and not settings.embeds:
        recipe = read_recipe(Path(reward).expanduser().absolute())
        return _of_recipe(recipe, reward, settings, asks_hub=asks_hub)
    flag = "--embed" if settings.embeds else "--reward"
    name, revision = split_revision(reward, f"{flag}-revision")
    asked = "" if revision is None else reward
    path, to_fetch = (
        _asked_path(name, revision, settings.base, flag) if asks_hub else (_path_of(name, revision, flag), ())
    )
    checkpoint = replace(recognise(path, settings, name), asked=asked, to_fetch=to_fetch)
    if not settings.embeds:  # which reads texts, and no conversations
        _check_template(checkpoint, settings)
    return checkpoint


def _asked_path(reward: str, revision: str | None, base: str | None, flag: str) -> tuple[Path, tuple[str, ...]]:
    """Where it is, or a folder of its headers, and what is to be fetched in that case."""
    try:
        return _path_of(reward, revision, flag), ()
    except ModelNotFound as error:
        if is_offline():
            raise ModelNotFound(f"{error}. HF_HUB_OFFLINE forbids asking the hub") from None
        if not may_ask_hub(reward):
            raise
        from qserve.hub.headers import headers_of  # urllib, which a folder needs none of

        folder = headers_of(reward, revision)
        if folder is None:
            raise ModelNotFound(f"{error}. The hub could not be asked") from None
    return folder, (at_revision(reward, revision), *_base_to_fetch(folder, base))


def _base_to_fetch(folder: Path, base: str | None) -> tuple[str, ...]:
    """The base of an adapter whose headers are in `folder`, where it has to be fetched; its own headers are put where
    the adapter's base is looked for.
    """
    adapter = folder / ADAPTER[0]
    named = base or (read_json(adapter).get("base_model_name_or_path") if adapter.is_file() else None)
    if not isinstance(named, str) or Path(named).expanduser().exists():
        return ()
    name, revision = split_revision(named, "--base")
    if cache.snapshot(name, revision) is not None or not may_ask_hub(name):
        return ()
    from qserve.hub.headers import headers_of

    found = headers_of(name, revision)
    if found is None:
        return ()
    (folder / named).parent.mkdir(exist_ok=True)
    if not (folder / named).exists():
        (folder / named).symlink_to(found)
    return (named,)


def _path_of(reward: str, revision: str | None, flag: str) -> Path:
    """Where it is. Raises ModelNotFound, of a revision with those that the cache has."""
    if reward == "demo" and flag == "--reward":
        from qserve.demo import reward_model_path  # pulls in the demo package only for the demo

        return reward_model_path()
    path = Path(reward).expanduser()
    if not path.exists() and (snapshot := cache.snapshot(reward, revision)) is not None:
        path = snapshot
    if not path.exists() and revision is not None:
        known = told_revisions(reward)
        raise ModelNotFound(
            f"{reward!r} at revision {revision!r} is not in the local Hugging Face cache"
            f"{f', which has {known}' if known else ''}; name one that is there with "
            f"{flag}-revision, or fetch it: qserve pull {flag} {reward} {flag}-revision {revision}"
        )
    if not path.exists() and flag == "--embed":
        raise ModelNotFound(
            f"{reward!r} is not a folder and not in the local Hugging Face cache; --embed takes a folder, or a hub id "
            "(qserve pull --embed ID fetches it)"
        )
    if not path.exists():
        raise ModelNotFound(
            f"{reward!r} is not a folder, not a file and not in the local Hugging Face cache; "
            "--reward takes a folder, a single file with --base, a hub id (qserve pull --reward ID fetches it), or demo"
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


def _of_recipe(recipe: Recipe, reward: str, settings: RewardSettings, *, asks_hub: bool) -> RewardCheckpoint:
    """The model that the file names, or a stand-in without weights where rules and judges are all of it."""
    if recipe.model is not None:
        return replace(find_reward(recipe.model.path, settings, asks_hub=asks_hub), id=reward, recipe=recipe.file)
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
