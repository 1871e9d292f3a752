"""A RayCluster of KubeRay: `qserve up --ray auto` in the head's pod, one replica in each worker's pod.

The gateway shares the head's container: a driver of Ray talks to the raylet of its own machine. KubeRay leaves the
command to us (`ray.io/overwrite-container-cmd`) and tells its own in $KUBERAY_GEN_RAY_START_CMD.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator
from typing import Any

from qserve.deploy.kubernetes import Cluster, applied, in_namespace, named, pod_monitor, service_object
from qserve.deploy.needs import Relays
from qserve.deploy.pod import container, labels_of, pod_template, state_claim
from qserve.deploy.service import Service
from qserve.deploy.yaml_text import yaml_text
from qserve.units import GIB

__all__ = ["kuberay_objects", "kuberay_text"]

# The one of constraints.txt, which the image holds.
_RAY_VERSION = "2.60.0"
_API = "ray.io/v1"
_GROUP = "replicas"
_IDLE_S = 600
_AGENT_PORT = 52365
# The supervisor, which is a driver, Ray's control store and the autoscaler's view of it; twice that at most.
_HEAD_CORES = 2
_HEAD_BYTES = 4 * GIB
_SHELL = ["/bin/bash", "-c"]


def kuberay_text(service: Service, cluster: Cluster, relays: Relays) -> str:
    """All of them as one file for `kubectl apply`. `relays`: of the gateway, which the head's pod has space for."""
    ready = f"kubectl get raycluster {service.name}{in_namespace(cluster)}"
    usage = (
        "Needs the KubeRay operator, 1.7 or later. Before the first start (one key; a gated model needs",
        "--from-literal=hf-token=… too):",
        *applied(service, cluster),
        f"    {ready}      # then the pod of the head is ready when the model is",
    )
    return yaml_text((*service.header, "", *usage), *kuberay_objects(service, cluster, relays))


def kuberay_objects(service: Service, cluster: Cluster, relays: Relays) -> list[dict[str, Any]]:
    """The objects, in the order in which they are applied. Raises UsageError for what a pod can't have."""
    return [named(one, service, cluster) for one in _objects(service, cluster, relays)]


def _objects(service: Service, cluster: Cluster, relays: Relays) -> Iterator[dict[str, Any]]:
    # No `automountServiceAccountToken: false` as elsewhere: the autoscaler in the head's pod asks the API server.
    yield {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {}}
    claim = state_claim(service, cluster.storage_class)
    yield {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": f"{service.name}-state"},
        "spec": claim["spec"],
    }
    head = {"selector": {**_of_cluster(service), "ray.io/node-type": "head"}}
    yield service_object(service, service.name, {"port": service.port}, **head)
    yield _ray_cluster(service, cluster, relays)
    yield _network_policy(service)
    if cluster.has_pod_monitor:
        yield pod_monitor(service, {**_of_cluster(service), "ray.io/node-type": "head"})


def _ray_cluster(service: Service, cluster: Cluster, relays: Relays) -> dict[str, Any]:
    scales = cluster.max_pods > cluster.min_pods
    autoscaler = {"autoscalerOptions": {"idleTimeoutSeconds": _IDLE_S, "upscalingMode": "Default"}} if scales else {}
    return {
        "apiVersion": _API,
        "kind": "RayCluster",
        "metadata": {"annotations": {"ray.io/overwrite-container-cmd": "true"}},
        "spec": {
            "rayVersion": _RAY_VERSION,
            # A token that KubeRay makes: without one, whoever reaches Ray's port may run code.
            "authOptions": {"mode": "token"},
            "enableInTreeAutoscaling": scales,
            **autoscaler,
            "headGroupSpec": {"rayStartParams": {"num-cpus": "0"}, "template": _head_pod(service, cluster, relays)},
            "workerGroupSpecs": [
                {
                    "groupName": _GROUP,
                    "replicas": cluster.min_pods,
                    "minReplicas": cluster.min_pods,
                    "maxReplicas": cluster.max_pods,
                    "rayStartParams": {"num-cpus": str(service.needs.num_cores)},
                    "template": _worker_pod(service, cluster),
                }
            ],
        },
    }


def _head_pod(service: Service, cluster: Cluster, relays: Relays) -> dict[str, Any]:
    template = pod_template(service, cluster.image, cluster.models_claim)
    spec = template["spec"]
    own = spec["containers"][0]
    counts = (
        [f"--min-replicas={cluster.min_pods}", f"--max-replicas={cluster.max_pods}"]
        if cluster.max_pods > cluster.min_pods
        else [f"--replicas={cluster.min_pods}"]
    )
    words = [*own["args"], "--ray=auto", f"--ray-nodes={cluster.min_pods}", *counts]
    own["command"] = _SHELL
    own["args"] = [
        "$KUBERAY_GEN_RAY_START_CMD & until ray health-check >/dev/null 2>&1; do sleep 1; done; "
        f"exec qserve {shlex.join(words)}"
    ]
    own["resources"] = _of_head(relays)
    own["startupProbe"] = {**own["startupProbe"], "failureThreshold": 450}  # the nodes come first
    for placed in ("tolerations", "affinity"):
        spec.pop(placed, None)
    spec["volumes"].append({"name": "state", "persistentVolumeClaim": {"claimName": f"{service.name}-state"}})
    return {"metadata": {"labels": labels_of(service)}, "spec": spec}


def _of_head(relays: Relays) -> dict[str, Any]:
    held = _HEAD_BYTES // GIB + math.ceil(relays.memory_bytes / GIB)
    requests = {"cpu": str(_HEAD_CORES + relays.num_cores), "memory": f"{held}Gi"}
    return {"requests": requests, "limits": {"memory": f"{2 * held}Gi"}}


def _worker_pod(service: Service, cluster: Cluster) -> dict[str, Any]:
    template = pod_template(service, cluster.image, cluster.models_claim)
    spec = template["spec"]
    alive = {"httpGet": {"path": "/api/local_raylet_healthz", "port": _AGENT_PORT}}
    mounts = [one for one in spec["containers"][0]["volumeMounts"] if one["name"] != "admin-keys"]
    environment = [one for one in spec["containers"][0]["env"] if one["name"] != "QSERVE_API_KEY"]
    spec["containers"] = [
        {
            **container(service, cluster.image),
            "command": _SHELL,
            "args": ["exec $KUBERAY_GEN_RAY_START_CMD"],
            "env": environment,
            "ports": [],
            "startupProbe": {**alive, "periodSeconds": 2, "failureThreshold": 60},
            "livenessProbe": {**alive, "periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 6},
            "readinessProbe": {**alive, "periodSeconds": 5, "timeoutSeconds": 5, "failureThreshold": 3},
            "volumeMounts": mounts,
        }
    ]
    spec["volumes"] = [one for one in spec["volumes"] if one["name"] != "admin-keys"]
    # Weights that are fetched and kernels that are compiled go with the pod.
    spec["volumes"].append({"name": "state", "emptyDir": {}})
    return {"metadata": {"labels": labels_of(service)}, "spec": spec}


def _network_policy(service: Service) -> dict[str, Any]:
    """Requests travel between the pods unencrypted: nobody else reaches them, and of the head its API alone."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {},
        "spec": {
            "podSelector": {"matchLabels": _of_cluster(service)},
            "policyTypes": ["Ingress"],
            "ingress": [
                {"from": [{"podSelector": {"matchLabels": _of_cluster(service)}}]},
                {"ports": [{"port": "http", "protocol": "TCP"}]},
            ],
        },
    }


def _of_cluster(service: Service) -> dict[str, str]:
    """The label that KubeRay gives all of its pods."""
    return {"ray.io/cluster": service.name}
