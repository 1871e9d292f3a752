"""configs/deployments: every file loads, and its plan comes to what the file says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from qserve.cli.options import deployment
from qserve.hub import resolve
from qserve.planner import PlanRequest, make_plan
from qserve.service.machine import hardware_of
from qserve.service.request import plan_request_of as request_of
from qserve.service.reward import as_scorer
from qserve.service.sharing import make_shared_plan

FILES = deployment.bundled()
CARDS = ("1x24gb", "1x48gb", "1x80gb", "2x24gb")
NAMES = {
    *(f"{model}-{cards}" for model in ("qwen3-32b", "qwen3.8-27b") for cards in CARDS),
    "qwen3.6-35b-a3b-1x48gb",
    "qwen2.5-7b-with-reward-1x24gb",
    "demo-cpu",
}


@pytest.fixture(autouse=True)
def _offline(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))


def plans_of(file):
    """(chat, reward or None), on the cards that the file was written for."""
    options, hardware = dict(file.options), hardware_of(file.gpu)
    model, reward = resolve(options.pop("model")), options.pop("reward", None)
    request = request_of(options)
    if reward is None:
        return make_plan(model, hardware, request), None
    shared = make_shared_plan(model, as_scorer(resolve(reward)), hardware, request, PlanRequest())
    return shared.chat, shared.reward


def test_the_usual_combinations_are_there():
    assert set(FILES) >= NAMES


@pytest.mark.parametrize("name", sorted(FILES))
def test_it_plans_to_what_it_claims(name):
    file = deployment.load(name)
    chat, reward = plans_of(file)
    assert file.expect.differences(chat, reward) == ()
    assert reward is None or reward.fits


@pytest.mark.parametrize("name", sorted(FILES))
def test_it_claims_what_its_name_and_its_flags_say(name):
    file = deployment.load(name)
    expect = file.expect
    assert expect.scheme and expect.engine and expect.kv_cache_tokens
    assert expect.max_model_len == file.options["max_model_len"]
    assert expect.max_num_seqs == file.options["max_num_seqs"]
    assert file.options["host"] == "127.0.0.1"
    cards = re.search(r"(\d)x(\d+)gb", name)
    if cards is None:
        assert file.gpu == "none"
        return
    devices = hardware_of(file.gpu).devices
    assert len(devices) == int(cards[1]) == expect.tensor_parallel_size
    assert 0.9 * int(cards[2]) < devices[0].total_bytes / 2**30 < int(cards[2])


@pytest.mark.parametrize("name", sorted(FILES))
def test_it_opens_with_a_comment_that_tells_what_for(name):
    first = FILES[name].read_text().splitlines()[0]
    assert first.startswith("# ") and len(first) > 40


def test_a_claim_that_the_plan_does_not_come_to_is_named():
    file = deployment.load("qwen3-32b-1x24gb")
    plan, _ = plans_of(file)
    wrong = deployment.Expectation(scheme="gptq-int4", max_model_len=9000, kv_cache_tokens=10**6)
    assert len(wrong.differences(plan)) == 3
    assert wrong.differences(plan)[0] == "scheme is awq, expected gptq-int4"
    assert "expected to not fit, but it fits" in deployment.Expectation(fits=False).differences(plan)


def test_all_of_it_is_plain_yaml():
    for path in FILES.values():
        assert isinstance(yaml.safe_load(path.read_text()), dict)


def test_the_page_shows_each_of_them_with_its_figures():
    page = (Path(__file__).parents[4] / "docs" / "deployments.md").read_text()
    rows = re.findall(r"^\| `(\S+)` \|.*\| (\S+) \| (\d+) \| (\d+) tokens \|$", page, re.MULTILINE)
    claims = {name: deployment.load(name).expect for name in FILES}
    assert {name: (scheme, int(length), int(tokens)) for name, scheme, length, tokens in rows} == {
        name: (claim.scheme, claim.max_model_len, claim.kv_cache_tokens) for name, claim in claims.items()
    }
