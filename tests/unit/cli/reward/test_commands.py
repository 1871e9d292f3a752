"""The commands of the reward host, as far as they go without a model."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

from qserve.cli.reward.eval_reward import command as eval_reward
from qserve.cli.reward.score import command as score
from qserve.errors import UnusableResult, UsageError
from tests.unit.evaluation.answering import answering


@pytest.mark.parametrize("command", ["score", "reward", "eval-reward"])
def test_help_loads_no_engine(command: str) -> None:
    code = (
        "import sys\nfrom qserve.cli.main import cli\n"
        f"cli.main([{command!r}, '--help'], standalone_mode=False)\n"
        "sys.exit(bool({'torch', 'transformers', 'aiohttp', 'starlette'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


def call(*arguments: str) -> None:
    eval_reward.main(list(arguments), standalone_mode=False)


def test_a_file_that_states_no_preferences_is_refused_before_a_model_is_loaded(tmp_path: Path) -> None:
    file = tmp_path / "texts.jsonl"
    file.write_text(json.dumps({"prompt": "a", "response": "b"}) + "\n")
    with pytest.raises(UsageError, match=r"line 1 is not a preference: it needs chosen and rejected"):
        call(str(file), "--reward", str(tmp_path / "nowhere"))


def test_a_server_that_is_not_there_is_named(tmp_path: Path) -> None:
    file = tmp_path / "pairs.jsonl"
    file.write_text(json.dumps({"prompt": "a", "chosen": "b", "rejected": "c"}) + "\n")
    with pytest.raises(UsageError, match=r"http://127.0.0.1:9 did not answer POST /v1/reward.*qserve up --reward"):
        call(str(file), "--url", "http://127.0.0.1:9")


def test_words_that_mean_nothing_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text("{}")
    bad: list[tuple[Any, ...]] = [("--pooling", "middle"), ("--truncate", "middle"), ("--max-length", "0")]
    for flag in bad:
        with pytest.raises(click.BadParameter):
            call(str(tmp_path / "x.jsonl"), *flag)


def rewarding(value: Callable[[str], float]) -> Any:
    """A server whose reward is `value` of the answer, and which has the attributes `same` and `twice` of it."""

    def answer(path: str, body: Any) -> tuple[int, Any]:
        if path != "/v1/reward":
            return 404, {"error": {"message": "not here"}}
        values = [value(one[-1]["content"]) for one in body["conversations"]]
        rows = [
            {"index": index, "reward": one, "num_tokens": 5, "attributes": {"same": 1.0, "twice": 2 * one}}
            for index, one in enumerate(values)
        ]
        return 200, {"data": rows}

    return answering(answer)


def test_attributes_and_a_second_model_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "pairs.jsonl"
    pairs = [("abc", "a"), ("abcde", "ab"), ("a", "abcd"), ("abcdefg", "abcdef")]
    file.write_text("".join(json.dumps({"prompt": "p", "chosen": a, "rejected": b}) + "\n" for a, b in pairs))
    # The second likes short answers, but for the longest.
    with rewarding(len) as first, rewarding(lambda text: 9.0 if len(text) == 7 else -len(text)) as second:
        arguments = (str(file), "--url", first, "--against", second, "--state-dir", str(tmp_path))
        call(*arguments, "--json")
        document = json.loads(capsys.readouterr().out)
        call(*arguments)
    assert {one["name"]: (one["num_right"], one["num_tied"]) for one in document["attributes"]} == {
        "same": (0, 4),
        "twice": (3, 0),
    }
    assert document["attributes"][1]["mean_margin"] == 2 * document["overall"]["mean_margin"]
    against = document["against"]
    assert (against["url"], against["decided_alike"], against["accuracy"]) == (second, 0.25, 0.5)
    assert -1 < against["rank_correlation"] < 0
    said = capsys.readouterr().out
    assert "twice: right 75.0 %" in said and "25.0 % of preferences decided alike" in said


def test_rules_are_scored_here_without_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe, file, out = tmp_path / "rewards.yaml", tmp_path / "pairs.jsonl", tmp_path / "out.jsonl"
    form = "{name: form, rule: regex, pattern: '[.]$', weight: 0.5}"
    recipe.write_text(f"parts:\n- {{name: right, rule: exact}}\n- {form}\n")
    pairs: list[dict[str, Any]] = [
        {"prompt": "1+1?", "chosen": "2", "rejected": "3.", "reference": "2"},
        {"prompt": "1+2?", "chosen": "3", "rejected": "4", "reference": "3"},
    ]
    file.write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    call(str(file), "--reward", str(recipe), "--json", "--state-dir", str(tmp_path))
    document = json.loads(capsys.readouterr().out)
    assert document["overall"]["accuracy"] == 1.0 and document["margins"] == [0.5, 1.0]
    assert [(one["name"], one["accuracy"], one["num_tied"]) for one in document["attributes"]] == [
        ("right", 1.0, 0),
        ("form", 0.0, 1),
    ]
    file.write_text(file.read_text() + json.dumps({"prompt": "1+3?", "response": "4"}) + "\n")
    with pytest.raises(UnusableResult, match="1 of 3 lines could not be scored"):
        score.main([str(file), "--reward", str(recipe), "--output", str(out)], standalone_mode=False)
    first, _, without = (json.loads(line) for line in out.read_text().splitlines())
    assert first["margin"] == 0.5 and first["rejected_attributes"] == [{"right": 0.0, "form": 1.0}]
    assert "compares with a reference" in without["error"]
    assert "weights right 1, form 0.5" in capsys.readouterr().err
    for flag, words in (
        ("--max-length=5", "--max-length is about a model"),
        ("--quant=4bit", "--quant is about"),
        ("--judge=pointwise", "--judge"),
    ):
        with pytest.raises(UsageError, match=words):
            score.main([str(file), "--reward", str(recipe), flag], standalone_mode=False)


def test_a_served_model_alone_is_not_sent_references(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file has them for rules and judges; a server without any refuses them by name."""
    bodies: list[Any] = []

    def answer(path: str, body: Any) -> tuple[int, Any]:
        if path != "/v1/reward":
            return 404, {"error": {"message": "not here"}}
        bodies.append(body)
        if "references" in body:
            return 400, {"error": {"message": "none here", "param": "references", "code": "unsupported_value"}}
        rows = [{"reward": len(one[-1]["content"]), "num_tokens": 1} for one in body["conversations"]]
        return 200, {"data": rows}

    file = tmp_path / "pairs.jsonl"
    pair = {"prompt": "1+1?", "chosen": "22", "rejected": "3", "reference": "2"}
    file.write_text("".join(json.dumps(pair) + "\n" for _ in range(40)))
    with answering(answer) as url:
        call(str(file), "--url", url, "--json", "--state-dir", str(tmp_path))
    assert json.loads(capsys.readouterr().out)["overall"]["num_right"] == 40
    assert sum(len(body["conversations"]) for body in bodies if "references" not in body) == 80


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (422, {"error": "no such field"}, 'status 422: {"error": "no such field"}'),
        (422, {"detail": [{"msg": "no"}]}, 'status 422: {"detail": [{"msg": "no"}]}'),
        (500, {"error": {"code": 5}}, 'status 500: {"error": {"code": 5}}'),
        (404, {"error": "Not Found"}, 'status 404: {"error": "Not Found"}'),
        (404, [], "status 404: []"),
        (502, "<html>\nBad gateway</html>", "status 502: <html> Bad gateway</html>"),
        (502, "x" * 300, f"status 502: {'x' * 200} …"),
        (500, "", "status 500: an empty body"),
        (200, [1.0], "status 200: [1.0]"),
        (200, {"data": [{"index": 0, "score": 1.0}] * 2}, 'status 200: {"data": [{"index": 0, "score": 1.0}'),
        (200, {"data": [{"reward": 1.0, "num_tokens": 1}]}, 'status 200: {"data": [{"reward": 1.0, "num_tokens": 1}]}'),
    ],
)
def test_an_answer_of_another_server_is_told(status: int, body: Any, said: str, tmp_path: Path) -> None:
    file = tmp_path / "pairs.jsonl"
    file.write_text(json.dumps({"prompt": "a", "chosen": "b", "rejected": "c"}) + "\n")
    with answering(lambda path, asked: (status, body)) as url, pytest.raises(UsageError) as refused:
        call(str(file), "--url", url)
    assert f"{url} did not answer POST /v1/reward as qserve does ({said}" in str(refused.value)


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (401, "no key", "status 401: no key; name the key: --api-key, or $QSERVE_API_KEY"),
        (403, {"error": {"message": "not yours"}}, "not yours; name the key: --api-key, or $QSERVE_API_KEY"),
        (404, {"error": {"message": "no such model"}}, "no such model"),
    ],
)
def test_a_refusal_of_the_whole_file_is_told(status: int, body: Any, said: str, tmp_path: Path) -> None:
    file = tmp_path / "pairs.jsonl"
    file.write_text(json.dumps({"prompt": "a", "chosen": "b", "rejected": "c"}) + "\n")
    with answering(lambda path, asked: (status, body)) as url, pytest.raises(UsageError) as refused:
        call(str(file), "--url", url)
    assert str(refused.value) == f"{url}: {said}"


def test_the_next_command_has_the_flags_that_were_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = tmp_path / "pairs.jsonl", tmp_path / "out.jsonl"
    file.write_text("".join(json.dumps({"prompt": "p", "chosen": a, "rejected": "a"}) + "\n" for a in ("abc", "ab")))
    with rewarding(len) as url:
        given = ("--url", url, "--model", "my model", "--api-key=a-secret")
        score.main([str(file), *given, "--output", str(out)], standalone_mode=False)
        told = f"--url {url} --model 'my model' --api-key \"$QSERVE_API_KEY\""
        assert capsys.readouterr().err.splitlines()[-1] == f"Next   qserve eval-reward {file} {told}"
        call(str(file), *given, "--state-dir", str(tmp_path))  # two pairs show nothing
    assert capsys.readouterr().out.splitlines()[-1] == f"Next     qserve reward check {told}"
