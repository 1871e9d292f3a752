"""Responses that are computed in the background: POST /v1/responses with `background: true`.

growing.py     one response: the worker's events, numbered anew, and the object as it stands
store.py       all of them, within bytes and time, each for the key that made it
runs.py        asks the gateway's own app for each, whoever waits; `Runs` is what the routes need of it
endpoints.py   the routes
openapi.py     their entries in /openapi.json

The store and the runs are in the process of `qserve up`; other gateway processes ask it (`processes/remote_runs.py`).
"""

from qserve.gateway.background.endpoints import BackgroundEndpoints
from qserve.gateway.background.runs import LocalRuns

__all__ = ["BackgroundEndpoints", "LocalRuns"]
