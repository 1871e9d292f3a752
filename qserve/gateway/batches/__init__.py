"""Files and batches over HTTP: what `qserve.batches` keeps and runs, behind the gateway's keys.

endpoints.py   the routes
multipart.py   an upload, written to disk as it comes
upload_slots.py   limits concurrent uploads
openapi.py     their entries in /openapi.json
service.py     sends each line of a batch through the gateway like any other request
"""

from qserve.gateway.batches.endpoints import BatchEndpoints
from qserve.gateway.batches.service import GatewayAsService

__all__ = ["BatchEndpoints", "GatewayAsService"]
