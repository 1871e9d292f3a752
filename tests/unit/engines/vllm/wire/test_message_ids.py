"""vLLM's answers to /v1/messages get ids of Anthropic's form."""

from __future__ import annotations

import pytest

from qserve.engines.vllm.wire.message_ids import with_message_id

REST = b',"content":[{"type":"tool_use","id":"call_1"}]}'


@pytest.mark.parametrize("given", ["chatcmpl-7", "msg_7", "7"])
def test_the_first_id_alone_is_changed(given: str) -> None:
    assert with_message_id(b'{"id": "%b"' % given.encode() + REST) == b'{"id":"msg_7"' + REST
