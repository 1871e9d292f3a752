"""A reward protocol is added in four files: its schema, its row, its function, its line in docs/api.md."""

from __future__ import annotations

import re
from pathlib import Path

from tests.house.copied_package import CopiedPackage

SCHEMA = '''"""What a made-up trainer asks: POST /judge_lines."""

from __future__ import annotations

from qserve.wire.reward.fields import RewardFields, ScoredStrings

__all__ = ["LinesRequest"]


class LinesRequest(RewardFields):
    """POST /judge_lines: templated texts."""

    lines: ScoredStrings

    def num_texts(self) -> int:
        return len(self.lines)
'''
IMPORT = "from qserve.wire.reward.lines import LinesRequest\n"
ROW = '    RewardProtocol(LinesRequest, {"/judge_lines": "A made-up trainer\'s."}, {"type": "array"}, Dialect.TEI),\n'
FUNCTION = '''"""A made-up trainer's requests."""

from __future__ import annotations

from qserve.reward.protocols.job import ModelInfo, ScoreJob, job_of, texts_of_input
from qserve.wire.reward.lines import LinesRequest

__all__ = ["lines"]


@job_of(LinesRequest)
def lines(request: LinesRequest, about: ModelInfo) -> ScoreJob:
    """A list of rewards."""
    return ScoreJob(texts_of_input(request.lines, "lines"), lambda scored: scored.rewards)
'''
CODE = """
import json
from starlette.testclient import TestClient
from qserve.gateway.openapi import DocumentedWorker, document
from qserve.gateway.routes import ROUTES, dialect_of
from qserve.reward.protocols.job import ModelInfo
from qserve.reward.protocols.table import PROTOCOLS
from qserve.reward.recipe.without_model import NoModel, process_memory
from qserve.reward.serving.app import build_app

asked = PROTOCOLS["/judge_lines"]
job = asked.job(asked.schema.parse(b'{"lines": ["a", "b"]}'), ModelInfo("rm", {}))
client = TestClient(build_app(NoModel(64), ("rm",), "k", process_memory), headers={"authorization": "Bearer k"})
print(json.dumps({
    "routes": [(one.method, one.path, one.summary) for one in ROUTES],
    "dialect": dialect_of("/judge_lines"),
    "document": json.loads(document(False, (DocumentedWorker("reward", "", ("rm",), None),))),
    "texts": [text.content for text in job.texts],
    "refused": client.post("/judge_lines", json={"rows": []}).json(),
}))
"""


def test_a_new_reward_protocol_is_four_files(tmp_path: Path) -> None:
    package = CopiedPackage(tmp_path)
    package.add("qserve/wire/reward/lines.py", SCHEMA)
    package.insert("qserve/wire/reward/table.py", "from qserve.wire.reward.native import", IMPORT)
    package.insert("qserve/wire/reward/table.py", "    RewardProtocol(GetRewardRequest,", ROW)
    package.add("qserve/reward/protocols/lines.py", FUNCTION)
    package.insert(
        "docs/api.md", "| `POST /get_reward` |", "| `POST /judge_lines` | a made-up trainer's | `[reward]` |\n"
    )
    assert len(package.touched) == 4
    told = package.run(CODE)
    page = (tmp_path / "docs" / "api.md").read_text()
    assert set(re.findall(r"^\| `(\w+ /\S*)` \|", page, re.MULTILINE)) == {
        f"{one[0]} {one[1]}" for one in told["routes"]
    }
    assert ["POST", "/judge_lines", "A made-up trainer's."] in told["routes"]
    assert told["dialect"] == "tei"
    operation = told["document"]["paths"]["/judge_lines"]["post"]
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    assert schema == {"$ref": "#/components/schemas/LinesRequest"}
    assert "lines" in told["document"]["components"]["schemas"]["LinesRequest"]["properties"]
    assert operation["responses"]["200"]["content"]["application/json"]["schema"] == {"type": "array"}
    assert told["texts"] == ["a", "b"]
    assert told["refused"]["code"] == "unsupported_field"
