"""Rules: what they say of responses, in a process that may be ended; and the YAML that combines parts."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from qserve.errors import UsageError
from qserve.reward.judges.client import JudgeClient
from qserve.reward.judges.template import BUNDLED, read_template
from qserve.reward.recipe import JudgePart, is_recipe, read_recipe
from qserve.reward.rules import make_rule
from qserve.reward.rules.process import RuleProcess

SCHEMA = {"type": "object", "required": ["answer"], "properties": {"answer": {"type": "integer"}}}
CASES = [
    ("exact", {}, " 42 ", "42", 1),
    ("exact", {}, "It is 42", "42", 0),
    ("exact", {"extract": r"answer is (\w+)"}, "the answer is 41, no, the answer is 42", "42", 1),
    ("exact", {"ignore_case": True}, "Paris", "paris", 1),
    ("regex", {"pattern": "<think>.*</think>"}, "<think>a\nb</think>c", "", 1),
    ("regex", {"pattern": "a+", "whole": True}, "aab", "", 0),
    ("json-schema", {"schema": SCHEMA}, '```json\n{"answer": 42}\n```', "", 1),
    ("json-schema", {"schema": SCHEMA}, '{"answer": "42"}', "", 0),
    ("json-schema", {"schema": SCHEMA}, "[" * 100_000, "", 0),
    ("math", {}, r"So it is $\frac{1}{2}$.", "0.5", 1),
    ("math", {}, r"\boxed{(x+1)^2}", "x^2+2x+1", 1),
    ("math", {}, "The answer is 41", "42", 0),
]


@pytest.mark.parametrize(("kind", "options", "response", "reference", "meant"), CASES)
def test_what_a_rule_says(kind, options, response, reference, meant):
    assert make_rule(kind, options, "here").check()(response, reference) == meant


def test_a_pattern_that_never_ends_costs_its_own_response_alone():
    process = RuleProcess([make_rule("regex", {"pattern": "(a+)+$"}, "here")], item_s=2)
    try:
        verdicts = process.verdicts(0, [("aaa", ""), ("a" * 60 + "b", ""), ("aa", "")])
    finally:
        process.close()
    assert verdicts[0] == verdicts[2] == 1.0
    assert "did not return within 2 s" in verdicts[1]


WRONG = {
    "no parts": ("x: 1", "must have the list `parts:`"),
    "no YAML": ("parts: [", "can't be read as YAML"),
    "empty": ("parts: []", "needs its own name"),
    "twice": ("parts: [{name: a, rule: exact}, {name: a, rule: exact}]", "its own name"),
    "an unknown rule": ("parts: [{name: a, rule: exakt}]", "there is no rule 'exakt'; the rules are exact, math"),
    "a typo": ("parts: [{name: a, rule: regex, patern: x}]", "no option 'patern'; it takes pattern, whole"),
    "a missing option": ("parts: [{name: a, rule: regex}]", "needs 'pattern'"),
    "no pattern": ("parts: [{name: a, rule: regex, pattern: '('}]", "is not a regular expression"),
    "no schema": ("parts: [{name: a, rule: json-schema, schema: {type: 5}}]", "is not a valid JSON schema"),
    "a weight": ("parts: [{name: a, rule: exact, weight: much}]", "'weight' is 'much'; it takes a number"),
    "two models": ("parts: [{name: a, model: demo}, {name: b, model: demo}]", "more than one model"),
    "two kinds": ("parts: [{name: a, model: demo, rule: exact}]", "must have one of"),
    "a judge without url": ("parts: [{name: a, judge: pointwise, model: demo}]", "a judge's 'url' is an address"),
    "an unknown judge": ("parts: [{name: a, judge: nobody, url: 'http://x', model: m}]", "no judge template 'nobody'"),
    "a judge without rubric": ("parts: [{name: a, judge: rubric, url: 'http://x', model: m}]", "asks for a rubric"),
    "a key for oneself": ("parts: [{name: a, judge: pointwise, url: served, api_key_file: x}]", "needs no key"),
    "a judge without model": ("parts: [{name: a, judge: pointwise, url: 'http://x'}]", "needs 'model'"),
    "an unparsable share": (
        "parts: [{name: a, judge: pointwise, url: served, if_unparsable: 2}]",
        "'if_unparsable' is 2; it takes a number",
    ),
    "a judge's typo": ("parts: [{name: a, judge: pointwise, url: 'http://x', model: m, vots: 3}]", "no option 'vots'"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_mistake_is_one_sentence(what, tmp_path):
    text, words = WRONG[what]
    (tmp_path / "rewards.yaml").write_text(text)
    with pytest.raises(UsageError) as caught:
        read_recipe(tmp_path / "rewards.yaml")
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_a_recipe_of_all_kinds(tmp_path):
    file = tmp_path / "rewards.yaml"
    file.write_text(
        "parts:\n- {name: quality, model: demo, weight: 0.5, mean: 1, std: 2}\n- {rule: math}\n"
        "- {name: nice, judge: pairwise, url: 'http://127.0.0.1:1/v1/', model: m, votes: 3}\n"
    )
    recipe = read_recipe(file)
    assert is_recipe(str(file)) and not is_recipe("demo") and not is_recipe(str(tmp_path))
    assert recipe.weights == {"quality": 0.5, "math": 1.0, "nice": 1.0}
    judge = recipe.parts[2]
    assert isinstance(judge, JudgePart)
    assert (judge.url, judge.temperature) == ("http://127.0.0.1:1/v1", 1.0)


TEMPLATE = {"version": 1, "kind": "pointwise", "prompt": "{{ response }}", "verdict": r"(\d)", "scale": [1, 5]}
BROKEN = {
    "no slot": ({"prompt": "judge!"}, "has no slot {{ response }}"),
    "an unknown slot": ({"prompt": "{{ response }} {{ anser }}"}, "has a slot 'anser'"),
    "no Jinja": ({"prompt": "{{ response"}, "is not a Jinja template"),
    "no pattern": ({"verdict": "("}, "is not a regular expression"),
    "no scale": ({"scale": None}, "needs [lowest, highest]"),
    "pairwise without choices": ({"kind": "pairwise", "prompt": "{{ response_a }}{{ response_b }}"}, "'choices'"),
    "choices that are no share": ({"scale": None, "choices": {"Yes": 2}}, 'needs {"Yes": 1, "No": 0}'),
    "a word that YAML reads as true": ({"choices": {True: 1, False: 0}}, "in quotation marks"),
    "a kind": ({"kind": "listwise"}, "takes pointwise or pairwise"),
    "a field": ({"note": 1}, "has no field 'note'"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_judge_template_that_can_t_judge_is_one_sentence(what, tmp_path):
    change, words = BROKEN[what]
    (tmp_path / "judge.yaml").write_text(yaml.safe_dump(TEMPLATE | change))
    with pytest.raises(UsageError) as caught:
        read_template("judge.yaml", "part 1", tmp_path)
    assert words in str(caught.value) and str(caught.value).startswith("part 1")


def test_a_pointwise_verdict_may_be_a_word(tmp_path):
    written = TEMPLATE | {"verdict": r"\b(Yes|No|Partly)\b", "choices": {"Yes": 1, "No": 0}}
    (tmp_path / "judge.yaml").write_text(yaml.safe_dump(written))
    template = read_template("judge.yaml", "part 1", tmp_path)
    said = ("Yes.", "<think>Yes</think>\nNo.", "Yes? No", "Partly", "maybe")
    assert [template.verdict_of(one) for one in said] == [1.0, 0.0, 0.0, None, None]


def test_the_served_chat_model_may_judge_and_an_unread_verdict_may_have_its_price(tmp_path):
    file = tmp_path / "rewards.yaml"
    file.write_text("parts: [{name: a, judge: pointwise, url: served, if_unparsable: 0, max_unparsable: 1}]")
    recipe = read_recipe(file)
    assert recipe.asks_served and recipe.summary == "1 × a"
    (judge,) = recipe.parts
    assert isinstance(judge, JudgePart) and (judge.model, judge.if_unparsable) == ("", 0.0)
    with pytest.raises(UsageError, match="no chat model is served; name one: qserve up --model"):
        JudgeClient(judge)


@pytest.mark.parametrize("name", BUNDLED)
def test_bundled_templates_read_verdicts(name):
    template = read_template(name, "here", Path())
    slots = {"prompt": "1+1?", "rubric": "be right", "response": "2", "response_a": "2", "response_b": "{{ 7*7 }}"}
    asked = template.render(**slots)
    assert "1+1?" in asked and (template.kind == "pointwise" or "{{ 7*7 }}" in asked)
    if template.kind == "pairwise":
        assert [template.verdict_of(f"Better.\nVerdict: {word}") for word in "ABC"] == [1, 0, 0.5]
    else:
        assert template.verdict_of("<think>Score: 1</think>Good.\n**Score: 10**") == 1
        assert template.verdict_of("Score: 11") is None, "outside its scale"
    assert template.verdict_of("I can't say.") is None
