"""Whatever a schema allows, or nearly, becomes a job or an error that a client can read: never a fault of ours."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from qserve.errors import RequestFailed
from qserve.reward.items import Score
from qserve.reward.protocols.job import ModelInfo, Scored
from qserve.reward.protocols.table import PROTOCOLS
from qserve.wire.errors import ApiError, from_failure
from qserve.wire.validation import from_validation

ABOUT = st.sampled_from([ModelInfo("rm", {}), ModelInfo("prm", {"step_token": "<extra_0>", "mean": 0.5, "std": 2.0})])
REWARD = st.floats(-1e30, 1e30)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)
TURN = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "system", "tool"]), "content": st.text(max_size=3)}
)
ANSWERED = st.lists(TURN, max_size=2).map(lambda turns: [*turns, {"role": "assistant", "content": "a"}])
TEXT, IDS = st.text(max_size=5), st.lists(st.integers(0, 9), min_size=1, max_size=3)
SIDES = {"prompt": TEXT, "chosen": TEXT, "rejected": TEXT}
# What fields of these requests hold when they are right, and when they are just beside it.
LIKELY = st.one_of(
    TEXT,
    IDS,
    ANSWERED,
    st.lists(TEXT, min_size=1, max_size=3),
    st.lists(IDS, max_size=3),
    st.lists(ANSWERED, max_size=2),
    st.lists(st.lists(TEXT, max_size=3), max_size=3),
    st.booleans(),
    st.integers(-1, 9),
    st.lists(st.fixed_dictionaries(SIDES), max_size=2),
    st.sampled_from(["left", "right", "refuse", "token_classify"]),
    st.fixed_dictionaries({"mean": st.floats(-9, 9), "std": st.floats(-1, 9)}),
)


def check(path, body, about, reward):
    protocol = PROTOCOLS[path]
    try:
        request = protocol.schema.model_validate_json(json.dumps(body))
        job = protocol.job(request, about)
    except ValidationError as error:
        assert from_validation(error, body).status == 400
        return
    except ApiError as error:
        assert error.status == 400
        return
    except RequestFailed as error:
        assert from_failure(error.code, "").status == 400
        return
    assert len(job.texts) == request.num_texts() >= 1
    scores = [Score(reward, (reward,) if text.every_token else None, 3, False, 2) for text in job.texts]
    json.dumps(job.answer(Scored(scores, "rm", {}, 1.0, 0)), allow_nan=False)


@pytest.mark.parametrize("values", [LIKELY, JSON], ids=["likely", "any"])
@pytest.mark.parametrize("path", {protocol: path for path, protocol in PROTOCOLS.items()}.values())
def test_known_fields_with_right_and_wrong_values(path, values):
    names = sorted(PROTOCOLS[path].schema.model_fields)

    @settings(max_examples=60)
    @given(body=st.dictionaries(st.sampled_from(names), values, min_size=1, max_size=4), about=ABOUT, reward=REWARD)
    def run(body, about, reward):
        check(path, body, about, reward)

    run()
