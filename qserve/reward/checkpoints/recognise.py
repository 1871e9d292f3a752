"""Which of the formats a path holds, from its files' headers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from qserve.core.checkpoint import text_config
from qserve.core.facts import find_file
from qserve.errors import BrokenCheckpoint, ModelNotFound, UsageError
from qserve.hub.folder import read_config
from qserve.hub.token_rows import rowless_tokens
from qserve.hub.weights import weight_files
from qserve.reward.checkpoints.adapter import AdapterConfig, base_of, has_adapter, read_adapter_config
from qserve.reward.checkpoints.describe import Format, RewardCheckpoint, RewardHead, StoredTensor
from qserve.reward.checkpoints.heads import body_prefix, find_head, strip_wrappers
from qserve.reward.checkpoints.labels import label_names, label_weights
from qserve.reward.checkpoints.reranker import TEMPLATE, answer_tokens, reranker_head
from qserve.reward.checkpoints.stored import SINGLE_FILES, stored_in_file, stored_in_folder
from qserve.reward.checkpoints.tokens import STEP_TOKEN, has_tokenizer, token_id
from qserve.reward.settings import POOLINGS, Pooling, RewardSettings

__all__ = ["recognise"]

# What says which layers follow the body of an embedding model.
_SENTENCE_TRANSFORMERS = "modules.json"
_OF_CLASSES: tuple[Format, ...] = ("sequence-classification", "multi-attribute", "lora")


@dataclass(frozen=True)
class _CheckpointFiles:
    """A path with what its headers say: a whole model, or (`adapter`) what is to be merged into `base`."""

    id: str
    path: Path
    base: Path | None
    adapter: AdapterConfig | None
    own: tuple[StoredTensor, ...]
    body: tuple[StoredTensor, ...]
    config: Mapping[str, Any]
    own_config: Mapping[str, Any]


def recognise(path: Path, settings: RewardSettings, model_id: str | None = None) -> RewardCheckpoint:
    """The reward model at `path`: a folder, an adapter, or a single file with `settings.base` named.

    No weights are read. Raises ModelNotFound when nothing is there, BrokenCheckpoint when it holds no reward model:
    no head, a head of the wrong shape, an adapter or a file without its base. Each message says what was found.
    """
    files = _look(path, settings, model_id or str(path))
    found = _recognised(files, settings)
    rowless = rowless_tokens(found.tokenizer, found.config)
    held = weight_files(path).note if files.adapter is None and path.is_dir() else None
    notes = [note for note in (held, None if rowless is None else str(rowless)) if note is not None]
    return replace(found, notes=(*found.notes, *notes)) if notes else found


def _recognised(files: _CheckpointFiles, settings: RewardSettings) -> RewardCheckpoint:
    text = text_config(files.config)
    hidden_size = int(text.get("hidden_size", 0))
    words = answer_tokens(settings.answer_tokens, files.own_config, f"{files.id} {files.path.name}")
    if words is not None and settings.head is None:
        return _reranker(files, words, settings)
    asked = settings.head or _named_head(files.own_config)
    _refuse_gating(files, asked)
    head = find_head(files.own, asked, hidden_size, files.id)
    if head is None and files.adapter is not None:
        head = find_head(files.body, None, hidden_size, files.id)
    if head is None:
        raise BrokenCheckpoint(_no_head(files))
    return _described(files, head, settings)


def _refuse_gating(files: _CheckpointFiles, asked: str | None) -> None:
    """Raises BrokenCheckpoint for a reward that a network of the checkpoint's own code makes of its labels (ArmoRM)."""
    gating = next((tensor.name for tensor in files.own if strip_wrappers(tensor.name).startswith("gating.")), None)
    if gating is None or asked is not None:
        return
    linear = find_head(files.own, "regression_layer", int(text_config(files.config).get("hidden_size", 0)), files.id)
    alone = (
        f" Its {linear.num_labels} attributes without it: --head regression_layer --weights LABEL_0=1,…"
        if linear is not None
        else ""
    )
    raise BrokenCheckpoint(
        f"{files.id} weighs its attributes by a gating network over the prompt ({gating}), which only the Python code "
        "in the checkpoint computes: transformers does not load it without trust_remote_code, and qserve does not run "
        f"code from checkpoints.{alone}"
    )


def _reranker(files: _CheckpointFiles, words: tuple[str, str], settings: RewardSettings) -> RewardCheckpoint:
    tokenizer = _tokenizer(files)
    ids = token_id(tokenizer, words[0], files.config), token_id(tokenizer, words[1], files.config)
    head = reranker_head(files.body, ids, files.id)
    found = replace(_checkpoint(files, head, "reranker"), template=find_file(TEMPLATE))
    return _with_habits(found, files.own_config, settings)


def _look(path: Path, settings: RewardSettings, model_id: str) -> _CheckpointFiles:
    if path.is_file():
        return _single_file(path, settings, model_id)
    if not path.is_dir():
        raise ModelNotFound(
            f"there is no reward model at {str(path)!r}: --reward takes a folder, a single file "
            f"({', '.join(SINGLE_FILES)}) with --base, a hub id, or demo"
        )
    if has_adapter(path):
        return _adapter(path, settings, model_id)
    own = stored_in_folder(path)
    if not own:
        raise BrokenCheckpoint(f"{path} has no weights (*.safetensors, pytorch_model*.bin, *.pt); copy it again")
    own_config = read_config(path) if (path / "config.json").is_file() else {}
    base = _folder(Path(settings.base).expanduser()) if settings.base else None
    if not own_config and base is None:
        raise BrokenCheckpoint(
            f"{path} has weights but no config.json, so nothing says which model they belong to; "
            "name the base model's folder: --base FOLDER"
        )
    if base is not None and own_config and has_tokenizer(path):
        raise UsageError(
            f"--base {settings.base}: {model_id} is a whole checkpoint, with config and tokenizer, and needs no base; "
            "leave --base out. It is for adapters, single files, and folders without config or tokenizer"
        )
    config = own_config or read_config(_folder(base))
    return _CheckpointFiles(model_id, path, base, None, own, own, config, own_config)


def _single_file(path: Path, settings: RewardSettings, model_id: str) -> _CheckpointFiles:
    if path.suffix not in SINGLE_FILES:
        raise BrokenCheckpoint(
            f"{path} is not a file of weights; a reward model's file ends in {', '.join(SINGLE_FILES)}"
        )
    if settings.base is None:
        raise BrokenCheckpoint(
            f"{path} has weights, but no config.json or no tokenizer; name the base model's folder: --base FOLDER"
        )
    own, base = stored_in_file(path), _folder(Path(settings.base).expanduser())
    return _CheckpointFiles(model_id, path, base, None, own, own, read_config(base), {})


def _adapter(path: Path, settings: RewardSettings, model_id: str) -> _CheckpointFiles:
    adapter = read_adapter_config(path)
    base = base_of(path, adapter, settings.base)
    own, body = stored_in_folder(path, adapter=True), stored_in_folder(base)
    labels = read_config(path) if (path / "config.json").is_file() else {}
    return _CheckpointFiles(model_id, path, base, adapter, own, body, read_config(base), labels)


def _folder(base: Path | None) -> Path:
    if base is None or not base.is_dir():
        raise ModelNotFound(f"--base {str(base)!r} is not a folder; it takes the base model's checkpoint folder")
    return base


def _named_head(config: Mapping[str, Any]) -> str | None:
    """OpenRLHF writes its head's name into config.json."""
    name = config.get("value_head_prefix")
    return name if isinstance(name, str) and name else None


def _no_head(files: _CheckpointFiles) -> str:
    kind = "an adapter" if files.adapter else "a checkpoint"
    names = [tensor.name for tensor in files.own]
    if (files.path / _SENTENCE_TRANSFORMERS).is_file():
        return (
            f"{files.id} is an embedding model ({_SENTENCE_TRANSFORMERS}): it gives a text a vector, not a reward, and "
            "qserve has no route for vectors; serve it with vLLM (vllm serve --runner pooling). --reward takes "
            "the rerankers of such a family: a reranker scores a query and a document in one text"
        )
    if any("lm_head" in name for name in names) or _is_causal(files.own_config):
        return (
            f"{files.id} is {kind} of a causal language model and has no reward head: a merge through "
            "AutoModelForCausalLM drops it (trl#297, trl#368), and a random one would score at random. Merge with "
            'AutoModelForSequenceClassification and modules_to_save=["score"], or name the head: --head. A model that '
            f"writes verdicts is served as a judge: qserve up --reward {files.id} --judge pointwise; one that says yes "
            "or no is a reranker: --answer-tokens yes,no"
        )
    if files.adapter:
        return (
            f"neither the adapter {files.id} nor its base {files.base} has a head: train it with "
            'modules_to_save=["score"], or the head that it was trained with is not saved. '
            f"Found: {', '.join(sorted(names)[:3])}…"
        )
    return (
        f"{files.id} has no reward head among its {len(names)} tensors ({', '.join(sorted(names)[:3])}…); "
        "if the head has another name, give it: --head NAME"
    )


def _is_causal(config: Mapping[str, Any]) -> bool:
    return any(str(name).endswith(("ForCausalLM", "LMHeadModel")) for name in config.get("architectures") or ())


def _described(files: _CheckpointFiles, head: RewardHead, settings: RewardSettings) -> RewardCheckpoint:
    found = _read_by_class(_checkpoint(files, head, _format(files, head)), files)
    if settings.pooling == "not-pad" and found.pad_token_id is None:
        raise UsageError(
            f"--pooling not-pad: config.json of {found.id} names no pad_token_id; leave it out, or write --pooling last"
        )
    return _with_habits(found, files.own_config, settings)


def _read_by_class(found: RewardCheckpoint, files: _CheckpointFiles) -> RewardCheckpoint:
    """Transformers' class for sequences reads the last token that is not the pad token; without one, the last.

    An adapter's own config.json, where its trainer wrote one, goes before that of its base.
    """
    own = text_config(files.own_config)
    pad = (own if "pad_token_id" in own else text_config(files.config)).get("pad_token_id")
    pad_token_id = pad if isinstance(pad, int) and not isinstance(pad, bool) else None
    names = [str(name) for name in files.own_config.get("architectures") or ()]
    of_class = all(name.endswith("ForSequenceClassification") for name in names)
    if files.adapter is not None:
        of_class = files.adapter.task_type == "SEQ_CLS"
    is_linear = len(found.head.layers) == 1 and not found.head.has_bias and found.head.prefix.endswith("score")
    class_reads = of_class and is_linear and found.format in _OF_CLASSES
    pooling: Pooling = "not-pad" if class_reads and pad_token_id is not None else "last"
    return replace(found, class_reads=class_reads, pad_token_id=pad_token_id, pooling=pooling)


def _checkpoint(files: _CheckpointFiles, head: RewardHead, own_format: Format) -> RewardCheckpoint:
    prefix = body_prefix(files.body)
    if prefix is None:
        raise BrokenCheckpoint(
            f"{files.id} has the head {head.prefix!r}, but no body (no embed_tokens.weight); "
            "a head alone needs the model that it was trained on"
        )
    body = tuple(t for t in files.body if t.name.startswith(prefix) and not _belongs_to(head, t))
    return RewardCheckpoint(
        files.id, own_format, files.path, text_config(files.config), body, prefix, head, _tokenizer(files),
        base=files.base, adapter=files.path if files.adapter else None,
    )  # fmt: skip


def _tokenizer(files: _CheckpointFiles) -> Path:
    tokenizer = files.path if has_tokenizer(files.path) else files.base
    if tokenizer is None or not has_tokenizer(tokenizer):
        raise BrokenCheckpoint(f"{files.id} has no tokenizer; name the folder that has it: --base FOLDER")
    return tokenizer


def _belongs_to(head: RewardHead, tensor: StoredTensor) -> bool:
    if "lm_head" in tensor.name:
        return True
    return head.answer_ids is None and any(tensor in (layer.weight, layer.bias) for layer in head.layers)


def _format(files: _CheckpointFiles, head: RewardHead) -> Format:
    name = head.prefix.rpartition(".")[2]
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


def _with_habits(found: RewardCheckpoint, config: Mapping[str, Any], settings: RewardSettings) -> RewardCheckpoint:
    """What each format's trainer does with a text, as far as its config says. Refuses what its format never reads."""
    if settings.weights is not None and found.format != "multi-attribute":
        raise UsageError(
            f"--weights {settings.weights}: {found.id} gives one number per text ({found.format}), which needs no "
            "weights; leave it out"
        )
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
        step = token_id(found.tokenizer, settings.step_token or STEP_TOKEN, found.config)
        return replace(found, step_token_id=step)
    if found.format == "multi-attribute":
        labels = label_names(config, found.head.num_labels)
        weights, note = label_weights(labels, settings.weights, config)
        return replace(found, labels=labels, weights=weights, notes=(note,) if note else ())
    if found.format == "openrlhf":
        mean, std = config.get("mean"), config.get("std")
        return replace(found, forced_eos=True, mean=_number(mean), std=_number(std))
    if found.format == "reward-head" and config.get("reward_pooling") in POOLINGS:
        return replace(found, pooling=config["reward_pooling"])
    if found.format == "reward-head":
        note = (
            f"{found.id}: the head is read at the last token of the text; a training script that read "
            "hidden[:, -1] with padding on the right read the padding (--pooling sets another token)"
        )
        return replace(found, notes=(note,))
    return found


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None
