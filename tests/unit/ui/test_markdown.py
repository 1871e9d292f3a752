"""Markdown becomes HTML that shows text and does nothing else, one line a block."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qserve.ui.chat.markdown import MATH_DELIMITERS, GrowingMarkdown, blocks_of

HEADINGS = {f"h{level}" for level in range(1, 7)}
NAMES = HEADINGS | {
    "div",
    "p",
    "span",
    "button",
    "pre",
    "code",
    "a",
    "ul",
    "ol",
    "li",
    "blockquote",
    "table",
    "thead",
    "tbody",
    "tr",
    "th",
    "td",
    "em",
    "strong",
    "s",
    "sub",
    "sup",
    "kbd",
    "br",
    "hr",
    "img",
}
DISPLAY, INLINE = (one["left"] for one in MATH_DELIMITERS)


def html_of(text: str) -> str:
    return "".join(blocks_of(text))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("if a<b and c>d: x", "if a&lt;b and c&gt;d: x"),
        ("<div style='position:fixed'>x</div>", "&lt;div style='position:fixed'&gt;x&lt;/div&gt;"),
        ("x<br>y", "x<br />&#10;y"),
        ("H<sub>2</sub>O", "H<sub>2</sub>O"),
        ("H<sub onclick=x>2</sub>", "H&lt;sub onclick=x&gt;2&lt;/sub&gt;"),
        ("`<b>`", "<code>&lt;b&gt;</code>"),
        ("**结论：**这是**“对”**的，*好。*", "<strong>结论：</strong>这是<strong>“对”</strong>的，<em>好。</em>"),
        ("**甲**，**乙** ** 丙", "<strong>甲</strong>，<strong>乙</strong> ** 丙"),
        ("[x](javascript:alert(1))", "[x](javascript:alert(1))"),
        ("%%%LATEX_BLOCK_0%%%", "%%%LATEX&#95;BLOCK&#95;0%%%"),
    ],
)
def test_what_is_shown(text: str, shown: str) -> None:
    assert html_of(text) == f'<div><p dir="auto">{shown}</p></div>'


@pytest.mark.parametrize(
    "text",
    [
        "costs $5 and $6",
        "US$5, then A$6",
        "from $1,000 to $2,000",
        "$HOME and $PATH",
        "a \\$5 b \\$6",
        "price: 5$ or 6$",
    ],
)
def test_prices_and_variables_are_no_formulas(text: str) -> None:
    assert INLINE not in html_of(text) and DISPLAY not in html_of(text)


@pytest.mark.parametrize(
    ("text", "delimiter", "formula"),
    [
        ("so $x^2 < 3$ holds", INLINE, "x^2 &lt; 3"),
        ("so \\(a_b\\) holds", INLINE, "a_b"),
        ("so \\[a_b\\] holds", DISPLAY, "a_b"),
        ("$$\na *b* c\n$$", DISPLAY, "a *b* c"),
        ("\\[\na\n- b\n= c\n\\]", DISPLAY, "a&#10;- b&#10;= c"),
    ],
)
def test_formulas_are_left_to_the_browser(text: str, delimiter: str, formula: str) -> None:
    assert f"{delimiter}{formula}" in html_of(text)


def test_images_of_other_servers_are_links_and_those_in_the_text_are_shown() -> None:
    link = html_of("![chart](http://evil.example/a.png?d=1&e=2)")
    assert "<img" not in link and 'href="http://evil.example/a.png?d=1&amp;e=2"' in link
    assert "chart (evil.example)" in link
    assert '<img src="data:image/png;base64,AAAA" alt="x">' in html_of("![x](data:image/png;base64,AAAA)")
    assert "<img" not in html_of("![x](data:text/html;base64,AAAA)") + html_of("![x](/metrics)")


def test_code_is_coloured_by_class_and_stays_what_it_was() -> None:
    html = html_of("```python\ndef f():\n\n    return '<b>'\n```")
    assert '<span class="qs-k">def</span>' in html and "&lt;b&gt;" in html and "<b>" not in html
    assert "class" not in html_of('```x" onclick="y\nz\n```').partition("<pre>")[2]


def test_wide_tables_scroll_and_each_text_has_its_own_direction() -> None:
    assert '<div class="qs-wide" tabindex="0"><table>' in html_of("| a |\n|---|\n| b |")
    assert '<p dir="auto">' in html_of("שלום") and '<ul dir="auto">' in html_of("- שלום")


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet=st.sampled_from(list("ab <>/&\"'=`~*_[]()!#|-+.:$\\\n\r\t1{}\u05d0\ue000")), max_size=80))
def test_no_text_breaks_out(text: str) -> None:
    blocks = blocks_of(text)
    assert all(block.startswith("<div") and block.endswith("</div>") and "\n" not in block for block in blocks)
    names = {piece.lstrip("/").split(">")[0].split(" ")[0] for block in blocks for piece in block.split("<")[1:]}
    assert names <= NAMES


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet=st.sampled_from(list("ab `*_[]#|-1.>\\$\n\r")), max_size=60))
def test_a_growing_text_ends_as_the_whole_one(text: str) -> None:
    growing = GrowingMarkdown()
    for length in range(1, len(text) + 1):
        growing.blocks_of(text[:length])
    # A block may be read differently once what follows it is known; nothing of its text may be lost.
    last = "".join(growing.blocks_of(text + "\n\nend"))
    assert last.count("end") == 1


@pytest.mark.parametrize(
    "text",
    ["[" * 50_000, "`" * 50_001, "*a_" * 20_000, "> " * 20_000, "\\[\n" * 20_000, "$a " * 20_000, "\\(" * 50_000],
)
def test_no_text_holds_the_page_up(text: str) -> None:
    """Quadratic, each of them would take minutes."""
    began = time.process_time()
    blocks_of(text)
    assert time.process_time() - began < 30
