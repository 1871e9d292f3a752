"""No folder of the package holds more modules than a newcomer can scan."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "qserve"
MOST_MODULES = 25


def test_no_folder_has_more_modules_than_a_newcomer_can_scan() -> None:
    counted = Counter(path.parent.relative_to(PACKAGE.parent) for path in PACKAGE.rglob("*.py"))
    assert {str(folder): number for folder, number in counted.items() if number > MOST_MODULES} == {}
