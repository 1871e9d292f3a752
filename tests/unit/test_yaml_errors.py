"""What is wrong with a YAML file is said in one line that a person can act on."""

from __future__ import annotations

import pytest
import yaml

from qserve.yaml_errors import yaml_problem


@pytest.mark.parametrize("text", ["model: [\n", "a: b: c\n", "a: '\n", "\tx: 1\n"])
def test_line_and_column_are_named_and_no_python_object(text):
    with pytest.raises(yaml.YAMLError) as broken:
        yaml.safe_load(text)
    said = yaml_problem(broken.value)
    assert said.startswith("line ") and "unicode string" not in said and "\n" not in said


def test_a_file_that_is_not_there_has_the_systems_reason():
    assert yaml_problem(FileNotFoundError(2, "No such file or directory", "x.yaml")) == "No such file or directory"
