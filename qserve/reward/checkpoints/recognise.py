"""Which of the formats a path holds, and what the format's trainer does with a text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from qserve.core.facts import find_file
from qserve.errors import BrokenCheckpoint, UsageError
from qserve.reward.checkpoints.describe import Format, RewardCheckpoint, RewardHead, StoredTensor
from qserve.reward.checkpoints.files import CheckpointFiles, read_files
from qserve.reward.checkpoints.heads import STEP_TOKEN, head_of, token_id
from qserve.reward.checkpoints.labels import label_names, label_weights
from qserve.reward.checkpoints.vectors import Embedder, embedder_of
from qserve.reward.settings import POOLINGS, Pooling, RewardSettings

__all__ = ["recognise"]

# Below configs/: query and document as Qwen3-Reranker was trained to read them.
_RERANKER_TEMPLATE = "rerankers/qwen3.jinja"
_OF_CLASSES: tuple[Format, ...] = ("sequence-classification", "multi-attribute", "lora")


def recognise(path: Path, settings: RewardSettings, model_id: str | None = None) -> RewardCheckpoint:
    """The reward model at `path`: a folder, an adapter, or a single file with `settings.base` named; or the embedding
    model there, where `settings` say that it is one.

    No weights are read. Raises ModelNotFound when nothing is there, BrokenCheckpoint when it holds no reward model:
    no head, a head of the wrong shape, an adapter or a file without its base. Each message says what was found.
    """
    files = read_files(path, settings.base, model_id or str(path))
    if settings.embeds:
        found = _embedding(files, embedder_of(files, settings))
    else:
        found = _described(files, head_of(files, settings), settings)
    return replace(found, notes=(*found.notes, *files.notes))


def _described(files: CheckpointFiles, head: RewardHead, settings: RewardSettings) -> RewardCheckpoint:
    found = _checkpoint(files, head)
    if found.format == "reranker":
        found = replace(found, template=find_file(_RERANKER_TEMPLATE))
    else:
        found = _read_by_class(found, files)
        if settings.pooling == "not-pad" and found.pad_token_id is None:
            raise UsageError(
                f"--pooling not-pad: config.json of {found.id} names no pad_token_id; leave it out, or write "
                "--pooling last"
            )
    return _with_habits(found, files, settings)


def _embedding(files: CheckpointFiles, embedder: Embedder) -> RewardCheckpoint:
    found = _checkpoint(files, embedder.head)
    return replace(found, format="embedding", pooling=embedder.pooling, vectors=embedder.vectors)


def _read_by_class(found: RewardCheckpoint, files: CheckpointFiles) -> RewardCheckpoint:
    """Transformers' class for sequences reads the last token that is not the pad token; without one, the last."""
    pad_token_id = files.pad_token_id
    names = [str(name) for name in files.own_config.get("architectures") or ()]
    of_class = all(name.endswith("ForSequenceClassification") for name in names)
    if files.adapter is not None:
        of_class = files.adapter.task_type == "SEQ_CLS"
    is_linear = len(found.head.layers) == 1 and not found.head.has_bias and found.head.prefix.endswith("score")
    class_reads = of_class and is_linear and found.format in _OF_CLASSES
    pooling: Pooling = "not-pad" if class_reads and pad_token_id is not None else "last"
    return replace(found, class_reads=class_reads, pad_token_id=pad_token_id, pooling=pooling)


def _checkpoint(files: CheckpointFiles, head: RewardHead) -> RewardCheckpoint:
    prefix = files.body_prefix
    if prefix is None:
        raise BrokenCheckpoint(
            f"{files.id} has the head {head.prefix!r}, but no body (no embed_tokens.weight); "
            "a head alone needs the model that it was trained on"
            if head.layers
            else f"{files.id} has no body (no embed_tokens.weight); copy its weights again"
        )
    body = tuple(t for t in files.body if t.name.startswith(prefix) and not _belongs_to(head, t))
    return RewardCheckpoint(
        files.id,
        _format(files, head),
        files.path,
        files.text,
        body,
        prefix,
        head,
        files.tokenizer,
        base=files.base,
        adapter=files.path if files.adapter else None,
    )


def _belongs_to(head: RewardHead, tensor: StoredTensor) -> bool:
    if "lm_head" in tensor.name:
        return True
    return head.answer_ids is None and any(tensor in (layer.weight, layer.bias) for layer in head.layers)


def _format(files: CheckpointFiles, head: RewardHead) -> Format:
    name = head.prefix.rpartition(".")[2]
    if head.answer_ids is not None:
        return "reranker"
    if head.prefix.endswith(("v_head.summary", "v_head")):
        return "value-head"
    if head.num_labels == 2 and len(head.layers) == 2:
        return "process-reward-model" if files.adapter is None else "lora"
    if head.num_labels > 1:
        return "multi-attribute"
    if files.adapter is not None:
        return "lora"
    if len(head.layers) == 2:
        return "reward-model"
    if _is_openrlhf(files.own_config):
        return "openrlhf"
    return "sequence-classification" if name == "score" else "reward-head"


def _is_openrlhf(config: Mapping[str, Any]) -> bool:
    written = {"value_head_prefix", "normalize_reward"} & set(config)
    return bool(written) or "RewardModel" in (config.get("architectures") or ())


def _with_habits(found: RewardCheckpoint, files: CheckpointFiles, settings: RewardSettings) -> RewardCheckpoint:
    """What each format's trainer does with a text, as far as its config says. Refuses what its format never reads."""
    if settings.weights is not None and found.format != "multi-attribute":
        raise UsageError(
            f"--weights {settings.weights}: {found.id} gives one number per text ({found.format}), which needs no "
            "weights; leave it out"
        )
    config = files.own_config
    is_process = found.format == "process-reward-model"
    if is_process and settings.pooling is not None:
        raise UsageError(
            f"--pooling {settings.pooling}: {found.id} is a process reward model, which is read at its step token; "
            "leave it out (--step-token names another token)"
        )
    if not is_process and settings.step_token is not None:
        raise UsageError(
            f"--step-token {settings.step_token}: {found.id} is not a process reward model ({found.format}) and is "
            f"read once, at the {found.pooling} token; leave it out"
        )
    if is_process:
        instead = (
            "which ends the steps that a process reward model scores; name the one it was trained with: "
            "--step-token TOKEN"
        )
        return replace(found, step_token_id=token_id(files, settings.step_token or STEP_TOKEN, instead))
    if found.format == "multi-attribute":
        labels = label_names(config, found.head.num_labels)
        weights, note = label_weights(labels, settings.weights, config)
        return replace(found, labels=labels, weights=weights, notes=(note,) if note else ())
    if found.format == "openrlhf":
        held = (config.get(name) for name in ("mean", "std"))
        mean, std = (float(value) if isinstance(value, (int, float)) else None for value in held)
        return replace(found, forced_eos=True, mean=mean, std=std)
    if found.format == "reward-head" and config.get("reward_pooling") in POOLINGS:
        return replace(found, pooling=config["reward_pooling"])
    if found.format == "reward-head":
        note = (
            f"{found.id}: the head is read at the last token of the text; a training script that read "
            "hidden[:, -1] with padding on the right read the padding (--pooling sets another token)"
        )
        return replace(found, notes=(note,))
    return found
