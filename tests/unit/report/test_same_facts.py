"""Page, Markdown and JSON tell the same: what stands in one table stands in all of them."""

from __future__ import annotations

import html
import json
import re
from dataclasses import replace

import pytest

from qserve.charts.figures import text_of
from qserve.report import to_html, to_json, to_markdown
from qserve.report.blocks import Figure, Row, Table, Tiles
from qserve.report.sections import sections_of
from tests.unit.report.made_up import a_report, a_run, a_worker


def _tables(report):
    for section in sections_of(report):
        for block in section.blocks:
            for one in block.figures if isinstance(block, Row) else (block,):
                table = one.table if isinstance(one, Figure) else one
                if isinstance(table, Table) and table.columns:
                    yield section, table


def test_every_table_is_in_all_three():
    report = a_report()
    page, markdown, document = to_html(report), to_markdown(report), json.loads(json.dumps(to_json(report)))
    plain_page, plain_markdown = html.unescape(page), re.sub(r"\\(.)", r"\1", markdown)
    tables = list(_tables(report))
    assert len(tables) > 15
    for section, table in tables:
        told = document["sections"][section.key][table.key]
        assert [list(row.values()) for row in told["rows"]] == [list(row) for row in table.rows]
        for row in table.rows:
            cells = [text_of(value, column.kind) for value, column in zip(row, table.columns, strict=True)]
            assert "| " + " | ".join(cells) + " |" in plain_markdown
            for cell in cells:
                assert f">{cell}<" in plain_page


def test_tables_have_keys_of_their_own():
    keys = [(section.key, table.key) for section, table in _tables(a_report())]
    assert len(keys) == len(set(keys))


def test_headlines_and_commands_are_in_all_three():
    report = a_report()
    page, markdown, document = to_html(report), to_markdown(report), to_json(report)
    tiles = [block for section in sections_of(report) for block in section.blocks if isinstance(block, Tiles)]
    for tile in (tile for block in tiles for tile in block.tiles):
        text = text_of(tile.value, tile.kind)
        assert f"<dd>{text}</dd>" in page and f"**{text}**" in markdown
    command = "qserve up --model demo --api-key '***'"
    assert html.escape(command).replace("&#x27;", "&#39;") in page
    assert f"    {command}" in markdown
    assert document["sections"]["reproduce"]["command"]["lines"] == [command]


@pytest.mark.parametrize("name", ["a|b", "<b>x</b>", "[x](http://y)", "`x`", "a\nb", "![i](x)"])
def test_no_name_becomes_markup_in_markdown(name):
    report = a_report()
    told = to_markdown(replace(report, run=a_run(a_worker("chat", name)), memory=(), traffic=report.traffic))
    row = next(line for line in told.splitlines() if line.startswith("| chat"))
    assert len(re.findall(r"(?<!\\)\|", row)) == 11, "as many cells as columns"
    for special in "<`[":
        assert not re.search(rf"(?<!\\){re.escape(special)}", row)
