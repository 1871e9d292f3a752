"""4 bit while loading, on real vLLM: the demo model by bitsandbytes' plugin, and what is said without it."""

from __future__ import annotations

import json

from qserve.engine.vllm.diagnose import failure_of
from qserve.engine.vllm.failure import FailureKind
from qserve.engine.vllm.log import figures_of
from tests.tiny.vllm.engines import engine, plan_of


def test_nf4_answers_and_holds_the_planned_cache(parser):
    plan = plan_of(quant="4bit")
    assert (plan.quant.scheme, plan.quant.in_flight) == ("bnb-nf4", True)
    with engine(parser, plan) as running:
        assert running.process.poll() is None, "\n".join(running.log[-30:])
        messages = [{"role": "user", "content": "What is 12+30?"}]
        body = {"model": "demo", "messages": messages, "temperature": 0, "max_tokens": 16}
        status, answer = running.ask("/v1/chat/completions", body)
        assert status == 200, answer
        assert json.loads(answer)["choices"][0]["message"]["content"]
        assert figures_of(running.log).kv_cache_tokens == plan.kv_cache_tokens


def test_without_the_plugin_the_command_that_installs_it_is_told(parser):
    with engine(parser, plan_of(quant="4bit"), environ={"VLLM_PLUGINS": ""}) as ended:
        assert ended.process.poll() not in (None, 0)
        failure = failure_of(ended.log, ended.plan)
    assert failure.kind is FailureKind.MISSING_PLUGIN
    assert "vllm-bnb-plugin" in failure.message
