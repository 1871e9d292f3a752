"""Clients without a key that hold connections open take the service from nobody."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import subprocess
import sys
from pathlib import Path

import aiohttp
import pytest

from qserve.gateway.http import bounded_http
from qserve.gateway.http.connections import limits_of_process, raise_descriptor_limit

_HEAD = b"GET /health HTTP/1.1\r\nhost: localhost\r\nx-slow: "
_KEY = "sk-honest"
_WORKER_KEY = "wk-internal-93ab"
_NUM_SLOW = 2000
_SLOW_HEADS = Path(__file__).parents[3] / "bench" / "slow_heads.py"


@pytest.fixture
def small_gateway(_fake_worker):
    """The port of a gateway with 64 descriptors."""
    if _fake_worker.process is None or _fake_worker.process.poll() is not None:
        _fake_worker.start()
    script = Path(__file__).with_name("gateway_process.py")
    command = [sys.executable, str(script), str(_fake_worker.socket), _WORKER_KEY, _KEY, "64"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@contextlib.contextmanager
def _slow_clients(port):
    """2,000 of them, in a process of their own, for as long as the block."""
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < _NUM_SLOW + 100:
        pytest.skip(f"{_NUM_SLOW} clients need as many descriptors")
    command = [sys.executable, str(_SLOW_HEADS), str(port), str(_NUM_SLOW)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()  # all have come once
        yield process
        process.kill()


async def test_2000_slow_heads_deny_honest_clients_nothing_with_64_descriptors(small_gateway, request_chat):
    url = f"http://127.0.0.1:{small_gateway}/v1/chat/completions"
    with _slow_clients(small_gateway):
        async with aiohttp.ClientSession(headers={"authorization": f"Bearer {_KEY}"}) as http:
            for _ in range(10):  # one after the other over one connection, and each over a new one
                for headers in ({}, {"connection": "close"}):
                    async with http.post(url, json=request_chat(chunks=3, stream=False), headers=headers) as answer:
                        assert answer.status == 200
            answers = [http.post(url, json=request_chat(chunks=20, itl_ms=20)) for _ in range(4)]
            for answer in await asyncio.gather(*answers):
                assert answer.status == 200 and (await answer.read()).endswith(b"[DONE]\n\n")


@pytest.mark.parametrize("sent", [b"", _HEAD, b"GET"])
async def test_a_head_that_does_not_come_ends_the_connection(running, monkeypatch, sent):
    monkeypatch.setattr(bounded_http, "HEAD_TIMEOUT_S", 0.2)
    async with running() as stack:
        reader, writer = await asyncio.open_connection("127.0.0.1", stack.port)
        writer.write(sent)
        answer = await asyncio.wait_for(reader.read(), 60)
        assert answer.startswith(b"HTTP/1.1 408 ") and b"head_timeout" in answer if sent else answer == b""
        writer.close()


async def test_a_later_head_has_the_same_time(running, monkeypatch):
    monkeypatch.setattr(bounded_http, "HEAD_TIMEOUT_S", 0.3)
    async with running() as stack:
        reader, writer = await asyncio.open_connection("127.0.0.1", stack.port)
        writer.write(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
        assert b" 200 " in head
        await reader.readexactly(int(head.lower().partition(b"content-length:")[2].split()[0]))
        await asyncio.sleep(0.6)  # between requests the connection may rest
        for byte in _HEAD:
            writer.write(bytes([byte]))
            await asyncio.sleep(0.01)
        assert (await asyncio.wait_for(reader.read(), 60)).startswith(b"HTTP/1.1 408 ")
        writer.close()


async def test_the_rest_of_a_refused_body_does_not_hold_the_connection(running, monkeypatch):
    monkeypatch.setattr(bounded_http, "HEAD_TIMEOUT_S", 0.2)
    async with running() as stack:
        reader, writer = await asyncio.open_connection("127.0.0.1", stack.port)
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000\r\n\r\n{")
        answer = await asyncio.wait_for(reader.read(), 60)
        assert answer.startswith(b"HTTP/1.1 401 ")
        writer.close()


async def test_thousands_of_requests_in_one_piece_are_all_answered(running):
    """Their heads are short; only all together they are longer than the bound."""
    num_requests = 8000
    request = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"
    async with running() as stack:
        reader, writer = await asyncio.open_connection("127.0.0.1", stack.port)
        writer.write(request * num_requests)
        for _ in range(num_requests):
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
            assert head.startswith(b"HTTP/1.1 200 ")
            await reader.readexactly(int(head.lower().partition(b"content-length:")[2].split()[0]))
        writer.close()


async def test_guessing_keys_is_slow_and_honest_clients_of_the_address_go_on(running):
    async with running() as stack, aiohttp.ClientSession() as guesser:
        async with stack.http.get(stack.url + "/v1/models") as answer:
            assert answer.status == 200
        guessing = [asyncio.create_task(_guess(guesser, stack.url)) for _ in range(4)]
        await asyncio.sleep(3)
        began = asyncio.get_running_loop().time()
        async with stack.http.get(stack.url + "/v1/models") as answer:
            assert answer.status == 200
        assert asyncio.get_running_loop().time() - began < 0.9  # its connection is trusted
        async with (
            aiohttp.ClientSession(headers=stack.http.headers) as newcomer,
            newcomer.get(stack.url + "/v1/models") as answer,
        ):
            assert answer.status == 200  # later, but no outage
        for task in guessing:
            task.cancel()
        counts = await asyncio.gather(*guessing, return_exceptions=True)
        assert len(counts) == 4 and _num_guesses[0] < 60


_num_guesses = [0]


async def _guess(http, url):
    while True:
        async with http.get(url + "/v1/models", headers={"authorization": "Bearer wrong"}) as answer:
            assert answer.status == 401
            _num_guesses[0] += 1


def test_the_limit_of_descriptors_is_raised():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, soft), hard))
        few = limits_of_process().num_open
        raise_descriptor_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == min(hard, 65_536)
        assert limits_of_process().num_open > few
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
