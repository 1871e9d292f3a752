"""How an embedding model makes vectors, by the files that sentence-transformers keeps beside the body.

    modules.json                      the steps: Transformer, Pooling, then maybe Dense and Normalize
    1_Pooling/config.json             which token is read
    2_Dense/…                         a linear layer, the head of the model
    config_sentence_transformers.json prompts by name
    sentence_bert_config.json         max_seq_length

Source: sentence-transformers 6.2, `base/modules/` and `sentence_transformer/modules/pooling.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qserve.core.checkpoint import SENTENCE_TRANSFORMERS
from qserve.errors import BrokenCheckpoint
from qserve.hub.bounded import is_below, read_json, read_json_list
from qserve.reward.checkpoints.describe import HeadLayer, RewardHead, Vectors
from qserve.reward.checkpoints.files import CheckpointFiles
from qserve.reward.checkpoints.stored import stored_in_file
from qserve.reward.settings import Pooling, RewardSettings

__all__ = ["Embedder", "embedder_of"]

_SETTINGS = "config_sentence_transformers.json"
_LENGTHS = "sentence_bert_config.json"
_STEPS = (["Transformer", "Pooling"], ["Dense"], ["Normalize"])
_POOLINGS: Mapping[str, Pooling] = {"lasttoken": "last", "mean": "mean", "cls": "first"}
# The names before sentence-transformers 6: a switch for each.
_SWITCH = re.compile(r"pooling_mode_(\w+?)(?:_tokens?)?")
_LINEAR = ("linear.weight", "linear.bias")
# Of Qwen3-Embedding, gte-Qwen2 and their kin: the task in one line, the query in the next.
_INSTRUCT = re.compile(r"Instruct: (?P<task>[^\n]+)\n(?P<query>Query: ?)")


@dataclass(frozen=True)
class Embedder:
    """An embedding model beside its body: its head, what is read, and what becomes of it."""

    head: RewardHead
    pooling: Pooling
    vectors: Vectors


def embedder_of(files: CheckpointFiles, settings: RewardSettings) -> Embedder:
    """What the files say. Raises BrokenCheckpoint where they say nothing, and for steps that are not computed here."""
    if files.adapter is not None:
        raise BrokenCheckpoint(
            f"{files.id} is an adapter; --embed takes a whole embedding model: merge the adapter into its base "
            "(peft: merge_and_unload) and save both"
        )
    if files.config.get("vision_config") is not None:
        raise BrokenCheckpoint(f"{files.id} embeds pictures as well as text; --embed takes models of text alone")
    steps = _steps(files)
    if steps is None and settings.pooling is None:
        raise BrokenCheckpoint(
            f"{files.id} has no {SENTENCE_TRANSFORMERS}, which says which token an embedding model is read at; copy "
            "the whole folder again, or name it: --pooling last (Qwen3-Embedding, gte-Qwen2), first or mean"
        )
    head = _head(files, steps["Dense"]) if steps and "Dense" in steps else RewardHead("none", ())
    size = head.num_labels if head.layers else files.hidden_size
    pooling = settings.pooling or _pooling(files, (steps or {})["Pooling"])
    return Embedder(head, pooling, _vectors(files, size, is_normalized=steps is None or "Normalize" in steps))


def _steps(files: CheckpointFiles) -> dict[str, Path] | None:
    """The folder of each step by its kind, in their order; None without a list of steps."""
    if not (files.path / SENTENCE_TRANSFORMERS).is_file():
        return None
    listed = read_json_list(files.path / SENTENCE_TRANSFORMERS)
    steps: dict[str, Path] = {}
    for one in listed:
        kind, path = (one.get("type"), one.get("path")) if isinstance(one, Mapping) else (None, None)
        if not isinstance(kind, str) or not isinstance(path, str) or (path and not is_below(path)):
            raise BrokenCheckpoint(
                f"{files.path / SENTENCE_TRANSFORMERS}: {str(one)[:100]} has no 'type' and 'path' below its folder"
            )
        steps[kind.rpartition(".")[2]] = files.path / path
    begin, dense, end = _STEPS
    if list(steps) not in (begin, begin + dense, begin + end, begin + dense + end) or len(listed) != len(steps):
        raise BrokenCheckpoint(
            f"{files.id} has the steps {', '.join(steps)} ({SENTENCE_TRANSFORMERS}); qserve computes Transformer, "
            "Pooling, one Dense, Normalize, in this order"
        )
    if steps["Transformer"] != files.path:
        raise BrokenCheckpoint(
            f"{files.id} has its body in {steps['Transformer'].name}; move config, weights and tokenizer beside "
            f"{SENTENCE_TRANSFORMERS}"
        )
    return steps


def _pooling(files: CheckpointFiles, folder: Path) -> Pooling:
    config = read_json(folder / "config.json")
    written = config.get("pooling_mode")
    if written is None:
        switches = [(_SWITCH.fullmatch(name), value) for name, value in config.items()]
        modes = [match[1] for match, value in switches if match is not None and value is True] or ["mean"]
    else:
        modes = [str(one) for one in written] if isinstance(written, list) else [str(written)]
    if len(modes) != 1 or modes[0] not in _POOLINGS:
        raise BrokenCheckpoint(
            f"{files.id} pools by {' and '.join(modes)} ({folder.name}/config.json); qserve reads "
            f"{', '.join(_POOLINGS)}; --pooling names another, which changes the vectors"
        )
    pooling = _POOLINGS[modes[0]]
    if config.get("include_prompt") is False and pooling != "last":
        raise BrokenCheckpoint(
            f"{files.id} leaves the prompt out of what it pools ({folder.name}/config.json: include_prompt), which "
            "qserve does not"
        )
    return pooling


def _head(files: CheckpointFiles, folder: Path) -> RewardHead:
    """The linear layer of a Dense step."""
    config = read_json(folder / "config.json")
    activation = str(config.get("activation_function") or "Tanh").rpartition(".")[2]
    reads_other = config.get("module_input_name", "sentence_embedding") != "sentence_embedding"
    if activation != "Identity" or config.get("use_residual") or reads_other:
        raise BrokenCheckpoint(
            f"{files.id}: {folder.name} has the activation {activation}, a residual or another input; qserve computes "
            "a plain linear layer (Identity)"
        )
    found = {tensor.name: tensor for file in _weights(folder) for tensor in stored_in_file(file)}
    weight, bias = (found.get(name) for name in _LINEAR)
    if weight is None or len(weight.shape) != 2 or weight.shape[1] != files.hidden_size:
        seen = "no linear.weight" if weight is None else f"a linear.weight of {list(weight.shape)}"
        raise BrokenCheckpoint(
            f"{files.id}: {folder.name} has {seen}; the body's hidden size is {files.hidden_size}; copy it again"
        )
    return RewardHead(folder.name, (HeadLayer(weight, bias),))


def _weights(folder: Path) -> list[Path]:
    return [file for name in ("model.safetensors", "pytorch_model.bin") if (file := folder / name).is_file()][:1]


def _vectors(files: CheckpointFiles, size: int, *, is_normalized: bool) -> Vectors:
    config = _optional(files.path / _SETTINGS)
    listed = config.get("prompts")
    prompts = {str(name): str(text) for name, text in listed.items()} if isinstance(listed, Mapping) else {}
    default = config.get("default_prompt_name")
    if default is not None and default not in prompts:
        raise BrokenCheckpoint(
            f"{files.path / _SETTINGS}: default_prompt_name is {default!r}, and the prompts are {', '.join(prompts)}"
        )
    lengths, cuts = _optional(files.path / _LENGTHS), files.text.get("matryoshka_dimensions")
    if lengths.get("do_lower_case"):
        raise BrokenCheckpoint(f"{files.id} makes texts lower-case ({_LENGTHS}), which qserve does not")
    length = lengths.get("max_seq_length")
    return Vectors(
        size,
        is_normalized,
        prompts,
        default,
        _instruct(prompts),
        tuple(one for one in cuts if type(one) is int) if isinstance(cuts, list) else (),
        length if type(length) is int and length > 0 else None,
    )


def _optional(file: Path) -> dict[str, Any]:
    return read_json(file) if file.is_file() else {}


def _instruct(prompts: Mapping[str, str]) -> str | None:
    """The prompt of the kind that takes any instruction, with `{}` in the place of its own."""
    matches = (_INSTRUCT.fullmatch(text) for text in prompts.values())
    query = next((match["query"] for match in matches if match is not None), None)
    return None if query is None else "Instruct: {}\n" + query
