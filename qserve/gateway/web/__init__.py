"""The web UI in the gateway: sign-in, sessions, the allowed routes of Gradio, and the relay to its process.

    BrowserAccess   authenticates and authorizes browsers              access.py, session.py, origin.py
    UiRelay         relays to the UI's process, or shows a status page  relay.py, pages.py

`routes.py` lists the routes of Gradio that are allowed; all others are refused.
"""

from qserve.gateway.web.access import BrowserAccess
from qserve.gateway.web.relay import UiEndpoint, UiRelay

__all__ = ["BrowserAccess", "UiEndpoint", "UiRelay"]
