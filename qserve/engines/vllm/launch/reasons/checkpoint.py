"""What is wrong with the files of a checkpoint."""

from __future__ import annotations

from qserve.engines.vllm.launch.failure import FailureKind
from qserve.engines.vllm.launch.reasons.rule import Rule, rule, says

__all__ = ["RULES"]

_AGAIN = "Download it again, or name another folder with --model."

RULES: tuple[Rule, ...] = (
    rule(
        r"Cannot find any model weights with `(?P<folder>[^`]*)`",
        says(FailureKind.CHECKPOINT, f"{{folder}} has no weights (no *.safetensors). {_AGAIN}"),
    ),
    rule(
        r"(?:No such file or directory|FileNotFoundError).*?(?P<file>[\w./-]+\.(?:safetensors|bin))",
        says(FailureKind.CHECKPOINT, f"{{file}} is missing, though the checkpoint's index names it. {_AGAIN}"),
    ),
    rule(
        r"(?:SafetensorError: |Error while deserializing header: )(?P<what>.+)",
        says(FailureKind.CHECKPOINT, f"A weights file is damaged or cut short (safetensors: {{what}}). {_AGAIN}"),
    ),
    rule(
        r"[Ff]ollowing weights were not initialized from checkpoint: (?P<names>.{1,200})",
        says(
            FailureKind.CHECKPOINT, f"The checkpoint lacks tensors that its config.json asks for: {{names}}. {_AGAIN}"
        ),
    ),
    rule(
        r"There is no module or parameter named '?(?P<name>[\w.]+)'? in (?P<model>\w+)",
        says(
            FailureKind.CHECKPOINT,
            "The checkpoint has a tensor {name}, and vLLM's {model} does not: config.json and weights are of different "
            "models, or the model has an extra head (use --engine transformers).",
        ),
    ),
    rule(
        r"Attempted to load weight \((?P<found>[^)]*\]?\)?)\) ?into parameter \((?P<wanted>[^)]*\]?\)?)\)",
        says(
            FailureKind.CHECKPOINT,
            "A tensor is of shape {found} where config.json asks for {wanted}: the two are not of the same model. "
            f"{_AGAIN}",
        ),
    ),
    rule(
        r"start \(\d+\) \+ length \((?P<wanted>\d+)\) exceeds dimension size \((?P<found>\d+)\)",
        says(
            FailureKind.CHECKPOINT,
            "A tensor has {found} rows or columns where config.json asks for {wanted} or more: the two are not of the "
            f"same model. {_AGAIN}",
        ),
    ),
    rule(
        r"(?:Invalid repository ID or local directory specified:\s*'(?P<folder>[^']*)'|no file named config\.json|"
        r"does not appear to have a file named config\.json)",
        says(FailureKind.CHECKPOINT, f"There is no model that vLLM can read in {{folder}}: no config.json. {_AGAIN}"),
    ),
    rule(
        r"(?:Can't load tokenizer|Couldn't instantiate the backend tokenizer|Tokenizer class \w+ does not exist|"
        r"Unable to load vocabulary).*",
        says(FailureKind.CHECKPOINT, f"The checkpoint's tokenizer can't be loaded (tokenizer.json). {_AGAIN}"),
    ),
    rule(
        r"reply_label_ids[\s\S]*?IndexError: list index out of range",
        says(FailureKind.CHECKPOINT, f"The checkpoint has no tokenizer, or an empty one (tokenizer.json). {_AGAIN}"),
    ),
    rule(
        r"_C::\w*fp8\w*\(\) expected at most 0 argument",
        says(
            FailureKind.QUANTIZATION,
            "vLLM's CPU build has no kernels for fp8. Use --quant bf16 or bnb-nf4, or a machine with a card.",
        ),
    ),
)
