"""qserve from Python: what the commands do, as functions with values for results.

    plan = qserve.plan("Qwen/Qwen3-32B", gpu="rtx-4090", quant="4bit")     # a frozen Plan; bars in a notebook
    with qserve.up("demo", reward="demo") as service:                       # a service for the time of a block
        service.client.chat.completions.create(model="demo", messages=[…])
        service.score("What is 12+30?", ["42", "43"])
    qserve.score([{"prompt": …, "response": …}], reward="./my-reward-model")
    qserve.evaluate("demo", suite="offline")
    qserve.compare("demo", quants=("bf16", "int8"))

Options are the flags of the command by their names (`max_model_len=4096`), with the same bounds and the same errors.
`import qserve` itself imports none of this, and each function only what it needs: `plan` runs without torch.
"""

from __future__ import annotations
