"""What is wrong with an input file is told by line and code; what is well is read as it was written."""

from __future__ import annotations

import json

import pytest

from qserve.batches.check import check_file
from qserve.batches.lines import input_lines, read_request

CHAT = "/v1/chat/completions"


def line(custom_id="a", **changed):
    body = {"model": "m", "messages": []}
    whole = {"custom_id": custom_id, "method": "POST", "url": CHAT, "body": body, **changed}
    return json.dumps({name: value for name, value in whole.items() if value is not None})


def checked(tmp_path, *lines, max_lines=10, max_body_bytes=1000):
    path = tmp_path / "input.jsonl"
    path.write_text("\n".join(lines))
    return check_file(path, CHAT, max_lines, max_body_bytes)


@pytest.mark.parametrize(
    ("wrong", "code", "param"),
    [
        (line(None), "missing_required_parameter", "custom_id"),
        (line(""), "missing_required_parameter", "custom_id"),
        (line(7), "missing_required_parameter", "custom_id"),
        (line("good"), "duplicate_custom_id", "custom_id"),
        (line(method="GET"), "invalid_method", "method"),
        (line(url="/v1/completions"), "invalid_url", "url"),
        (line(url=None), "invalid_url", "url"),
        (line(body=[]), "missing_required_parameter", "body"),
        (line(body={}), "missing_required_parameter", "body.model"),
        (line(body={"model": "other"}), "mismatched_model", "body.model"),
        (line(body={"model": "m", "stream": True}), "invalid_request", "body.stream"),
        (line(priority=1), "unknown_parameter", "priority"),
        ("{", "invalid_json_line", None),
        ("[1]", "invalid_json_line", None),
        ("[" * 5000, "body_too_large", "body"),
        (line(body={"model": "m", "x": "y" * 70_000}), "body_too_large", "body"),
    ],
)
def test_a_wrong_line_is_told_with_its_number(tmp_path, wrong, code, param):
    most = 100 if code == "body_too_large" and wrong.startswith("[") else 1000
    padded = wrong + " " * 66_000 if wrong.startswith("[[") else wrong
    found = checked(tmp_path, line("good"), "", padded, line("last"), max_body_bytes=most)
    assert [(error.code, error.line, error.param) for error in found.errors] == [(code, 3, param)]
    assert found.num_lines == 3


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (line(None), "'custom_id' is missing; a string of 1 to 512 characters is needed"),
        (line(7), "'custom_id' is 7; a string of 1 to 512 characters is needed"),
        (line("x" * 600), "'custom_id' is a string of 600 characters; a string of 1 to 512 characters is needed"),
        (line(method="GET"), "'method' is 'GET'; 'POST' is needed"),
        (line(url=None), f"'url' is missing; '{CHAT}', the endpoint of the batch, is needed"),
        (line(body=[]), "'body' is an empty list; an object is needed"),
        (line(body={"model": 5}), "'body.model' is 5; the name of a model is needed"),
        ("[1]", "this line is a list of 1 item; an object is needed"),
    ],
)
def test_a_wrong_line_is_told_what_was_seen_and_what_is_needed(tmp_path, wrong, said):
    assert [error.message for error in checked(tmp_path, wrong).errors] == [said]


def test_another_encoding_is_told_by_its_line(tmp_path):
    path = tmp_path / "input.jsonl"
    path.write_bytes(line("good").encode() + b"\n" + line("Zürich").replace("\\u00fc", "ü").encode("latin-1"))
    (error,) = check_file(path, CHAT, 10, 1000).errors
    assert (error.code, error.line) == ("invalid_json_line", 2)
    assert error.message == "this line is not UTF-8: 0xfc is its byte 2; JSON is written in UTF-8"


def test_the_mark_that_editors_begin_utf_8_with_is_no_error(tmp_path):
    path = tmp_path / "input.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + line("a").encode())
    assert not check_file(path, CHAT, 10, 1000).errors
    ((_, read),) = input_lines(path, 1000)
    assert read is not None and read_request(read).custom_id == "a"


def test_no_request_and_too_many(tmp_path):
    assert [error.code for error in checked(tmp_path, "", " ").errors] == ["empty_file"]
    found = checked(tmp_path, *(line(str(number)) for number in range(12)))
    assert [(error.code, error.line) for error in found.errors] == [("too_many_tasks", 11)]


def test_errors_are_bounded(tmp_path):
    found = checked(tmp_path, *("{" for _ in range(500)), max_lines=1000)
    assert len(found.errors) == 50


def test_a_body_is_asked_as_it_was_written(tmp_path):
    written = '{"custom_id": "a", "method": "POST", "url": "/x", "body": { "model":"m",  "seed": 1.50}}'
    (tmp_path / "input.jsonl").write_text(f"\n{written}\r\n\n")
    ((number, read),) = input_lines(tmp_path / "input.jsonl", 1000)
    assert number == 2 and bytes(read_request(read).body) == b'{ "model":"m",  "seed": 1.50}'


def test_the_model_and_the_count(tmp_path):
    found = checked(tmp_path, line("a"), line("b"))
    assert (found.model, found.num_lines, found.errors) == ("m", 2, ())
