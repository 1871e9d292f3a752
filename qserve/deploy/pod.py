"""The pod: one container with its cards, memory, probes and volumes, as the image's user."""

from __future__ import annotations

from typing import Any

from qserve.deploy.probe import READY_PROBE
from qserve.deploy.service import HOME, MODELS, PORT_INSIDE, Service
from qserve.errors import UsageError
from qserve.units import GIB

__all__ = ["container", "labels_of", "pod_template", "state_claim"]

_SECRETS = "/run/secrets/qserve"
_UID = 1000  # the Dockerfile's
# Between "this pod ends" and its removal from every load balancer: requests still arrive, and are answered.
_LEAVING_S = 5
_CARD_LABEL = "nvidia.com/gpu.product"  # of NVIDIA's feature discovery: the driver's name, dashes for spaces


def labels_of(service: Service) -> dict[str, str]:
    """What selects the pods of this service."""
    return {"app.kubernetes.io/name": "qserve", "app.kubernetes.io/instance": service.name}


def state_claim(service: Service, storage_class: str | None) -> dict[str, Any]:
    """The volume that outlives a pod: runs, caches, and weights that were fetched."""
    spec: dict[str, Any] = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": _gib(service.needs.disk_bytes)}},
    }
    if storage_class is not None:
        spec["storageClassName"] = storage_class
    return {"metadata": {"name": "state"}, "spec": spec}


def pod_template(service: Service, image: str, models_claim: str | None) -> dict[str, Any]:
    """Raises UsageError where the service reads folders of this machine and no claim holds them."""
    _check_mounts(service, models_claim)
    volumes: list[dict[str, Any]] = [
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": _gib(service.needs.shm_bytes)}}
    ]
    if service.admin_key_file is not None:
        items = [{"key": "admin-key", "path": "admin-keys"}]
        secret = {"secretName": f"{service.name}-keys", "items": items, "defaultMode": 0o440}
        volumes.append({"name": "admin-keys", "secret": secret})
    if service.mounts:
        volumes.append({"name": "models", "persistentVolumeClaim": {"claimName": models_claim, "readOnly": True}})
    spec: dict[str, Any] = {
        "serviceAccountName": service.name,
        "terminationGracePeriodSeconds": _LEAVING_S + service.stop_timeout_s,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _UID,
            "runAsGroup": _UID,
            "fsGroup": _UID,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container(service, image)],
        "volumes": volumes,
    }
    if service.needs.num_cards:
        spec["tolerations"] = [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
        spec["affinity"] = _on_planned_cards(service.needs.card_name)
    return {"metadata": {"labels": labels_of(service)}, "spec": spec}


def _check_mounts(service: Service, models_claim: str | None) -> None:
    if service.mounts and models_claim is None:
        raise UsageError(
            f"{service.mounts[0].host} is on this machine, and pods can't read it; copy it into a volume and name its "
            "claim with --models-claim, or give --model a hub id"
        )
    names = [mount.name for mount in service.mounts]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(
            f"two of the paths end in {twice}, and {MODELS} can have only one of that name; rename one of them"
        )


def container(service: Service, image: str) -> dict[str, Any]:
    """The one of the service."""
    mounts: list[dict[str, Any]] = [
        {"name": "state", "mountPath": HOME},
        {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108
    ]
    words = [word.replace("$", "$$") for word in service.words]  # $$ is one for Kubernetes, wherever it stands
    if service.admin_key_file is not None:
        mounts.append({"name": "admin-keys", "mountPath": _SECRETS, "readOnly": True})
        words.append(f"--admin-key-file={_SECRETS}/admin-keys")
    if service.mounts:
        mounts.append({"name": "models", "mountPath": MODELS, "readOnly": True})
    is_alive = {"httpGet": {"path": "/health", "port": "http"}}
    return {
        "name": "qserve",
        "image": image,
        "args": ["up", *words, "--host=0.0.0.0"],
        "env": [
            {"name": "QSERVE_API_KEY", "valueFrom": _secret(service, "api-key")},
            {"name": "HF_TOKEN", "valueFrom": _secret(service, "hf-token", optional=True)},
        ],
        "ports": [{"name": "http", "containerPort": PORT_INSIDE}],
        # The gateway answers /health from its first seconds on, however long the model loads.
        "startupProbe": {**is_alive, "periodSeconds": 2, "failureThreshold": 60},
        "livenessProbe": {**is_alive, "periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 3},
        "readinessProbe": {
            "exec": {"command": list(READY_PROBE)},
            "periodSeconds": 5,
            "timeoutSeconds": 5,
            "failureThreshold": 2,
        },
        "lifecycle": {"preStop": {"exec": {"command": ["sleep", str(_LEAVING_S)]}}},
        "resources": _resources(service),
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": mounts,
    }


def _secret(service: Service, key: str, *, optional: bool = False) -> dict[str, Any]:
    reference: dict[str, Any] = {"name": f"{service.name}-keys", "key": key}
    return {"secretKeyRef": {**reference, "optional": True} if optional else reference}


def _resources(service: Service) -> dict[str, Any]:
    """No limit on cores: an engine that is throttled between two steps is slow for all of its streams."""
    needs = service.needs
    cards = {"nvidia.com/gpu": str(needs.num_cards)} if needs.num_cards else {}
    return {
        "requests": {"cpu": str(needs.num_cores), "memory": _gib(needs.memory_bytes), **cards},
        "limits": {"memory": _gib(needs.memory_limit_bytes), **cards},
    }


def _on_planned_cards(card_name: str) -> dict[str, Any]:
    """Preferred, not required: not every cluster labels its nodes."""
    match = {"key": _CARD_LABEL, "operator": "In", "values": [card_name.replace(" ", "-")]}
    term = {"weight": 100, "preference": {"matchExpressions": [match]}}
    return {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [term]}}


def _gib(num_bytes: int) -> str:
    return f"{num_bytes // GIB}Gi"
