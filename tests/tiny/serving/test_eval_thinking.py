"""`qserve eval --chat` against a server that thinks 600 tokens before each answer: what is asked and scored."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from qserve.cli.main import cli
from qserve.errors import QserveError
from qserve.evaluation.results import EvalResult
from tests.unit.evaluation.answering import answering

pytest.importorskip("lm_eval", reason="lm-eval is not installed: run make setup")

THOUGHT_TOKENS, ANSWER_TOKENS, LIMIT = 600, 3, 6
THOUGHT = "Let me add them. Question: is it right? " * 15


@dataclass
class Thinker:
    """A server that thinks `THOUGHT_TOKENS` tokens, then adds the numbers; it keeps every body that it was sent.

    `apart`: the thought comes in `reasoning_content`, as from vLLM with a parser, else between tags.
    """

    apart: bool
    bodies: list[dict[str, Any]] = field(default_factory=list)

    def __call__(self, path: str, body: Any) -> tuple[int, Any]:
        if path == "/v1/models":
            return 200, {"data": [{"id": "thinker", "max_model_len": 4096}]}
        if path != "/v1/chat/completions":
            return 404, {"error": {"message": "not here"}}
        self.bodies.append(body)
        room = body.get("max_tokens") or 4096
        thinks = (body.get("chat_template_kwargs") or {}).get("enable_thinking", True)
        question = body["messages"][-1]["content"]
        # Without a thought it forgets the last number.
        numbers = [int(one) for one in re.findall(r"\d+", question)]
        answer = str(sum(numbers if thinks else numbers[:-1]))
        thought = THOUGHT if thinks else ""
        needed = (THOUGHT_TOKENS if thinks else 0) + ANSWER_TOKENS
        content: str | None = answer
        finish = "stop"
        if room < needed:
            thought, content, finish = thought[: 4 * room], None, "length"
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if self.apart and thought:
            message["reasoning_content"] = thought
        elif thought:
            message["content"] = f"<think>\n{thought}" + ("" if content is None else f"\n</think>\n\n{content}")
        used = {"prompt_tokens": 20, "completion_tokens": min(room, needed)}
        return 200, {"choices": [{"index": 0, "finish_reason": finish, "message": message}], "usage": used}


@pytest.fixture
def thinker(request: pytest.FixtureRequest) -> Iterator[tuple[Thinker, str]]:
    server = Thinker(getattr(request, "param", True))
    with answering(server) as url:
        yield server, url


@pytest.fixture(scope="module", autouse=True)
def _offline(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_DATASETS_CACHE", str(tmp_path_factory.mktemp("datasets")))
        patch.setenv("HF_HUB_OFFLINE", "1")
        yield


@dataclass
class Command:
    """`qserve eval` in this process: a process of its own would spend most of its time importing lm-eval."""

    folder: Path
    capture: pytest.CaptureFixture[str]
    out: str = ""
    """Standard output of the last call."""

    def said(self, *arguments: str, status: int = 0) -> str:
        """What it printed, the sentence of its failure included; on one line."""
        try:
            cli.main(["eval", *arguments, "--state-dir", str(self.folder / "state")], standalone_mode=False)
            ended, failure = 0, ""
        except QserveError as error:
            ended, failure = error.exit_status, str(error)
        self.out, err = self.capture.readouterr()
        text = " ".join(f"{self.out} {err} {failure}".split())
        assert ended == status, text
        return text

    def result(self, url: str, *arguments: str, status: int = 0) -> tuple[EvalResult, str]:
        text = self.said(
            "--url",
            url,
            "--tasks",
            "qserve_demo_think",
            "--chat",
            "--limit",
            str(LIMIT),
            "--no-resume",
            "--out",
            str(self.folder / "out"),
            *arguments,
            status=status,
        )
        return EvalResult.load(self.folder / "out"), text


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(tmp_path, capsys)


def figures(result: EvalResult) -> dict[str, Any]:
    return dict(result.lm_eval["results"]["qserve_demo_think"])


@pytest.mark.parametrize("thinker", [True, False], ids=["reasoning_content", "tags"], indirect=True)
def test_the_answer_after_the_thought_is_scored(thinker: tuple[Thinker, str], run: Command) -> None:
    server, url = thinker
    result, text = run.result(url, "--json")
    told = figures(result)
    assert told["exact_match,none"] == 1.0
    document = json.loads(run.out)
    assert document["scores"][0]["value"] == 1.0 and document["file"] == str(run.folder / "out" / "result.json")
    assert document["outcomes"]["qserve_demo_think"]["num_answers"] == LIMIT and document["duration_s"] > 0
    assert document["model"] == "thinker" and document["warnings"] == {}
    assert (told["num_answers"], told["truncated"], told["empty"], told["null"]) == (LIMIT, 0, 0, 0)
    assert told["num_thoughts"] == LIMIT and told["mean_tokens"] == THOUGHT_TOKENS + ANSWER_TOKENS
    for sample in result.samples("qserve_demo_think").values():
        (generation,) = sample["generations"]
        assert generation["thought"] == THOUGHT.strip() and generation["text"] == sample["target"]
    body = server.bodies[-1]
    # A stop string would end the thought, and a task's temperature 0 makes Qwen3 repeat itself.
    assert not {"stop", "temperature", "do_sample"} & set(body)
    assert "thought" in text and "scored" in text, "the preflight shows the first item"


def test_a_limit_inside_the_thought_is_seen_and_the_result_is_unusable(
    thinker: tuple[Thinker, str], run: Command
) -> None:
    _, url = thinker
    result, text = run.result(url, "--max-gen-toks", "256", status=6)
    told = figures(result)
    assert told["exact_match,none"] == 0.0 and told["truncated"] == LIMIT
    assert "100.0 % of 6 answers can't be scored" in text
    assert "--max-gen-toks" in text
    accepted, _ = run.result(url, "--max-gen-toks", "256", "--max-truncated", "100", "--no-preflight")
    assert figures(accepted)["truncated"] == LIMIT


def test_thinking_off_and_sampling_of_ones_own(thinker: tuple[Thinker, str], run: Command) -> None:
    server, url = thinker
    told = figures(run.result(url, "--thinking", "off", "--no-preflight")[0])
    assert told["exact_match,none"] == 0.0 and told["num_thoughts"] == 0
    body = server.bodies[-1]
    assert body["chat_template_kwargs"] == {"enable_thinking": False}
    assert body["temperature"] == 0 and body["max_tokens"] == 32 and body["stop"] == ["<|im_end|>"]
    on = figures(run.result(url, "--thinking", "on", "--gen-kwargs", "temperature=0.6,top_p=0.95", "--no-preflight")[0])
    assert on["exact_match,none"] == 1.0
    assert (server.bodies[-1]["temperature"], server.bodies[-1]["top_p"]) == (0.6, 0.95)


def test_several_answers_to_each_item(run: Command) -> None:
    server = Thinker(apart=True)
    with answering(server) as url:
        told = figures(run.result(url, "--num-samples", "3", "--no-preflight")[0])
    assert {name.partition(",")[0] for name in told if "@" in name and "stderr" not in name} == {
        "exact_match_avg@3",
        "exact_match_pass@3",
        "exact_match_maj@3",
    }
    assert told["num_answers"] == 3 * LIMIT
    assert {body["seed"] for body in server.bodies if "seed" in body} == {1234, 1235, 1236}


def sums_task(folder: Path, more: str = "") -> Path:
    """A task file of one's own with its data beside it; `more` are generation_kwargs."""
    folder.mkdir()
    rows = [{"q": f"What is {n}+1+1?", "a": str(n + 2)} for n in range(LIMIT)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "sums.yaml").write_text(
        "task: my_sums\ndataset_path: json\ndataset_kwargs:\n  data_files:\n    test: rows.jsonl\n"
        'output_type: generate_until\ntest_split: test\ndoc_to_text: "{{q}}"\ndoc_to_target: "{{a}}"\n'
        f"generation_kwargs:\n  until: []\n{more}"
        "metric_list:\n  - metric: exact_match\n    aggregation: mean\n    higher_is_better: true\n"
    )
    return folder / "sums.yaml"


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("thinker", [True, False], ids=["reasoning_content", "tags"], indirect=True)
def test_what_lm_eval_by_itself_scores_as_wrong_is_right_here(
    thinker: tuple[Thinker, str], run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its 256 tokens end inside the thought of every answer; what it scores is nothing, or a piece of the thought."""
    import lm_eval
    from lm_eval.tasks import TaskManager

    server, url = thinker
    task = sums_task(tmp_path / "mine")
    monkeypatch.chdir(task.parent)
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    theirs = lm_eval.simple_evaluate(
        model="local-chat-completions",
        model_args={"model": "thinker", "base_url": f"{url}/v1/chat/completions", "num_concurrent": 2},
        tasks=[str(task)],
        task_manager=TaskManager(include_defaults=False),
        apply_chat_template=True,
        bootstrap_iters=0,
    )
    assert theirs is not None
    assert theirs["results"]["my_sums"]["exact_match,none"] == 0.0
    assert {body["max_tokens"] for body in server.bodies} == {256}
    mine, _ = run.result(url, "--tasks", str(task), "--no-preflight")
    assert mine.lm_eval["results"]["my_sums"]["exact_match,none"] == 1.0
    refused, text = run.result(url, "--tasks", str(task), "--max-gen-toks", "256", "--no-preflight", status=6)
    assert refused.lm_eval["results"]["my_sums"]["truncated"] == LIMIT and "can't be scored" in text


def test_a_task_of_ones_own_with_its_data_beside_it(run: Command, tmp_path: Path) -> None:
    folder = sums_task(tmp_path / "mine", "  max_gen_toks: 16\n").parent
    with answering(Thinker(apart=False)) as url:
        for name in (str(folder / "sums.yaml"), str(folder)):
            result, _ = run.result(url, "--tasks", name, "--no-preflight")
            assert result.lm_eval["results"]["my_sums"]["exact_match,none"] == 1.0
        result, _ = run.result(url, "--tasks", "my_sums", "--include-path", str(folder), "--no-preflight")
        assert result.lm_eval["results"]["my_sums"]["num_answers"] == LIMIT


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--tasks", "./nothing.yaml", "--chat"), "no such file or folder"),
        (("--tasks", "qserve_demo_think", "--thinking", "on"), "needs --chat"),
        (("--tasks", "qserve_demo_think", "--chat", "--gen-kwargs", "hot"), "name=value"),
        (("--tasks", "qserve_demo_think", "--chat", "--gen-kwargs", "n=2"), "--num-samples asks for several"),
        (("--tasks", "qserve_demo", "--num-samples", "2"), "name those with --tasks"),
        (("--tasks", "qserve_demo_choice", "--tokenizer", "/nowhere"), "--tokenizer /nowhere can't be loaded"),
        (("--tasks", "qserve_demo_think", "--chat", "--include-path", "/nowhere"), "not a folder"),
    ],
)
def test_what_can_not_be_asked_is_one_sentence(arguments: tuple[str, ...], words: str, run: Command) -> None:
    assert words in run.said(*arguments, status=2)
