"""What the worker says arrives byte for byte, in order, for everybody, and connections are used again."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack

import pytest
from prometheus_client.parser import text_string_to_metric_families

CHAT = "/v1/chat/completions"


@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
@pytest.mark.parametrize("stream", [True, False])
async def test_bytes_are_those_of_the_worker(running, request_chat, path, stream):
    body = request_chat(stream=stream, chunks=50, itl_ms=1)
    if path == "/v1/completions":
        body["prompt"] = "Count!"
        del body["messages"]
    async with running() as stack:
        async with stack.direct.post(f"http://worker{path}", json=body) as response:
            direct = (response.status, response.content_type, await response.read())
        async with stack.http.post(stack.url + path, json=body) as response:
            assert (response.status, response.content_type, await response.read()) == direct


async def test_the_worker_gets_the_very_bytes_the_client_sent(running):
    body = b'{ "model":"fake",\n "messages": [{"content":"h\\u00e9","role":"user"}], "temperature" : 0.50 }'
    async with running() as stack:
        headers = {"content-type": "application/json"}
        async with stack.http.post(stack.url + CHAT, data=body, headers=headers) as response:
            assert response.status == 200
        assert (await stack.debug())["last_headers"]["content-length"] == str(len(body))


async def test_many_streams_at_once_are_each_whole_and_in_order(running, request_chat, parse_events):
    async def one(stack, index):
        async with stack.http.post(stack.url + CHAT, json=request_chat(chunks=40 + index, itl_ms=2)) as response:
            return parse_events(await response.read())

    async with running() as stack:
        answers = await asyncio.gather(*(one(stack, index) for index in range(32)))
    for index, answer in enumerate(answers):
        words = [event["choices"][0]["delta"]["content"] for event in answer[:-1]]
        assert words == [f" w{number}" for number in range(40 + index)]
        assert answer[-1] == "[DONE]"


async def test_events_come_one_by_one_not_at_the_end(running, request_chat):
    async with running() as stack:
        response = await stack.http.post(stack.url + CHAT, json=request_chat(chunks=3, itl_ms=10_000))
        assert b" w0" in await response.content.readuntil(b"\n\n")  # the second one is ten seconds away
        response.close()


async def test_connections_are_used_again_on_both_sides(running, request_chat):
    async with running() as stack:
        before = (await stack.debug())["connections_ever"]
        for _ in range(5):
            async with stack.http.post(stack.url + CHAT, json=request_chat(chunks=2)) as response:
                await response.read()
        after = (await stack.debug())["connections_ever"]
        assert after - before == 2  # one for five requests, one for the question itself


async def test_pipelined_requests_are_answered_in_order(running, request_chat):
    def message(num_chunks, connection):
        body = json.dumps(request_chat(chunks=num_chunks, itl_ms=5)).encode()
        return (
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nconnection: %b\r\n"
            b"authorization: Bearer sk-client-4f6c\r\nx-request-id: r%d\r\ncontent-length: %d\r\n\r\n%b"
        ) % (connection, num_chunks, len(body), body)

    async with running() as stack:
        reader, writer = await asyncio.open_connection("127.0.0.1", stack.port)
        writer.write(message(7, b"keep-alive") + message(3, b"close"))
        answer = await reader.read(-1)
        writer.close()
        await writer.wait_closed()
    assert answer.index(b"x-request-id: r7") < answer.index(b" w6") < answer.index(b"[DONE]")
    assert answer.index(b"[DONE]") < answer.index(b"x-request-id: r3")
    assert answer.count(b"[DONE]") == 2 and answer.count(b" w2") == 2 and answer.count(b" w3") == 1


async def test_a_client_that_does_not_read_holds_nobody_else_back(running, request_chat, parse_events):
    async with running(max_num_seqs=8) as stack, AsyncExitStack() as slow:
        for _ in range(4):  # floods of ~200 MB that nobody reads
            response = await slow.enter_async_context(
                stack.http.post(stack.url + CHAT, json=request_chat(chunks=1_000_000))
            )
            assert response.status == 200
        async with stack.http.post(stack.url + CHAT, json=request_chat(chunks=20, itl_ms=2)) as response:
            assert len(parse_events(await response.read())) == 21
        await stack.until(lambda seen: seen["paused"] == 4)  # the floods stay where they come from …
        written = -1
        while written != (seen := await stack.debug())["tokens"]:
            written = seen["tokens"]
            await asyncio.sleep(0.2)
        assert seen["running"] == 4  # … for good: a few buffers are full, nothing grows, nothing was swallowed whole


async def test_other_routes_reach_the_worker(running):
    async with running() as stack:
        async with stack.http.post(stack.url + "/tokenize", json={"prompt": "abc"}) as response:
            assert (await response.json())["tokens"] == [97, 98, 99]
        async with stack.http.post(stack.url + "/detokenize", json={"tokens": [97, 98]}) as response:
            assert (await response.json())["prompt"] == "ab"
        async with stack.http.get(stack.url + "/v1/qserve/memory") as response:
            (entry,) = (await response.json())["data"]
            assert entry["worker"] == "chat" and entry["memory"]["terms"][0]["bytes"] == 1024


async def test_metrics_are_one_valid_exposition_with_the_workers_own(running, request_chat):
    async with running() as stack:
        asked = request_chat(chunks=10, stream_options={"include_usage": True})
        for body in (asked, request_chat(stream=False, chunks=4)):
            async with stack.http.post(stack.url + CHAT, json=body) as response:
                await response.read()
        async with stack.http.get(stack.url + "/metrics") as response:
            families = {one.name: one for one in text_string_to_metric_families(await response.text())}
    samples = {
        (sample.name, *sample.labels.values()): sample.value for one in families.values() for sample in one.samples
    }
    assert samples["qserve_gateway_requests_total", "fake", CHAT, "200"] == 2
    assert samples["qserve_gateway_generation_tokens_total", "fake"] == 14
    assert samples["qserve_gateway_prompt_tokens_total", "fake"] == 10
    assert samples["qserve_gateway_stream_events_total", "fake"] == 12  # ten tokens, usage, [DONE]
    assert samples["qserve_gateway_time_to_first_token_seconds_count", "fake"] == 1
    assert samples["qserve_gateway_inter_token_latency_seconds_count", "fake"] <= 11
    assert samples["qserve_gateway_e2e_request_latency_seconds_count", "fake"] == 2
    assert samples["qserve_gateway_worker_ready", "chat"] == 1
    assert samples["fake_tokens_total", "chat", "generated"] == 7
    assert samples["process_resident_memory_bytes", "chat"] == 1e6
