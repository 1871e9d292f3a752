"""The web UI's side of the gateway: sign-in, sessions, what of Gradio may be reached, and the way to its process.

    BrowserAccess   whose request it is, and whether it may pass       access.py, session.py, sign_in.py, origin.py
    UiRelay         to the UI's process, or a page in its place        relay.py, pages.py

What of Gradio's routes may be asked stands in `routes.py`; everything else of it is closed.
"""

from qserve.gateway.web.access import BrowserAccess
from qserve.gateway.web.relay import UiEndpoint, UiRelay

__all__ = ["BrowserAccess", "UiEndpoint", "UiRelay"]
