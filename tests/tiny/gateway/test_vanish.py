"""A client that leaves takes its generation with it, whenever it leaves; a worker that dies leaves nobody hanging."""

from __future__ import annotations

import asyncio
import json

import pytest

from qserve.worker.base import WorkerState

CHAT = "/v1/chat/completions"


async def _open(stack, body, length=None, padding=0):
    """A raw connection that has sent this request, with so many spaces behind its JSON."""
    data = json.dumps(body).encode() + b" " * padding
    reader, writer = await asyncio.open_connection("127.0.0.1", stack.port)
    head = (
        f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        f"authorization: Bearer sk-client-4f6c\r\ncontent-length: {length or len(data)}\r\n\r\n"
    )
    writer.write(head.encode())
    if padding:
        await asyncio.sleep(0.05)  # the gateway waits for the body by then, and takes it in one piece
    writer.write(data)
    await writer.drain()
    return reader, writer


async def _until(read, value):
    async with asyncio.timeout(60):
        while await read() != value:
            await asyncio.sleep(0.01)


PHASES = {"waiting": {"fault": "hang"}, "streaming": {"chunks": 1_000_000, "itl_ms": 5}}


@pytest.mark.parametrize("phase", PHASES)
async def test_leaving_ends_the_generation(running, request_chat, phase):
    async with running() as stack:
        reader, writer = await _open(stack, request_chat(**PHASES[phase]))
        await stack.until(lambda seen: seen["running"] == 1)
        if phase == "streaming":
            await reader.readuntil(b" w3")
        writer.close()
        async with asyncio.timeout(60):
            await stack.until(lambda seen: seen["running"] == 0)
        await _until(lambda: stack.gauge('qserve_gateway_requests_running{worker="chat"}'), 0)
        assert await stack.gauge(f'qserve_gateway_disconnects_total{{phase="{phase}"}}') == 1


async def test_leaving_after_a_body_that_paused_reading_is_seen(running, request_chat):
    """uvicorn reads no further above 64 KiB until the body is taken, and what is not read can't be seen to end."""
    async with running() as stack:
        _, writer = await _open(stack, request_chat(fault="hang"), padding=120_000)
        await stack.until(lambda seen: seen["running"] == 1)
        writer.close()
        async with asyncio.timeout(60):
            await stack.until(lambda seen: seen["running"] == 0)


async def test_leaving_the_queue_makes_room_in_it(running, request_chat):
    waiting = 'qserve_gateway_requests_waiting{worker="chat"}'
    async with running(max_num_seqs=1) as stack:
        _, first = await _open(stack, request_chat(fault="hang"))
        await stack.until(lambda seen: seen["running"] == 1)
        _, second = await _open(stack, request_chat(fault="hang"))
        await _until(lambda: stack.gauge(waiting), 1)
        second.close()
        await _until(lambda: stack.gauge(waiting), 0)
        assert await stack.gauge('qserve_gateway_disconnects_total{phase="queued"}') == 1
        first.close()
        await stack.until(lambda seen: seen["running"] == 0)


async def test_leaving_within_the_body_never_reaches_the_worker(running, request_chat):
    async with running() as stack:
        asked = (await stack.debug())["requests"]
        _, writer = await _open(stack, request_chat(), length=100_000)
        writer.close()
        await _until(lambda: stack.gauge('qserve_gateway_disconnects_total{phase="reading"}'), 1)
        assert (await stack.debug())["requests"] == asked


async def test_200_clients_that_vanish_leave_nothing_running(running, request_chat):
    async with running() as stack:
        body = request_chat(chunks=1_000_000, itl_ms=50)
        clients = await asyncio.gather(*(_open(stack, body) for _ in range(200)))
        await stack.until(lambda seen: seen["running"] == 200)
        for _, writer in clients:
            writer.transport.abort()
        await stack.until(lambda seen: seen["running"] == 0)
        await _until(lambda: stack.gauge('qserve_gateway_sequences_running{worker="chat"}'), 0)


async def test_kill_9_under_16_streams(running, request_chat, parse_events):
    """Everyone has an error in the API's shape, and does not hang; the next request after the restart succeeds."""

    async def one(stack, started):
        async with stack.http.post(stack.url + CHAT, json=request_chat(chunks=1_000_000, itl_ms=10)) as response:
            body = await response.content.readuntil(b"\n\n")
            started.release()
            return parse_events(body + await response.read())

    async with running(resume_wait_s=1.0) as stack:
        started = asyncio.Semaphore(0)
        streams = [asyncio.create_task(one(stack, started)) for _ in range(16)]
        for _ in streams:
            await started.acquire()
        async with asyncio.timeout(60):
            stack.worker.kill()
            answers = await asyncio.gather(*streams)
        for answer in answers:
            assert answer[-1]["error"]["code"] == "worker_died"
            words = [event["choices"][0]["delta"]["content"] for event in answer[:-1]]
            assert words == [f" w{number}" for number in range(len(words))]
        async with stack.http.post(stack.url + CHAT, json=request_chat()) as response:
            assert response.status == 503
            assert (await response.json())["error"]["code"] == "worker_unreachable"
            assert int(response.headers["retry-after"]) >= 1
        stack.worker.start()
        async with stack.http.post(stack.url + CHAT, json=request_chat(chunks=3)) as response:
            assert len(parse_events(await response.read())) == 4


@pytest.mark.parametrize("stream", [True, False])
async def test_what_had_not_begun_is_asked_again_when_the_worker_is_back(running, request_chat, stream):
    async with running() as stack:
        body = request_chat(stream=stream, ttft_ms=1500, chunks=2)
        asking = asyncio.create_task(stack.http.post(stack.url + CHAT, json=body))
        await stack.until(lambda seen: seen["running"] == 1)
        async with asyncio.timeout(60):
            stack.status.state = WorkerState.RESTARTING
            stack.worker.kill()
            stack.worker.start()
            stack.status.num_restarts += 1
            stack.status.state = WorkerState.READY
            response = await asking
            assert response.status == 200 and "w1" in await response.text()


@pytest.mark.parametrize("stream", [True, False])
async def test_death_before_the_first_byte_is_a_502(running, request_chat, stream):
    async with running(resume_wait_s=0) as stack:
        body = request_chat(stream=stream, ttft_ms=60_000)
        asking = asyncio.create_task(stack.http.post(stack.url + CHAT, json=body))
        await stack.until(lambda seen: seen["running"] == 1)
        async with asyncio.timeout(60):
            stack.worker.kill()
            response = await asking
        assert response.status == 502
        assert (await response.json())["error"]["code"] == "worker_died"


async def test_an_event_cut_in_half_never_reaches_the_client(running, request_chat, parse_events):
    async with running() as stack:
        response = await stack.http.post(stack.url + CHAT, json=request_chat(chunks=8, itl_ms=1, fault="half"))
        answer = parse_events(await response.read())
    assert [event["choices"][0]["delta"]["content"] for event in answer[:-1]] == [" w0", " w1", " w2", " w3"]
    assert answer[-1]["error"]["code"] == "worker_died"


@pytest.mark.parametrize("state", [WorkerState.RESTARTING, WorkerState.FAILED])
@pytest.mark.parametrize("started", [True, False])
async def test_a_worker_that_hangs_is_given_up_when_the_supervisor_says_so(
    running, request_chat, parse_events, state, started
):
    """Its socket stays open and silent: only the supervisor knows."""
    async with running(resume_wait_s=0) as stack:
        body = request_chat(chunks=2, itl_ms=60_000) if started else request_chat(fault="hang")
        asking = asyncio.create_task(stack.http.post(stack.url + CHAT, json=body))
        await stack.until(lambda seen: seen["running"] == 1)
        response = await asking if started else None
        async with asyncio.timeout(60):
            stack.status.detail = "no heartbeat for 30 s"
            stack.status.state = state
            response = response or await asking
            answer = await response.read()
        assert response.status == (200 if started else 502)
        error = parse_events(answer)[-1]["error"] if started else json.loads(answer)["error"]
        assert error["code"] == "worker_died" and "no heartbeat" in error["message"]
        await stack.until(lambda seen: seen["running"] == 0)


async def test_draining_finishes_what_runs_and_turns_the_rest_away(running, request_chat, parse_events):
    async with running(max_num_seqs=1) as stack:
        first = await stack.http.post(stack.url + CHAT, json=request_chat(chunks=100, itl_ms=15))
        second = asyncio.create_task(stack.http.post(stack.url + CHAT, json=request_chat()))
        await _until(lambda: stack.gauge('qserve_gateway_requests_waiting{worker="chat"}'), 1)
        stack.status.state, stack.status.detail = WorkerState.DRAINING, "qserve is shutting down"
        for response in (await second, await stack.http.post(stack.url + CHAT, json=request_chat())):
            assert response.status == 503
            assert (await response.json())["error"]["code"] == "draining"
            assert int(response.headers["retry-after"]) >= 1
        assert (await stack.debug())["running"] == 1  # the queue was told at once, not when its turn came
        assert parse_events(await first.read())[-1] == "[DONE]"


async def test_a_client_that_stops_reading_gives_its_place_back(running, request_chat):
    async with running(max_num_seqs=1, client_stall_timeout_s=0.4) as stack:
        reader, writer = await _open(stack, request_chat(chunks=1_000_000))
        await reader.readuntil(b" w3")  # and then nothing more
        await stack.until(lambda seen: seen["running"] == 1)
        await stack.until(lambda seen: seen["running"] == 0)
        assert await stack.gauge('qserve_gateway_disconnects_total{phase="streaming"}') == 1
        writer.transport.abort()


async def test_a_slow_stream_to_a_reading_client_is_no_stall(running, request_chat, parse_events):
    async with running(client_stall_timeout_s=0.1) as stack:
        response = await stack.http.post(stack.url + CHAT, json=request_chat(chunks=3, itl_ms=300))
        assert parse_events(await response.read())[-1] == "[DONE]"


async def test_the_client_and_the_worker_going_at_once_is_no_fault(running, request_chat, caplog):
    async with running() as stack:
        _, writer = await _open(stack, request_chat(chunks=1_000_000, itl_ms=5))
        await stack.until(lambda seen: seen["running"] == 1)
        stack.status.state = WorkerState.FAILED
        writer.transport.abort()
        await stack.until(lambda seen: seen["running"] == 0)
    assert not [record for record in caplog.records if record.exc_info]


async def test_whoever_is_admitted_to_a_worker_that_has_just_left_is_told(running, request_chat):
    """The states are looked at now and then; a request looks again when its turn comes."""
    async with running(max_num_seqs=1, watch_interval_s=3600) as stack:
        first = await stack.http.post(stack.url + CHAT, json=request_chat(chunks=30, itl_ms=10))
        second = asyncio.create_task(stack.http.post(stack.url + CHAT, json=request_chat()))
        await _until(lambda: stack.gauge('qserve_gateway_requests_waiting{worker="chat"}'), 1)
        stack.status.state = WorkerState.RESTARTING
        await first.read()
        assert (await second).status == 503
