"""What the gateway costs: the same worker asked directly on its socket and through the gateway, in turns.

    python bench/gateway_cost.py              before a fake worker; about 70 s on two cores
    python bench/gateway_cost.py --rounds 9   more rounds against a noisy machine
    python bench/gateway_cost.py --vllm       before real vLLM at 1, 8 and 32 streams; about 3 minutes

These processes share the machine: this load generator, the worker (bench/fake_worker.py, or vLLM) and the gateway,
which runs as `qserve up` runs it. Every figure is a median over pairs that ran one after the other: compare the ratio,
not the absolute numbers, with another run's. Exit status 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import secrets
import statistics
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import psutil
import uvloop
from streams import KEY, Endpoint, ended, message_of, serving_at, wait_for

TARGET_TTFT_MS = 1.0
TARGET_THROUGHPUT = 0.98
TARGET_RSS_MB = 120
TARGET_VLLM_TTFT_MS = 2.0
TARGET_VLLM_SHARE = 0.97
VLLM_STREAMS = (1, 8, 32)
FAKE_WORKER = Path(__file__).with_name("fake_worker.py")


def request(num_chunks: int, ttft_ms: float, itl_ms: float) -> bytes:
    """A streamed chat request to the fake worker, the whole HTTP message."""
    value = {
        "model": "fake",
        "stream": True,
        "temperature": 0.7,
        "max_tokens": num_chunks,
        "messages": [{"role": "system", "content": "You are brief."}, {"role": "user", "content": "Count! " * 64}],
        "metadata": {"chunks": str(num_chunks), "ttft_ms": str(ttft_ms), "itl_ms": str(itl_ms)},
    }
    return message_of("/v1/chat/completions", value)


async def ttft_pairs(
    ways: tuple[Endpoint, Endpoint], num_pairs: int, message: bytes
) -> tuple[list[float], list[float]]:
    """TTFT in ms of single streams, directly and through the gateway in turns, on connections that stay open."""
    clients = [await way.connect() for way in ways]
    ttft_ms: tuple[list[float], list[float]] = ([], [])
    for index in range(num_pairs + 20):
        for client, times in zip(clients, ttft_ms, strict=True):
            await client.ask(message)
            if index >= 20:  # the first ones warm the pools up
                times.append((client.first_s - client.sent_s) * 1000)
    return ttft_ms


async def tokens_per_s(way: Endpoint, num_streams: int, chunks_per_s: float, duration_s: float) -> float:
    """Events a second of `num_streams` streams that start together, up to the last event of the last stream."""
    clients = [await way.connect() for _ in range(num_streams)]
    num_chunks = int(chunks_per_s * duration_s)
    message = request(num_chunks, ttft_ms=50, itl_ms=1000 / chunks_per_s)
    await asyncio.gather(*(client.ask(message) for client in clients))
    for client in clients:
        assert client.num_events == num_chunks + 1, f"{client.num_events} events instead of {num_chunks} and [DONE]"
    begin_s = min(client.first_s for client in clients)
    end_s = max(client.last_s for client in clients)
    for client in clients:
        client._transport.close()  # type: ignore[union-attr]
    return num_streams * num_chunks / (end_s - begin_s)


@contextlib.contextmanager
def processes(vllm_model: str | None = None) -> Iterator[tuple[tuple[Endpoint, Endpoint], psutil.Process]]:
    """The worker and the gateway, until the block ends."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as running:
        socket = Path(folder) / "worker.sock"
        port_file = Path(folder) / "port"
        if vllm_model is None:
            worker = running.enter_context(
                ended([sys.executable, str(FAKE_WORKER), "--socket", str(socket), "--key", KEY, "--journal"])
            )
            wait_for(socket.exists, worker)
        else:
            worker = running.enter_context(ended(vllm_command(vllm_model, socket), Path(folder) / "vllm.log"))
            wait_for(lambda: answers(socket), worker)
        serving = [sys.executable, __file__, "--serve", str(socket), "--key", KEY, "--port-file", str(port_file)]
        gateway = running.enter_context(ended([*serving, "--vllm"] if vllm_model else serving))
        wait_for(port_file.exists, gateway)
        ways = (Endpoint("direct", socket, 0), Endpoint("gateway", socket, int(port_file.read_text())))
        yield ways, psutil.Process(gateway.pid)


def vllm_command(model: str, socket: Path) -> list[str]:
    """vLLM as `qserve up` starts it, with room for the largest number of streams."""
    places = str(max(VLLM_STREAMS))
    return [
        sys.executable,
        "-m",
        "vllm.entrypoints.launchers.api_server.entry",
        "--model",
        model,
        "--served-model-name",
        "served",
        "--uds",
        str(socket),
        "--api-key",
        KEY,
        "--max-num-seqs",
        places,
        "--max-model-len",
        "1024",
        "--kv-cache-memory-bytes",
        str(256 << 20),
        "--enforce-eager",
        "--disable-uvicorn-access-log",
    ]


def answers(socket: Path) -> bool:
    """Whether something serves on the socket."""
    with contextlib.suppress(httpx.HTTPError), httpx.Client(transport=httpx.HTTPTransport(uds=str(socket))) as client:
        return client.get("http://worker/health", timeout=2).status_code == 200
    return False


def serve(socket: Path, key: str, port_file: Path, is_vllm: bool, num_slots: int = 64) -> None:
    """The gateway's process, with what `qserve up` imports and logs."""
    import qserve.cli.main
    import qserve.supervisor  # noqa: F401
    from qserve.gateway.app import build_gateway
    from qserve.gateway.http.server import build_server, freeze_heap
    from qserve.gateway.settings import GatewaySettings
    from qserve.planner.engine import engine_named
    from qserve.wire.engine_fields import fields_of
    from qserve.worker.base import UnixAddress, WorkerFacts, WorkerState, WorkerStatus

    logging.basicConfig(level=logging.INFO, filename=str(port_file.with_name("log")))
    worker = WorkerStatus(
        WorkerFacts(
            name="chat",
            models=("fake",),
            address=UnixAddress(socket),
            key=key,
            max_num_seqs=num_slots,
            max_model_len=4096,
        ),
        state=WorkerState.READY,
        detail="",
    )
    if is_vllm:
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(socket))) as client:
            document = client.get("http://worker/openapi.json", timeout=30).json()
        worker.facts = replace(
            worker.facts,
            models=("served",),
            wire=engine_named("vllm").wire,
            engine="vllm",
            request_fields=fields_of(document),
        )
    server = build_server(build_gateway(GatewaySettings(keys=(key,)), [worker]), "127.0.0.1", 0)
    freeze_heap()

    uvloop.run(serving_at(server, port_file))


async def added_ttft_ms(ways: tuple[Endpoint, Endpoint], num_pairs: int, message: bytes, target_ms: float) -> float:
    """Prints the medians; the difference between them."""
    direct_ms, gateway_ms = await ttft_pairs(ways, num_pairs, message)
    added_ms = statistics.median(gateway_ms) - statistics.median(direct_ms)
    paired_ms = statistics.median(b - a for a, b in zip(direct_ms, gateway_ms, strict=True))
    print(f"TTFT, 1 stream, {num_pairs} pairs (median ms)")
    print(
        f"  direct {statistics.median(direct_ms):.2f}   gateway {statistics.median(gateway_ms):.2f}   "
        f"added {added_ms:.2f} (median of pairs {paired_ms:.2f})   target ≤ {target_ms}"
    )
    return added_ms


def generation(num_tokens: int) -> bytes:
    """A stream of exactly so many tokens from vLLM, another prompt each time: no prefix is in its cache."""
    prompt = f"{secrets.token_hex(8)} " + "count " * 60
    fields = {"model": "served", "prompt": prompt, "max_tokens": num_tokens, "ignore_eos": True, "stream": True}
    return message_of("/v1/completions", {**fields, "temperature": 0.7})


async def vllm_tokens_per_s(way: Endpoint, num_streams: int, num_tokens: int) -> float:
    """Tokens a second of `num_streams` streams that start together, from the asking to the last byte."""
    clients = [await way.connect() for _ in range(num_streams)]
    await asyncio.gather(*(client.ask(generation(num_tokens)) for client in clients))
    seconds = max(client.last_s for client in clients) - min(client.sent_s for client in clients)
    for client in clients:
        client._transport.close()  # type: ignore[union-attr]
    return num_streams * num_tokens / seconds


async def measure_vllm(ways: tuple[Endpoint, Endpoint], arguments: argparse.Namespace) -> bool:
    """Runs everything against vLLM, prints the table, tells whether the targets hold."""
    for way in ways:
        await vllm_tokens_per_s(way, 8, 16)  # warms both up
    added_ms = await added_ttft_ms(ways, arguments.pairs, generation(2), TARGET_VLLM_TTFT_MS)
    worst = 1.0
    for num_streams in VLLM_STREAMS:
        rates: dict[str, list[float]] = {way.name: [] for way in ways}
        for index in range(arguments.rounds):
            for way in ways if index % 2 == 0 else ways[::-1]:
                rates[way.name].append(await vllm_tokens_per_s(way, num_streams, arguments.tokens))
        direct, gateway = (statistics.median(rates[way.name]) for way in ways)
        share = statistics.median(b / a for a, b in zip(rates["direct"], rates["gateway"], strict=True))
        worst = min(worst, share)
        print(f"Tokens/s, {num_streams:2} streams × {arguments.tokens} tokens, median of {arguments.rounds} rounds")
        print(f"  direct {direct:.0f}   gateway {gateway:.0f}   share {share:.3f}   target ≥ {TARGET_VLLM_SHARE}")
    return added_ms <= TARGET_VLLM_TTFT_MS and worst >= TARGET_VLLM_SHARE


async def measure(ways: tuple[Endpoint, Endpoint], gateway: psutil.Process, arguments: argparse.Namespace) -> bool:
    """Runs everything, prints the table, tells whether the targets hold."""
    added_ms = await added_ttft_ms(ways, arguments.pairs, request(num_chunks=4, ttft_ms=5, itl_ms=2), TARGET_TTFT_MS)

    print(f"Tokens/s, {arguments.streams} streams × {arguments.rate:g} chunks/s, {arguments.seconds:g} s each")
    ratios, cpu_us = [], []
    for index in range(arguments.rounds):
        order = ways if index % 2 == 0 else ways[::-1]
        rates: dict[str, float] = {}
        for way in order:
            before = gateway.cpu_times()
            rates[way.name] = await tokens_per_s(way, arguments.streams, arguments.rate, arguments.seconds)
            if way.port:
                after = gateway.cpu_times()
                used_s = after.user + after.system - before.user - before.system
                cpu_us.append(used_s / (arguments.streams * arguments.rate * arguments.seconds) * 1e6)
        ratios.append(rates["gateway"] / rates["direct"])
        print(
            f"  direct {rates['direct']:8.0f}   gateway {rates['gateway']:8.0f}   ratio {ratios[-1]:.4f}   "
            f"gateway CPU {cpu_us[-1]:.1f} µs a chunk"
        )
    ratio = statistics.median(ratios)
    rss_mb = gateway.memory_info().rss / 1e6
    print(f"  median ratio {ratio:.4f}   target ≥ {TARGET_THROUGHPUT}")
    print(f"Gateway RSS after it: {rss_mb:.0f} MB   target < {TARGET_RSS_MB}")
    return added_ms <= TARGET_TTFT_MS and ratio >= TARGET_THROUGHPUT and rss_mb < TARGET_RSS_MB


def main() -> None:
    """Reads the flags; the same file is the load generator and, with --serve, the gateway's process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--rate", type=float, default=190.0, help="chunks a second and stream")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--vllm", action="store_true", help="real vLLM in place of the fake worker")
    parser.add_argument("--model", help="a checkpoint for --vllm [the demo]")
    parser.add_argument("--tokens", type=int, default=128, help="of each stream, with --vllm")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--key", help=argparse.SUPPRESS)
    parser.add_argument("--port-file", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.serve, arguments.key, arguments.port_file, arguments.vllm)
        return
    if arguments.vllm:
        from qserve.demo import chat_model_path

        with processes(arguments.model or str(chat_model_path())) as (ways, _):
            sys.exit(0 if uvloop.run(measure_vllm(ways, arguments)) else 1)
    with processes() as (ways, gateway):
        held = uvloop.run(measure(ways, gateway, arguments))
    sys.exit(0 if held else 1)


if __name__ == "__main__":
    main()
