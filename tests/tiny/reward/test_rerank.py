"""Rankers' own forms on every route of theirs: documents as objects, limits of tokens, how many come back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tiny.reward.host import SIMPLE, Host

Opener = Callable[..., Any]
ROUTES = ("/rerank", "/v1/rerank", "/v2/rerank")
QUERY = "What is 17+25?"
DOCUMENTS = [
    "It is 42.",
    "I do not know, and nobody who was asked knows.",
    "17+25 is 42, since 17+20 is 37 and 5 more.",
]


@pytest.fixture(scope="module")
def host(opened: Opener) -> Iterator[Host]:
    one = Host(opened(SIMPLE))
    yield one
    one.close()


def _scores(host: Host, path: str = "/rerank", **fields: Any) -> dict[int, float]:
    body = {"query": QUERY, "use_activation": False, **fields}
    return {row["index"]: row["relevance_score"] for row in host.post(path, **body)["results"]}


def _refused(host: Host, **fields: Any) -> str:
    reply = host.client.post("/rerank", json={"query": QUERY, **fields})
    assert reply.status_code == 400, reply.text
    message: str = reply.json()["error"]["message"]
    return message


@pytest.mark.parametrize("path", ROUTES)
def test_documents_as_objects_score_as_their_texts(host: Host, path: str) -> None:
    expected = _scores(host, path, documents=DOCUMENTS)
    cohere = [{"text": one, "id": index, "tags": ["a"]} for index, one in enumerate(DOCUMENTS)]
    parts = [{"content": [{"type": "text", "text": one[:5]}, {"type": "text", "text": one[5:]}]} for one in DOCUMENTS]
    for documents in (cohere, parts, [DOCUMENTS[0], *cohere[1:]], [{"text": one} for one in DOCUMENTS]):
        assert _scores(host, path, documents=documents) == pytest.approx(expected, abs=1e-6)
        assert _scores(host, path, documents=documents, query={"text": QUERY}) == pytest.approx(expected, abs=1e-6)
    fields = [{"title": one[:5], "body": one[5:], "other": "x"} for one in DOCUMENTS]
    ranked = [f"{one[:5]}\n{one[5:]}" for one in DOCUMENTS]
    assert _scores(host, path, documents=fields, rank_fields=["title", "body"]) == pytest.approx(
        _scores(host, path, documents=ranked), abs=1e-6
    )
    results = host.post(path, query=QUERY, documents=cohere)["results"]
    assert [row["document"] for row in results] == [cohere[row["index"]] for row in results]
    tei = host.post(path, query=QUERY, texts=[{"text": one} for one in DOCUMENTS], return_text=True)
    assert [row["text"] for row in tei] == [DOCUMENTS[row["index"]] for row in tei]


def test_what_is_no_document_is_named(host: Host) -> None:
    for documents, message in (
        (["a", {"id": 1}], "'documents.1' has no 'text'"),
        ([{"text": "a", "content": "b"}], "'documents.0' has both"),
        ([{"text": "a", "image": "b"}], "'image' is not supported"),
        ([{"content": [{"type": "image_url", "text": "b"}]}], "documents.0.content.0.type"),
        ([{"text": 5}], "'documents.0.text' is 5"),
        ([5], "'documents.0' is 5"),
        ([], "'documents'"),
        (5, "'documents' is 5"),
        ([{}], "'documents.0' has no"),
        ([{"text": ""}], "'documents.0'"),
        ([None], "'documents.0'"),
    ):
        assert message in _refused(host, documents=documents), documents
    assert "'documents.1' has none of" in _refused(host, documents=[{"a": "x"}, {"b": "y"}], rank_fields=["a"])
    assert "'documents.0.a' must be" in _refused(host, documents=[{"a": ["x"]}], rank_fields=["a"])
    assert "'texts.0' has no 'text'" in _refused(host, texts=[{"id": 1}])
    assert "max_tokens_per_doc" in _refused(host, documents=["a"], max_chunks_per_doc=3)


@settings(max_examples=25)
@given(
    documents=st.lists(st.text(min_size=1, max_size=40).filter(str.strip), min_size=1, max_size=3),
    limit=st.integers(1, 40),
)
def test_a_limit_of_tokens_cuts_each_document(host: Host, documents: list[str], limit: int) -> None:
    """What is scored is the beginning of so many tokens, on every route; what is told is the whole document."""
    template = host.scorer.template
    cut = [template.beginning(one, limit) for one in documents]
    for kept, one in zip(cut, documents, strict=True):
        assert kept and one.startswith(kept)
        assert len(template._tokenizer.encode(kept, add_special_tokens=False)) <= limit or len(kept) == 1
    if not all(map(str.strip, cut)):
        return  # the answer would be blank, and is refused
    expected = _scores(host, documents=cut)
    for path in ROUTES:
        assert _scores(host, path, documents=documents, max_tokens_per_doc=limit) == pytest.approx(expected, abs=1e-6)
        rows = host.post(path, query=QUERY, texts=documents, max_tokens_per_doc=limit, raw_scores=True)
        assert {row["index"]: row["score"] for row in rows} == pytest.approx(expected, abs=1e-6)
    answer = host.post("/rerank", query=QUERY, documents=documents, max_tokens_per_doc=limit)
    assert answer["meta"]["truncated"] == sum(a != b for a, b in zip(cut, documents, strict=True))
    assert all(row["document"]["text"] == documents[row["index"]] for row in answer["results"])
    scored = host.post("/score", queries=QUERY, documents=documents, max_tokens_per_doc=limit, use_activation=False)
    assert {row["index"]: row["score"] for row in scored["data"]} == pytest.approx(expected, abs=1e-6)


def test_no_limit_and_one_of_the_query(host: Host) -> None:
    expected = _scores(host, documents=DOCUMENTS)
    assert _scores(host, documents=DOCUMENTS, max_tokens_per_doc=0) == pytest.approx(expected, abs=1e-6)
    assert _scores(host, documents=DOCUMENTS, max_tokens_per_doc=10**6) == pytest.approx(expected, abs=1e-6)
    short = _scores(host, documents=DOCUMENTS, query=host.scorer.template.beginning(QUERY, 3))
    assert _scores(host, documents=DOCUMENTS, max_tokens_per_query=3) == pytest.approx(short, abs=1e-6)
    assert "'max_tokens_per_doc' is -1" in _refused(host, documents=DOCUMENTS, max_tokens_per_doc=-1)


def test_how_many_come_back_and_what_of_them(host: Host) -> None:
    for top_n, count in ((1, 1), (2, 2), (3, 3), (0, 3), (99, 3)):
        assert len(_scores(host, documents=DOCUMENTS, top_n=top_n)) == count
    for wrong in (-1, 1.5, "2", True):
        assert "'top_n' is" in _refused(host, documents=DOCUMENTS, top_n=wrong)
    for asked, has_document in ((None, True), (True, True), (False, False)):
        rows = host.post("/rerank", query=QUERY, documents=DOCUMENTS, return_documents=asked)["results"]
        assert all(("document" in row) == has_document for row in rows)
