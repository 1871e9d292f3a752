"""`qserve reward check` of a recipe: rules and judges part by part, here and as a server tells them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qserve.cli.reward.check_model import CheckedRewards
from qserve.cli.reward.command import command as reward
from qserve.errors import UnusableResult, UsageError
from qserve.reward.evaluation.agreement import Agreement
from qserve.runs import RunStore
from qserve.state_folder import state_folder
from tests.unit.evaluation.answering import answering

PAIRS = [
    {"prompt": "1+1?", "chosen": "It is 2", "rejected": "It is 3", "reference": "2"},
    {"prompt": "1+2?", "chosen": "3", "rejected": "It is 4", "reference": "3"},
    {"prompt": "Hello", "chosen": "Good day", "rejected": "?"},
]
RIGHT = {"name": "right", "rule": "exact", "extract": r"\d+"}
FORM = {"name": "form", "rule": "regex", "pattern": "^It is", "weight": 0.5}


@pytest.fixture
def check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, Any, str]]:
    """`check(parts, *flags)`: exit status, the parts of the JSON by name, and all that was said."""

    def run(parts: list[dict[str, Any]], *flags: str, lines: list[dict[str, Any]] | None = None) -> Any:
        recipe, file = tmp_path / "rewards.yaml", tmp_path / "pairs.jsonl"
        recipe.write_text(json.dumps({"parts": parts}))
        file.write_text("".join(json.dumps(line) + "\n" for line in lines or PAIRS))
        arguments = ["check", str(file), "--reward", str(recipe), "--state-dir", str(tmp_path), *flags]
        status = 0
        try:
            reward.main(arguments, standalone_mode=False)
        except SystemExit as ended:
            status = int(ended.code or 0)
        said = capsys.readouterr()
        (kept, *_) = reversed(RunStore.open(state_folder(tmp_path)).evals())
        return status, {part["name"]: part for part in kept.document["parts"]}, said.out + said.err

    return run


def test_rules_are_held_against_references_and_preferences(check: Callable[..., Any]) -> None:
    status, found, said = check([RIGHT, FORM])
    assert status == 0, said
    right, form = found["right"], found["form"]
    assert (right["num_texts"], right["num_without"], right["num_preferences"], right["num_right"]) == (6, 2, 2, 2)
    assert (form["num_without"], form["num_right"], form["num_tied"], form["mean"]) == (0, 0, 2, 0.5)
    assert "2 of 6 texts, for example: line 3 has no 'reference'" in " ".join(said.split())


def test_a_rule_that_can_t_be_right_fails_the_check(check: Callable[..., Any]) -> None:
    words = [{**line, "reference": "the second"} for line in PAIRS]
    status, _, said = check([{"name": "sum", "rule": "math"}], lines=words)
    assert status == 1 and "error: sum: no answer can match a reference" in said
    status, _, said = check([RIGHT], lines=PAIRS[2:])
    assert status == 1 and "it has no value for any of the 2 texts: line 1 has no 'reference'" in said


def test_a_built_in_set_has_references(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = tmp_path / "rewards.yaml"
    recipe.write_text(json.dumps({"parts": [{"name": "same", "rule": "exact"}]}))
    reward.main(["check", "--reward", str(recipe), "--state-dir", str(tmp_path)], standalone_mode=False)
    assert "104 of 104" in capsys.readouterr().out


def judge_part(url: str, **more: Any) -> dict[str, Any]:
    return {"name": "nice", "judge": "pairwise", "url": url, "model": "any"} | more


def saying(verdict: Callable[[str], str]) -> Any:
    """A judge."""

    def answer(path: str, body: Any) -> tuple[int, Any]:
        content = verdict(body["messages"][-1]["content"])
        return 200, {"choices": [{"index": 0, "message": {"role": "assistant", "content": content}}]}

    return answering(answer)


def test_a_judge_s_verdicts_are_counted(check: Callable[..., Any]) -> None:
    with saying(lambda question: "well" if "Hello" in question else "Verdict: A") as url:
        status, found, said = check([judge_part(f"{url}/v1", max_unparsable=0.5)])
        assert status == 0, said
        judge = found["nice"]["judge"]
        assert (judge["num_verdicts"], judge["num_unparsable"], judge["position_bias"]) == (6, 2, 0.5)
        assert found["nice"]["num_without"] == 2 and found["nice"]["num_tied"] == 2
        assert "nice: 6 verdicts, 33.3 % can't be read, the first place wins 100 %" in said
        status, _, said = check([judge_part(f"{url}/v1")])
        assert status == 1
        assert "error: nice: 2 of 6 verdicts can't be read (max_unparsable 0.1); one of them ends: 'well'" in said


def test_a_pattern_that_never_matches_and_a_judge_that_is_not_there(check: Callable[..., Any]) -> None:
    with saying(lambda question: "I prefer the second.") as url:
        status, _, said = check([judge_part(f"{url}/v1")])
    assert status == 1 and "it has no value for any of the 6 texts" in said and "6 of 6 verdicts can't be read" in said
    with pytest.raises(UsageError, match=r"^the judge 'nice' at http://127.0.0.1:9/v1 did not answer"):
        check([judge_part("http://127.0.0.1:9/v1")])
    with pytest.raises(UsageError, match=r"a judge in it is the chat model of the same service"):
        check([judge_part("served")])


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [(503, "", "503: "), (502, "<html>\n gone\n</html>", "502: <html> gone </html>"), (400, {"a": 1}, '400: {"a": 1}')],
)
def test_a_judge_that_refuses_is_told_with_its_status(
    status: int, body: Any, said: str, check: Callable[..., Any]
) -> None:
    with answering(lambda *_: (status, body)) as url, pytest.raises(UsageError) as raised:
        check([judge_part(f"{url}/v1")])
    assert f"/v1 did not answer: it answered {said}" in str(raised.value)


def serving(form: Callable[[str], float]) -> Any:
    """A server of the recipe's two parts whose `form` is its own."""

    def answer(path: str, body: Any) -> tuple[int, Any]:
        if "references" not in body:
            return 400, {"error": {"message": "send 'references'"}}
        rows = []
        for one, reference in zip(body["conversations"], body["references"], strict=True):
            text = one[-1]["content"]
            parts = {"right": float(reference in text), "form": form(text)}
            rows.append({"reward": parts["right"] + 0.5 * parts["form"], "num_tokens": 1, "attributes": parts})
        return 200, {"data": rows}

    return answering(answer)


def test_a_server_s_parts_are_held_against_the_file_s(check: Callable[..., Any]) -> None:
    with serving(lambda text: float(text.startswith("It is"))) as url:
        status, found, said = check([RIGHT, FORM], "--url", url)
        assert status == 0, said
        assert (found["right"]["served_difference"], found["form"]["served_difference"]) == (0, 0)
        with pytest.raises(UsageError, match=r"combines right, other, and the server returns right, form"):
            check([RIGHT, {**FORM, "name": "other"}], "--url", url)
    with serving(lambda text: 1.0) as url:
        status, _, said = check([RIGHT, FORM], "--url", url)
    assert status == 1 and "form: the values of the server differ by up to 1" in said


def test_a_server_s_judge_is_told_as_it_counts(check: Callable[..., Any]) -> None:
    stats = {"template": "pairwise 1", "verdicts": 40, "unparsable": 8, "position_bias": 0.3}

    def answer(path: str, body: Any) -> tuple[int, Any]:
        rows = [{"reward": 0.5, "num_tokens": 1, "attributes": {"nice": 0.5}} for _ in body["conversations"]]
        return 200, {"data": rows, "meta": {"judges": {"nice": stats}}}

    with answering(answer) as url:
        status, found, said = check([judge_part("served")], "--url", url)
    assert status == 1 and "8 of 40 verdicts can't be read" in said and "wins 80 % of comparisons" in said
    assert found["nice"]["num_tied"] == 3 and "it is 0.5 for every text" in said


def test_a_checkpoint_that_is_served_as_a_judge_is_checked_by_its_template(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`qserve up --reward CHECKPOINT --judge TEMPLATE`; here nothing of it is loaded."""

    def answer(path: str, body: Any) -> tuple[int, Any]:
        values = [float("2" in one[-1]["content"]) for one in body["conversations"]] if body else []
        rows = [{"reward": one, "num_tokens": 1, "attributes": {"judge": one}} for one in values]
        return 200, {"data": rows, "run": None}

    file = tmp_path / "pairs.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in PAIRS[:2]))
    arguments = ["check", str(file), "--reward", str(tmp_path / "nowhere"), "--judge", "pointwise"]
    with answering(answer) as url:
        reward.main([*arguments, "--url", url, "--state-dir", str(tmp_path)], standalone_mode=False)
    assert "1 of 2" in capsys.readouterr().out
    with pytest.raises(UsageError, match=r"--judge pointwise: .* give its address with --url"):
        reward.main(arguments, standalone_mode=False)


def test_a_quantization_that_there_is_not_is_told_before_a_model_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qserve.cli.reward.command.check_model", lambda *_: pytest.fail("it was begun"))
    with pytest.raises(UsageError, match=r"'int9' is not a quantization \(did you mean int8"):
        reward.main(["check", "--quants", "bf16, int9"], standalone_mode=False)


def test_an_interrupted_check_shows_what_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def check(*arguments: Any) -> None:
        arguments[-2]["bf16"] = CheckedRewards(Agreement(600, 0.2, 0.04, 6.7, 0.9999, 300, 0), {}, {})
        raise KeyboardInterrupt

    monkeypatch.setattr("qserve.cli.reward.command.check_model", check)
    monkeypatch.setattr("sys.argv", ["qserve", "reward", "check", "--quants", "bf16,int8"])
    with pytest.raises(SystemExit) as ended:
        reward.main(["check", "--quants", "bf16,int8", "--state-dir", str(tmp_path)], standalone_mode=False)
    told = capsys.readouterr()
    assert ended.value.code == 130 and "600 texts against plain transformers" in told.out
    assert told.err.endswith(
        "interrupted; the figures above are of bf16; none is in the run store; start again with:\n"
        "  qserve reward check --quants bf16,int8\n"
    )


def test_json_is_one_object_and_lines_that_can_t_be_read_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe, file = tmp_path / "rewards.yaml", tmp_path / "pairs.jsonl"
    recipe.write_text(json.dumps({"parts": [FORM]}))
    file.write_text("{\n" + "".join(json.dumps(line) + "\n" for line in PAIRS))
    arguments = ["check", str(file), "--reward", str(recipe), "--state-dir", str(tmp_path), "--json"]
    with pytest.raises(UnusableResult, match="Lines that could not be read: 1; the figures are"):
        reward.main(arguments, standalone_mode=False)
    document = json.loads(capsys.readouterr().out)
    assert [one["line"] for one in document["errors"]] == [1] and document["parts"][0]["num_texts"] == 6
    with pytest.raises(UsageError, match="line 1: not valid JSON"):
        reward.main([*arguments, "--strict"], standalone_mode=False)
