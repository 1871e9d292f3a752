"""Environments really made: a venv, pip and a wheel that lies beside; no network."""

from __future__ import annotations

import subprocess
import threading
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from qserve.cli.main import cli
from qserve.environments.making import environment_of, ready
from qserve.environments.place import Environment
from qserve.errors import QserveError

NAME = "tiny-tools"


def wheel(folder: Path, version: str) -> None:
    info = f"tiny_tool-{version}.dist-info"
    with zipfile.ZipFile(folder / f"tiny_tool-{version}-py3-none-any.whl", "w") as archive:
        archive.writestr("tiny_tool.py", f"def main():\n    print({version!r})\n")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: tiny-tool\nVersion: {version}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/entry_points.txt", "[console_scripts]\ntiny-tool = tiny_tool:main\n")
        archive.writestr(f"{info}/RECORD", "")


@pytest.fixture
def configs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "configs" / "environments").mkdir(parents=True)
    (tmp_path / "wheels").mkdir()
    wheel(tmp_path / "wheels", "1.0")
    monkeypatch.setenv("QSERVE_CONFIGS", str(tmp_path / "configs"))
    monkeypatch.setenv("QSERVE_STATE_DIR", str(tmp_path / "state"))
    # pip's own settings are the user's: they reach it.
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_TARGET", str(tmp_path / "elsewhere"))
    file = tmp_path / "configs" / "environments" / f"{NAME}.txt"
    file.write_text("tiny-tool==1.0\n")
    return file


def invoke(*words: str) -> str:
    done = CliRunner().invoke(cli, ["env", *words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def says(environment: Environment) -> str:
    """What its script prints, by the Python that its first line names."""
    script = environment.folder / "bin" / "tiny-tool"
    return subprocess.run([str(script)], capture_output=True, text=True, check=True).stdout.strip()


def test_from_made_to_removed(configs: Path, tmp_path: Path) -> None:
    root = tmp_path / "state" / "qserve" / "environments"
    assert "made:" in invoke("make", NAME)
    one = environment_of(NAME, root)
    assert one.state() == "ready" and says(one) == "1.0"
    assert "it is there" in invoke("make", NAME)
    assert NAME in invoke("list") and "ready" in invoke("list", "--json")

    # What can't be made leaves what is there.
    configs.write_text("tiny-tool==2.0\n")
    changed = environment_of(NAME, root)
    assert changed.state() == "outdated"
    with pytest.raises(QserveError, match=r"tiny-tool==2\.0 \(from versions: 1\.0\); all of its words: "):
        ready(changed, lambda doing: None)
    assert says(one) == "1.0" and "tiny-tool==2.0" in one.log.read_text()

    # A changed file makes it anew, once for two who need it at once.
    wheel(tmp_path / "wheels", "2.0")
    waited, made = [], []
    threads = [threading.Thread(target=lambda: made.append(ready(changed, waited.append))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(made) == [False, True] and "another process uses it; waiting" in waited
    assert says(one) == "2.0" and changed.state() == "ready"
    assert sorted(path.name for path in root.iterdir()) == [NAME, f"{NAME}.lock", f"{NAME}.log"]

    assert f"removed {NAME}" in invoke("rm", NAME)
    assert not one.folder.exists()
