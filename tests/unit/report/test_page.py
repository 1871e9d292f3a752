"""The page: all of it in one file, nothing of it executable, readable without its charts."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from qserve.report import RunReport, to_html
from qserve.runs import StoredDocument, StoredEvent
from tests.unit.report.made_up import BEGAN, a_full_report, a_report, a_run, a_worker, scores

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>&amp;"
VOID = {"meta", "br", "img", "input", "link"}
SECTIONS = [
    "overview",
    "memory",
    "latency",
    "start",
    "traffic",
    "reward",
    "evals",
    "comparison",
    "bench",
    "faults",
    "reproduce",
    "next",
]


class _Tree(HTMLParser):
    """Tags in their nesting; what is not closed, or closed twice, fails."""

    def __init__(self, page):
        super().__init__()
        self.open, self.tags, self.ids = [], [], []
        self.feed(page)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs), tuple(self.open)))
        self.ids += [value for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs), tuple(self.open)))

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()

    def of(self, tag):
        return [attrs for name, attrs, _ in self.tags if name == tag]


def test_every_section_is_there_in_the_order_of_reading():
    tree = _Tree(to_html(a_report()))
    assert [attrs["id"] for attrs in tree.of("section")] == SECTIONS
    assert [attrs["href"] for attrs in tree.of("a")] == [f"#{name}" for name in SECTIONS]
    assert len(tree.ids) == len(set(tree.ids))


def test_nothing_is_fetched_and_nothing_runs():
    page = to_html(a_report())
    tree = _Tree(page)
    names = {tag for tag, _, _ in tree.tags}
    assert not names & {"script", "link", "img", "iframe", "object", "embed", "base", "form"}
    assert not [name for _, attrs, _ in tree.tags for name in attrs if name.startswith("on")]
    assert not re.findall(r"url\(|@import|src=|https?://(?!127\.0\.0\.1)", page)


def test_sections_without_facts_are_left_out():
    tree = _Tree(to_html(RunReport(a_run(num_requests=0, num_errors=0))))
    assert [attrs["id"] for attrs in tree.of("section")] == ["overview", "reproduce", "next"]


@pytest.mark.parametrize("field", ["evals", "benches", "comparisons", "work", "events", "memory"])
def test_what_is_empty_leaves_no_empty_table(field):
    tree = _Tree(to_html(a_report(**{field: {} if field == "work" else ()})))
    bodies = [index for index, (tag, _, _) in enumerate(tree.tags) if tag == "tbody"]
    assert all(tree.tags[index + 1][0] == "tr" for index in bodies)


def test_whatever_names_hold_stays_text():
    worker = replace(a_worker("chat", HOSTILE), start_phases_s={HOSTILE: 1.0}, name=HOSTILE)
    worker.plan["quant"]["reason"] = worker.plan["engine"] = worker.plan["devices"][0]["name"] = HOSTILE
    run = a_run(worker, command=("qserve", HOSTILE), versions={HOSTILE: HOSTILE}, url=HOSTILE)
    report = a_report(model=HOSTILE)
    hostile = replace(
        report,
        run=run,
        events=(StoredEvent(BEGAN, HOSTILE, "restart", {HOSTILE: HOSTILE}),),
        evals=(StoredDocument(1, "eval", BEGAN, None, HOSTILE, scores(metric=HOSTILE.replace(",", ""))),),
    )
    for each in (report, hostile):
        page = to_html(each)
        assert HOSTILE not in page
        assert "<script" not in page and "<img" not in page
        _Tree(page)


def test_each_chart_has_a_name_and_its_figures_in_a_table():
    tree = _Tree(to_html(a_report()))
    images = [attrs for attrs in tree.of("div") if attrs.get("role") == "img"]
    assert len(images) == len(tree.of("figure")) > 10
    assert all(attrs["aria-label"] for attrs in images)
    within = sum(1 for tag, _, above in tree.tags if tag == "table" and "figure" in above)
    # The lines over time of one worker share one table, which stands below them.
    assert within + sum(4 if worker == "chat" else 3 for worker in ("chat", "reward")) == len(images)
    assert all(attrs.get("scope") in ("col", "row") for attrs in tree.of("th"))
    assert len(tree.of("caption")) == len(tree.of("table"))


def test_light_dark_paper_and_phone_have_rules_of_their_own():
    page = to_html(a_report())
    for rule in ("prefers-color-scheme: dark", "@media print", "(max-width", 'name="viewport"'):
        assert rule in page


def test_a_figure_says_how_and_when_it_was_obtained():
    page = to_html(a_report())
    assert "Measured before it ended, 2026-11-21" in page
    assert "sum of the tensors" in page
    assert "lm-eval 0.4.13, seed 1234, 12.5 s." in page and "offline · Nov 21" in page


def test_no_two_tables_or_charts_have_one_title():
    """Two evaluations, load tests or comparisons are told apart by their titles, two tables of a worker as well."""
    tree = _Tree(to_html(a_full_report()))
    charts = [attrs["aria-label"] for attrs in tree.of("div") if attrs.get("role") == "img"]
    tables = re.findall(r"<caption>([^<]*)</caption>", to_html(a_full_report()))
    for titles in (charts, tables):
        assert len(titles) > 20
        assert sorted(titles) == sorted(set(titles))


def test_few_rows_of_many_columns_are_a_line_for_each_column():
    page = to_html(a_report())
    assert re.search(
        r'<table class="turned">\s*<caption>Models</caption>\s*<thead><tr><th scope="col">worker</th>', page
    )
    assert '<tr><th scope="row">engine</th>' in page
    assert '<th scope="col" class="n">planned</th>' in page, "other tables have a column for each figure"


def test_a_long_run_stays_a_small_page():
    report = a_report()
    chat = report.traffic.workers[0]
    points = tuple(replace(chat.series[0], unix_s=BEGAN + 60 * index) for index in range(121))
    traffic = replace(report.traffic, workers=(replace(chat, series=points),))
    events = tuple(StoredEvent(BEGAN + index, "chat", "restart", {"reason": "again"}) for index in range(5000))
    assert len(to_html(replace(report, traffic=traffic, events=events)).encode()) < 400_000
