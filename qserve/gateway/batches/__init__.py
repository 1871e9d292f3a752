"""Files and batches over HTTP: what `qserve.batches` keeps and runs, behind the gateway's keys.

endpoints.py   the routes
multipart.py   an upload, written to disk as it comes
upload_slots.py   how many come at once
queries.py     what stands behind the `?` of a list
openapi.py     what /openapi.json says of them
service.py     the gateway as its own client: a line of a batch goes the way of every request
"""

from qserve.gateway.batches.endpoints import BatchEndpoints
from qserve.gateway.batches.service import GatewayAsService

__all__ = ["BatchEndpoints", "GatewayAsService"]
