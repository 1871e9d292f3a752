"""Quantizes as a JSON file says:  PYTHON in_environment.py SPEC.json

A script that stands alone: it runs in the environment of llm-compressor, which has no qserve, or with `nf4` in qserve's
own. What it is doing it tells in lines of JSON that begin with a mark; everything else it prints is for the log.

The spec's fields are those of `qserve/derive/quantize/spec.py: QuantizeSpec`.
"""

from __future__ import annotations

import json
import random
import resource
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

MARK = "@qserve "
_SHORTEST = 8
"""Tokens of a row that is worth a forward pass."""
_PACKAGES = ("llmcompressor", "compressed-tensors", "transformers", "torch", "bitsandbytes", "accelerate")


def tell(event: str, **what: Any) -> None:
    """One line for the parent."""
    sys.stdout.write(f"{MARK}{json.dumps({'event': event, **what})}\n")
    sys.stdout.flush()


def rows_of(texts: Iterable[Sequence[int]], max_length: int, num_rows: int, seed: int) -> list[list[int]]:
    """Token ids of at most `num_rows` rows: long texts are cut into pieces, the shortest are left out, and which are
    taken is drawn by `seed`.
    """
    pieces = [list(text[at : at + max_length]) for text in texts for at in range(0, len(text), max_length)]
    long_enough = [piece for piece in pieces if len(piece) >= _SHORTEST]
    rows = long_enough or [piece for piece in pieces if piece]
    random.Random(seed).shuffle(rows)  # noqa: S311 - a draw of samples, no secret
    return rows[:num_rows]


def tokenized(file: Path, tokenizer: Any) -> Iterator[list[int]]:
    """Of each line {"text": …} or {"messages": […]}, the latter as the model's chat template writes it."""
    with file.open() as lines:
        for line in lines:
            row = json.loads(line)
            if "messages" in row and tokenizer.chat_template:
                text = tokenizer.apply_chat_template(row["messages"], tokenize=False)
                yield list(tokenizer(text, add_special_tokens=False)["input_ids"])
            else:
                text = row.get("text") or "\n".join(str(turn["content"]) for turn in row["messages"])
                yield list(tokenizer(text)["input_ids"])


def main(spec: dict[str, Any]) -> None:
    began = time.monotonic()
    tell("phase", text="importing torch")
    made = _by_bitsandbytes(spec) if spec["method"] == "nf4" else _by_llm_compressor(spec)
    found = {name: one for name in _PACKAGES if (one := _version(name)) is not None}
    tell("done", versions=found, seconds=round(time.monotonic() - began, 1), peak_bytes=_peak_bytes(), **made)


def _peak_bytes() -> int:
    """The most that this process held, without pages of files: the kernel drops those where memory lacks, and how many
    of a library it maps depends on how its file was written.
    """
    status = Path("/proc/self/status")
    if not status.exists():
        return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    held = dict(line.split(":", 1) for line in status.read_text().splitlines() if line.startswith(("VmHWM", "RssFile")))
    return 1024 * (int(held["VmHWM"].split()[0]) - int(held["RssFile"].split()[0]))


def _by_bitsandbytes(spec: dict[str, Any]) -> dict[str, Any]:
    import torch
    from transformers import AutoTokenizer, BitsAndBytesConfig

    config = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
        llm_int8_skip_modules=spec["ignore"],
    )
    tell("phase", text="quantizing")
    place = {"": 0} if spec["device"] == "cuda" else {"": "cpu"}
    model = _model_class(spec).from_pretrained(
        spec["model"], dtype="auto", quantization_config=config, device_map=place, local_files_only=True
    )
    tell("phase", text="writing")
    model.save_pretrained(spec["out"])
    AutoTokenizer.from_pretrained(spec["model"], local_files_only=True).save_pretrained(spec["out"])
    return {"num_rows": 0, "num_tokens": 0}


def _by_llm_compressor(spec: dict[str, Any]) -> dict[str, Any]:
    import torch
    from llmcompressor import oneshot
    from llmcompressor.pipelines.cache import IntermediatesCache
    from transformers import AutoTokenizer

    if not torch.cuda.is_available():  # AWQ pins what it has kept, for cards, whether there is one or not
        IntermediatesCache.pin_memory = lambda *_, **__: None
    tell("phase", text="loading")
    model = _model_class(spec).from_pretrained(spec["model"], dtype="auto", local_files_only=True)
    tokenizer = AutoTokenizer.from_pretrained(spec["model"], local_files_only=True)
    rows = _calibration(spec, tokenizer)
    tell("phase", text="quantizing")
    oneshot(model=model, recipe=_recipe(spec), **_data(rows, tokenizer, spec))
    tell("phase", text="writing")
    model.save_pretrained(spec["out"], save_compressed=True)
    tokenizer.save_pretrained(spec["out"])
    return {"num_rows": len(rows), "num_tokens": sum(map(len, rows))}


def _calibration(spec: dict[str, Any], tokenizer: Any) -> list[list[int]]:
    if spec["texts"] is None:
        return []
    texts = tokenized(Path(spec["texts"]), tokenizer)
    rows = rows_of(texts, spec["max_length"], spec["num_samples"], spec["seed"])
    tell("calibration", num_rows=len(rows), num_tokens=sum(map(len, rows)))
    return rows


def _data(rows: list[list[int]], tokenizer: Any, spec: dict[str, Any]) -> dict[str, Any]:
    if not rows:
        return {}
    from datasets import Dataset

    columns = [{"input_ids": row, "attention_mask": [1] * len(row)} for row in rows]
    sizes = {"max_seq_length": spec["max_length"], "num_calibration_samples": len(rows)}
    return {"dataset": Dataset.from_list(columns), "tokenizer": tokenizer, **sizes}


def _recipe(spec: dict[str, Any]) -> list[Any]:
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from llmcompressor.modifiers.quantization import GPTQModifier, QuantizationModifier

    grouped = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": spec["group_size"]}
    weights = {
        "w4a16": {**grouped, "symmetric": True},
        "awq": {**grouped, "symmetric": False},
        "w8a8": {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True},
        "fp8": {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True},
    }[spec["method"]]
    inputs = {
        "w8a8": {"num_bits": 8, "type": "int", "strategy": "token", "symmetric": True, "dynamic": True},
        "fp8": {"num_bits": 8, "type": "float", "strategy": "token", "symmetric": True, "dynamic": True},
    }.get(spec["method"])
    scheme = QuantizationScheme(
        targets=["Linear"],
        weights=QuantizationArgs(**weights),
        input_activations=None if inputs is None else QuantizationArgs(**inputs),
    )
    common = {"config_groups": {"group_0": scheme}, "ignore": spec["ignore"]}
    if spec["method"] == "fp8":
        return [QuantizationModifier(**common)]
    if spec["method"] == "awq":
        from llmcompressor.modifiers.transform.awq import AWQModifier

        return [AWQModifier(), QuantizationModifier(**common)]
    smoothed = []
    if spec["method"] == "w8a8" and spec["is_dense"]:
        from llmcompressor.modifiers.transform.smoothquant import SmoothQuantModifier

        smoothed = [SmoothQuantModifier(smoothing_strength=0.8)]
    return [*smoothed, GPTQModifier(**common)]


def _model_class(spec: dict[str, Any]) -> Any:
    import transformers

    return getattr(transformers, spec["class_name"])


def _version(package: str) -> str | None:
    try:
        return version(package)
    except Exception:
        return None


if __name__ == "__main__":
    try:
        main(json.loads(Path(sys.argv[1]).read_text()))
    except Exception as error:
        tell("failed", kind=type(error).__name__, text=str(error))
        raise
