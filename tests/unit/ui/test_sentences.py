"""A Chinese page is Chinese: what other parts of qserve say has a row in the tables of the UI."""

from __future__ import annotations

import ast
import html
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

import qserve
from qserve.errors import UsageError
from qserve.planner.term import COLUMNS
from qserve.ui import strings
from qserve.ui.client.api import ApiFailure
from qserve.ui.client.planner import PlanQuestion, PlanRefused
from qserve.ui.strings.sentences import SENTENCES, has_english, said
from qserve.ui.views.failures import failure_view
from qserve.ui.views.memory import host_view, memory_view
from qserve.ui.views.plan import plan_view
from tests.golden.plans import answers
from tests.golden.plans.answers import kept

ADD = "add a row to qserve/ui/strings/sentences"
FIELD = re.compile(r"\{#?\}")
MEASURED = (
    "qserve/engines/transformers/worker/api/memory.py",
    "qserve/model/memory.py",
    "qserve/reward/serving/memory.py",
    "qserve/engines/vllm/launch/measured.py",
    "qserve/training/process/memory.py",
    "qserve/gateway/telemetry/host_memory.py",
)


def words_of(texts: Iterable[str]) -> set[str]:
    return {word for text in texts for word in re.findall(r"[a-z]{4,}", COMMAND.sub("", text))}


COMMAND = re.compile(r"--[\w-]+(?:[ =](?:'[^']*'|[^\s;，；]+))?|`[^`]*`|'[^']*'|\w*_\w*|[\w.-]*[/.][\w.-]*")
VOCABULARY = words_of(SENTENCES) - words_of(SENTENCES.values()) - {"half"}
"""Words that have a Chinese one. `half` is also a name, of a --dtype."""


def left_in(chinese: str | None) -> bool:
    return chinese is None or has_english(chinese) or bool(words_of([chinese]) & VOCABULARY)


def english_in(page: str) -> list[str]:
    """What of a page's text is English: commands, and a server's own words that are marked as such, may be."""
    text = re.sub(r"<code>.*?</code>|<span lang=\"en\">.*?</span>", " ", page, flags=re.DOTALL)
    text = " | ".join(re.findall(r'(?:title|aria-label|data-head)="([^"]*)"', text)) + re.sub("<[^>]*>", " | ", text)
    return [part for part in html.unescape(text).split(" | ") if has_english(part)]


def plans() -> Iterator[tuple[str, dict[str, Any]]]:
    for line, answer in kept().items():
        if not line.startswith("plan train") and answer.get("plan"):
            whole = answer["plan"]
            yield from ((line, one) for one in whole.get("plans") or [whole] if "quant" in one)


def test_every_kept_plan_is_chinese() -> None:
    left: dict[str, str] = {}
    seen: set[str] = set()
    for line, plan in plans():
        told = [
            plan["quant"].get("reason") or "",
            plan.get("why_not") or "",
            *(plan.get("notes") or ()),
            *(text for one in plan.get("suggestions") or () for text in (one["change"], one["cost"])),
            *(text for term in plan["devices"][0].get("terms") or () for text in (term["name"], term["formula"])),
        ]
        for text in {*told} - seen:
            seen.add(text)
            chinese = said("zh-CN", text)
            if text and left_in(chinese):
                left.setdefault(FIELD.sub("", re.sub(r"\d[\d.,]*", "#", text)), f"{text!r} of qserve {line}")
    assert len(seen) > 500
    assert not left, f"{ADD}: " + "\n".join(left.values())


@pytest.mark.parametrize("fits", [True, False])
def test_a_plan_as_a_page_is_chinese(fits: bool) -> None:
    plan = next(plan for _, plan in plans() if plan["fits"] is fits and (fits or plan["suggestions"]))
    row = {
        "layout": "tp 2",
        "cards": 2,
        "ttft_ms": 1.0,
        "tpot_ms": 2.0,
        "output_tokens_per_s": 3.0,
        "chosen": True,
        "tokens_per_s_per_user": 1.0,
        "tokens_per_s_per_card": 2.0,
        "pareto": True,
    }
    times = {"mean": 1.0, "low": 0.5, "high": 2.0, "value": 1.0}
    speed = {
        "load": {"input": 10, "output": 10, "users": 2},
        "output_tokens_per_s": times,
        "max_rps": times,
        **dict.fromkeys(("ttft_ms", "tpot_ms", "e2e_ms"), times),
        "notes": ["Speed is estimated; this card was not measured"],
        "alternatives": [row, {**row, "pareto": False}],
    }
    page = plan_view({**plan, "speed": speed}, "zh-CN")
    assert english_in(page) == [] and "速度为估计值" in page and "没有方案两项都更好" in page
    assert len(english_in(plan_view({**plan, "speed": speed}, "en"))) > 10, "the check sees English where there is some"


@pytest.mark.parametrize(
    ("gpu", "fixed"),
    [
        ("m4-max-64gb", {}),
        ("m4-max-64gb", {"quant": "4bit"}),
        ("m4-pro-24gb", {"model": "Qwen/Qwen3-32B"}),
        ("b60:2", {"model": "Qwen/Qwen3-32B"}),
        ("b60:4", {}),
        ("b60", {"quant": "fp8"}),
        ("910b:2", {"model": "Qwen/Qwen3.5-9B"}),
        ("310p", {}),
        ("b60", {"kv_cache_memory_bytes": 400 * 2**30}),
    ],
)
def test_a_plan_for_a_card_that_no_engine_runs_on_is_chinese(gpu: str, fixed: dict[str, Any]) -> None:
    plan = qserve.plan(fixed.pop("model", "Qwen/Qwen3-8B"), gpu=gpu, **fixed).to_json()
    told = [plan["quant"]["reason"], plan["why_not"] or "", *plan["notes"]]
    told += [text for term in plan["devices"][0]["terms"] for text in (term["name"], term["formula"])]
    told += [text for one in plan["suggestions"] for text in (one["change"], one["cost"])]
    assert [text for text in told if text and left_in(said("zh-CN", text))] == []


@pytest.mark.parametrize(
    ("gpu", "fixed"),
    [
        ("m4-max", {}),
        ("b60", {"quant": "int8"}),
        ("b60", {"model": "Qwen/Qwen3-8B-FP8"}),
        ("b60", {"engine": "vllm"}),
        ("b60:2", {"tensor_parallel_size": 2}),
        ("m4-16gb:2", {}),
        ("310p", {"dtype": "bfloat16"}),
        ("b60", {"dtype": "float32"}),
        ("b60", {"max_model_len": 10_000_000}),
        ("910b", {"model": "Qwen/Qwen2.5-Math-RM-72B"}),
        ("like=b60,cc=8.9", {}),
    ],
)
def test_what_is_refused_of_such_a_card_is_chinese(gpu: str, fixed: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as refused:
        qserve.plan(fixed.pop("model", "Qwen/Qwen3-8B"), gpu=gpu, **fixed)
    assert not left_in(said("zh-CN", str(refused.value))), f"{ADD}: {refused.value}"


def test_every_kept_refusal_is_chinese() -> None:
    refused = {}
    for line, answer in kept().items():
        if not line.startswith("plan train") and not answer.get("plan"):
            sentence = re.sub(r"\s+", " ", str(answer["error"])).rpartition("qserve: ")[2].strip()
            chinese = said("zh-CN", sentence)
            if left_in(chinese):
                refused[line] = sentence
    assert not refused, f"{ADD}: " + "\n".join(refused.values())


@pytest.mark.parametrize(
    "words",
    [
        "demo --x",
        "demo --mex-model-len 3",
        "demo --cpu-offload-gb 3",
        "demo --max-num-seqs x",
        "demo --max-num-seqs 0",
        "demo --max-model-len 4x",
        "demo --max-model-len -5",
        "demo --rps x",
        "demo --gpu-memory-utilization 2",
        "demo --ttft x",
        "demo --engine nosuch",
        "demo --engine-version zzz",
        "demo --quant nosuch",
        "demo --quant int9",
        "demo --kv-cache-dtype nosuch",
        "demo --gpu nosuch",
        "demo --gpu rtx-409",
        "demo --gpu rtx-4090:0",
        "demo --gpu memory=3",
        "demo --gpu memory=x,sm=3",
        "nosuchmodel",
        "qwen3-8",
        "./nosuchmodel",
        "nosuch/model",
        "demo --reward nosuch",
        "",
        "Qwen/Qwen3-235B-A22B --gpu any --rps 1 --quant bf16 --prices {prices}",
    ],
)
def test_what_is_refused_of_a_command_line_is_chinese(words: str, tmp_path: Path) -> None:
    prices = tmp_path / "prices.toml"
    prices.write_text("[cards]\nrtx-4090 = { usd_per_hour = 0.4 }\nnosuch = { usd_per_hour = 1.0 }\n")
    with answers.machine():
        refused = answers.answer(f"plan {words.format(prices=prices)}")
    sentence = " ".join(str(refused["error"]).split()).removeprefix("qserve: ")
    assert refused["status"] == 2 and sentence
    assert not left_in(said("zh-CN", sentence)), f"{ADD}: {sentence}"


def test_what_the_form_refuses_is_chinese() -> None:
    for text in ("disk", "--config /x", "--quant=bf16 --quant"):
        try:
            PlanQuestion("m", quant="bf16").with_other(text)
        except PlanRefused as refused:
            assert (told := said("zh-CN", str(refused))) and not has_english(told), refused


def test_every_source_of_measured_memory_is_chinese() -> None:
    """As the files that measure have them: values of the terms' keys, and strings that are named."""
    shown = [f"{term}_bytes" for term in (*COLUMNS, "resident")]
    found: set[str] = set()
    for name in MEASURED:
        for node in ast.walk(ast.parse(Path(name).read_text())):
            if isinstance(node, ast.Dict):
                pairs = zip(node.keys, node.values, strict=True)
                found |= {text for key, value in pairs if _texts(key) <= {*shown} for text in _texts(value)}
            elif isinstance(node, ast.Assign) and not isinstance(node.value, ast.Dict):
                found |= _texts(node.value)
    sentences = {one for one in found if has_english(one) and "_bytes" not in one}
    assert len(sentences) > 8
    assert not {one for one in sentences if said("zh-CN", one) is None}, ADD


def test_every_phase_of_a_start_is_chinese() -> None:
    source = "".join(file.read_text() for file in Path("qserve").rglob("*.py"))
    phases = {*re.findall(r'(?:report_phase\(|first_phase=|first_phase: str = )"([^"{]+)"', source)}
    log = Path("qserve/engines/vllm/launch/log.py").read_text()
    phases |= {*re.findall(r'^    \("([a-z][^"]+)", re\.compile', log, re.MULTILINE)}
    assert len(phases) > 8
    assert not {one for one in phases if said("zh-CN", one) is None}, ADD


def test_the_memory_page_is_chinese() -> None:
    sources = {f"{term}_bytes": "resident memory (RSS)" for term in COLUMNS}
    device = {"name": "AMD EPYC", **dict.fromkeys((f"{term}_bytes" for term in COLUMNS), 1 << 30)}
    measured = {**dict.fromkeys((f"{term}_bytes" for term in COLUMNS), 1 << 29), "sources": sources}
    worker = {
        "worker": "chat",
        "models": ["m"],
        "planned": {"devices": [device]},
        "memory": measured,
        "start_phases_s": {"loading weights": 1.0, "warming up": 2.0},
    }
    dead = {"worker": "chat", "models": ["m"], "error": {"message": "the worker is gone", "code": "worker_unreachable"}}
    host = {"process": "large bodies", "planned_bytes": 1, "resident_bytes": None, "source": "resident memory (RSS)"}
    page = memory_view([worker, dead], "zh-CN") + host_view([host], "zh-CN")
    assert english_in(page) == [] and "加载权重 1.0 s" in page and "无法连接模型进程" in page


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 418, 422, 429, 500, 502, 503, 504])
def test_every_failure_is_chinese_with_the_servers_words(status: int) -> None:

    page = failure_view(ApiFailure("some words of a server", status), "zh-CN")
    assert english_in(page) == [] and "some words of a server" in page
    english = failure_view(ApiFailure("some words of a server", status), "en")
    assert "some words of a server" in english and ("qs-original" in english) == (status in (429, 502, 503))


def test_a_row_has_the_fields_of_its_sentence() -> None:
    for english, chinese in SENTENCES.items():
        fields = len(FIELD.findall(english))
        if fields:
            assert chinese.format(*range(fields)) and chinese.count("{") == fields, english
            assert re.sub(r"\d+", "", chinese.format(*["#"] * fields)).count("#") >= fields, english
        assert not has_english(chinese), chinese


def test_the_pages_own_strings_are_chinese() -> None:
    assert not [row for row in strings.STRINGS.values() if has_english(row[1])]


def test_a_sentence_without_a_row_is_told_as_it_is_written() -> None:
    assert said("zh-CN", "nobody has translated this") is None
    assert said("en", "nobody has translated this") == "nobody has translated this"
    assert (
        said("zh-CN", "Chose awq: bf16 needs 42.4 GiB more, fp8 13.4 GiB")
        == "选择 awq：bf16 还需要 42.4 GiB，fp8 13.4 GiB"
    )
    assert said("zh-CN", "Chose awq: nobody has translated this needs 1 GiB more") is None


def _texts(node: ast.AST | None) -> set[str]:
    """Strings that the expression may be, with `1` for what an f-string inserts."""
    if isinstance(node, ast.JoinedStr):
        return {"".join(str(one.value) if isinstance(one, ast.Constant) else "1" for one in node.values)}
    if isinstance(node, ast.IfExp):
        return _texts(node.body) | _texts(node.orelse)
    if isinstance(node, ast.Tuple):
        return {text for one in node.elts for text in _texts(one)}
    return {node.value} if isinstance(node, ast.Constant) and isinstance(node.value, str) else set()


def test_sentences_that_hold_one_another_without_end_are_left_as_they_are() -> None:
    for deep in ("Use " * 240 + "two words", "Use {}; " * 120 + "Use two words", "plan: " * 160 + "two words"):
        assert said("zh-CN", deep) is None
    assert "Use Use" in str(said("zh-CN", "Use " * 249 + "x"))
