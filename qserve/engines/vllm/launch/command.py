"""From a plan to the command line and environment of the vLLM server."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from qserve.core.release import parse_release
from qserve.engines.vllm.launch.chat_format import ChatFormat, chat_format_of, served_templates
from qserve.engines.vllm.launch.compiled_kernels import compile_limit_s, kernel_settings
from qserve.engines.vllm.launch.cpu_processes import joined_processes
from qserve.engines.vllm.launch.parser import FlagParser, user_cache
from qserve.engines.vllm.launch.plugins import adapter_versions, schema_grammars, token_rows
from qserve.engines.vllm.launch.run_time_adapters import AdapterRoom, adapter_room
from qserve.engines.vllm.launch.user_flags import COMPACT_JSON, merged, schema_library, writes_blanks
from qserve.engines.vllm.launch.versions import release_of
from qserve.engines.vllm.launch.weights import check_fused
from qserve.errors import UsageError
from qserve.hub.chat_template import takes_one_system
from qserve.hub.folder import read_config
from qserve.hub.served_folder import clean_folder
from qserve.hub.token_rows import rowless_tokens
from qserve.prompts.written_tokens import check_chat_template
from qserve.worker.base import TcpAddress, UnixAddress, WorkerFacts
from qserve.worker.process import WorkerSpec

__all__ = ["VllmCommand", "command", "ready_timeout_s"]

_SERVER = ("-m", "qserve.engines.vllm.launch.plugins.server_process")

# Set by qserve, whatever the user's environment says.
_SETTINGS = {
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    # Everything is in the folder; a look at the hub would only cost time, or fail.
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    # `log` reads these lines.
    "VLLM_CONFIGURE_LOGGING": "1",
    "VLLM_LOGGING_COLOR": "0",
    "VLLM_LOGGING_PREFIX": "",
    "PYTHONUNBUFFERED": "1",
}
# The startup plan is a cache size that vLLM measured before; our plan names one, so it could only stand in the way of a
# measurement (QSERVE_VLLM_PROFILES_MEMORY). Source: vllm 0.32 v1/worker/startup_plan.py.
_LEFT_OUT = ("VLLM_CPU_KVCACHE_SPACE", "VLLM_LOGGING_CONFIG_PATH", "VLLM_ENABLE_STARTUP_PLAN")
_BATCH_INVARIANT = "VLLM_BATCH_INVARIANT"
# VLLM_ENGINE_READY_TIMEOUT_S of vLLM 0.32's envs.py; 65 GB from a disk of 50 MB/s take 1300 s before anything compiles.
_READY_TIMEOUT_S, _COMPILING_S, _SLOWEST_DISK_BYTES_PER_S = 600, 600, 50_000_000
# Imported by vLLM's workers alone: it asks for something when it is imported.
_WITH_TILES = ("--worker-extension-cls", "qserve.engines.vllm.launch.tiles.WithTiles")
_CACHE_BYTES = "--kv-cache-memory-bytes"
_PROFILES = "QSERVE_VLLM_PROFILES_MEMORY"
# Beside those that the user gives.
_CONTINUED = ("--middleware", "qserve.engines.vllm.launch.plugins.stream_journal.ContinuedStreams")
_STRICT_TOOLS = "--tool-strict-level"
_STRUCTURES = "--structured-outputs-config"
_CACHED_TOKENS = "--enable-prompt-tokens-details"
# What `thinking_token_budget` counts between and ends with, where no parser tells it. The keys had other names before.
_THOUGHT_TAGS = {"reasoning_start_str": "<think>", "reasoning_end_str": "</think>"}
_THOUGHT_TAGS_SINCE = "0.32.0"
_TAGGED_THOUGHTS = (
    "--reasoning-parser-plugin",
    str(Path(__file__).with_name("plugins") / "tagged_thoughts.py"),
    "--reasoning-parser",
    "qserve_tagged",
)
# Anything quieter would hide what `log` reads.
_LOG_LEVELS = ("DEBUG", "INFO")


@dataclass(frozen=True)
class VllmCommand:
    """What starts the server. `env` is the whole environment; the key is in it, and in no argument.

    `schema_library`, `thinks_in_text`: as `WorkerFacts` has them. `chat_template`: the text of the one that is used.
    `adapters`: those that may be loaded at run time.
    """

    argv: tuple[str, ...]
    env: dict[str, str] = field(repr=False)
    schema_library: str = ""
    thinks_in_text: bool = False
    chat_template: str = ""
    adapters: AdapterRoom = field(default_factory=AdapterRoom)

    @property
    def takes_one_system(self) -> bool:
        """As `WorkerFacts` has it."""
        return takes_one_system(self.chat_template)

    def with_command(self, facts: WorkerFacts) -> WorkerFacts:
        """The facts of the worker with what the command decides."""
        return replace(
            facts,
            schema_library=self.schema_library,
            thinks_in_text=self.thinks_in_text,
            takes_one_system=self.takes_one_system,
            max_loras=self.adapters.max_loras,
            max_lora_rank=self.adapters.max_rank,
        )


def command(
    spec: WorkerSpec,
    parser: FlagParser,
    extra: str = "",
    environ: Mapping[str, str] | None = None,
    python: str = sys.executable,
) -> VllmCommand:
    """The command that puts `spec.plan` into effect: vLLM's own server (`server_process`) with its flags.

    Args:
        spec: its folder is the checkpoint that the plan loads (a quantized sibling's, where one was taken).
        parser: the installed engine's; every flag is checked against it.
        extra: the user's own flags, as one string (`--engine-args`).
        environ: what the environment is made from; this process's own where None.
        python: the interpreter with vLLM.

    Raises UsageError for a flag that the engine does not know, that is qserve's to set, or that contradicts the plan;
    BrokenCheckpoint for a folder that vLLM would serve although tensors are missing.

    """
    spec = replace(spec, folder=clean_folder(spec.folder))
    check_fused(spec.folder)
    added = _split(extra)
    templates = served_templates(spec.folder, added)
    check_chat_template(spec.folder, templates.default)
    inherited = os.environ if environ is None else environ
    own = (
        *("--model", str(spec.folder)),
        *("--served-model-name", *spec.models),
        *_listening(spec.address),
        *_planned(spec, inherited),
        *_scheduling(spec),
        "--disable-uvicorn-access-log",  # the gateway logs requests
    )
    on_cpu = _WITH_TILES if spec.plan.on_cpu else ()
    room = adapter_room((*own, *added), parser)
    usual = (*_defaults(chat_format_of(templates), parser), *on_cpu, *room.flags)
    words = _bound_at_once(merged(own, usual, added, parser))
    environment = {
        **_environment(spec, inherited),
        **_token_rows(spec.folder),
        **({adapter_versions.VARIABLE: "1"} if room.max_loras else {}),
        **({} if writes_blanks(words, parser) else {schema_grammars.VARIABLE: "1"}),
        **joined_processes(spec.plan, words, inherited),
    }
    thinks_in_text = _TAGGED_THOUGHTS[-1] in words
    argv = (python, *_SERVER, release_of(parser.version).server_module, *_CONTINUED, *words)
    return VllmCommand(argv, environment, schema_library(words, parser), thinks_in_text, templates.default, room)


def _token_rows(folder: Path) -> dict[str, str]:
    """For a server whose tokenizer knows ids that the embedding has no rows for."""
    rowless = rowless_tokens(folder, read_config(folder)) if (folder / "config.json").is_file() else None
    return {} if rowless is None else {token_rows.VARIABLE: str(rowless.num_rows)}


def _planned(spec: WorkerSpec, environ: Mapping[str, str]) -> tuple[str, ...]:
    """The plan's own flags; where vLLM is to measure its activations, without the size of the cache, which then is its
    own by --gpu-memory-utilization: so a plan is held against an engine (bench/gpu.py)."""
    words = spec.plan.engine_args
    if not environ.get(_PROFILES) or spec.plan.on_cpu or _CACHE_BYTES not in words:
        return words
    place = words.index(_CACHE_BYTES)
    return (*words[:place], *words[place + 2 :])


def _listening(address: UnixAddress | TcpAddress) -> tuple[str, ...]:
    if isinstance(address, UnixAddress):
        return ("--uds", str(address.path))
    return ("--host", address.host, "--port", str(address.port))


def ready_timeout_s(num_bytes: int, compile_s: int = 0) -> int:
    """How long vLLM's engine may take until it is ready: its own 600 s, or more for what a slow disk has to give.

    `compile_s`: on top, for kernels that nvcc compiles (`compile_limit_s`).
    """
    return max(_READY_TIMEOUT_S, _COMPILING_S + num_bytes // _SLOWEST_DISK_BYTES_PER_S) + compile_s


def _bytes_to_load(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))


def _scheduling(spec: WorkerSpec) -> tuple[str, ...]:
    """A prompt longer than a step is only possible in pieces; the plan counted steps of that size."""
    limits = spec.plan.workload
    return ("--enable-chunked-prefill",) if limits.max_num_batched_tokens < limits.max_model_len else ()


def _defaults(chat: ChatFormat, parser: FlagParser) -> tuple[str, ...]:
    """What the user's own flags may replace.

    Left alone on purpose: --generation-config (auto: the model's own sampling defaults, as the transformers worker
    takes them), --enable-force-include-usage (it adds a chunk to streams of clients that asked for none),
    --enable-request-id-headers (the gateway's id is the one that counts), --logprobs-mode (raw, as lm-eval wants).
    """
    tools = ("--enable-auto-tool-choice", "--tool-call-parser", chat.tool_parser) if chat.tool_parser else ()
    # Else arguments are bound to their schema only where a client says `strict`, and most don't.
    strict = (_STRICT_TOOLS, "parameter") if tools and _STRICT_TOOLS in parser.flags else ()
    # OpenAI's and Anthropic's usage tell how much of a prompt was cached; without it vLLM's say null.
    cached = (_CACHED_TOKENS,) if _CACHED_TOKENS in parser.flags else ()
    takes_tags = _takes_thought_tags(chat, parser)
    thoughts = ("--reasoning-parser", chat.reasoning_parser) if chat.reasoning_parser else ()
    tagged = (*_TAGGED_THOUGHTS, "--reasoning-config", json.dumps(_THOUGHT_TAGS)) if takes_tags else ()
    # The parser for thoughts does not see that the template closed them: it would take the answer for thoughts.
    silent = () if chat.thinks_by_default else ("--default-chat-template-kwargs", '{"enable_thinking": false}')
    # 20 is what OpenAI's schema allows; `echo` with `logprobs` on completions needs no flag of its own.
    # Blanks are allowed anywhere between the tokens of JSON, and a small model writes them to its limit.
    compact = (_STRUCTURES, json.dumps(COMPACT_JSON))
    return (*tools, *strict, *cached, *thoughts, *tagged, *silent, *compact, "--max-logprobs", "20")


def _bound_at_once(words: tuple[str, ...]) -> tuple[str, ...]:
    """A model that thinks where it likes has no thought before a structure, whose first token would not be bound."""
    if _TAGGED_THOUGHTS[-1] not in words:
        return words
    if _STRUCTURES not in words:  # field by field
        return (*words, f"{_STRUCTURES}.enable_in_reasoning", "true")
    place = words.index(_STRUCTURES) + 1
    config = {"enable_in_reasoning": True, **json.loads(words[place])}
    return (*words[:place], json.dumps(config), *words[place + 1 :])


def _takes_thought_tags(chat: ChatFormat, parser: FlagParser) -> bool:
    known = parse_release(parser.version) >= parse_release(_THOUGHT_TAGS_SINCE)
    return chat.thinks_in_text and known and "--reasoning-config" in parser.flags


def _split(extra: str) -> list[str]:
    try:
        return shlex.split(extra)
    except ValueError as error:
        raise UsageError(f"--engine-args {extra!r}: {error}; quote it as a shell would") from error


def _environment(spec: WorkerSpec, inherited: Mapping[str, str]) -> dict[str, str]:
    if inherited.get("VLLM_CPU_KVCACHE_SPACE"):
        raise UsageError(
            f"VLLM_CPU_KVCACHE_SPACE={inherited['VLLM_CPU_KVCACHE_SPACE']} in the environment would overrule the "
            f"plan's KV cache of {spec.plan.placement.kv_cache_memory_bytes} bytes; unset it and use "
            "--kv-cache-memory-bytes"
        )
    if inherited.get(_BATCH_INVARIANT, "0") != "0":
        raise UsageError(
            f"{_BATCH_INVARIANT}={inherited[_BATCH_INVARIANT]} in the environment: its kernels have other work buffers "
            "(FlashInfer's of 2 GiB) and other graphs than the plan counts; unset it"
        )
    kernels = kernel_settings(spec.plan, inherited)
    compile_s = compile_limit_s(spec.plan, {**inherited, **kernels})
    usual_timeout = str(ready_timeout_s(_bytes_to_load(spec.folder), compile_s))
    ready_timeout = inherited.get("VLLM_ENGINE_READY_TIMEOUT_S") or usual_timeout
    level = inherited.get("VLLM_LOGGING_LEVEL", "INFO").upper()
    kept = {name: value for name, value in inherited.items() if name not in _LEFT_OUT}
    # In the temporary folder, vLLM's default, every boot compiles anew what each first request for a log-probability
    # waits for. Behind the others: vLLM's processes set it once more, and setproctitle finds no place for their names
    # in a process whose first variable was set.
    kept.setdefault("TORCHINDUCTOR_CACHE_DIR", str(user_cache() / "torchinductor"))
    return {
        **kept,
        **kernels,
        **_SETTINGS,
        "VLLM_ENGINE_READY_TIMEOUT_S": ready_timeout,
        "VLLM_LOGGING_LEVEL": level if level in _LOG_LEVELS else "INFO",
        "VLLM_API_KEY": spec.key,
    }
