"""LoRA adapters at run time: the routes, for whoever administers the service."""

from qserve.gateway.adapters.control import AdapterControl
from qserve.gateway.adapters.endpoints import AdapterEndpoints

__all__ = ["AdapterControl", "AdapterEndpoints"]
