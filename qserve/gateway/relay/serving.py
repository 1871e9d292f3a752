"""Finds the replicas and the service that answer a request, by its model and route."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from qserve.gateway.relay.replicas import Replicas
from qserve.gateway.routes import ROUTES, RelayedRoute, Route
from qserve.wire.errors import ApiError
from qserve.worker.base import WorkerFacts
from qserve.worker.wire import WireRoute

# By the role of its workers.
_A = {"chat": "a chat", "reward": "a reward", "embed": "an embedding"}

__all__ = ["Served", "model_names", "named", "serving", "why_nobody_serves"]


@dataclass(frozen=True, slots=True)
class Served:
    """Who answers a request.

    Attributes:
        replicas: one of them will.
        facts: what it is checked against, whatever becomes of the replicas meanwhile.
        route: what their kind has for the request's route.
    """

    replicas: Replicas
    facts: WorkerFacts
    route: WireRoute


def model_names(facts: WorkerFacts, model: str | None) -> tuple[str, ...]:
    """The names of what a request for `model` asks of a worker: an adapter's own, or those of its model."""
    return (model,) if model is not None and model in facts.adapters else facts.models


def named(groups: Sequence[Replicas], model: str) -> tuple[Replicas, WorkerFacts]:
    """The replicas that serve `model`, and their facts. The 404 lists the served models."""
    known = [(replicas, replicas.facts) for replicas in groups]
    for replicas, facts in known:
        if model in facts.names:
            return replicas, facts
    served = ", ".join(repr(name) for _, facts in known for name in facts.names)
    raise ApiError(404, f"the model {model[:100]!r} is not served here; there is {served}", "model_not_found", "model")


def serving(groups: Sequence[Replicas], route: RelayedRoute, model: str | None) -> Served:
    """Who serves `model` on this route; without a model the first role that does.

    Raises ApiError: 404 for a model or a route that nobody serves, 400 for a model that does not serve this route.
    """
    known = [(replicas, replicas.facts) for replicas in groups] if model is None else [named(groups, model)]
    for replicas, facts in known:
        if (served := route.served(facts)) is not None:
            return Served(replicas, facts, served)
    raise _not_served([replicas.facts for replicas in groups], route, model, known[0][1])


def why_nobody_serves(groups: Sequence[Replicas], route: Route) -> ApiError | None:
    """The 404 for a route that no worker here has; None where it is served."""
    if not isinstance(route, RelayedRoute):
        return None
    try:
        serving(groups, route, None)
    except ApiError as error:
        return error
    return None


def _not_served(workers: Sequence[WorkerFacts], route: RelayedRoute, model: str | None, own: WorkerFacts) -> ApiError:
    """`own`: the facts of those that serve `model`."""
    models = [one for one in workers if route.served(one) is not None]
    where = f"{route.method} {route.path}"
    if not models:
        silent = [one for one in workers if route.offered(one) is not None]
        if silent:
            name = silent[0].models[0]
            return ApiError(404, f"the engine does not serve {where} for the model {name!r}", "route_not_served")
        kinds = " or ".join(route.kinds())
        return ApiError(404, f"{where} is served by {kinds}, and there is none here", "route_not_served")
    who = " and ".join(repr(one.models[0]) for one in models)
    assert model is not None, "somebody serves it, and any would do"
    paths = ", ".join(
        other.path for other in ROUTES if isinstance(other, RelayedRoute) and other.served(own) is not None
    )
    message = f"{model!r} is {_A[own.role]} model on {own.engine}; {where} is served by {who}. {model!r} serves {paths}"
    return ApiError(400, message, "route_not_served", "model")
