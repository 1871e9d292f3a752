"""The packages that qserve can do without, and the command that installs each.

The distribution is called qserve-llm: `qserve` on the package index is somebody else's. So a message never names an
extra of ours; it names what is missing itself. A test holds the requirements to pyproject.toml's.
"""

from __future__ import annotations

__all__ = ["ENGINE_PACKAGES", "REQUIREMENTS", "install_command"]

REQUIREMENTS = {
    "accelerate": "accelerate>=1.15",
    "bitsandbytes": "bitsandbytes>=0.50",
    "gradio": "gradio>=6.31",
    "huggingface-hub": "huggingface-hub>=1.0",
    "lm-eval": "lm-eval[api]>=0.4.13",
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


def install_command(*packages: str) -> str:
    """What installs these packages, to be pasted into a shell: `pip install "lm-eval[api]>=0.4.13"`."""
    requirements = " ".join(REQUIREMENTS.get(package, package) for package in packages).split()
    return "pip install " + " ".join(_quoted(requirement) for requirement in requirements)


def _quoted(requirement: str) -> str:
    return f'"{requirement}"' if set(requirement) & set("<>[]") else requirement
