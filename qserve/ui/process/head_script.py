"""Scripts that must run before Gradio's own: its `head` is added when they have run already."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["HeadScript"]

_HEAD = b"<head>"


class HeadScript:
    """ASGI middleware that puts a script at the beginning of the page's head."""

    def __init__(self, app: ASGIApp, script: str) -> None:
        self._app = app
        self._inserted = _HEAD + f"<script>{script}</script>".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "GET" or scope["path"] != "/":
            await self._app(scope, receive, send)
            return
        start: Message = {}
        body = b""

        async def send_with_script(message: Message) -> None:
            nonlocal start, body
            if message["type"] == "http.response.start":
                start = message
                return
            body += message.get("body", b"")
            if not message.get("more_body"):
                page = body.replace(_HEAD, self._inserted, 1)
                headers = [pair for pair in start["headers"] if pair[0].lower() != b"content-length"]
                await send({**start, "headers": [*headers, (b"content-length", str(len(page)).encode())]})
                await send({"type": "http.response.body", "body": page})

        # Unpacked: a script can't be put into a compressed page.
        headers = [pair for pair in scope["headers"] if pair[0] != b"accept-encoding"]
        await self._app({**scope, "headers": headers}, receive, send_with_script)
