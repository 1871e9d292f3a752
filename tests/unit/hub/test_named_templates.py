"""A chat template that no conversation can be rendered by is refused before anything starts, with its file and line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qserve.cli.main import cli
from qserve.demo import chat_model_path, reward_model_path
from qserve.errors import BrokenCheckpoint, UsageError
from qserve.hub.chat_template import read_template
from qserve.hub.named_templates import check_templates, templates_in, without_default
from qserve.reward.find import find_reward
from qserve.reward.settings import RewardSettings
from qserve.service.chat import check_template_to_serve, check_template_to_train

GOOD = "{% for one in messages %}{{ one.content }}{% generation %}{% endgeneration %}{% endfor %}"
BROKEN = {
    "unexpected '}'": "a\n\n{{ messages[0].content }}}\n{{ b }",
    "Unexpected end of template": "a\n\n{% for one in messages %}{{ one }}",
    "No filter named 'nosuch'": "a\n\n{{ messages | nosuch }}",
    "Encountered unknown tag 'nosuch'": "a\n\n{% nosuch %}",
    "expected ']'": "a\n\n{{ messages[0 }}",
    "begins with a byte order mark": "\ufeff" + GOOD,
}
PLACES = ("chat_template.jinja", "tokenizer_config.json", "list", "tool_use")


def written(folder: Path, source: str, place: str) -> Path:
    """A folder with nothing but this template."""
    folder.mkdir(parents=True, exist_ok=True)
    named = [{"name": "default", "template": source}, {"name": "rag", "template": "{{"}]
    config: dict[str, Any] = {}
    if place == "chat_template.jinja":
        (folder / place).write_text(source)
        config["chat_template"] = "{{ this is not read"
    elif place == "tool_use":
        (folder / "chat_template.jinja").write_text(GOOD)
        (folder / "additional_chat_templates").mkdir()
        (folder / "additional_chat_templates" / "tool_use.jinja").write_text(source)
    else:
        config["chat_template"] = named if place == "list" else source
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def model(folder: Path, of: Path) -> Path:
    """The demo's files, but for its template."""
    folder.mkdir()
    for file in of.iterdir():
        if file.name not in ("chat_template.jinja", "tokenizer_config.json"):
            (folder / file.name).symlink_to(file.resolve())
    config = json.loads((of / "tokenizer_config.json").read_text())
    config.pop("chat_template", None)
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("what", BROKEN)
def test_it_is_named_with_file_and_line(tmp_path: Path, place: str, what: str) -> None:
    folder = written(tmp_path / "a", BROKEN[what], place)
    for check in (lambda: check_template_to_serve(folder, ""), lambda: check_template_to_train(folder)):
        with pytest.raises(BrokenCheckpoint) as refused:
            check()
        told = str(refused.value)
        file = "tokenizer_config.json" if place in ("tokenizer_config.json", "list") else ".jinja"
        assert what in told and file in told and str(folder) in told
        if "mark" not in what:
            line = 4 if "'}'" in what else 3
            assert f", line {line}" in told


@pytest.mark.parametrize("place", PLACES)
def test_a_good_one_and_those_that_nobody_uses_are_let_be(tmp_path: Path, place: str) -> None:
    folder = written(tmp_path / "a", GOOD, place)
    assert check_template_to_serve(folder, "") is None
    check_template_to_train(folder)
    assert read_template(folder) == read_template(folder, with_tools=True) == GOOD


def test_conversations_with_tools_may_have_one_of_their_own(tmp_path: Path) -> None:
    folder = written(tmp_path / "a", "for tools", "tool_use")
    assert (read_template(folder), read_template(folder, with_tools=True)) == (GOOD, "for tools")


def test_a_template_of_the_users_own_goes_before_a_broken_one(tmp_path: Path) -> None:
    folder = written(tmp_path / "a", "{{", "chat_template.jinja")
    (tmp_path / "own.jinja").write_text(GOOD)
    (tmp_path / "bad.jinja").write_text("\n{{")
    for flag in (f"--chat-template {tmp_path}/own.jinja", f"--seed 1 --chat-template='{tmp_path}/own.jinja'"):
        assert check_template_to_serve(folder, flag) is None
    assert check_template_to_serve(folder, "--chat-template=") is None, "an empty one is given, too"
    with pytest.raises(BrokenCheckpoint, match=r"bad\.jinja, line 2"):
        check_template_to_serve(folder, f"--chat-template {tmp_path}/bad.jinja")
    with pytest.raises(BrokenCheckpoint, match="--chat-template, line 1 of the template"):
        check_template_to_serve(folder, "--chat-template '{{'")
    assert check_template_to_serve(folder, "--chat-template template_chatml.jinja") is None, "one of vLLM's own"
    with pytest.raises(BrokenCheckpoint, match="engine-args '--chat-template FILE'"):
        check_template_to_serve(folder, "--seed 1")


def test_names_without_a_default_are_told_with_what_to_do(tmp_path: Path) -> None:
    named = [{"name": "rag", "template": GOOD}, {"name": "tool_use", "template": GOOD}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    assert "its chat templates are rag, tool_use, and none is called default" in str(without_default(tmp_path))
    assert "--chat-template FILE" in str(check_template_to_serve(tmp_path, ""))
    with pytest.raises(BrokenCheckpoint, match="rag, tool_use"):
        check_template_to_train(tmp_path)
    more = tmp_path / "additional_chat_templates"
    more.mkdir()
    (more / "short.jinja").write_text(GOOD)
    assert [one.name for one in templates_in(tmp_path)] == ["short"]
    assert f"copy the one that is meant, as {more / 'short.jinja'}," in str(without_default(tmp_path))
    assert read_template(tmp_path) == ""
    (tmp_path / "chat_template.jinja").write_text(GOOD)
    assert without_default(tmp_path) is None and read_template(tmp_path) == GOOD


@given(st.text(alphabet="{}%#-ab '\n|.[]()", max_size=30))
def test_whatever_stands_there_is_taken_or_named(tmp_path_factory: pytest.TempPathFactory, source: str) -> None:
    folder = tmp_path_factory.getbasetemp() / "any"
    folder.mkdir(exist_ok=True)
    (folder / "chat_template.jinja").write_text(source)
    try:
        check_templates(folder, "do otherwise")
    except BrokenCheckpoint as error:
        assert "chat_template.jinja" in str(error) and "do otherwise" in str(error)


def test_a_file_that_is_not_utf8(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_bytes(b"a\n\xff")
    with pytest.raises(BrokenCheckpoint, match=r"chat_template\.jinja, line 2 is not UTF-8: 0xff is its byte 1"):
        check_template_to_serve(tmp_path, "")


@pytest.mark.parametrize("what", ["Unexpected end of template", "begins with a byte order mark"])
def test_commands_refuse_it(tmp_path: Path, what: str) -> None:
    chat = model(tmp_path / "chat", Path(chat_model_path()))
    (chat / "chat_template.jinja").write_text(BROKEN[what])
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "a", "completion": "b"}\n')
    state = ("--state-dir", str(tmp_path / "state"))
    for command in (("plan", "--model", str(chat), *state), ("up", "--model", str(chat), "--gpu", "none", *state)):
        with pytest.raises(UsageError, match=what):
            cli.main(list(command), prog_name="qserve", standalone_mode=False)
    reward = model(tmp_path / "reward", Path(reward_model_path()))
    (reward / "chat_template.jinja").write_text(BROKEN[what])
    with pytest.raises(BrokenCheckpoint, match=what) as refused:
        find_reward(str(reward), RewardSettings())
    assert "--template FILE" in str(refused.value)
    (tmp_path / "own.jinja").write_text(GOOD)
    find_reward(str(reward), RewardSettings(template=str(tmp_path / "own.jinja")))
    with pytest.raises(BrokenCheckpoint, match=what):
        find_reward("demo", RewardSettings(template=str(reward / "chat_template.jinja")))
