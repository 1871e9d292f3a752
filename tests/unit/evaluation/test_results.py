"""A result survives its file, and its figures are read as lm-eval writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from qserve.errors import UsageError
from qserve.evaluation.results import EvalResult, template_hash

LM_EVAL = {
    "results": {
        "a": {
            "alias": "a",
            "acc,none": 0.5,
            "acc_stderr,none": 0.1,
            "acc_norm,none": 0.25,
            "acc_norm_stderr,none": "N/A",
        }
    },
    "n-samples": {"a": {"original": 100, "effective": 25}},
    "n-shot": {"a": 3},
    "higher_is_better": {"a": {"acc": True, "acc_norm": False}},
    "samples": {"a": [{"doc_id": 7}]},
}


def test_scores() -> None:
    acc, norm = EvalResult({}, LM_EVAL).scores()
    assert (acc.metric, acc.value, acc.stderr, acc.num_items, acc.num_fewshot) == ("acc", 0.5, 0.1, 25, 3)
    assert (norm.metric, norm.stderr, norm.higher_is_better) == ("acc_norm", None, False)


def test_a_result_survives_its_file(tmp_path: Path) -> None:
    one = EvalResult({"model": "m"}, LM_EVAL)
    file = one.save(tmp_path / "r")
    assert EvalResult.load(file) == EvalResult.load(tmp_path / "r") == one
    assert set(one.samples("a")) == {7}


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"about": {}}'])
def test_a_file_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "result.json").write_text(text)
    with pytest.raises(UsageError, match="qserve eval"):
        EvalResult.load(tmp_path)


def test_the_template_hash_follows_the_template(tmp_path: Path) -> None:
    assert template_hash(tmp_path) is None
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "a"}')
    from_config = template_hash(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("a")
    assert template_hash(tmp_path) == from_config
    (tmp_path / "chat_template.jinja").write_text("b")
    assert template_hash(tmp_path) != from_config
