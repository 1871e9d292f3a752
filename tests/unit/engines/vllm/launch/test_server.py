"""The vLLM worker as the supervisor knows it, up to the point where a process would start."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from qserve.engines.vllm.engine import ENGINE
from qserve.engines.vllm.launch.failure import Failure, FailureKind
from qserve.engines.vllm.launch.server import VllmLaunch
from qserve.errors import BrokenCheckpoint, UsageError
from qserve.wire.engine_fields import fields_of
from qserve.worker.base import UnixAddress, WorkerFacts
from tests.unit.engines.vllm.builders import plan_of, spec_of


@pytest.fixture
def launch(parser):
    return VllmLaunch(spec_of(plan_of(max_model_len=2048, max_num_seqs=8)), parser=parser)


def test_a_second_try_sees_the_same_cards(launch):
    launch.environment = {**launch.environment, "CUDA_VISIBLE_DEVICES": "GPU-b"}
    launch._failure = Failure(FailureKind.TOO_MANY_SEQUENCES, "too many", max_num_seqs=4)
    again = launch.retry()
    assert again.launch.environment == launch.environment
    assert again.launch.plan.workload.max_num_seqs == 4


def test_random_weights_of_bitsandbytes_are_refused_before_vllm_looks_for_real_ones(parser):
    spec = replace(spec_of(plan_of(quant="bnb-nf4")), load_format="dummy")
    with pytest.raises(UsageError, match="give --quant bf16 or fp8, or --engine transformers"):
        VllmLaunch(spec, parser=parser)
    VllmLaunch(replace(spec, load_format="auto"), parser=parser)


def test_without_a_failure_there_is_no_second_try(launch):
    assert launch.retry() is None


@pytest.mark.parametrize(("statuses", "ready"), [((0, 0), False), ((200, 503), False), ((200, 200), True)])
async def test_ready_is_who_has_answered_a_request(launch, statuses, ready):
    async def ask(method, path, body):
        return statuses[method == "POST"], b""

    assert await launch.is_ready(ask) is ready


async def test_who_refuses_one_token_never_will_be_ready(launch):
    async def ask(method, path, body):
        return (400, b"at most 1 token") if method == "POST" else (200, b"")

    with pytest.raises(UsageError, match="at most 1 token"):
        await launch.is_ready(ask)


async def test_its_facts_are_what_it_says_of_itself_and_what_it_was_started_with(launch):
    said = {"/openapi.json": {"paths": {}}, "/v1/models": {"data": [{"id": "m"}, {"id": "sql"}]}}

    async def ask(method, path, body):
        return 200, json.dumps(said[path]).encode()

    planned = WorkerFacts("chat", ("m",), UnixAddress(Path("s")), "k", 8, 2048, wire=ENGINE.wire, adapters=("gone",))
    started = {name: getattr(launch.started, name) for name in ("schema_library", "thinks_in_text", "takes_one_system")}
    assert started["schema_library"]
    assert await launch.introduce(ask, planned) == replace(
        planned, request_fields=fields_of({"paths": {}}), adapters=("sql",), **started
    )


FAILS = "{{ messages[0].content.nosuch() }}"
ON_PURPOSE = "{{ raise_exception('never') }}"


@pytest.mark.parametrize(
    ("template", "answers", "is_refused"),
    [
        (FAILS, (400, 400, 400), True),
        (FAILS, (400, 200), False),  # vLLM has it rendered: contents may be lists for it
        (FAILS, (503,), False),
        ("{{ messages[0].content }}", (400, 400, 400), False),
        (ON_PURPOSE, (400, 400, 400), False),
        ("", (), False),
    ],
)
async def test_a_template_that_fails_on_every_conversation_is_refused(parser, tmp_path, template, answers, is_refused):
    """By a fault of its own, as the transformers engine refuses it; it would show at each chat."""
    (tmp_path / "chat_template.jinja").write_text(template)
    launch = VllmLaunch(spec_of(plan_of(), tmp_path), parser=parser)
    left, asked = list(answers), []

    async def ask(method, path, body):
        if path != "/tokenize":
            return 200, b""
        asked.append([message["role"] for message in json.loads(body)["messages"]])
        return left.pop(0), b""

    if is_refused:
        with pytest.raises(BrokenCheckpoint, match=r"fails on every conversation \(line 1 .*--chat-template FILE"):
            await launch.is_ready(ask)
    else:
        assert await launch.is_ready(ask)
    assert asked == [["user"], ["system", "user"], ["user", "assistant", "user"]][: len(answers)]


def test_the_engines_processes_meet_where_a_socket_fits(parser, tmp_path):
    short, deep = Path("/tmp/qserve-abcdefgh"), tmp_path / ("d" * 90)
    for folder, meeting in ((short, short), (deep, Path("/tmp"))):
        started = VllmLaunch(replace(spec_of(plan_of()), socket=folder / "chat.sock"), parser=parser)
        assert started.environment["VLLM_RPC_BASE_PATH"] == str(meeting)
