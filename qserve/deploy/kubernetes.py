"""Kubernetes objects: a StatefulSet with services, disruption budget, PodMonitor and autoscaler.

A StatefulSet, not a Deployment: the run store and the caches belong to one pod each, and on a cluster whose cards are
all taken a pod can only be replaced, never doubled.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from qserve.deploy.characters import check_image, check_object_name
from qserve.deploy.pod import labels_of, pod_template, state_claim
from qserve.deploy.service import PORT_INSIDE, Service
from qserve.deploy.yaml_text import yaml_text
from qserve.errors import UsageError

__all__ = [
    "Cluster",
    "applied",
    "in_namespace",
    "kubernetes_objects",
    "kubernetes_text",
    "named",
    "pod_monitor",
    "service_object",
]

_SCALE_DOWN_S = 600
_SCALE_UP_S = 30
# One in so many places: who waits at all waits for a place, and a short burst is not worth a pod.
_WAITING_SHARE = 8


@dataclass(frozen=True)
class Cluster:
    """What the plan does not know.

    Attributes:
        image: as the nodes pull it.
        namespace: None leaves it to `kubectl`.
        models_claim: a PersistentVolumeClaim that holds checkpoints of one's own, each under its folder's name.
        storage_class: of the state's volume; None takes the cluster's default.
        min_pods, max_pods: the bounds of the autoscaler; without one where they are equal.
        max_num_seqs: requests that one pod answers at once.
        has_pod_monitor: the cluster has the Prometheus operator.
    """

    image: str
    max_num_seqs: int
    namespace: str | None = None
    models_claim: str | None = None
    storage_class: str | None = None
    min_pods: int = 1
    max_pods: int = 2
    has_pod_monitor: bool = True

    def __post_init__(self) -> None:
        """Raises UsageError for bounds that leave no pod, and for names that Kubernetes gives nothing."""
        check_image(self.image)
        for flag, name in (
            ("--namespace", self.namespace),
            ("--models-claim", self.models_claim),
            ("--storage-class", self.storage_class),
        ):
            if name is not None:
                check_object_name(flag, name)
        if self.min_pods > self.max_pods:
            raise UsageError(
                f"--min-pods {self.min_pods} is more than --max-pods {self.max_pods}; lower the one or raise the other"
            )


def kubernetes_text(service: Service, cluster: Cluster) -> str:
    """All of them as one file for `kubectl apply`."""
    ready = f"kubectl rollout status statefulset/{service.name}{in_namespace(cluster)}"
    usage = (
        "Before the first start (one key; a gated model needs --from-literal=hf-token=… too):",
        *applied(service, cluster),
        f"    {ready}      # returns when every model takes requests",
    )
    return yaml_text((*service.header, "", *usage), *kubernetes_objects(service, cluster))


def applied(service: Service, cluster: Cluster) -> tuple[str, str]:
    """The commands that make the secret of keys, which no file holds, and apply the file."""
    file = shlex.quote(f"admin-key={service.admin_key_file}")
    admin = f" --from-file={file}" if service.admin_key_file else ""
    secret = f"kubectl create secret generic {service.name}-keys{in_namespace(cluster)}"
    return f'    {secret} --from-literal=api-key="$(openssl rand -hex 24)"{admin}', "    kubectl apply --filename FILE"


def in_namespace(cluster: Cluster) -> str:
    """A flag of kubectl's, or nothing."""
    return f" --namespace {cluster.namespace}" if cluster.namespace else ""


def kubernetes_objects(service: Service, cluster: Cluster) -> list[dict[str, Any]]:
    """The objects, in the order in which they are applied. Raises UsageError for what a pod can't have."""
    return [named(one, service, cluster) for one in _objects(service, cluster)]


def _objects(service: Service, cluster: Cluster) -> Iterator[dict[str, Any]]:
    yield {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {}, "automountServiceAccountToken": False}
    yield service_object(service, service.name, {"port": service.port})
    yield service_object(service, f"{service.name}-pods", {"port": PORT_INSIDE}, clusterIP="None")
    yield _stateful_set(service, cluster)
    yield {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {},
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": labels_of(service)}},
    }
    if cluster.has_pod_monitor:
        yield pod_monitor(service, labels_of(service))
    if cluster.max_pods > cluster.min_pods:
        yield _autoscaler(service, cluster)


def named(one: dict[str, Any], service: Service, cluster: Cluster) -> dict[str, Any]:
    """`one` with its name, unless it has one of its own, and what all objects of the service have."""
    metadata = {"name": service.name, **one["metadata"], "labels": labels_of(service)}
    if cluster.namespace:
        metadata["namespace"] = cluster.namespace
    return {**one, "metadata": metadata}


def service_object(service: Service, name: str, port: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A Service; `more` goes into its spec."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"selector": labels_of(service), **more, "ports": [{"name": "http", **port, "targetPort": "http"}]},
    }


def _stateful_set(service: Service, cluster: Cluster) -> dict[str, Any]:
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {},
        "spec": {
            # The autoscaler's own figure once it has one: applying this file again must not undo it.
            **({} if cluster.max_pods > cluster.min_pods else {"replicas": cluster.min_pods}),
            "serviceName": f"{service.name}-pods",
            "selector": {"matchLabels": labels_of(service)},
            "podManagementPolicy": "Parallel",
            "template": pod_template(service, cluster.image, cluster.models_claim),
            "volumeClaimTemplates": [state_claim(service, cluster.storage_class)],
        },
    }


def pod_monitor(service: Service, selected: dict[str, str]) -> dict[str, Any]:
    """For the Prometheus operator, of the pods with the labels `selected`. /metrics wants the key, as most routes."""
    credentials = {"name": f"{service.name}-keys", "key": "api-key"}
    endpoint = {"port": "http", "path": "/metrics", "interval": "15s", "authorization": {"credentials": credentials}}
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PodMonitor",
        "metadata": {},
        "spec": {"selector": {"matchLabels": selected}, "podMetricsEndpoints": [endpoint]},
    }


def _autoscaler(service: Service, cluster: Cluster) -> dict[str, Any]:
    """On requests in the queue, which the Prometheus adapter has to offer: docs/deployments.md has its rule."""
    waiting = max(1, cluster.max_num_seqs // _WAITING_SHARE)
    metric = {
        "metric": {"name": "qserve_gateway_requests_waiting"},
        "target": {"type": "AverageValue", "averageValue": str(waiting)},
    }
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": service.name},
            "minReplicas": cluster.min_pods,
            "maxReplicas": cluster.max_pods,
            "metrics": [{"type": "Pods", "pods": metric}],
            "behavior": {
                "scaleUp": {
                    "stabilizationWindowSeconds": _SCALE_UP_S,
                    "policies": [{"type": "Pods", "value": 1, "periodSeconds": 60}],
                },
                # A pod that goes drains, and one that comes loads for minutes: down slowly, one at a time.
                "scaleDown": {
                    "stabilizationWindowSeconds": _SCALE_DOWN_S,
                    "policies": [{"type": "Pods", "value": 1, "periodSeconds": 300}],
                },
            },
        },
    }
