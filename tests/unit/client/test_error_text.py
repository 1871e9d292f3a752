"""The message of an error's body, in whatever shape a server or a proxy sends it."""

from __future__ import annotations

import pytest

from qserve.client.error_text import message_of


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"error": {"message": "no key"}}', "no key"),
        (b'{"error": "no key"}', "no key"),
        (b'{"message": "no key"}', "no key"),
        (b'{"detail": "Not Found"}', "Not Found"),
        (b'{"error": {"message": null}}', '{"error": {"message": null}}; hint'),
        (b'{"error": null}', '{"error": null}; hint'),
        (b'{"detail": [{"loc": []}]}', '{"detail": [{"loc": []}]}; hint'),
        (b'["error"]', '["error"]; hint'),
        (b"7", "7; hint"),
        (b"<html>\n  502\n</html>", "<html> 502 </html>; hint"),
        (b"\xff\xfe\x00", "\ufffd\ufffd\x00; hint"),
        (b"", "; hint"),
        (b"[" * 200_000, "[" * 300 + "; hint"),
    ],
)
def test_a_body_of_any_shape_has_a_message(body: bytes, said: str) -> None:
    assert message_of(body, "; hint") == said
