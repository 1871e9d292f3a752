"""Starts the process that quantizes, follows it, and keeps what it made: whole or not at all."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from qserve.derive.output import carry, made_whole
from qserve.derive.quantize import in_environment
from qserve.derive.quantize.calibration import Texts
from qserve.derive.quantize.plan import QuantizePlan
from qserve.derive.quantize.spec import QuantizeSpec
from qserve.errors import QserveError
from qserve.worker import guard

__all__ = ["Made", "Settings", "quantize"]

# As tqdm writes it, a carriage return between two.
_LAYER = re.compile(rb"\((\d{1,5})/(\d{1,5})\): ")
_MEMORY = ("out of memory", "DefaultCPUAllocator", "MemoryError")
_CHUNK = 4096


@dataclass(frozen=True)
class Settings:
    """How it is calibrated, and where it computes."""

    max_length: int
    num_samples: int
    seed: int
    device: str


@dataclass(frozen=True)
class Made:
    """What the process told at its end."""

    seconds: float
    peak_bytes: int
    num_rows: int
    num_tokens: int
    versions: dict[str, str] = field(default_factory=dict)


class Progress:
    """Hears what the process does."""

    def __init__(self, phase: Callable[[str], None], count: Callable[[int, int], None]) -> None:
        self.phase, self.count = phase, count


def quantize(
    plan: QuantizePlan,
    out: Path,
    python: Path,
    texts: Texts | None,
    settings: Settings,
    log: Path,
    progress: Progress,
    write_card: Callable[[Path, Made], None],
) -> Made:
    """Quantizes into `out`, with `python` of the method's environment. All that the process prints goes to `log`.

    Raises QserveError with its last words where it fails.
    """
    with made_whole(out) as folder, tempfile.TemporaryDirectory(prefix="qserve-quantize-") as private:
        rows = Path(private) / "texts.jsonl"
        if texts is not None:
            texts.write(rows)
        spec = QuantizeSpec(
            plan.method.name,
            str(plan.source.folder),
            str(folder),
            plan.class_name,
            plan.ignore,
            plan.group_size,
            None if texts is None else str(rows),
            settings.max_length,
            settings.num_samples,
            settings.seed,
            settings.device,
            plan.is_dense,
        )
        spec.write(Path(private) / "spec.json")
        made = _followed(python, Path(private) / "spec.json", log, progress, settings.device)
        carry(plan.source.folder, folder)
        for file in folder.glob("*.safetensors"):
            file.chmod(0o644)  # the library that writes makes them private
        write_card(folder, made)
    return made


def _followed(python: Path, spec: Path, log: Path, progress: Progress, device: str) -> Made:
    command = [sys.executable, "-I", "-S", str(guard.__file__), str(python), str(in_environment.__file__), str(spec)]
    environ = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    # Other processes want the cores as well: threads that wait for each other must not spin.
    environ |= {"OMP_WAIT_POLICY": "passive", "HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    environ |= {"TOKENIZERS_PARALLELISM": "false", "PYTHONUNBUFFERED": "1"}
    if device == "cpu":
        environ["CUDA_VISIBLE_DEVICES"] = ""
    log.parent.mkdir(parents=True, exist_ok=True)
    last: dict[str, Any] = {}
    with (
        log.open("wb") as words,
        subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environ
        ) as process,
    ):
        assert process.stdout is not None, "a pipe"
        try:
            for line in _lines(process.stdout, words):
                last = _heard(line, progress) or last
        except BaseException:
            process.terminate()
            raise
    if process.returncode or last.get("event") != "done":
        raise QserveError(failure(last, process.returncode, log))
    return Made(last["seconds"], last["peak_bytes"], last["num_rows"], last["num_tokens"], last["versions"])


def _lines(stream: IO[bytes], words: IO[bytes]) -> Iterator[bytes]:
    """Lines of the process, also those that a progress bar rewrites; all of them go to `words`."""
    waiting = b""
    while chunk := os.read(stream.fileno(), _CHUNK):
        words.write(chunk)
        *whole, waiting = re.split(rb"[\r\n]", waiting + chunk)
        yield from whole
    yield waiting


def _heard(line: bytes, progress: Progress) -> dict[str, Any] | None:
    """An event of the process, where it is the last that matters; progress is told on."""
    mark = in_environment.MARK.encode()
    if not line.startswith(mark):
        if match := _LAYER.match(line):
            progress.count(int(match[1]) - 1, int(match[2]))
        return None
    event: dict[str, Any] = json.loads(line[len(mark) :])
    if event["event"] == "phase":
        progress.phase(event["text"])
        return None
    return event if event["event"] in ("done", "failed") else None


def failure(last: dict[str, Any], status: int, log: Path) -> str:
    """One sentence of how the process ended."""
    text = " ".join(str(last.get("text", "")).split())
    if status == -9 or any(word in f"{last.get('kind')} {text}" for word in _MEMORY):
        return f"memory ran out while quantizing; --num-samples and --max-length take less, or a larger machine ({log})"
    reason = f"{last['kind']}: {text[:300]}" if last.get("event") == "failed" else f"it ended with status {status}"
    return f"quantizing failed: {reason}; all of its words: {log}"
