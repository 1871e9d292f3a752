"""Settings of the UI's process."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any

__all__ = ["UISettings"]


@dataclass(frozen=True)
class UISettings:
    """Where the API is and where the UI listens.

    Attributes:
        url: the API that the pages speak to, without `/v1`; with `api_socket` only its scheme and Host header count.
        api_socket: unix socket to reach the API by, in place of `url`'s address.
        api_key: sent to the API as a bearer token; never sent to the browser.
        root_path: path below which the UI is reached behind a proxy; "" where it is the proxy's root.
        socket: unix socket to listen on (`python -m qserve.ui`); None for `qserve ui`, which listens on a port.
        key: what the gateway presents on that socket; "" lets everybody in.
        has_sign_in: the gateway signs browsers in, so the pages offer to sign out.
    """

    url: str = "http://127.0.0.1:8000"
    api_socket: str | None = None
    api_key: str = field(default="", repr=False)
    root_path: str = ""
    socket: str | None = None
    key: str = field(default="", repr=False)
    has_sign_in: bool = False

    def to_json(self) -> dict[str, Any]:
        """Plain JSON for the worker's file."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> UISettings:
        """What `to_json` wrote; other fields of the document are left alone."""
        return cls(**{one.name: data[one.name] for one in fields(cls) if one.name in data})
