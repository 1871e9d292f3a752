"""Whether a browser's request comes from our own page. A cookie goes along with whatever a browser sends here."""

from __future__ import annotations

from starlette.types import Scope

from qserve.gateway.auth import header
from qserve.wire.errors import ApiError

__all__ = ["check_origin", "comes_from_elsewhere"]


def comes_from_elsewhere(scope: Scope) -> bool:
    """Another site's page led to this request (it says so in Sec-Fetch-Site, which no page can forge)."""
    return header(scope, b"sec-fetch-site") in (b"cross-site", b"same-site")


def check_origin(scope: Scope, *, has_session: bool) -> None:
    """Refuse, with 403, what another site's page may have sent.

    A GET may be followed from anywhere as a link, but not be embedded. What changes something must say that it is from
    here: by Sec-Fetch-Site, or by an Origin that is the Host it was sent to. A request with neither is no browser's,
    and has no business with a session.
    """
    if scope["method"] in ("GET", "HEAD"):
        is_link = header(scope, b"sec-fetch-mode") == b"navigate" and header(scope, b"sec-fetch-dest") == b"document"
        if comes_from_elsewhere(scope) and not is_link:
            raise _refused()
        return
    site, origin = header(scope, b"sec-fetch-site"), header(scope, b"origin")
    # Browsers leave the first out where a page came over plain HTTP from another machine.
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
