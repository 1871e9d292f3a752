"""Which head a checkpoint has: one of its tensors, or two rows of its language-model head. Refuses what is none."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from qserve.core.checkpoint import SENTENCE_TRANSFORMERS
from qserve.core.model_parts import OWN_CODE, has_heads_of_own_code
from qserve.errors import BrokenCheckpoint, UsageError
from qserve.reward.checkpoints.describe import HeadLayer, RewardHead, StoredTensor
from qserve.reward.checkpoints.files import CheckpointFiles
from qserve.reward.settings import RewardSettings

__all__ = ["STEP_TOKEN", "head_of", "token_id"]

# What training scripts call their heads; `v_head.summary` is TRL's, `score` that of transformers.
KNOWN_HEADS = (
    "v_head.summary",
    "reward_head",
    "score",
    "value_head",
    "classifier",
    "regression_head",
    "rm_head",
    "v_head",
)
# Wrappers leave their names before everything: DistributedDataParallel, torch.compile, peft's modules_to_save.
_WRAPPERS = re.compile(r"^(?:module\.|_orig_mod\.)+")
_SAVED = re.compile(r"(?:\.modules_to_save(?:\.default)?|\.original_module)(?=\.)")
# The words of Qwen3-Reranker, and where the two rows of a reranker are.
_QWEN3 = ("yes", "no")
_ROWS = ("lm_head.weight", "embed_tokens.weight")
STEP_TOKEN = "<extra_0>"  # noqa: S105 (a token of text, no secret)
# Its id in the tokenizers of Qwen2.5-Math-PRM, whose config.json does not name it.
_STEP_TOKEN_ID = 151651


def head_of(files: CheckpointFiles, settings: RewardSettings) -> RewardHead:
    """The head that the settings name, else the one that the files have.

    Raises BrokenCheckpoint when there is none, with what was found instead, and for one whose shape fits no reward.
    """
    words = _answer_tokens(files, settings.answer_tokens)
    if words is not None and settings.head is None:
        return _reranker_head(files, words)
    asked = settings.head or _named_head(files.own_config)
    _refuse_gating(files, asked)
    head = _find_head(files, files.own, asked)
    if head is None and files.adapter is not None:
        head = _find_head(files, files.body, None)
    if head is None:
        raise BrokenCheckpoint(_no_head(files))
    return head


def _answer_tokens(files: CheckpointFiles, asked: str | None) -> tuple[str, str] | None:
    """The texts of the token for and the token against; None where the checkpoint is not a reranker.

    What the user asks for goes first; then vLLM's `classifier_from_token` (against, for) in config.json; then the name
    of a causal model that says it. Raises UsageError for anything but two words.
    """
    if asked is not None:
        words = [word.strip() for word in asked.split(",")]
        if len(words) != 2 or not all(words) or words[0] == words[1]:
            raise UsageError(f"--answer-tokens {asked!r}: name two tokens, the one for first, for example yes,no")
        return words[0], words[1]
    listed = files.own_config.get("classifier_from_token")
    if isinstance(listed, list) and len(listed) == 2:
        return str(listed[1]), str(listed[0])
    causal = any(str(one).endswith("ForCausalLM") for one in files.own_config.get("architectures") or ())
    return _QWEN3 if causal and "reranker" in f"{files.id} {files.path.name}".lower() else None


def _reranker_head(files: CheckpointFiles, words: tuple[str, str]) -> RewardHead:
    """The log-odds of the first word against the second as the next token, as Qwen3-Reranker has them.

    The difference of two rows of the language-model head is a head of one label, so nothing else of it is computed.
    Raises BrokenCheckpoint without a language-model head or embedding.
    """
    instead = "with which a reranker answers; name the two that it was trained with: --answer-tokens FOR,AGAINST"
    answer_ids = token_id(files, words[0], instead), token_id(files, words[1], instead)
    for name in _ROWS:
        found = next((tensor for tensor in files.body if tensor.name.endswith(name)), None)
        if found is not None:
            if max(answer_ids) >= found.shape[0]:
                raise BrokenCheckpoint(
                    f"{files.id}: {found.name} has {found.shape[0]} rows, and no row {max(answer_ids)}"
                )
            prefix = found.name.removesuffix(".weight")
            return RewardHead(prefix, (HeadLayer(found, None),), answer_ids)
    raise BrokenCheckpoint(
        f"{files.id} has neither lm_head.weight nor an embedding, of which a reranker reads two rows"
    )


def token_id(files: CheckpointFiles, token: str, instead: str) -> int:
    """The id of `token`. Raises BrokenCheckpoint when the tokenizer does not know it as one token; `instead` says what
    it is for and which flag names another.
    """
    if token in files.tokens:
        return files.tokens[token]
    if token == STEP_TOKEN and int(files.text.get("vocab_size") or 0) > _STEP_TOKEN_ID:
        return _STEP_TOKEN_ID
    raise BrokenCheckpoint(f"the tokenizer in {files.tokenizer} has no token {token!r}, {instead}")


def _named_head(config: Mapping[str, Any]) -> str | None:
    """OpenRLHF writes its head's name into config.json."""
    name = config.get("value_head_prefix")
    return name if isinstance(name, str) and name else None


def _refuse_gating(files: CheckpointFiles, asked: str | None) -> None:
    """Raises BrokenCheckpoint for a reward that a network of the checkpoint's own code makes of its labels (ArmoRM)."""
    gating = next((tensor.name for tensor in files.own if _strip_wrappers(tensor.name).startswith("gating.")), None)
    if gating is None or asked is not None:
        return
    linear = _find_head(files, files.own, "regression_layer")
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


def _find_head(files: CheckpointFiles, tensors: Sequence[StoredTensor], asked: str | None) -> RewardHead | None:
    """The head called `asked`, or the first of the known ones; None when there is none.

    Raises BrokenCheckpoint for a head that was asked for and is not there, and for one whose shape fits no reward.
    """
    for name in (asked,) if asked else KNOWN_HEADS:
        found = _layers(tensors, name)
        if found:
            return _checked(files, RewardHead(found[0], found[1]))
    if asked:
        raise BrokenCheckpoint(
            f"{files.id} has no head {asked!r} (--head); outside its layers it has: {_outside(tensors)}"
        )
    return None


def _layers(tensors: Sequence[StoredTensor], name: str) -> tuple[str, tuple[HeadLayer, ...]] | None:
    """(full prefix, layers). A Sequential's linear layers are `name.0` and `name.2`."""
    pattern = re.compile(rf"^(.*?\b{re.escape(name)})(?:\.(\d+))?\.(weight|bias)$")
    parts: dict[int, dict[str, StoredTensor]] = {}
    prefix = name
    for tensor in tensors:
        match = pattern.match(_strip_wrappers(tensor.name))
        if match is not None and ".layers." not in match[1]:
            parts.setdefault(int(match[2] or 0), {})[match[3]] = tensor
            prefix = match[1]
    layers = [HeadLayer(part["weight"], part.get("bias")) for _, part in sorted(parts.items()) if "weight" in part]
    return (prefix, tuple(layers)) if layers else None


def _checked(files: CheckpointFiles, head: RewardHead) -> RewardHead:
    shapes = [list(layer.weight.shape) for layer in head.layers]
    widths = [files.hidden_size, *(shape[0] for shape in shapes)]
    chained = all(len(shape) == 2 and shape[1] == width for shape, width in zip(shapes, widths, strict=False))
    biased = all(
        layer.bias is None or layer.bias.shape == (shape[0],) for layer, shape in zip(head.layers, shapes, strict=True)
    )
    if not chained or not biased or len(shapes) > 2:
        raise BrokenCheckpoint(
            f"{files.id}: the head {head.prefix!r} has the shape {' then '.join(map(str, shapes))}, but the body's "
            f"hidden size is {files.hidden_size}: a head is [labels, {files.hidden_size}], or two layers with a ReLU "
            "between them. Is it the head of another model?"
        )
    if len(shapes) == 2 and head.num_labels > 2:
        raise BrokenCheckpoint(
            f"{files.id}: the head {head.prefix!r} has {head.num_labels} labels after a ReLU ({shapes[-1]}); with two "
            "layers a reward model has one label and a process reward model two"
        )
    return head


def _outside(tensors: Sequence[StoredTensor]) -> str:
    names = {_strip_wrappers(tensor.name) for tensor in tensors}
    return ", ".join(sorted(name for name in names if not re.search(r"\.(layers|h)\.\d", name))[:8]) or "nothing"


def _strip_wrappers(name: str) -> str:
    """The name that the model itself gives a tensor."""
    return _SAVED.sub("", _WRAPPERS.sub("", name))


def _no_head(files: CheckpointFiles) -> str:
    kind = "an adapter" if files.adapter else "a checkpoint"
    names = [tensor.name for tensor in files.own]
    if (files.path / SENTENCE_TRANSFORMERS).is_file():
        return (
            f"{files.id} is an embedding model ({SENTENCE_TRANSFORMERS}): it gives a text a vector, not a reward; "
            f"serve it at /v1/embeddings: qserve up --embed {files.id}. --reward takes the "
            "rerankers of such a family: a reranker scores a query and a document in one text"
        )
    if any("lm_head" in name for name in names) or _is_causal(files.own_config):
        return (
            f"{files.id} is {kind} of a causal language model and has no reward head: a merge through "
            "AutoModelForCausalLM drops it (trl#297, trl#368), and a random one would score at random. Merge with "
            'AutoModelForSequenceClassification and modules_to_save=["score"], or name the head: --head. A model that '
            f"writes verdicts is served as a judge: qserve up --reward {files.id} --judge pointwise; one that says yes "
            "or no is a reranker: --answer-tokens yes,no"
        )
    if any(map(has_heads_of_own_code, map(str, files.own_config.get("architectures") or ()))):
        return f"{files.id} is planned only: {OWN_CODE}"
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
