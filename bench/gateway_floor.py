"""What a small request costs before the gateway does anything: the floor under bench/gateway_limit.py.

    python bench/gateway_floor.py        about 40 s; two cores are enough

Three servers in turns, one request after the other from 32 connections, CPU as the kernel charged it: uvicorn with
httptools and uvloop that answers by itself; the same with a relay to the fake worker that checks, counts and keeps
nothing (the gateway's own connections to workers); and the gateway.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import uvicorn
import uvloop
from gateway_cost import FAKE_WORKER, serve
from gateway_limit import NUM_PLACES, Meter, middle, small_requests
from streams import KEY, Endpoint, ended, serving_at, wait_for

KINDS = ("answers alone", "relays alone", "gateway")
Send = Callable[[dict[str, Any]], Awaitable[None]]
_ANSWER = b'{"choices": [{"message": {"role": "assistant", "content": "x"}}]}'


async def _body(receive: Callable[[], Awaitable[dict[str, Any]]]) -> bytes:
    parts, more = [], True
    while more:
        message = await receive()
        parts.append(message["body"])
        more = message["more_body"]
    return b"".join(parts)


async def _answer(send: Send, body: bytes) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def answers(_: dict[str, Any], receive: Callable[[], Awaitable[dict[str, Any]]], send: Send) -> None:
    """An app that answers by itself."""
    await _body(receive)
    await _answer(send, _ANSWER)


def relays(worker: Path, key: str) -> Callable[..., Awaitable[None]]:
    """An app that hands bodies on, and answers back."""
    from qserve.gateway.bodies import Body
    from qserve.gateway.relay.client import WorkerClient
    from qserve.worker.base import UnixAddress

    client = WorkerClient(UnixAddress(worker), key, 5.0)

    async def app(scope: dict[str, Any], receive: Callable[[], Awaitable[dict[str, Any]]], send: Send) -> None:
        body = Body(await _body(receive))
        async with client.request("POST", scope["path"], "floor", body) as reply:
            await _answer(send, await reply.read())

    return app


async def served(app: Callable[..., Awaitable[None]], port_file: Path) -> None:
    """`app` behind uvicorn as it comes, set as the gateway sets it."""
    config = uvicorn.Config(
        app,
        host="127.0.0.1",
        port=0,
        http="httptools",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
    )
    await serving_at(uvicorn.Server(config), port_file)


@contextlib.contextmanager
def running(kind: str, worker: Path, folder: Path) -> Iterator[tuple[Endpoint, psutil.Process]]:
    """One of the three, until the block ends."""
    port_file = folder / f"port-{kind.partition(' ')[0]}"
    command = [sys.executable, __file__, "--serve", str(worker), "--kind", kind, "--port-file", str(port_file)]
    command += ["--key", KEY]
    with ended(command) as process:
        wait_for(port_file.exists, process)
        yield Endpoint(kind, worker, int(port_file.read_text())), psutil.Process(process.pid)


async def measure(seconds: float, rounds: int) -> None:
    """Prints the three, and what the gateway adds to the others."""
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        worker = Path(name) / "worker.sock"
        wait_for(
            worker.exists,
            stack.enter_context(ended([sys.executable, str(FAKE_WORKER), "--socket", str(worker), "--key", KEY])),
        )
        servers = {kind: stack.enter_context(running(kind, worker, Path(name))) for kind in KINDS}
        used: dict[str, list[Any]] = {kind: [] for kind in KINDS}
        for number in range(rounds + 1):
            for kind, (way, process) in servers.items():
                one = await small_requests(way, Meter(process), 32, seconds)
                if number:  # the first warms it up
                    used[kind].append(one)
        for kind in KINDS:
            print(f"  {kind:14} {middle(used[kind])}")
        alone, relayed, whole = (middle(used[kind]).us_each for kind in KINDS)
        parts = f"uvicorn is {100 * alone / whole:.0f} %, a bare relay {100 * relayed / whole:.0f} %"
        print(f"  of the gateway's request {parts}")


def main() -> None:
    """Reads the flags; with --serve the same file is one of the servers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3, help="of each; the median is told")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--kind", choices=KINDS, help=argparse.SUPPRESS)
    parser.add_argument("--key", help=argparse.SUPPRESS)
    parser.add_argument("--port-file", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if not arguments.serve:
        uvloop.run(measure(arguments.seconds, arguments.rounds))
    elif arguments.kind == "gateway":
        logging.disable(logging.INFO)  # as `qserve up` without --log-level info
        serve(arguments.serve, arguments.key, arguments.port_file, False, NUM_PLACES)
    else:
        app = answers if arguments.kind == "answers alone" else relays(arguments.serve, arguments.key)
        uvloop.run(served(app, arguments.port_file))


if __name__ == "__main__":
    main()
