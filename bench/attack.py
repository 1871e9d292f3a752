"""One client attacks, another streams: how long is the longest gap in the honest stream?

    python bench/attack.py [--qserve PATH] [--only NAME …] [--output attacks.json]

Starts `qserve up --model demo --reward demo` anew for each attack (PATH: of another checkout, for before and after),
streams from it without a pause in a process of its own, and then attacks as a client of the same service. Each
attack is one function below; its docstring says what it does. Figures are by the clock on the wall: run before and
after in turns on a quiet machine. Prints a table as Markdown.

    rounds       how often it was attacked; each time after as long a calm
    gap calm     the longest time between two events of the honest stream in a calm: the median of the rounds
    gap          the same from the first request of an attack until a second after its last answer
    worst calm   the longest gap of all calms: what the machine does by itself
    worst        the longest gap of all rounds
    broken       honest streams that did not end as they should
    honest       what else is measured beside it; see the attack
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp
import psutil
from streams import KEY, ended, wait_for

_CALM_S = 4.0
_AFTER_S = 1.0
_LIMIT_S = 90.0
# One round of a slow attack is enough; quick ones are repeated, so that what else the machine does evens out.
_MAX_ROUNDS, _ENOUGH_S = 7, 40.0
_CHAT = "/v1/chat/completions"
_JSON = {"content-type": "application/json"}
_HERE = Path(__file__).absolute().parent


@dataclass
class Service:
    """What is attacked."""

    url: str
    process: subprocess.Popen[bytes]
    http: aiohttp.ClientSession

    async def post(self, path: str, body: Any, **fields: Any) -> tuple[int, float]:
        """Status (0: none, -1: not within the limit) and seconds."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        began_s = time.monotonic()
        try:
            async with (
                asyncio.timeout(_LIMIT_S),
                self.http.post(self.url + path, data=data, headers={**_JSON, **fields}) as answer,
            ):
                await answer.read()
                return answer.status, time.monotonic() - began_s
        except TimeoutError:
            return -1, time.monotonic() - began_s
        except (aiohttp.ClientError, OSError):
            return 0, time.monotonic() - began_s

    def worker(self, module: str) -> psutil.Process:
        """The process of a worker."""
        return next(one for one in psutil.Process(self.process.pid).children() if module in one.cmdline())


Attack = Callable[[Service], Awaitable[str]]


def _chat(text: str, **fields: Any) -> dict[str, Any]:
    return {"model": "demo", "messages": [{"role": "user", "content": text}], "max_tokens": 4, **fields}


async def nothing(service: Service) -> str:
    """The control: two seconds without an attack."""
    await asyncio.sleep(2)
    return ""


async def template_arguments(service: Service) -> str:
    """Arguments of the tokenizer in chat_template_kwargs: three times `return_tensors`, and a padding of 20 million."""
    options = ({"return_tensors": "pt"}, {"return_tensors": "np"}, {"padding": "max_length", "max_length": 20_000_000})
    answers = [await service.post(_CHAT, _chat("x", chat_template_kwargs=one)) for one in options]
    statuses = [status for status, _ in answers]
    return f"statuses {statuses}"


async def long_text(service: Service) -> str:
    """1 MB of `a `, which is far from fitting."""
    return _in_words(await service.post("/v1/completions", {"model": "demo", "prompt": "a " * (1 << 19)}))


async def very_long_text(service: Service) -> str:
    """15 MB of `a `."""
    return _in_words(await service.post("/v1/completions", {"model": "demo", "prompt": "a " * (15 << 19)}))


async def many_prompts(service: Service) -> str:
    """20,000 prompts in one request."""
    body = {"model": "demo", "prompt": ["a b c"] * 20_000, "max_tokens": 1}
    return _in_words(await service.post("/v1/completions", body))


async def million_prompts(service: Service) -> str:
    """A million prompts in one request, and the same again."""
    body = {"model": "demo", "prompt": ["a b c"] * 1_000_000, "max_tokens": 1}
    return ", then ".join([_in_words(await service.post("/v1/completions", body)) for _ in range(2)])


async def many_responses(service: Service) -> str:
    """20,000 responses for the reward model; a client asks for the rewards of two meanwhile."""
    responses = [f"it is {n} and no more" for n in range(20_000)]
    body = {"model": "demo-reward", "prompt": "what is 2+2", "responses": responses}
    attack = asyncio.create_task(service.post("/v1/reward", body))
    await asyncio.sleep(0.5)
    status, seconds = await service.post("/v1/reward", {**body, "responses": ["4", "5"]})
    return f"two responses: {status} after {seconds:.2f} s; the 20,000: {_in_words(await attack)}"


async def slow_heads(service: Service) -> str:
    """2,000 connections that never finish a head, at 64 descriptors; ten requests of a client that connects anew."""
    port = service.url.rpartition(":")[2]
    command = [sys.executable, str(_HERE / "slow_heads.py"), port, "2000"]
    url, headers = f"{service.url}/v1/models", {"authorization": f"Bearer {KEY}", "connection": "close"}
    answered: list[float] = []
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as slow:
        await asyncio.sleep(5)
        for _ in range(10):
            with suppress(aiohttp.ClientError, TimeoutError, OSError):
                began_s = time.monotonic()
                async with asyncio.timeout(10), aiohttp.request("GET", url, headers=headers) as one:
                    assert one.status == 200
                    answered.append(time.monotonic() - began_s)
        slow.kill()
    return f"{len(answered)} of 10 answered" + (f", the slowest after {max(answered):.2f} s" if answered else "")


async def unknown_names(service: Service) -> str:
    """Six bodies of 11 MiB of unknown names; a client sends a valid one of 200 kB meanwhile."""
    body = b'{"model": "demo", "prompt": "x", ' + b",".join(b'"k%d": 1' % n for n in range(930_000)) + b"}"
    valid = {"model": "demo", "prompt": [5] * 20, "max_tokens": 1, "metadata": {"padding": "x" * 200_000}}
    _, alone_s = await service.post("/v1/completions", valid)
    attack = [asyncio.create_task(service.post("/v1/completions", body)) for _ in range(6)]
    await asyncio.sleep(0.5)
    status, seconds = await service.post("/v1/completions", valid)
    await asyncio.gather(*attack)
    return f"200 kB: {status} after {seconds:.2f} s (alone {alone_s:.2f} s)"


async def slow_masks(service: Service) -> str:
    """Four answers to a regular expression whose masks take up to 50 ms each."""
    body = _chat("x", structured_outputs={"regex": "(a{1,1000}){1,1000}b"}, n=4) | {"max_tokens": 128}
    status, seconds = await service.post(_CHAT, body)
    return f"{status} after {seconds:.2f} s"


async def many_logprobs(service: Service) -> str:
    """128 answers of 64 tokens, with twenty alternatives for each."""
    body = _chat("x", logprobs=True, top_logprobs=20, n=128, ignore_eos=True) | {"max_tokens": 64}
    status, seconds = await service.post(_CHAT, body)
    return f"{status} after {seconds:.2f} s"


async def stopped_worker(service: Service) -> str:
    """SIGSTOP for the chat worker with requests in flight: until the honest stream is told."""
    service.worker("qserve.engine.transformers").suspend()
    began_s = time.monotonic()
    status, seconds = await service.post("/v1/completions", {"model": "demo", "prompt": "x", "max_tokens": 8})
    return f"told {status} after {seconds:.1f} s, by {time.monotonic() - began_s:.1f} s"


async def hostile_folder(service: Service) -> str:
    """`qserve plan` on three folders: a billion layers, a FIFO for weights, a config nested 100,000 deep."""
    outcomes = []
    for name, make in _FOLDERS.items():
        with tempfile.TemporaryDirectory() as folder:
            make(Path(folder))
            began_s = time.monotonic()
            command = [str(Path(service.process.args[0])), "plan", "--model", folder]  # type: ignore[index]
            process = await asyncio.create_subprocess_exec(
                *command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30)),
            )  # fmt: skip
            try:
                _, stderr = await asyncio.wait_for(process.communicate(), 60)
                how = "a traceback" if b"Traceback" in stderr else f"status {process.returncode}"
            except TimeoutError:
                process.kill()
                how = "never"
            outcomes.append(f"{name}: {how} after {time.monotonic() - began_s:.1f} s")
    return "; ".join(outcomes)


def _config(**fields: Any) -> str:
    dimensions = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2}
    base = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 512, "num_hidden_layers": 2}
    return json.dumps({**base, **dimensions, **fields})


def _billion_layers(folder: Path) -> None:
    (folder / "config.json").write_text(_config(num_hidden_layers=10**9))


def _fifo(folder: Path) -> None:
    (folder / "config.json").write_text(_config())
    os.mkfifo(folder / "model.safetensors")


def _nested(folder: Path) -> None:
    (folder / "config.json").write_text(_config()[:-1] + ', "x": ' + "[" * 100_000 + "]" * 100_000 + "}")


_FOLDERS = {"layers": _billion_layers, "FIFO": _fifo, "nested": _nested}
ATTACKS: dict[str, Attack] = {
    one.__name__: one
    for one in (
        nothing, template_arguments, long_text, very_long_text, many_prompts, million_prompts, many_responses,
        slow_heads, unknown_names, slow_masks, many_logprobs, stopped_worker, hostile_folder,
    )
}  # fmt: skip


@dataclass(frozen=True)
class Result:
    """See the module."""

    attack: str
    num_rounds: int
    gap_calm_s: float
    worst_calm_s: float
    gap_s: float
    worst_gap_s: float
    num_broken: int
    honest: str


def _in_words(answer: tuple[int, float]) -> str:
    status, seconds = answer
    return f"{status if status > 0 else 'no answer'} after {seconds:.2f} s"


@contextmanager
def _service(qserve: Path, folder: Path, num_descriptors: int | None) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    ready, key = folder / "ready.json", folder / "key"
    key.write_text(KEY)
    command = [
        str(qserve), "up", "--model", "demo", "--reward", "demo", "--port", "0", "--no-ui", "--state-dir", str(folder),
        "--ready-file", str(ready), "--api-key", KEY,
    ]  # fmt: skip
    if num_descriptors is not None:
        command = ["prlimit", f"--nofile={num_descriptors}:{num_descriptors}", *command]
    with ended(command, folder / "up.log") as process:
        wait_for(ready.exists, process)
        if num_descriptors is not None:
            process.args = command[2:]
        yield json.loads(ready.read_text())["url"], process


@contextmanager
def _honest_stream(url: str, folder: Path) -> Iterator[Callable[[], list[tuple[float, str]]]]:
    """Streams without a pause in a process of its own; what it noted so far: (monotonic time, what came)."""
    notes = folder / "honest.log"
    with notes.open("wb") as file:
        process = subprocess.Popen([sys.executable, str(_HERE / "attack.py"), "--stream", url, KEY], stdout=file)
    try:
        yield lambda: [(float(at), what) for at, _, what in map(_parted, notes.read_text().splitlines())]
    finally:
        process.kill()
        process.wait()


def _parted(line: str) -> tuple[str, str, str]:
    return line.partition(" ")


async def _stream_for_ever(url: str, key: str) -> None:
    """The honest client. A line for each piece that comes, and for each stream that broke."""
    body = _chat("tell me", stream=True, ignore_eos=True) | {"max_tokens": 400}
    async with aiohttp.ClientSession(headers={"authorization": f"Bearer {key}"}) as http:
        while True:
            what = "broken"
            with suppress(aiohttp.ClientError, OSError):
                async with http.post(f"{url}/v1/chat/completions", json=body) as answer:
                    last = b""
                    async for piece in answer.content.iter_any():
                        last = piece
                        if answer.status == 200:
                            print(time.monotonic(), "piece", flush=True)
                    what = "end" if answer.status == 200 and last.endswith(b"[DONE]\n\n") else "broken"
            if what == "broken":
                print(time.monotonic(), "broken", flush=True)
                await asyncio.sleep(0.2)


async def _measure(name: str, qserve: Path) -> Result:
    os.chdir(tempfile.gettempdir())  # workers are `python -m …`: they must not find this checkout before their own
    num_descriptors = 64 if ATTACKS[name] is slow_heads else None
    with (
        tempfile.TemporaryDirectory(prefix="qserve-attack-") as place,
        _service(qserve, Path(place), num_descriptors) as (url, process),
        _honest_stream(url, Path(place)) as notes,
    ):
        await asyncio.sleep(3)
        calms: list[tuple[float, float]] = []
        attacked: list[tuple[float, float]] = []
        async with aiohttp.ClientSession(
            headers={"authorization": f"Bearer {KEY}"}, timeout=aiohttp.ClientTimeout(total=None)
        ) as http:
            service, first_s = Service(url, process, http), time.monotonic()
            while len(attacked) < _rounds(name) and time.monotonic() - first_s < _ENOUGH_S:
                calm_s = time.monotonic()
                await asyncio.sleep(_CALM_S)
                began_s = time.monotonic()
                honest = await ATTACKS[name](service)
                await asyncio.sleep(_AFTER_S)
                calms.append((calm_s, began_s))
                attacked.append((began_s, time.monotonic()))
        seen = notes()
        with suppress(psutil.Error):  # or it can't drain
            for child in psutil.Process(process.pid).children(recursive=True):
                child.send_signal(signal.SIGCONT)
    gaps = [_gap(seen, *window) for window in attacked]
    num_broken = sum(what == "broken" for at, what in seen if at >= attacked[0][0])
    calm_gaps = [_gap(seen, *window) for window in calms]
    figures = (median(calm_gaps), max(calm_gaps), median(gaps), max(gaps))
    return Result(name, len(attacked), *(round(one, 3) for one in figures), num_broken, honest)


def _rounds(name: str) -> int:
    return 1 if ATTACKS[name] in (slow_heads, stopped_worker, hostile_folder) else _MAX_ROUNDS


def _gap(seen: list[tuple[float, str]], since_s: float, until_s: float) -> float:
    """The longest time without a piece."""
    pieces = [at for at, what in seen if what == "piece" and since_s <= at <= until_s]
    marks = [since_s, *pieces, until_s]
    return max(after - before for before, after in pairwise(marks))


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--qserve", type=lambda text: Path(text).absolute(), default=Path(sys.executable).parent / "qserve"
    )
    parser.add_argument("--only", nargs="+", choices=list(ATTACKS), default=list(ATTACKS))
    parser.add_argument("--output", type=lambda text: Path(text).absolute())
    parser.add_argument("--stream", nargs=2, metavar=("URL", "KEY"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.stream:
        asyncio.run(_stream_for_ever(*args.stream))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # or the service would outlive `timeout`
    results = []
    print(
        "| attack | rounds | gap calm s | worst calm s | gap s | worst s | broken | honest |\n" + "|---" * 8 + "|",
        flush=True,
    )
    for name in args.only:
        one = asyncio.run(_measure(name, args.qserve))
        results.append(one)
        words = re.sub("_", " ", one.attack)
        gaps = f"{one.gap_calm_s:.3f} | {one.worst_calm_s:.3f} | {one.gap_s:.3f} | {one.worst_gap_s:.3f}"
        print(f"| {words} | {one.num_rounds} | {gaps} | {one.num_broken} | {one.honest} |", flush=True)
    if args.output is not None:
        args.output.write_text(json.dumps([asdict(one) for one in results]))


if __name__ == "__main__":
    main()
