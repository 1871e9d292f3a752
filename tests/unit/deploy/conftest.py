"""`qserve deploy` beside nothing: no hub, no cache, and a key in the environment that no file may hold."""

from __future__ import annotations

import pytest

from qserve.cli.main import cli

SECRET = "sk-3f1c-never-written"


@pytest.fixture(autouse=True)
def _alone(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("QSERVE_API_KEY", SECRET)


@pytest.fixture
def deployed(capsys):
    """`deployed("k8s", "--config", …)`: the file's text."""

    def run(*words):
        cli.main(["deploy", *words], standalone_mode=False)
        return capsys.readouterr().out

    return run
