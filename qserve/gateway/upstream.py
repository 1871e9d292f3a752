"""One worker as the gateway reaches it: a pool of connections, its door, and word of its death."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

import aiohttp
from yarl import URL

from qserve.engine.base import UnixAddress, WorkerEndpoint, WorkerState
from qserve.gateway.admission import Admission
from qserve.gateway.settings import GatewaySettings
from qserve.wire.errors import ApiError

__all__ = ["Upstream", "resolve", "watch"]

# Shorter than any server's own keep-alive (uvicorn: 5 s), so that a pooled connection is never closed under a request.
_POOL_IDLE_S = 2.0
_SCRAPE_TIMEOUT_S = 2.0
_RETRY_AFTER_S = {WorkerState.STARTING: 5, WorkerState.RESTARTING: 5, WorkerState.DRAINING: 10, WorkerState.FAILED: 60}


class Upstream:
    """A worker. `start` and `close` frame its life in an event loop; requests come in between."""

    def __init__(self, endpoint: WorkerEndpoint, settings: GatewaySettings) -> None:
        self.endpoint = endpoint
        self.admission = Admission(endpoint.max_num_seqs, settings.max_queue)
        self._connect_timeout_s = settings.connect_timeout_s
        self._authorization = f"Bearer {endpoint.key}"
        self._session: aiohttp.ClientSession | None = None
        self._down: asyncio.Future[None] | None = None

    @property
    def name(self) -> str:
        return self.endpoint.name

    @property
    def is_ready(self) -> bool:
        return self.endpoint.state is WorkerState.READY

    @property
    def num_running_requests(self) -> int:
        return self.admission.num_running_requests

    @property
    def num_running_sequences(self) -> int:
        return self.admission.num_running_sequences

    @property
    def num_waiting(self) -> int:
        return self.admission.num_waiting

    @property
    def down(self) -> asyncio.Future[None]:
        """Done as soon as the worker that runs now is given up. Whoever relays holds on to the one it started with."""
        if self._down is None or self._down.done():
            self._down = asyncio.get_running_loop().create_future()
        return self._down

    def start(self) -> None:
        """Opens the pool; no connection yet."""
        address = self.endpoint.address
        if isinstance(address, UnixAddress):
            connector: aiohttp.BaseConnector = aiohttp.UnixConnector(
                str(address.path), limit=0, keepalive_timeout=_POOL_IDLE_S
            )
            base = URL("http://worker")
        else:
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_POOL_IDLE_S)
            base = URL.build(scheme="http", host=address.host, port=address.port)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=self._connect_timeout_s)
        self._session = aiohttp.ClientSession(
            base, connector=connector, timeout=timeout, auto_decompress=False, cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("User-Agent",), trust_env=False,
        )  # fmt: skip

    async def close(self) -> None:
        """Closes every connection."""
        if self._session is not None:
            await self._session.close()

    def check_ready(self) -> None:
        """503 with the supervisor's own words unless the worker takes requests."""
        if not self.is_ready:
            state = self.endpoint.state
            code = "draining" if state is WorkerState.DRAINING else "worker_not_ready"
            message = f"the worker for {self.endpoint.models[0]!r} is {state.value}: {self.endpoint.detail}"
            raise ApiError(503, message, code, retry_after_s=_RETRY_AFTER_S[state])

    def observe(self) -> None:
        """Acts on what the supervisor wrote: a worker that left READY loses its queue, a dead one all its requests."""
        if self.is_ready:
            return
        try:
            self.check_ready()
        except ApiError as error:
            self.admission.turn_away(error)
        if self.endpoint.state is not WorkerState.DRAINING and self._down is not None and not self._down.done():
            self._down.set_result(None)

    def post(self, path: str, body: bytes, request_id: str) -> aiohttp.client._RequestContextManager:
        """The worker's answer to these bytes, once its headers are there."""
        assert self._session is not None, "the gateway's lifespan has not started"
        headers = {
            "authorization": self._authorization,
            "content-type": "application/json",
            "accept-encoding": "identity",
            "x-request-id": request_id,
        }
        return self._session.post(path, data=body, headers=headers)

    async def get(self, path: str) -> bytes:
        """A small document of the worker's own. Raises ApiError when it is not to be had within two seconds."""
        assert self._session is not None, "the gateway's lifespan has not started"
        self.check_ready()
        timeout = aiohttp.ClientTimeout(total=_SCRAPE_TIMEOUT_S)
        headers = {"authorization": self._authorization, "accept-encoding": "identity"}
        try:
            async with self._session.get(path, headers=headers, timeout=timeout) as response:
                body = await response.read()
                if response.status != 200:
                    raise ApiError(502, f"the worker answered {response.status} to GET {path}", "worker_error")
                return body
        except (aiohttp.ClientError, OSError) as error:  # TimeoutError is an OSError
            raise ApiError(502, f"the worker did not answer GET {path}: {error!r}", "worker_unreachable") from error


def resolve(upstreams: Sequence[Upstream], model: str | None) -> Upstream:
    """The worker that serves `model`; the first one if none is named. 404 names what is served."""
    if model is None:
        return upstreams[0]
    for upstream in upstreams:
        if model in upstream.endpoint.models:
            return upstream
    served = ", ".join(repr(name) for upstream in upstreams for name in upstream.endpoint.models)
    raise ApiError(404, f"the model {model!r} is not served here; there is {served}", "model_not_found", "model")


async def watch(upstreams: Iterable[Upstream], interval_s: float) -> None:
    """Looks at the states for ever. The supervisor writes a plain field, so nobody has to be told how to notify."""
    while True:
        for upstream in upstreams:
            upstream.observe()
        await asyncio.sleep(interval_s)
