"""Which of vLLM's parsers a checkpoint needs, from its chat template (shortened here, with its marks)."""

from __future__ import annotations

import json
import shlex

import pytest

from qserve.engines.vllm.launch.chat_format import ChatFormat, chat_format_of, served_templates
from qserve.engines.vllm.launch.command import command
from qserve.engines.vllm.launch.server import VllmLaunch
from tests.unit.engines.vllm.builders import DEMO, RELEASES, pairs, parser_for, plan_of, spec_of

JSON_CALLS = """{{- '<tool_call>\\n{"name": "' + call.name + '", "arguments": ' }}"""
XML_CALLS = "{{- '<tool_call>\\n<function=' + call.name + '>\\n<parameter=' + key + '>' }}"
PAST_THOUGHTS = (
    "{%- if message.reasoning_content is string %}{{- '<think>\\n' + message.reasoning_content }}{%- endif %}"
)
ANSWER = "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}"
SWITCH = (
    "{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}"
)
ASKED = (
    "{%- if enable_thinking is defined and enable_thinking is true %}{{- '<think>\\n' }}"
    "{%- else %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}"
)
END = "{%- endif %}"
OPENED = "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n<think>\\n' }}"

TEMPLATES = {
    "Qwen2.5-7B-Instruct": (JSON_CALLS + ANSWER, "hermes", None),
    "QwQ-32B": (JSON_CALLS + "{%- set content = content.split('</think>')[-1] %}" + OPENED, "hermes", "qwen3"),
    "Qwen3-8B": (JSON_CALLS + PAST_THOUGHTS + ANSWER + SWITCH, "hermes", "qwen3"),
    "Qwen3-4B-Instruct-2507": (JSON_CALLS + ANSWER, "hermes", None),
    "Qwen3-4B-Thinking-2507": (JSON_CALLS + PAST_THOUGHTS + OPENED, "hermes", "qwen3"),
    "Qwen3-Coder-30B-A3B-Instruct": (XML_CALLS + ANSWER, "qwen3_coder", None),
    "Qwen3.6-27B": (XML_CALLS + PAST_THOUGHTS + ANSWER + SWITCH, "qwen3_coder", "qwen3"),
    "no tools": ("{{ messages[0].content }}" + ANSWER, None, None),
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_each_generation_gets_its_parsers(name, tmp_path):
    template, tools, thoughts = TEMPLATES[name]
    (tmp_path / "chat_template.jinja").write_text(template)
    assert chat_format_of(served_templates(tmp_path)) == ChatFormat(tools, thoughts)


@pytest.mark.parametrize(("switch", "unasked"), [(SWITCH, True), (ASKED, False)])
def test_a_model_that_thinks_only_when_asked(tmp_path, parser, switch, unasked):
    """The small ones of Qwen3.5: the template closes the thoughts, and the parser must know."""
    (tmp_path / "chat_template.jinja").write_text(XML_CALLS + PAST_THOUGHTS + ANSWER + switch + END)
    assert chat_format_of(served_templates(tmp_path)) == ChatFormat("qwen3_coder", "qwen3", thinks_by_default=unasked)
    argv = command(spec_of(plan_of(quant="bf16"), tmp_path), parser, environ={}).argv
    assert ('{"enable_thinking": false}' in argv) is not unasked


def test_a_switch_that_nothing_else_bears_out_is_no_sign_of_thoughts():
    """The demo takes enable_thinking and thinks now and then: with a parser for thoughts its answers would vanish."""
    assert chat_format_of(served_templates(DEMO)) == ChatFormat("hermes", None, thinks_in_text=True)


@pytest.mark.parametrize(("release", "takes"), [("0.31.0", False), ("0.32.0", True)])
def test_a_thought_in_the_text_can_have_a_budget(release, takes):
    """Where no parser tells vLLM the tags, and its release takes them from a flag."""
    argv = command(spec_of(plan_of(quant="bf16"), DEMO), parser_for(release), environ={}).argv
    assert ("--reasoning-config" in argv) is takes
    if takes:
        tags = json.loads(argv[argv.index("--reasoning-config") + 1])
        assert tags == {"reasoning_start_str": "<think>", "reasoning_end_str": "</think>"}


@pytest.mark.parametrize(
    "written", [TEMPLATES["Qwen3-8B"][0], [{"name": "default", "template": TEMPLATES["Qwen3-8B"][0]}]]
)
def test_older_checkpoints_hold_the_template_in_the_tokenizers_config(tmp_path, written):
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": written}))
    assert chat_format_of(served_templates(tmp_path)) == ChatFormat("hermes", "qwen3")


def test_calls_are_those_of_the_template_for_tools(tmp_path):
    named = [{"name": "default", "template": ANSWER}, {"name": "tool_use", "template": XML_CALLS}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    assert chat_format_of(served_templates(tmp_path)) == ChatFormat("qwen3_coder", None)


@pytest.mark.parametrize("flag", ["--chat-template {}", "--seed 1 --chat_template={}"])
@pytest.mark.parametrize("is_text", [False, True])
def test_the_users_own_template_goes_before_the_checkpoints(tmp_path, parser, flag, is_text):
    """Its calls and thoughts are parsed, and it is known whether it takes one turn of the system."""
    given = XML_CALLS + PAST_THOUGHTS + ANSWER + "{{ raise_exception('System message must be first') }}" + END
    (tmp_path / "own.jinja").write_text(given)
    extra = flag.format(shlex.quote(given if is_text else str(tmp_path / "own.jinja")))
    launch = VllmLaunch(spec_of(plan_of(quant="bf16")), extra, parser)
    assert pairs(launch.command)["--tool-call-parser"] == "qwen3_coder"
    assert launch.started.takes_one_system
    assert not VllmLaunch(spec_of(plan_of(quant="bf16")), "", parser).started.takes_one_system
    own = served_templates(DEMO, ("--chat-template", "template_chatml.jinja"))
    assert own == served_templates(DEMO), "one of vLLM's own, by name"


def test_a_base_model_gets_none(tmp_path):
    assert chat_format_of(served_templates(tmp_path)) == ChatFormat(None, None)


@pytest.mark.parametrize("release", RELEASES)
def test_every_release_takes_the_flags(release):
    parser_for(release).parse(["--tool-call-parser", "qwen3_coder", "--reasoning-parser", "qwen3"])
