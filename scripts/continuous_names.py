"""Which names of transformers' continuous batching each release has, of those that qserve drives it by.

    pip download --no-deps transformers==5.18.0
    python scripts/continuous_names.py transformers-5.18.0-py3-none-any.whl …
    python scripts/continuous_names.py                                         # the installed release

Writes tests/tiny/engine/continuous_names.toml; releases that are not named stay as they are there. Nothing of the
library is imported: its sources are read.
"""

from __future__ import annotations

import ast
import sys
import tomllib
import zipfile
from collections.abc import Iterator, Mapping
from importlib.metadata import distribution, version
from pathlib import Path

TABLE = Path(__file__).parents[1] / "tests" / "tiny" / "engine" / "continuous_names.toml"
FOLDER = "transformers/generation/continuous_batching/"
CONFIG = "transformers/generation/configuration_utils.py"
# By class: what engines/transformers/worker/batching/continuous.py, library_callbacks.py, library_rows.py,
# library_stages.py, layer_cache.py and attention/compiled_step.py use of it.
USED = {
    "ContinuousBatchingConfig": [
        "auto_switch_to_flash",
        "max_batch_tokens",
        "max_memory_percent",
        "max_requests_per_batch",
        "num_blocks",
        "page_size",
        "use_async_batching",
        "use_cuda_graph",
    ],
    "ContinuousBatchingManager": [
        "_handle_critical_error",
        "_wake_up_loop",
        "batch_processor",
        "is_running",
        "logit_processor",
        "output_router",
        "background_thread_status",
        "pause",
        "start",
        "stop",
        "warmup",
    ],
    "ContinuousBatchProcessor": [
        "_generation_step",
        "cache",
        "cb_config",
        "has_pending_requests",
        "inputs_and_outputs",
        "max_batch_tokens",
        "offloading_manager",
        "prepare_next_batch",
        "reset",
        "scheduler",
        "update_batch",
    ],
    "Scheduler": [
        "active_requests",
        "add_waiting_request",
        "block_new_requests",
        "finish_request",
        "safety_margin",
        "set_request_cancellation",
        "starved_requests",
        "waiting_requests",
        "waiting_requests_order",
    ],
    "OffloadingManager": ["offload_requests"],
    "BackgroundThreadStatus": ["is_pause_requested", "local_status"],
    "FullAttentionCacheAllocator": [
        "block_physical_stride",
        "block_table",
        "get_cache_for_block_table",
        "layer_type",
        "needs_new_blocks",
        "tokens_per_page",
        "write_trash_index",
    ],
    "ContinuousBatchingIOs": ["compute_stream", "get_model_kwargs", "num_request_in_batch", "requests_in_batch"],
    "PagedAttentionCache": [
        "cache_allocators",
        "cache_tensor",
        "can_store_request_tokens",
        "compute_free_capacity",
        "count_storable_requests",
        "evict_cached_blocks",
        "extend_read_and_write_indices",
        "layer_to_allocator",
        "mark_complete_blocks",
        "search_prefix_match",
        "use_prefix_sharing",
    ],
    "RequestState": [
        "_new_tokens_limit",
        "current_len",
        "eos_token_id",
        "generated_tokens",
        "initial_tokens",
        "logit_processor_kwargs",
        "max_new_tokens",
        "position_offset",
        "request_id",
        "status",
        "tokens_to_process",
    ],
    "FutureRequestState": ["complete_blocks", "has_new_token", "query_length", "state"],
    "ContinuousBatchingLogitsProcessor": ["fill_defaults", "ignored_kwargs", "prepare_tensor_args", "supported_kwargs"],
    "ContinuousBatchingLogitsProcessorList": ["tensors_required"],
}


def names_in(sources: Mapping[str, str]) -> dict[str, set[str]]:
    """By class, what it defines, assigns to itself or declares; of its bases among them as well."""
    found: dict[str, set[str]] = {}
    bases: dict[str, list[str]] = {}
    for text in sources.values():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, set()).update(_of_class(node))
                bases[node.name] = [base.id for base in node.bases if isinstance(base, ast.Name)]
    for name in found:
        for base in bases[name]:
            found[name] |= found.get(base, set())
    return found


def _of_class(node: ast.ClassDef) -> Iterator[str]:
    for inner in ast.walk(node):
        if isinstance(inner, ast.FunctionDef):
            yield inner.name
        elif isinstance(inner, ast.AnnAssign | ast.Assign):
            targets = inner.targets if isinstance(inner, ast.Assign) else [inner.target]
            for target in targets:
                for one in target.elts if isinstance(target, ast.Tuple) else [target]:
                    if isinstance(one, ast.Name):
                        yield one.id
                    elif isinstance(one, ast.Attribute) and isinstance(one.value, ast.Name) and one.value.id == "self":
                        yield one.attr


def missing_in(sources: Mapping[str, str]) -> list[str]:
    """`Class.name` of what is used and not there, sorted."""
    found = names_in(sources)
    return sorted(f"{kind}.{name}" for kind, names in USED.items() for name in names if name not in found.get(kind, ()))


def of_wheel(wheel: Path) -> dict[str, str]:
    with zipfile.ZipFile(wheel) as file:
        return {name: file.read(name).decode() for name in file.namelist() if _is_of_interest(name)}


def of_installed() -> dict[str, str]:
    root = Path(str(distribution("transformers").locate_file("")))
    files = [*(root / FOLDER).rglob("*.py"), root / CONFIG]
    return {str(file.relative_to(root)): file.read_text() for file in files}


def _is_of_interest(name: str) -> bool:
    return name.endswith(".py") and (name.startswith(FOLDER) or name == CONFIG)


def main() -> None:
    """See the top of this file."""
    table = tomllib.loads(TABLE.read_text())["missing"] if TABLE.exists() else {}
    for wheel in map(Path, sys.argv[1:]):
        table[wheel.name.split("-")[1]] = missing_in(of_wheel(wheel))
    if not sys.argv[1:]:
        table[version("transformers")] = missing_in(of_installed())
    lines = ["# What scripts/continuous_names.py found missing in releases of transformers.", "", "[missing]"]
    for release in sorted(table, key=lambda text: [int(part) for part in text.split(".")]):
        lines += [f'"{release}" = [', *(f'    "{name}",' for name in table[release]), "]"]
    TABLE.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
