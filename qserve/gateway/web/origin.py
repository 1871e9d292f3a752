"""Checks that a browser's request comes from the UI's own page (CSRF): cookies are sent with any request."""

from __future__ import annotations

from starlette.types import Scope

from qserve.gateway.auth import header
from qserve.wire.errors import ApiError

__all__ = ["check_origin", "comes_from_elsewhere"]


def comes_from_elsewhere(scope: Scope) -> bool:
    """Whether a page of another site caused this request, by Sec-Fetch-Site, which pages can't forge."""
    return header(scope, b"sec-fetch-site") in (b"cross-site", b"same-site")


def check_origin(scope: Scope, *, has_session: bool) -> None:
    """Refuse with 403 what a page of another site may have sent.

    A GET may be a link from anywhere, but must not be embedded. Requests that change something must prove to be of the
    same origin, by Sec-Fetch-Site or by an Origin equal to the Host. A request with neither is not from a browser and
    must not have a session.
    """
    if scope["method"] in ("GET", "HEAD"):
        is_link = header(scope, b"sec-fetch-mode") == b"navigate" and header(scope, b"sec-fetch-dest") == b"document"
        if comes_from_elsewhere(scope) and not is_link:
            raise _refused()
        return
    site, origin = header(scope, b"sec-fetch-site"), header(scope, b"origin")
    # Browsers omit Sec-Fetch-Site for pages over plain HTTP from another machine.
    is_own = site == b"same-origin" if site else _is_own(origin, scope) if origin else not has_session
    if not is_own:
        raise _refused()


def _is_own(origin: bytes, scope: Scope) -> bool:
    scheme, _, host = origin.partition(b"://")
    return scheme in (b"http", b"https") and host.lower() == header(scope, b"host").lower()


def _refused() -> ApiError:
    return ApiError(
        403, "this request did not come from the page of this server; open that and try again", "cross_site"
    )
