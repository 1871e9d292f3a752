"""A first look finds what is wrong at the top of a body, and agrees with the full reading about the rest."""

from __future__ import annotations

import bz2
import codecs
import gzip
import json
import lzma
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qserve.wire.body_scan import MAX_PART_BYTES, read_object, scan_body, utf8_json
from qserve.wire.errors import ApiError
from qserve.wire.openai import ChatCompletionRequest, CompletionRequest, TokenizeRequest

_NAMES = CompletionRequest.known_names()


def test_it_tells_the_model_and_the_length_of_each_part():
    look = scan_body(b'{"model": "a\\u0062", "prompt": [1, 2]}', _NAMES)
    assert look.model == "ab" and look.part_bytes == {"model": 9, "prompt": 6}


@pytest.mark.parametrize("model", [b"1", b"null", b"[]", b'{"a": 1}'])
def test_a_model_that_is_no_string_is_left_to_the_full_reading(model):
    assert scan_body(b'{"model": ' + model + b"}", _NAMES).model is None
    assert scan_body(b'{"model": ' + model + b"}").model is None


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"[1]", "invalid_value"),
        (b"{", "invalid_json"),
        (b"", "invalid_json"),
        (b'{"model": }', "invalid_json"),
        (b'{"model":' + b"[" * 100_000, "invalid_json"),
        (b'{"a": 1}', "unsupported_field"),
    ],
)
def test_what_is_wrong_is_named(body, code):
    with pytest.raises(ApiError) as refused:
        scan_body(body, _NAMES)
    assert (refused.value.status, refused.value.code) == (400, code)


def test_a_name_that_is_null_is_not_given():
    assert scan_body(b'{"model": "x", "foo": null, "bar" : null}', _NAMES).model == "x"


def test_names_that_are_refused_with_a_reason_pass_so_that_the_reason_is_told():
    scan_body(b'{"tools": []}', ChatCompletionRequest.known_names())


def test_a_part_without_text_is_bounded():
    for name in ("chat_template_kwargs", "metadata"):
        body = json.dumps({"model": "x", name: {"a": "x" * MAX_PART_BYTES}}).encode()
        with pytest.raises(ApiError) as refused:
            scan_body(body, ChatCompletionRequest.known_names())
        assert refused.value.param == name
    scan_body(json.dumps({"model": "x", "prompt": "x" * 2 * MAX_PART_BYTES}).encode(), _NAMES)


@given(st.dictionaries(st.text(), st.text() | st.integers(), min_size=1, max_size=5))
def test_a_body_is_read_in_utf8_and_named_in_any_other_encoding(value: dict[str, object]) -> None:
    text = json.dumps(value, ensure_ascii=False)
    plain = text.encode(errors="surrogatepass")
    assert utf8_json(plain) == plain == utf8_json(codecs.BOM_UTF8 + plain)
    for encoding in ("utf-16", "utf-16-le", "utf-16-be", "utf-32"):
        with pytest.raises(ApiError, match=f"the body is {encoding[:6].upper()} text"):
            utf8_json(text.encode(encoding, errors="surrogatepass"))
    for packed in (gzip.compress(plain), bz2.compress(plain), lzma.compress(plain), zlib.compress(plain)):
        with pytest.raises(ApiError, match=r"the body is .* data; JSON is sent as plain text"):
            utf8_json(packed)


@given(st.binary(max_size=30))
def test_a_byte_that_is_no_utf8_is_named_by_every_reader(tail: bytes) -> None:
    body = b'{"model": "\xff' + tail
    for read in (scan_body, read_object, TokenizeRequest.parse):
        with pytest.raises(ApiError, match=r"not UTF-8 at byte 11 \(0xff\)"):
            read(body)
