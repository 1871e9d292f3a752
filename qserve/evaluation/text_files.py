"""Perplexity of a text file, as a task of lm-eval.

    .txt, .md    one document
    .jsonl       one a line: an object with `text`, or a string
    .json        a list of those

Each document is scored in rolling windows of the server's length, after an end-of-text token, and told as word and byte
perplexity and bits per byte, as lm-eval does it for wikitext.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from qserve.encodings import read_text
from qserve.errors import UsageError

__all__ = ["is_text_file", "read_documents", "text_task"]

_PLAIN, _LINES, _LIST = (".txt", ".md"), (".jsonl",), (".json",)
_METRICS = (
    ("word_perplexity", "weighted_perplexity"),
    ("byte_perplexity", "weighted_perplexity"),
    ("bits_per_byte", "bits_per_byte"),
)


def is_text_file(name: str) -> bool:
    """Whether an entry of --tasks names a text and no task."""
    return Path(name).suffix.lower() in _PLAIN + _LINES + _LIST


def text_task(name: str) -> dict[str, Any]:
    """lm-eval's config of the task; its name is `perplexity_` and the file's. Raises UsageError as `read_documents`."""
    documents = read_documents(Path(name).expanduser())

    def dataset(**_: Any) -> dict[str, Any]:
        import datasets

        return {"test": datasets.Dataset.from_list([{"text": text} for text in documents])}

    return {
        "task": f"perplexity_{re.sub(r'[^0-9A-Za-z_.-]+', '_', Path(name).stem)}",
        "custom_dataset": dataset,
        "output_type": "loglikelihood_rolling",
        "test_split": "test",
        "num_fewshot": 0,
        "doc_to_text": "",
        "doc_to_target": "{{text}}",
        "metric_list": [{"metric": metric, "aggregation": how, "higher_is_better": False} for metric, how in _METRICS],
        "metadata": {"version": 1.0},
    }


def read_documents(path: Path) -> list[str]:
    """The documents of a file, none of them blank. Raises UsageError for a file that holds none."""
    text = read_text(path, "a text, or JSON with texts,", f"--tasks {path}")
    kind = path.suffix.lower()
    documents = [text] if kind in _PLAIN else [_text_of(entry, where, path) for where, entry in _entries(text, path)]
    kept = [document for document in documents if document.strip()]
    if not kept:
        raise UsageError(f"--tasks {path} has no text")
    return kept


def _entries(text: str, path: Path) -> list[tuple[str, Any]]:
    """What a JSON file lists, each with its place."""
    if path.suffix.lower() in _LINES:
        lines = [(f"line {number}", line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
        return [(where, _json(line, where, path)) for where, line in lines]
    document = _json(text, "", path)
    if not isinstance(document, list):
        raise UsageError(f"--tasks {path} must be a list of texts, or of objects with `text`")
    return [(f"entry {number}", entry) for number, entry in enumerate(document, 1)]


def _json(text: str, where: str, path: Path) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise UsageError(f"--tasks {', '.join(filter(None, (str(path), where)))} is not valid JSON: {error}") from None


def _text_of(entry: Any, where: str, path: Path) -> str:
    text = entry.get("text") if isinstance(entry, dict) else entry
    if not isinstance(text, str):
        found = ", ".join(map(str, list(entry)[:8])) if isinstance(entry, dict) else type(entry).__name__
        raise UsageError(
            f"--tasks {path}, {where}: it must be a string, or an object with a string `text`; found: {found}"
        )
    return text
