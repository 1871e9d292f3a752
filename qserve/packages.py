"""Optional packages, and the command that installs each.

The distribution is called qserve-llm: `qserve` on the package index is somebody else's. So a message never names an
extra of ours; it names what is missing itself. A test holds the requirements to pyproject.toml's.
"""

from __future__ import annotations

import importlib.util

__all__ = [
    "REQUIREMENTS",
    "SERVE_PACKAGES",
    "install_command",
    "missing_to_serve",
    "needed_with",
    "package_of",
    "why_no_server",
]

REQUIREMENTS = {
    "accelerate": "accelerate>=1.15",
    "aiohttp": "aiohttp>=3.12",
    "bitsandbytes": "bitsandbytes>=0.50",
    "gradio": "gradio>=6.31",
    "huggingface-hub": "huggingface-hub>=1.0",
    "datasets": "datasets>=4.7",
    "deepspeed": "deepspeed>=0.19",
    "jsonschema": "jsonschema>=4.20",
    "kernels": "kernels>=0.17,<0.18",
    "lm-eval": "lm-eval[api]>=0.4.13",
    "math-verify": "math-verify>=0.9",
    "msgspec": "msgspec>=0.19",
    "openai": "openai>=2.0",
    "opentelemetry": "opentelemetry-sdk>=1.40 opentelemetry-exporter-otlp-proto-http>=1.40",
    "peft": "peft>=0.18",
    "prometheus-client": "prometheus-client>=0.22",
    "psutil": "psutil>=6.1",
    "pyarrow": "pyarrow>=20",
    "pydantic": "pydantic>=2.11",
    "python-multipart": "python-multipart>=0.0.20",
    "regex": "regex>=2025.10",
    "ray": "ray[default]==2.60.0",
    "safetensors": "safetensors>=0.6",
    "starlette": "starlette>=0.47",
    "torch": "torch>=2.11",
    "trl": "trl>=1.16,<1.17",
    "transformers": "transformers>=5.16,<5.20",
    "uvicorn": "uvicorn>=0.34",
    "vllm": "vllm>=0.26,<0.33",
    "compressed-tensors": "compressed-tensors>=0.15",
    # 7.7 asks for a newer torch and transformers than qserve is pinned to.
    "gptqmodel": "gptqmodel>=7.5,<7.7",
}
# What serving and scoring import beyond what planning does: the extra `serve` of pyproject.toml.
SERVE_PACKAGES = (
    "accelerate",
    "aiohttp",
    "huggingface-hub",
    "msgspec",
    "prometheus-client",
    "psutil",
    "pydantic",
    "python-multipart",
    "regex",
    "safetensors",
    "starlette",
    "torch",
    "transformers",
    "uvicorn",
)


def package_of(module: str | None) -> str | None:
    """The package that brings `module`, where it is one that qserve can do without."""
    package = (module or "").partition(".")[0].replace("_", "-")
    return package if package in REQUIREMENTS else None


def needed_with(package: str) -> tuple[str, ...]:
    """`package`, and what is missing beside it: who lacks one that serving needs is told of all of them at once."""
    if package not in SERVE_PACKAGES:
        return (package,)
    return (package, *(one for one in missing_to_serve() if one != package))


def missing_to_serve() -> tuple[str, ...]:
    """What serving needs and is not installed. Imports nothing."""
    return tuple(one for one in SERVE_PACKAGES if not _is_installed(one.replace("-", "_")))


def why_no_server() -> str | None:
    """What is missing of qserve itself, where it came as the light wheel alone: a sentence without its subject."""
    if _is_installed("qserve.gateway"):
        return None
    return (
        "needs the part of qserve that serves, which has a wheel of its own: qserve_llm_server, which comes beside "
        "qserve's or from a clone (pip install ./server) and brings the packages that it needs"
    )


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ValueError:  # None stands in sys.modules
        return False


def install_command(*packages: str) -> str:
    """What installs these packages, to be pasted into a shell: `pip install "lm-eval[api]>=0.4.13"`."""
    requirements = " ".join(REQUIREMENTS.get(package, package) for package in packages).split()
    return "pip install " + " ".join(_quoted(requirement) for requirement in requirements)


def _quoted(requirement: str) -> str:
    return f'"{requirement}"' if set(requirement) & set("<>[]") else requirement
