"""Replicas on a Ray cluster of three nodes on this machine: a lost node, scaling, and what Ray costs a request.

    python bench/ray_scale.py ttft  [--requests 200]   time to first token: a worker that Ray placed, and a local one
    python bench/ray_scale.py loss  [--streams 64]     3 replicas on 3 nodes, one node killed under streams
    python bench/ray_scale.py scale [--picture FILE]   1 -> 3 -> 1 replicas under a load that rises and falls

ttft asks in turns and compares medians; a difference above the spread of either ends with status 1. loss: streams of
the lost node go on elsewhere, so none fails, and a replacement serves within 30 s. scale draws what it saw. All nodes,
workers and clients share this machine: times are upper bounds, counts are what they are.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import uvloop
from ray_nodes import RayNodes, ray_nodes
from replicas import Service, served

_PICTURE = Path(__file__).parents[1] / "docs" / "images" / "ray-scale.svg"
_MODEL = ("--model", "demo", "--dtype", "float32")
_REPLACED_WITHIN_S = 30.0
_LIMIT_S = 180.0
_COLOURS = {"replicas": "#2563eb", "streams": "#f59e0b"}


def main() -> int:
    """Parses the command line; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(dest="kind", required=True)
    kinds.add_parser("ttft").add_argument("--requests", type=int, default=200)
    kinds.add_parser("loss").add_argument("--streams", type=int, default=64)
    kinds.add_parser("scale").add_argument("--picture", type=Path, default=_PICTURE)
    given = parser.parse_args()
    with ray_nodes() as nodes:
        if given.kind == "ttft":
            return _ttft(nodes, given.requests)
        nodes.add()
        nodes.add()
        return _loss(nodes, given.streams) if given.kind == "loss" else _scale(nodes, given.picture)


async def _stream(client: aiohttp.ClientSession, url: str, question: str, max_tokens: int) -> tuple[float, str]:
    """Seconds to the first token, and the code of the error that the stream ended with, or its status."""
    body = {
        "model": "demo",
        "messages": [{"role": "user", "content": question}],
        "temperature": 0,
        "max_tokens": max_tokens,
        "ignore_eos": True,
        "stream": True,
    }
    began_s, first_s, error = time.perf_counter(), 0.0, ""
    async with client.post(f"{url}/v1/chat/completions", json=body) as answer:
        if answer.status != 200:
            return 0.0, f"status {answer.status}"
        async for line in answer.content:
            if b'"content"' in line:
                first_s = first_s or time.perf_counter() - began_s
            if b'"error"' in line:
                error = "worker_died" if b"worker_died" in line else line.decode()
    return first_s, error


async def _states(client: aiohttp.ClientSession, url: str) -> list[str]:
    async with client.get(f"{url}/ready") as answer:
        return [worker["state"] for worker in (await answer.json())["workers"]]


# ---- what Ray costs a request


def _ttft(nodes: RayNodes, count: int) -> int:
    with served(*_MODEL) as local, served(*_MODEL, "--ray", nodes.address) as placed:
        times = uvloop.run(_in_turns({"local": local.url, "ray": placed.url}, count))
    medians = {name: statistics.median(each) for name, each in times.items()}
    quartiles = {name: statistics.quantiles(each, n=4) for name, each in times.items()}
    for name, each in quartiles.items():
        low_ms, median_ms, high_ms = (1000 * second for second in each)
        print(f"{name:6} TTFT median {median_ms:.2f} ms, quartiles {low_ms:.2f} to {high_ms:.2f}")
    spread = min(each[2] - each[0] for each in quartiles.values())
    print(f"difference {1000 * (medians['ray'] - medians['local']):+.2f} ms, spread {1000 * spread:.2f} ms")
    return int(medians["ray"] - medians["local"] > spread)


async def _in_turns(urls: dict[str, str], count: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in urls}
    async with aiohttp.ClientSession() as client:
        for at in range(count + 5):
            for name in sorted(urls, reverse=bool(at % 2)):
                first_s, error = await _stream(client, urls[name], f"What is {at}+1?", 4)
                assert not error, error
                if at >= 5:  # the first ones warm up
                    times[name].append(first_s)
    return times


# ---- a lost node


def _loss(nodes: RayNodes, num_streams: int) -> int:
    with served(*_MODEL, "--ray", nodes.address, "--replicas", "3", "--max-num-seqs", "32") as service:
        spare = nodes.add()
        ends, replaced_s = uvloop.run(_lose(nodes, service, num_streams))
        print(f"{num_streams} streams: {dict(Counter(error or 'whole' for _, error in ends))}")
        print(f"the replacement served after {replaced_s:.1f} s, on the spare node: {len(spare.workers())} worker")
    is_good = not any(error for _, error in ends) and replaced_s <= _REPLACED_WITHIN_S
    return int(not is_good)


async def _lose(nodes: RayNodes, service: Service, num_streams: int) -> tuple[list[tuple[float, str]], float]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as client:
        questions = [f"What is {at}+{at}?" for at in range(num_streams)]
        streams = [asyncio.create_task(_stream(client, service.url, one, 400)) for one in questions]
        await asyncio.sleep(3.0)
        victim = next(node for node in nodes.nodes[1:] if node.workers())
        killed_s = time.perf_counter()
        victim.kill()
        ends = await asyncio.gather(*streams)
        while await _states(client, service.url) != ["ready"] * 3:
            assert time.perf_counter() - killed_s < _LIMIT_S, "no replacement came"
            await asyncio.sleep(0.1)
        return list(ends), time.perf_counter() - killed_s


# ---- a load that rises and falls


@dataclass
class _Seen:
    """What was so at which second."""

    at_s: list[float] = field(default_factory=list)
    replicas: list[int] = field(default_factory=list)
    streams: list[int] = field(default_factory=list)


def _scale(nodes: RayNodes, picture: Path) -> int:
    bounds = ("--min-replicas", "1", "--max-replicas", "3", "--scale-down-after", "15", "--max-num-seqs", "2")
    with served(*_MODEL, "--ray", nodes.address, *bounds) as service:
        seen, errors = uvloop.run(_rise_and_fall(service))
    picture.parent.mkdir(parents=True, exist_ok=True)
    picture.write_text(_drawn(seen))
    print(f"replicas {_steps(seen)}; errors: {errors or 'none'}; {picture}")
    return int(bool(errors) or max(seen.replicas) != 3 or seen.replicas[-1] != 1)


async def _rise_and_fall(service: Service) -> tuple[_Seen, list[str]]:
    seen, errors, wanted = _Seen(), list[str](), 1
    stopped = asyncio.Event()
    async with aiohttp.ClientSession() as client:

        async def ask_on(index: int) -> None:
            while not stopped.is_set():
                if index < wanted:
                    _, error = await _stream(client, service.url, f"What is {index}+{index}?", 150)
                    errors.extend([error] if error else [])
                else:
                    await asyncio.sleep(0.1)

        clients = [asyncio.create_task(ask_on(index)) for index in range(8)]
        began_s = time.perf_counter()
        while (now_s := time.perf_counter() - began_s) < _LIMIT_S:
            states = await _states(client, service.url)
            seen.at_s.append(now_s)
            seen.replicas.append(states.count("ready"))
            seen.streams.append(wanted)
            if now_s < 15:
                wanted = 1
            elif max(seen.replicas) < 3 and now_s < 100:
                wanted = 8
            elif seen.replicas[-1] > 1:
                wanted = 1 if seen.replicas.count(3) > 15 else 8
            elif seen.replicas.count(3) and now_s > 60:
                break
            await asyncio.sleep(1.0)
        stopped.set()
        await asyncio.gather(*clients)
    return seen, errors


def _steps(seen: _Seen) -> str:
    """When their number changed."""
    steps = [f"{seen.replicas[0]}"]
    pairs = zip(seen.at_s[1:], seen.replicas, seen.replicas[1:], strict=False)
    return " ".join(steps + [f"-> {after} at {at_s:.0f} s" for at_s, before, after in pairs if before != after])


def _drawn(seen: _Seen) -> str:
    """Streams and replicas over time, as SVG."""
    width, height, left, top = 760, 320, 56, 64
    right, bottom = width - 24, height - 48
    last_s, most = max(seen.at_s[-1], 1.0), max(*seen.streams, 4)

    def x(at_s: float) -> float:
        return left + (right - left) * at_s / last_s

    def y(count: float) -> float:
        return bottom - (bottom - top) * count / most

    def line(name: str, values: list[int]) -> str:
        points = " ".join(f"{x(at_s):.1f},{y(value):.1f}" for at_s, value in zip(seen.at_s, values, strict=True))
        return f'<polyline points="{points}" fill="none" stroke="{_COLOURS[name]}" stroke-width="2.5"/>'

    grid = [
        f'<line x1="{left}" y1="{y(count):.1f}" x2="{right}" y2="{y(count):.1f}" stroke="#e2e8f0"/>'
        f'<text x="{left - 10}" y="{y(count) + 4:.1f}" text-anchor="end" fill="#64748b">{count}</text>'
        for count in range(0, most + 1, 2)
    ]
    ticks = [
        f'<text x="{x(at_s):.1f}" y="{bottom + 20}" text-anchor="middle" fill="#64748b">{at_s} s</text>'
        for at_s in range(0, int(last_s) + 1, 30)
    ]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            'font-family="system-ui, sans-serif" font-size="13" role="img" aria-label="Replicas follow the load">',
            f'<rect width="{width}" height="{height}" rx="8" fill="#ffffff"/>',
            f'<text x="{left}" y="26" font-size="17" font-weight="600" fill="#0f172a">Replicas follow the load</text>',
            f'<text x="{left}" y="46" font-size="12" fill="{_COLOURS["streams"]}">'
            "streams that clients want at once</text>",
            f'<text x="{left + 220}" y="46" font-size="12" fill="{_COLOURS["replicas"]}">replicas that serve</text>',
            *grid,
            *ticks,
            line("streams", seen.streams),
            line("replicas", seen.replicas),
            "</svg>",
            "",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
