"""Servers that can't be measured, a sentence each, over real sockets."""

from __future__ import annotations

import itertools
import json
import socket

import pytest

from qserve.cli.bench.command import command
from qserve.errors import UsageError
from tests.tiny.bench.conftest import stream, token, whole


@pytest.fixture
def bench(tmp_path, capsys):
    """`bench(url, …)` runs the command in this process: (exit status, what it printed, the result)."""

    def run(url, *arguments):
        output = tmp_path / "result.json"
        flags = ["--url", url, "--state-dir", str(tmp_path), "--output", str(output), "--num-prompts", "6"]
        flags += ["--concurrency", "2"] if "--request-rate" not in arguments and "--sweep" not in arguments else []
        with pytest.raises(SystemExit) as ended:
            command.main([*flags, "--output-len", "3", "--input-len", "5", *arguments], standalone_mode=False)
        return ended.value.code, capsys.readouterr().out, json.loads(output.read_text())

    return run


def refusal(url, tmp_path, *arguments):
    with pytest.raises(UsageError) as refused:
        command.main(["--url", url, "--state-dir", str(tmp_path), *arguments], standalone_mode=False)
    return str(refused.value)


def only(answer):
    """A server that knows no route but the ones that are asked for answers."""
    return lambda path, body: answer if path.startswith("/v1/chat") else whole(404, {"detail": "Not Found"})


def test_nobody_listens(tmp_path):
    with socket.socket() as held:  # bound and not listening: the system refuses
        held.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{held.getsockname()[1]}"
        said = refusal(url, tmp_path)
    assert said.startswith(f"no server answers at {url} (Connection refused)")
    assert "qserve up" in said


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (whole(401, {"error": {"message": "wrong key"}}), "refuses the key (wrong key); give it with --api-key"),
        (whole(404, {"error": {"message": "The model `m` does not exist."}}), "does not serve 'm'"),
        (whole(404, {"detail": "Not Found"}), "answers 404 to POST /v1/chat/completions (Not Found)"),
        (whole(500, b"<html>oops</html>", "text/html"), "answered 500: <html>oops</html>"),
        (whole(400, {"error": {"message": "max_tokens is too large"}}), "answered 400: max_tokens is too large"),
        (whole(429, {"error": {"message": "slow down"}}), "refused requests as too many (slow down)"),
        (whole(301, b"", "text/plain"), "redirects clients (301)"),
        (whole(200, {"choices": [{"message": {"content": "hi"}}]}), "answered in one piece (application/json)"),
        (stream({"choices": []}, {"choices": []}, "[DONE]"), "2 events, all with empty choices"),
        (stream("[DONE]"), "no event at all"),
        (stream(token(), {"error": {"message": "worker died"}}), "ended a stream with an error: worker died"),
        (stream(token(), token(), end=False), "ended an answer after 2 tokens"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "is not HTTP"),
    ],
)
def test_a_server_that_can_not_be_measured(canned, tmp_path, answer, said):
    assert said in refusal(canned(only(answer)).url, tmp_path)


@pytest.mark.parametrize("num_refused", [1, 3])
def test_a_first_prompt_that_is_refused_is_left_out_as_a_later_one_is(canned, bench, num_refused):
    """It may hold a token id that the model has no row for; the others are measured."""
    left = [whole(400, {"error": {"message": "'prompt' contains the token id 5000"}})] * num_refused
    fine = stream(token(), token(), "[DONE]")

    def answer(path, body):
        if not path.startswith("/v1/chat"):
            return whole(404, {})
        return left.pop() if left else fine

    status, said, result = bench(canned(answer).url)
    assert status == 0 and result["stages"][0]["completed"] == 6
    told = [note for note in result["notes"] if note.startswith("a prompt was refused and left out: ")]
    assert len(told) == num_refused and "contains the token id 5000" in told[0] and "token id 5000" in said


def test_a_wrong_model_names_the_right_ones(canned, tmp_path):
    said = refusal(canned(only(b"")).url, tmp_path, "--model", "other")
    assert "does not serve 'other'; it serves m; choose one with --model" in said


@pytest.mark.parametrize(
    ("worker", "endpoint", "said"),
    [
        ("reward", "chat", "'m' is a reward model and generates nothing: --endpoint reward or classify"),
        ("chat", "reward", "'m' generates and scores nothing: --endpoint chat or completions"),
    ],
)
def test_a_model_of_the_other_kind_names_the_right_endpoint(canned, tmp_path, worker, endpoint, said):
    """A qserve tells what each of its models is for; without that, fields of the wrong route are what is refused."""
    report = whole(200, {"run": "", "data": [{"worker": worker, "models": ["m"]}]})
    server = canned(lambda path, body: report if path == "/v1/qserve/report" else whole(404, {}))
    assert said in refusal(server.url, tmp_path, "--model", "m", "--endpoint", endpoint)


def test_the_key_goes_with_every_request_and_into_no_file(fake, canned, bench, tmp_path, monkeypatch):
    monkeypatch.setenv("QSERVE_API_KEY", "sk-secret")
    server = canned(only(stream(token(), token(), "[DONE]")))
    status, _, _ = bench(server.url)
    assert status == 0
    assert all("authorization: bearer sk-secret" in head.lower() for _, _, head in server.requests)
    assert "sk-secret" not in "".join(file.read_text() for file in tmp_path.rglob("*.json"))


def test_fields_that_a_server_refuses_by_name_are_done_without(canned, bench):
    def strict(path, body):
        if not path.startswith("/v1/chat"):
            return whole(404, {})
        for name in ("ignore_eos", "temperature"):
            if name in body:
                return whole(400, {"error": {"message": f"Unrecognized request argument supplied: {name}"}})
        return stream(token(), token(), "[DONE]")

    status, said, result = bench(canned(strict).url)
    assert status == 0
    assert "does not support ignore_eos" in said
    assert len(result["notes"]) == 2
    assert result["stages"][0]["completed"] == 6


def test_tokens_are_counted_where_the_server_does_not(canned, bench):
    _, said, result = bench(canned(only(stream(token("one two"), token(" three"), "[DONE]"))).url)
    assert "an estimate" in said
    assert {one["output_tokens"] for one in result["stages"][0]["requests"]} == {3}


def test_a_role_that_comes_ahead_of_the_token_is_no_token(canned, bench):
    role = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]}
    _, _, result = bench(canned(only(stream(role, token(), token(), "[DONE]"))).url)
    assert {len(one["chunk_ms"]) for one in result["stages"][0]["requests"]} == {2}


def test_a_server_that_dies_midway_is_one_sentence(canned, bench):
    numbers = itertools.count(1)

    def answer(path, body):
        if not path.startswith("/v1/chat"):
            return whole(404, {})
        if next(numbers) == 40:
            server.die()
        return stream(token(), token(), "[DONE]")

    server = canned(answer)
    status, said, result = bench(server.url, "--num-prompts", "5000")
    stage = result["stages"][0]
    assert status == 1
    assert "the server stopped answering: no server answers" in said
    assert stage["completed"] > 0
    assert stage["completed"] + stage["failed"] < 200
    assert stage["errors"]["unreachable"] >= 20


def test_a_server_with_faults_is_measured_and_they_are_told_by_kind(canned, bench):
    numbers = itertools.count(1)

    def answer(path, body):
        if not path.startswith("/v1/chat"):
            return whole(404, {})
        number = next(numbers)
        every_third = number > 3 and number % 3 == 0
        return whole(503, {"error": {"message": "full"}}) if every_third else stream(token(), token(), "[DONE]")

    status, said, result = bench(canned(answer).url, "--num-prompts", "30")
    stage = result["stages"][0]
    assert status == 0
    assert stage["errors"] == {"HTTP 503": 10}
    assert stage["completed"] == 20
    assert "10 failed, HTTP 503" in said


def test_reward_and_best_of_n(fake, bench):
    server = fake()
    status, _, result = bench(server.url, "--endpoint", "reward", "--best-of", "4")
    stage = result["stages"][0]
    assert status == 0
    assert stage["total_texts"] == 24
    assert stage["median_ttft_ms"] is None
    assert stage["median_e2el_ms"] > 0


def test_several_stages_of_rewards_tell_texts_a_second(fake, bench):
    status, said, _ = bench(fake().url, "--endpoint", "reward", "--best-of", "4", "--concurrency", "1,2")
    assert status == 0
    assert "texts/s" in said


def test_completions_open_loop_and_csv(fake, bench, tmp_path):
    rows = tmp_path / "rows.csv"
    status, said, result = bench(
        fake().url, "--endpoint", "completions", "--request-rate", "50,100", "--burst-size", "2", "--csv", str(rows)
    )
    assert status == 0
    assert [stage["request_rate"] for stage in result["stages"]] == [50.0, 100.0]
    assert [stage["completed"] for stage in result["stages"]] == [6, 6]
    assert len(rows.read_text().splitlines()) == 13
    assert "50/s in bursts of 2" in said


def test_loads_that_begin_in_one_second_have_files_of_their_own(fake, tmp_path, monkeypatch, capsys):
    """Two terminals, or a script that starts several: a result is never written over another's."""
    flags = ["--url", fake().url, "--state-dir", str(tmp_path), "--num-prompts", "2", "--output-len", "2"]
    monkeypatch.setattr("time.strftime", lambda *arguments: "20261122-030000")
    for pid in (1, 2):
        monkeypatch.setattr("os.getpid", lambda pid=pid: pid)
        with pytest.raises(SystemExit):
            command.main([*flags, "--input-len", "5"], standalone_mode=False)
    assert len(list((tmp_path / "qserve" / "bench").glob("*.json"))) == 2
    assert capsys.readouterr().out.count("Result  ") == 2


def test_a_sweep_doubles_until_its_bound(fake, bench):
    _, _, result = bench(fake(20.0).url, "--sweep", "--max-concurrency", "4")
    assert [stage["max_concurrency"] for stage in result["stages"]] == [1, 2, 4]


def test_prompts_have_the_length_that_the_server_counts(fake, bench):
    _, said, result = bench(fake().url, "--input-len", "33", "--shared-prefix-len", "7")
    assert "the server's /tokenize" in said
    assert {one["prompt_tokens"] for one in result["stages"][0]["requests"]} == {40}


def test_the_same_seed_sends_the_same_prompts(canned, bench):
    first, second, other = (canned(only(stream(token(), token(), "[DONE]"))) for _ in range(3))
    for server, seed in ((first, "1"), (second, "1"), (other, "2")):
        bench(server.url, "--seed", seed)
    asked = [sorted(json.dumps(body) for path, body, _ in one.requests if body) for one in (first, second, other)]
    assert asked[0] == asked[1]
    assert asked[0] != asked[2]


def test_json_is_all_that_standard_output_holds(fake, tmp_path, capsys):
    with pytest.raises(SystemExit):
        command.main(
            ["--url", fake().url, "--state-dir", str(tmp_path), "--num-prompts", "4", "--output-len", "2", "--json"],
            standalone_mode=False,
        )
    assert json.loads(capsys.readouterr().out)["stages"][0]["completed"] == 4
