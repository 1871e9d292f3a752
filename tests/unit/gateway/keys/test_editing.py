"""Keys are added and removed; what else the file says stays."""

from __future__ import annotations

import hashlib
import stat
from pathlib import Path

import pytest

from qserve.errors import UsageError
from qserve.gateway.keys.editing import add_key, new_key, remove_key
from qserve.gateway.keys.entries import KeyEntry, read_keys

WRITTEN = """\
# The keys of our group.
keys:

# people
- name: alice     # from room 12
  sha256: {a}
  tokens_per_day: 5

- sha256: {b}
  name: bob
# machines
- name: ci
  sha256: {c}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "keys.yaml"
    file.write_text(WRITTEN.format(a="a" * 64, b="b" * 64, c="c" * 64))
    return file


def names(file: Path) -> list[str]:
    return [one.name for one in read_keys(file)]


def test_a_key_is_long_and_its_hash_is_kept() -> None:
    (one, sha256), (other, _) = new_key(), new_key()
    assert one != other and len(one) > 40 and one.startswith("sk-")
    assert sha256 == hashlib.sha256(one.encode()).hexdigest()


def test_the_first_one_makes_the_file_for_its_owner_alone(tmp_path: Path) -> None:
    file = tmp_path / "new" / "keys.yaml"
    entry = KeyEntry("1.5", "a" * 64, ("yes", "org/Model-8B", "it's"), 1, 2, 3, "background")
    add_key(file, entry)
    assert read_keys(file) == (entry,) and stat.S_IMODE(file.stat().st_mode) == 0o600


def test_added_behind_the_others_as_they_are_indented(file: Path) -> None:
    before = file.read_text()
    file.chmod(0o640)
    add_key(file, KeyEntry("dan", "d" * 64))
    assert file.read_text() == before + f"- name: dan\n  sha256: {'d' * 64}\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    with pytest.raises(UsageError, match="has a key 'dan'; `qserve keys rm dan`"):
        add_key(file, KeyEntry("dan", "e" * 64))


@pytest.mark.parametrize("name", ["alice", "bob", "ci"])
def test_its_lines_go_and_no_others(file: Path, name: str) -> None:
    before = file.read_text().splitlines()
    remove_key(file, name)
    after = file.read_text().splitlines()
    assert name not in names(file) and len(names(file)) == 2
    assert [line for line in before if line.startswith("#")] == [line for line in after if line.startswith("#")]
    assert set(after) < set(before)


def test_all_of_them_go_and_another_comes(file: Path) -> None:
    for name in names(file):
        remove_key(file, name)
    assert names(file) == []
    add_key(file, KeyEntry("new", "f" * 64))
    assert names(file) == ["new"]


@pytest.mark.parametrize(
    ("text", "said"),
    [("keys: [{name: a, sha256: SHA}]", "yourself"), ("keys:\n- name: b\n  sha256: SHA\n", "has no key 'a'; it has b")],
)
def test_what_cannot_be_taken_out_stays(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text(text.replace("SHA", "a" * 64))
    with pytest.raises(UsageError, match=said):
        remove_key(file, "a")
    assert file.read_text() == text.replace("SHA", "a" * 64)


def test_no_key_is_added_to_a_list_between_brackets(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    text = f"keys: [{{name: a, sha256: '{'a' * 64}'}}]\n"
    file.write_text(text)
    with pytest.raises(UsageError, match="write it there yourself"):
        add_key(file, KeyEntry("b", "b" * 64))
    assert file.read_text() == text
