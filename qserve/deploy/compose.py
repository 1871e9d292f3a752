"""compose.yaml: one machine with Docker."""

from __future__ import annotations

from typing import Any

from qserve.deploy.characters import check_image
from qserve.deploy.probe import READY_PROBE
from qserve.deploy.service import HOME, PORT_INSIDE, Service
from qserve.deploy.yaml_text import yaml_text
from qserve.units import GIB

__all__ = ["compose_file"]

_FIRST_START = "1h"  # it fetches the weights
_ADMIN_KEYS = "admin-keys"


def compose_file(service: Service, image: str) -> str:
    """The text of a compose file that runs `image`. Keys come from `<name>.env` beside it.

    Raises UsageError for an image that is none.
    """
    check_image(image)
    usage = (
        "",
        "Before the first start, in the folder of this file (git and images should never see it; HF_TOKEN=… for gated "
        "models):",
        f'    echo "QSERVE_API_KEY=$(openssl rand -hex 24)" > {service.name}.env',
        "Then, as FILE: it returns when every model takes requests.",
        "    docker compose --file FILE up --detach --wait",
    )
    return yaml_text((*service.header, *usage), _literal(_project(service, image)))


def _literal(value: Any) -> Any:
    """compose reads $ in any text as the beginning of a variable."""
    if isinstance(value, str):
        return value.replace("$", "$$")
    if isinstance(value, dict):
        return {key: _literal(one) for key, one in value.items()}
    return [_literal(one) for one in value] if isinstance(value, list) else value


def _project(service: Service, image: str) -> dict[str, Any]:
    project = {"name": service.name, "services": {"qserve": _container(service, image)}, "volumes": {"state": {}}}
    if service.admin_key_file is not None:
        project["secrets"] = {_ADMIN_KEYS: {"file": service.admin_key_file}}
    return project


def _container(service: Service, image: str) -> dict[str, Any]:
    needs, admin = service.needs, service.admin_key_file is not None
    return {
        "image": image,
        "command": [
            "up",
            *service.words,
            *([f"--admin-key-file=/run/secrets/{_ADMIN_KEYS}"] if admin else []),
            "--host=0.0.0.0",
        ],
        **({"secrets": [_ADMIN_KEYS]} if admin else {}),
        "env_file": f"{service.name}.env",
        "ports": [f"{_published(service.host)}:{service.port}:{PORT_INSIDE}"],
        "volumes": [f"state:{HOME}", *(_bind(mount.host, mount.inside) for mount in service.mounts)],
        "shm_size": f"{needs.shm_bytes // GIB}gb",
        "ulimits": {"memlock": -1},
        "deploy": {"resources": _resources(service)},
        "security_opt": ["no-new-privileges:true"],
        "init": True,
        "restart": "unless-stopped",
        "stop_grace_period": f"{service.stop_timeout_s}s",
        "healthcheck": {
            "test": ["CMD", *READY_PROBE],
            "interval": "10s",
            "timeout": "5s",
            "retries": 3,
            "start_period": _FIRST_START,
        },
    }


def _published(host: str) -> str:
    return f"[{host}]" if ":" in host else {"localhost": "127.0.0.1"}.get(host, host)


def _bind(host: str, inside: str) -> dict[str, Any]:
    return {"type": "bind", "source": host, "target": inside, "read_only": True, "bind": {"create_host_path": False}}


def _resources(service: Service) -> dict[str, Any]:
    needs = service.needs
    resources: dict[str, Any] = {
        "limits": {"memory": f"{needs.memory_limit_bytes // GIB}gb"},
        "reservations": {"memory": f"{needs.memory_bytes // GIB}gb"},
    }
    if needs.num_cards:
        card = {"driver": "nvidia", "count": needs.num_cards, "capabilities": ["gpu"]}
        resources["reservations"]["devices"] = [card]
    return resources
