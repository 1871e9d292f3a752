"""What the command line asks for and vLLM refuses: a flag, a length, an address, a chat template."""

from __future__ import annotations

from qserve.engines.vllm.launch.failure import FailureKind
from qserve.engines.vllm.launch.reasons.rule import Rule, rule, says

__all__ = ["RULES"]

RULES: tuple[Rule, ...] = (
    rule(
        r"invalid (?P<what>tool call|reasoning) parser: (?P<name>[\w-]+)",
        says(
            FailureKind.FLAG,
            "The installed vLLM has no {what} parser {name}; `vllm serve --help=all` lists those it has.",
        ),
    ),
    rule(
        r"unrecognized arguments: (?P<words>.+)",
        says(FailureKind.FLAG, "The installed vLLM does not know {words}. Take it out of --engine-args."),
    ),
    rule(
        r"error: argument (?P<flag>[\w/, -]+): (?P<what>(?:invalid|expected).+)",
        says(FailureKind.FLAG, "vLLM refuses {flag}: {what}. Change it in --engine-args."),
    ),
    rule(
        r"error: argument (?P<flag>[\w/, -]+): \d+ validation errors? for \w+\s+(?:Value|Assertion) error, "
        r"(?P<what>[^\[\n]+?)\.? \[",
        says(FailureKind.FLAG, "vLLM refuses {flag}: {what}. Change it in --engine-args."),
    ),
    rule(
        r"error: argument (?P<flag>[\w/, -]+): \d+ validation errors? for \w+\s+(?P<field>\S+)\s+"
        r"(?P<what>[^\[\n]+?) \[",
        says(FailureKind.FLAG, "vLLM refuses {field} in {flag}: {what}. Change it in --engine-args."),
    ),
    rule(
        r"HFValidationError: Repo id must .*: '(?P<path>[^']*)'",
        says(FailureKind.FLAG, "There is no folder {path}, which --engine-args names; correct it there."),
    ),
    rule(
        r"User-specified max_model_len \((?P<asked>\d+)\) is greater than the derived max_model_len "
        r"\((?:\w+=)?(?P<most>\d+)",
        says(
            FailureKind.LENGTH,
            "--max-model-len {asked} is more than the {most} positions that the model was made for; lower it to that.",
        ),
    ),
    rule(
        r"max_num_batched_tokens \((?P<tokens>\d+)\) must be greater than or equal to max_num_seqs \((?P<seqs>\d+)\)",
        says(
            FailureKind.FLAG,
            "A step of --max-num-batched-tokens {tokens} can't hold a token of each of --max-num-seqs {seqs} requests: "
            "raise the first or lower the second.",
        ),
    ),
    rule(
        r"\[Errno 98\] .*[Aa]ddress already in use",
        says(
            FailureKind.ADDRESS_IN_USE,
            "The engine's own socket is taken: an earlier worker still listens there, or left it behind. Stop it and "
            "start again.",
        ),
    ),
    rule(
        r"chat template[^(]*\((?P<file>[^)]*)\)\s+(?:appears path-like, but doesn't exist|looks like a file path)",
        says(FailureKind.CHAT_TEMPLATE, "There is no chat template at {file}; correct --chat-template."),
    ),
    rule(
        r"in _generation_prompt\n[\s\S]*?jinja2\.exceptions\.TemplateError: (?P<what>.+)",
        says(
            FailureKind.CHAT_TEMPLATE,
            "The chat template refuses a conversation of one turn of the user ({what}), which vLLM renders when it "
            "starts. Give a template that takes it with --engine-args '--chat-template FILE', or take --engine "
            "transformers.",
        ),
    ),
    rule(
        r"jinja2\.exceptions\.\w+: (?P<what>.+)",
        says(
            FailureKind.CHAT_TEMPLATE,
            "The checkpoint's chat template is broken ({what}). Correct its chat_template.jinja, or give another with "
            "--engine-args '--chat-template FILE'.",
        ),
    ),
)
