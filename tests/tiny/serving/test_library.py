"""The notebook of docs/, cell by cell, against a real service; and what the library gives beside it."""

from __future__ import annotations

import json
from pathlib import Path

import psutil
import pytest

import qserve
from qserve.errors import UsageError
from tests.processes import words

NOTEBOOK = Path(__file__).parents[3] / "docs" / "library.ipynb"


def cells():
    document = json.loads(NOTEBOOK.read_text())
    return ["".join(cell["source"]) for cell in document["cells"] if cell["cell_type"] == "code"]


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """What the notebook's cells leave behind, each run as a notebook does."""
    patch = pytest.MonkeyPatch()
    patch.setenv("QSERVE_STATE_DIR", str(tmp_path_factory.mktemp("state")))
    names: dict = {}
    try:
        for cell in cells():
            exec(compile(cell, str(NOTEBOOK), "exec"), names)
    finally:
        if "stack" in names:
            names["stack"].close()
        patch.undo()
    return names


def test_the_notebook_runs(seen):
    assert seen["plan"].fits and seen["plan"]._repr_html_().startswith("<div")
    assert not seen["over"].fits
    assert seen["answer"].choices[0].message.content == "42"
    assert seen["best"] == "42" and len(seen["rewards"]) == 3


def test_nothing_of_the_service_is_left(seen):
    children = psutil.Process().children(recursive=True)
    assert not [child for child in children if {"up", "qserve.cli.child"} <= set(words(child))]


def test_a_list_is_scored_without_a_server():
    records = [{"prompt": "What is 12+30?", "responses": ["42", "43"]}, {"prompt": "What is 1+1?", "response": "2"}]
    first, second = qserve.score(records, reward="demo")
    assert first["ranking"][0] == 0 and first["prompt"] == "What is 12+30?"
    assert isinstance(second["reward"], float)
    with pytest.raises(UsageError, match="needs messages"):
        qserve.score([{"nothing": 1}])
