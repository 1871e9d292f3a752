"""What a worker's process holds beside its model is what it needs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_IMPORTS = """
import sys
from qserve.engine import worker_process

async def serve(document):
    from qserve.engine.transformers.batching.make import make_batcher
    from qserve.model.load import load
    held = {name for name, module in sys.modules.items() if module}
    print(sorted({"sklearn", "scipy", "triton", "pandas", "matplotlib", "gradio", "vllm"} & held))

    import transformers
    from transformers import AutoConfig, AutoModelForCausalLM
    models = sys.modules["transformers.models"]
    sizes = dict.fromkeys(("hidden_size", "intermediate_size", "num_hidden_layers", "head_dim", "vocab_size"), 8)
    AutoModelForCausalLM.from_config(AutoConfig.for_model("qwen3", **sizes, num_attention_heads=1))
    found = transformers.models.qwen2.modeling_qwen2.Qwen2Model.__name__
    is_deferred = sys.modules["transformers.models"] is models
    print(found, is_deferred, models.LlamaConfig.__name__, hasattr(models, "no_such_thing"))

worker_process.run(serve, "")
"""


def test_nothing_that_no_model_needs_is_imported(tmp_path: Path) -> None:
    """And the list of all models is made where somebody asks it, not before."""
    spec = tmp_path / "spec.json"
    spec.write_text('{"plan": {"on_cpu": true, "quant": {"scheme": "bf16"}}}')
    done = subprocess.run(
        [sys.executable, "-c", _IMPORTS, str(spec)], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.splitlines() == ["[]", "Qwen2Model True LlamaConfig False"], done.stderr
