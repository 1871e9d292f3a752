"""vLLM's and SGLang's own tests of their API, run against qserve: which of them pass, and why the others don't.

    python bench/peers_suites.py --vllm-source vllm-0.32.0.tar.gz --sglang-source ./sglang --markdown peers.md

A source is a checkout, its archive (an sdist has vLLM's tests, not SGLang's) or a git URL; nothing of it is kept. Each
engine is started with the demo models under the names that the tests ask for; what would start the peer's own server
gives this one's address instead (`peers/plugin.py`). vLLM's tests need its package beside the `dev` one. Exit status: 0
where every failure has a reason (`peers/reasons.py`), 1 where one has none.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from bench.peers.reasons import reason_of  # noqa: E402
from bench.peers.server import started  # noqa: E402
from qserve.demo import chat_model_path, reward_model_path  # noqa: E402

# A test that hangs: busy machines take minutes for what is asked here.
TEST_LIMIT_S = 120
# Files that ask a server over HTTP for what text models do, by the suite and its folder.
SUITES = {
    "vllm": (
        "tests/entrypoints",
        (
            "openai/chat_completion/test_chat.py",
            "openai/chat_completion/test_chat_completion.py",
            "openai/chat_completion/test_chat_echo.py",
            "openai/chat_completion/test_chat_logit_bias_validation.py",
            "openai/chat_completion/test_completion_with_function_calling.py",
            "openai/chat_completion/test_extra_content_fields.py",
            "openai/chat_completion/test_include_reasoning.py",
            "openai/chat_completion/test_thinking_token_budget.py",
            "openai/completion/test_completion.py",
            "openai/completion/test_prompt_validation.py",
            "openai/test_return_token_ids.py",
            "openai/responses/test_basic.py",
            "openai/responses/test_errors.py",
            "openai/responses/test_function_call.py",
            "openai/responses/test_simple.py",
            "openai/responses/test_structured_output.py",
            "serve/tokenize/test_tokenization.py",
            "anthropic/test_messages.py",
            "tool_parsers/test_hermes_tool_parser.py",
            "pooling/classify/test_online.py",
            "pooling/scoring/test_cross_encoder_online.py",
        ),
    ),
    "sglang": (
        "test/registered/openai_server",
        (
            "basic/test_openai_server.py",
            "basic/test_anthropic_server.py",
            "features/test_json_mode.py",
            "features/test_openai_server_ebnf.py",
            "function_call/test_anthropic_tool_use.py",
            "function_call/test_openai_function_calling.py",
            "function_call/test_tool_choice.py",
            "validation/test_matched_stop.py",
            "validation/test_openai_server_ignore_eos.py",
            "validation/test_large_max_new_tokens.py",
            "validation/test_request_length_validation.py",
        ),
    ),
}
# Where a test names its model.
_MODEL = re.compile(
    r'^\w*MODEL\w*\s*(?::\s*\w+\s*)?=\s*\(?\s*"([^"\n]+)"|"--served-model-name",\s*"([^"\n]+)"', re.MULTILINE
)
_NAMELESS = re.compile(r"client\.responses\.(?:create|parse)\(")
_OF_HUB = re.compile(r'"(?:meta-llama|Qwen|ibm-granite|openai-community|mistralai|deepseek-ai)/[\w.-]+"')


@dataclass(frozen=True)
class Outcome:
    """What became of one test."""

    engine: str
    suite: str
    file: str
    test: str
    state: str
    said: str = ""
    reason: str | None = None


def unpacked(source: str, folder: Path) -> Path:
    """The source as a folder."""
    if Path(source).is_dir():
        return Path(source)
    if Path(source).is_file():
        with tarfile.open(source) as archive:
            archive.extractall(folder, filter="data")
        return next(path for path in folder.iterdir() if path.is_dir())
    subprocess.run(["git", "clone", "--quiet", "--depth", "1", source, str(folder / "checkout")], check=True)
    return folder / "checkout"


def adapted(suite: str, source: Path, folder: Path) -> Path:
    """A copy of the suite's tests, which name this server's models; without what sets up the peer's own server."""
    top = "tests" if suite == "vllm" else "test"
    shutil.copytree(source / top, folder / top, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    if suite == "vllm":
        (folder / "tests/conftest.py").write_text("")
        (folder / "tests/utils.py").write_text("from bench.peers.plugin import *  # noqa: F403\n")
    for path in (folder / SUITES[suite][0]).rglob("*.py"):
        text = path.read_text()
        ours = reward_model_path() if "pooling" in path.parts else chat_model_path()
        for name in {one or other for one, other in _MODEL.findall(text)}:
            text = text.replace(f'"{name}"', f'"{ours}"')
        text = text.replace("model=None,", "")  # vLLM fills in the name of its only model
        if not re.search(r"^\s*model=", text, re.MULTILINE):
            text = _NAMELESS.sub(rf'\g<0>model="{ours}", ', text)
        path.write_text(_OF_HUB.sub(f'"{ours}"', text))
    return folder


def run(engine: str, suite: str, folder: Path, source: Path, url: str) -> Iterator[Outcome]:
    """Each test of the suite; one process runs them all, since the peers' packages take long to import."""
    below, files = SUITES[suite]
    for missing in (file for file in files if not (folder / below / file).is_file()):
        yield Outcome(engine, suite, missing, "", "missing", "this source has no such file")
    environment = {
        **os.environ,
        "PEERS_URL": url,
        "PEERS_MODEL": str(chat_model_path()),
        "PEERS_SOURCE": str(source),
        "PYTHONPATH": os.pathsep.join((str(ROOT), str(folder))),
        "HF_HUB_OFFLINE": "1",
    }
    report = folder / "report.xml"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-c",
        os.devnull,
        "--rootdir",
        str(folder),
        "-p",
        "bench.peers.plugin",
        "-n",
        "0",
        "--timeout",
        str(TEST_LIMIT_S),
        f"--junitxml={report}",
        "--continue-on-collection-errors",
        *(file for file in (str(folder / below / file) for file in files) if Path(file).is_file()),
    ]
    ended = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True)
    if not report.is_file():
        raise SystemExit(f"pytest told nothing of {suite}'s tests:\n{ended.stdout[-2000:]}{ended.stderr[-2000:]}")
    for case in ElementTree.parse(report).iter("testcase"):
        yield _outcome(engine, suite, below, case)


def _outcome(engine: str, suite: str, below: str, case: ElementTree.Element) -> Outcome:
    found = next((child for child in case if child.tag in ("failure", "error", "skipped")), None)
    state = "passed" if found is None else "skipped" if found.tag == "skipped" else "failed"
    said = "" if found is None else f"{found.get('message', '')}"[:1000]
    test, where = str(case.get("name")), str(case.get("classname")).replace(".", "/")
    file = next(
        (name for name in SUITES[suite][1] if name.removesuffix(".py") in f"{where}/{test.replace('.', '/')}"), where
    )
    reason = reason_of(engine, f"{suite}/{file}::{test}", said) if state == "failed" else None
    return Outcome(engine, suite, file, test, state, said, reason)


def markdown(outcomes: Sequence[Outcome]) -> str:
    """Counts by file, then every failure by its reason."""
    lines = ["| suite, file | engine | passed | failed | skipped |", "|---|---|---|---|---|"]
    for key in dict.fromkeys((one.suite, one.file, one.engine) for one in outcomes):
        states = Counter(one.state for one in outcomes if (one.suite, one.file, one.engine) == key)
        lines.append(
            f"| {key[0]}: {key[1]} | {key[2]} | {states['passed']} | {states['failed']} | {states['skipped']} |"
        )
    lines += ["", "| reason | engine | tests |", "|---|---|---|"]
    failed = [one for one in outcomes if one.state == "failed"]
    for reason, engine in dict.fromkeys((one.reason, one.engine) for one in failed):
        names = [one.test or one.file for one in failed if (one.reason, one.engine) == (reason, engine)]
        told = ", ".join(f"`{name}`" for name in dict.fromkeys(name.partition("[")[0] for name in names))
        lines.append(f"| {reason or 'none found'} | {engine} | {len(names)}: {told} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Everything, and what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--vllm-source", help="checkout, archive or git URL of vLLM")
    parser.add_argument("--sglang-source", help="checkout, archive or git URL of SGLang")
    parser.add_argument("--engine", action="append", choices=("transformers", "vllm"), help="[both]")
    parser.add_argument("--url", help="a server that runs already, in place of one that is started")
    parser.add_argument("--json", help="where every outcome goes, too")
    parser.add_argument("--markdown", help="where the tables go [printed]")
    given = parser.parse_args()
    sources = {"vllm": given.vllm_source, "sglang": given.sglang_source}
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="peers-") as temporary:
        for engine in given.engine or ("transformers", "vllm"):
            with started(engine, Path(temporary) / engine, given.url) as url:
                for suite, named in sources.items():
                    if named is None:
                        continue
                    source = unpacked(named, _folder(temporary, f"{suite}-source"))
                    folder = adapted(suite, source, _folder(temporary, f"{engine}-{suite}"))
                    outcomes += run(engine, suite, folder, source, url)
    if given.json:
        Path(given.json).write_text("\n".join(json.dumps(asdict(one)) for one in outcomes) + "\n")
    if given.markdown:
        Path(given.markdown).write_text(markdown(outcomes))
    else:
        print(markdown(outcomes))
    return int(any(one.state == "failed" and one.reason is None for one in outcomes))


def _folder(parent: str, name: str) -> Path:
    folder = Path(parent) / name
    folder.mkdir(exist_ok=True)
    return folder


if __name__ == "__main__":
    raise SystemExit(main())
