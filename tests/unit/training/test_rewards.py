"""What rewards rollouts over HTTP: what is asked, what comes back, and what is said where nothing does."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import ModuleType

import pytest

from qserve.errors import QserveError
from qserve.planner.training import TrainingRequest
from qserve.training.configuration.files import command_without_qserve
from qserve.training.configuration.rewards import REWARDS_MODULE, reward_names, rewards_script
from qserve.training.job import DataSource, RewardSource, TrainingRun
from qserve.training.process.rewards import reward_functions

PROMPT = [{"role": "user", "content": "2+3?"}]


def answer(text: str) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": text}]


class Host(HTTPServer):
    """Rewards the length of an answer; `status` is what it answers with."""

    status = 200
    takes_references = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.asked: list[tuple[str | None, dict]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Answers(BaseHTTPRequestHandler):
    server: Host

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append((self.headers["Authorization"], body))
        data = [{"reward": float(len(one[-1]["content"]))} for one in body["conversations"]]
        refuses = "references" in body and not self.server.takes_references
        told = {"error": {"message": "for rules", "param": "references"}} if refuses else {"data": data}
        content = json.dumps(told).encode()
        self.send_response(400 if refuses else self.server.status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    monkeypatch.setenv("QSERVE_API_KEY", "secret")
    server = Host()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join(10)


def test_a_batch_is_asked_in_one_request_with_its_references(host: Host) -> None:
    (reward,) = reward_functions([RewardSource(host.url)])
    told = reward([PROMPT, PROMPT], [answer("5"), answer("five")], references=["5", "5"], completion_ids=[[1], [2]])
    assert told == [1.0, 4.0]
    ((key, body),) = host.asked
    assert key == "Bearer secret"
    assert body["conversations"][1] == [*PROMPT, *answer("five")]
    assert body["references"] == ["5", "5"]


def test_a_host_of_a_model_alone_is_asked_without_references(host: Host) -> None:
    host.takes_references = False
    (reward,) = reward_functions([RewardSource(host.url)])
    for _ in range(2):
        assert reward([PROMPT], [answer("five")], references=["5"]) == [4.0]
    assert ["references" in body for _, body in host.asked] == [True, False, False]


def test_an_answer_without_a_token_gets_the_lowest_of_its_batch(host: Host) -> None:
    (reward,) = reward_functions([RewardSource(host.url)])
    assert reward([PROMPT] * 3, [answer("four"), answer(""), answer("ab")]) == [4.0, 2.0, 2.0]
    assert len(host.asked[0][1]["conversations"]) == 2
    assert reward([PROMPT], [answer("")]) == [0.0]


def test_a_host_that_fails_is_named(host: Host) -> None:
    (reward,) = reward_functions([RewardSource(host.url)])
    host.status = 503
    with pytest.raises(QserveError, match="answered 503"):
        reward([PROMPT], [answer("5")])
    (nobody,) = reward_functions([RewardSource("http://127.0.0.1:9")])
    with pytest.raises(QserveError, match=r"does not answer.*resume the run"):
        nobody([PROMPT], [answer("5")])


def test_each_reward_is_logged_under_its_name() -> None:
    sources = [RewardSource("http://127.0.0.1:8000/"), RewardSource("http://127.0.0.1:9")]
    assert [function.__name__ for function in reward_functions(sources)] == ["127.0.0.1:8000", "127.0.0.1:9"]


def test_a_recipe_is_named_by_its_file(tmp_path: Path) -> None:
    for file in (tmp_path / "rules.yaml", tmp_path / "judges.yml"):
        file.write_text("parts:\n  - {name: digits, rule: regex, pattern: '[0-9]'}\n")
    sources = [RewardSource(str(tmp_path / name)) for name in ("rules.yaml", "judges.yml")]
    assert [function.__name__ for function in reward_functions(sources)] == ["rules", "judges"]


def test_two_rewards_of_one_name_are_told_apart() -> None:
    sources = [RewardSource(f"http://127.0.0.1:{port}/rm/") for port in (1, 2, 3)]
    assert [one.__name__ for one in reward_functions(sources)] == ["rm", "rm (2)", "rm (3)"]


def written(*targets: str) -> tuple[TrainingRun, ModuleType]:
    """A run with these rewards, and the module that TRL's own script imports for it."""
    request = TrainingRequest("grpo", precision="fp32")
    run = TrainingRun(request, "demo", DataSource("d"), Path("/out"), rewards=tuple(map(RewardSource, targets)))
    module = ModuleType(REWARDS_MODULE)
    exec(compile(rewards_script(run) or "", f"{REWARDS_MODULE}.py", "exec"), module.__dict__)
    return run, module


@pytest.mark.parametrize("takes_references", [True, False])
def test_without_qserve_a_host_gives_the_same_rewards(host: Host, takes_references: bool) -> None:
    host.takes_references = takes_references
    run, module = written(host.url)
    assert reward_names(run) == [f"{REWARDS_MODULE}.reward_1"]
    given = [PROMPT] * 3, [answer("four"), answer(""), answer("ab")]
    assert module.reward_1(*given, references=["4", "", "ab"], completion_ids=[[1], [], [2]]) == [4.0, 2.0, 2.0]
    assert host.asked[0] == (
        "Bearer secret",
        {"conversations": [[*PROMPT, *answer("four")], [*PROMPT, *answer("ab")]], "references": ["4", "ab"]},
    )
    assert module.reward_1([PROMPT], [answer("")]) == [0.0]


def test_without_qserve_rules_and_checkpoints_are_still_its_own(host: Host, tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text("parts:\n  - {name: digits, rule: regex, pattern: '[0-9]'}\n")
    run, module = written(str(rules), host.url)
    assert module.reward_1([PROMPT] * 2, [answer("5"), answer("five")]) == [1.0, 0.0]
    assert [module.reward_1.__name__, module.reward_2.__name__] == ["reward_1", "reward_2"]
    assert command_without_qserve(run).startswith("PYTHONPATH=/out/run trl grpo --config /out/run/train.yaml")
