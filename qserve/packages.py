"""The packages that qserve can do without, and the command that installs each.

The distribution is called qserve-llm: `qserve` on the package index is somebody else's. So a message never names an
extra of ours; it names what is missing itself. A test holds the requirements to pyproject.toml's.
"""

from __future__ import annotations

__all__ = ["ENGINE_PACKAGES", "REQUIREMENTS", "install_command", "package_of"]

REQUIREMENTS = {
    "accelerate": "accelerate>=1.15",
    "bitsandbytes": "bitsandbytes>=0.50",
    "gradio": "gradio>=6.31",
    "huggingface-hub": "huggingface-hub>=1.0",
    "jsonschema": "jsonschema>=4.20",
    "lm-eval": "lm-eval[api]>=0.4.13",
    "math-verify": "math-verify>=0.9",
    "openai": "openai>=2.0",
    "opentelemetry": "opentelemetry-sdk>=1.40 opentelemetry-exporter-otlp-proto-http>=1.40",
    "peft": "peft>=0.18",
    "pyarrow": "pyarrow>=20",
    "safetensors": "safetensors>=0.6",
    "torch": "torch>=2.11",
    "transformers": "transformers>=5.16,<5.20",
    "vllm": "vllm>=0.28,<0.33",
    # 7.7 asks for a newer torch and transformers than qserve is pinned to.
    "gptqmodel": "gptqmodel>=7.5,<7.7",
}
# What the transformers engine and the reward worker import.
ENGINE_PACKAGES = ("torch", "transformers", "accelerate", "safetensors", "huggingface-hub")
# What is imported under another name.
_IMPORTED_AS = {"lm_eval": "lm-eval", "huggingface_hub": "huggingface-hub"}


def package_of(module: str | None) -> str | None:
    """The package that brings `module`, where it is one that qserve can do without."""
    top = (module or "").partition(".")[0]
    package = _IMPORTED_AS.get(top, top)
    return package if package in REQUIREMENTS else None


def install_command(*packages: str) -> str:
    """What installs these packages, to be pasted into a shell: `pip install "lm-eval[api]>=0.4.13"`."""
    requirements = " ".join(REQUIREMENTS.get(package, package) for package in packages).split()
    return "pip install " + " ".join(_quoted(requirement) for requirement in requirements)


def _quoted(requirement: str) -> str:
    return f'"{requirement}"' if set(requirement) & set("<>[]") else requirement
