"""Reloads of a LoRA adapter under load: how long each takes, memory before and after, and every answer checked.

    python bench/adapters.py --reloads 100 --json adapters.json           # the demo model on vLLM
    python bench/adapters.py --reloads 100 -- --gateway-processes 2       # flags of qserve up behind --
    python bench/adapters.py --page docs/results/adapters.md adapters.json

Adapters are made that say one word whatever they are asked, so that a wrong answer is seen in its first letter: one is
reloaded between two words all the time, another stays, and clients ask both and the base model without a pause. Right
is an answer of one word alone: the one that was loaded when it was asked, or during a reload either of both; of the
base model none of them. Memory is what all processes of the service hold alone (USS). Exit status 1 for a wrong or lost
answer, or memory that grew by more than 5 % after the first tenth of the reloads.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp
import psutil
from servers import free_port

from qserve.units import format_bytes
from tests.tiny.lora import write_saying

_QSERVE = str(Path(sys.executable).with_name("qserve"))
_WORDS = {"ache": 500, "red": 900, "ke": 300}
_FLAGS = ("--engine", "vllm", "--enforce-eager", "--kv-cache-memory-bytes", "64MiB", "--max-num-seqs", "16")
_MOST_GROWTH, _START_S, _TOKENS = 0.05, 300, 24
_BEGIN, _END = "<!-- rows: written by bench/adapters.py --page -->", "<!-- end of rows -->"


@dataclass
class Result:
    """What a run measured."""

    flags: str
    processor: str
    day: str
    num_answers: int = 0
    num_wrong: int = 0
    wrong: list[str] = field(default_factory=list)
    reload_ms: list[float] = field(default_factory=list)
    memory_bytes: list[int] = field(default_factory=list)

    @property
    def growth(self) -> float:
        """Of memory, from the end of the first tenth to the end."""
        begun = self.memory_bytes[max(1, len(self.memory_bytes) // 10)]
        return self.memory_bytes[-1] / begun - 1

    @property
    def row(self) -> str:
        """As the page has it."""
        begun = self.memory_bytes[max(1, len(self.memory_bytes) // 10)]
        times = f"{median(self.reload_ms):.0f} ms, {max(self.reload_ms):.0f} ms"
        memory = f"{format_bytes(begun)}, {format_bytes(self.memory_bytes[-1])} ({self.growth:+.1%})"
        cells = (f"`{self.flags or '-'}`", len(self.reload_ms), self.num_answers, self.num_wrong, times, memory)
        return "| " + " | ".join(map(str, (*cells, f"{self.processor}, {self.day}"))) + " |"


class Load:
    """Clients that ask without a pause, and what they were told."""

    def __init__(self, http: aiohttp.ClientSession, url: str, result: Result) -> None:
        self.allowed = {"moving": {"ache"}, "still": {"ke"}, "demo": set[str]()}
        self.is_over = False
        self._http, self._url, self._result = http, url, result

    async def ask(self, model: str) -> None:
        """Until the load is over."""
        while not self.is_over:
            before = set(self.allowed[model])
            body = {"model": model, "prompt": "1 + 1", "max_tokens": _TOKENS, "temperature": 0, "ignore_eos": True}
            async with self._http.post(f"{self._url}/v1/completions", json=body) as reply:
                answer = await reply.json()
            said = answer["choices"][0]["text"] if reply.status == 200 else str(answer)
            self._result.num_answers += 1
            if not self._is_right(said, before | self.allowed[model]):
                self._result.num_wrong += 1
                self._result.wrong.append(f"{model}: {said[:100]!r}")

    def _is_right(self, said: str, words: set[str]) -> bool:
        if words:
            return any(said == word * _TOKENS for word in words)
        return not any(3 * word in said for word in _WORDS) and "error" not in said


async def _post(http: aiohttp.ClientSession, url: str, name: str, path: Path) -> float:
    body = {"name": name, "path": str(path), "load_inplace": True}
    began_s = time.perf_counter()
    async with http.post(f"{url}/v1/qserve/adapters", json=body) as reply:
        assert reply.status == 200, await reply.text()
    return 1000 * (time.perf_counter() - began_s)


def _memory(pid: int) -> int:
    """USS of a process and all below it."""
    total = 0
    for one in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True)):
        try:
            total += one.memory_full_info().uss
        except psutil.Error:
            continue
    return total


async def _measured(url: str, pid: int, folder: Path, result: Result, num_reloads: int) -> None:
    paths = {word: write_saying(folder / word, token) for word, token in _WORDS.items()}
    timeout = aiohttp.ClientTimeout(total=120)
    async with aiohttp.ClientSession(timeout=timeout) as http:
        load = Load(http, url, result)
        await _post(http, url, "moving", paths["ache"])
        await _post(http, url, "still", paths["ke"])
        clients = [asyncio.create_task(load.ask(model)) for model in ("moving", "moving", "still", "demo")]
        current, following = "ache", "red"
        for _ in range(num_reloads):
            await asyncio.sleep(0.2)
            load.allowed["moving"].add(following)
            result.reload_ms.append(await _post(http, url, "moving", paths[following]))
            load.allowed["moving"].remove(current)  # who asks from now on gets the new one
            current, following = following, current
            result.memory_bytes.append(await asyncio.to_thread(_memory, pid))
        load.is_over = True
        await asyncio.gather(*clients)


def _run(num_reloads: int, flags: Sequence[str]) -> Result:
    result = Result(" ".join(flags), _processor(), date.today().isoformat())
    with tempfile.TemporaryDirectory() as scratch:
        folder, port = Path(scratch), free_port()
        command = [_QSERVE, "up", "demo", *_FLAGS, "--enable-lora", "--max-loras", "3", "--port", str(port)]
        command += ["--state-dir", str(folder / "state"), "--ready-file", str(folder / "ready"), *flags]
        with (folder / "log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as service:
            try:
                _wait_for(folder / "ready", service, folder / "log")
                asyncio.run(_measured(f"http://127.0.0.1:{port}", service.pid, folder, result, num_reloads))
            finally:
                service.terminate()
    return result


def _wait_for(file: Path, service: subprocess.Popen[bytes], log: Path) -> None:
    until_s = time.monotonic() + _START_S
    while not file.is_file():
        if service.poll() is not None or time.monotonic() > until_s:
            sys.exit(f"the service is not ready:\n{log.read_text()[-2000:]}")
        time.sleep(0.2)


def _processor() -> str:
    found = re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text())
    return f"{found[1] if found else platform.machine()}, {psutil.cpu_count()} cores"


def _write_page(page: Path, files: Sequence[Path]) -> None:
    rows = "\n".join(Result(**json.loads(file.read_text())).row for file in files)
    head = "| flags | reloads | answers | wrong | a reload (median, worst) | memory (after a tenth, at the end) | |"
    table = f"{head}\n|---|---|---|---|---|---|---|\n{rows}"
    text = page.read_text()
    begin, end = text.index(_BEGIN) + len(_BEGIN), text.index(_END)
    page.write_text(f"{text[:begin]}\n{table}\n{text[end:]}")


def _arguments() -> Any:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reloads", type=int, default=100)
    parser.add_argument("--json", type=Path, help="where the result is written")
    parser.add_argument("--page", type=Path, help="the page that gets the rows of result files")
    parser.add_argument("rest", nargs="*", help="flags of qserve up; with --page result files")
    return parser.parse_args()


def main() -> None:
    """Run, or write the page."""
    arguments = _arguments()
    if arguments.page is not None:
        _write_page(arguments.page, list(map(Path, arguments.rest)))
        return
    result = _run(arguments.reloads, arguments.rest)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(asdict(result)))
    print(result.row, *result.wrong[:5], sep="\n")
    sys.exit(result.num_wrong > 0 or result.growth > _MOST_GROWTH)


if __name__ == "__main__":
    main()
