"""Options of `qserve up` alone: address, keys, limits, logs, records."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from qserve.cli.options.command import embed_revision_option, model_options, reward_revision_option
from qserve.cli.options.numbers import Count, FiniteRange, number_option
from qserve.cli.options.planning import SIZE
from qserve.planner.engine import SCORER, reward_engine_names
from qserve.service.request import PACKED_CACHE_GIB

__all__ = ["service_options"]

Function = TypeVar("Function", bound=Callable[..., Any])
_OPTIONS = (
    model_options(),
    click.option("--reward", help="A trained reward model: a folder, a file with --base, a hub id, or demo."),
    reward_revision_option,
    click.option(
        "--served-model-name", multiple=True, help="Name of the model in requests [the model's]. May be repeated."
    ),
    click.option("--served-reward-name", multiple=True, help="Name of the reward model in requests. May be repeated."),
    click.option("--reward-quant", default="auto", show_default=True, help="Quantization of the reward model."),
    click.option(
        "--reward-engine",
        type=click.Choice(sorted(reward_engine_names())),
        default=SCORER,
        show_default=True,
        help="Engine of the reward model: qserve's own scorer, or vLLM's pooling runner if the format allows it.",
    ),
    number_option(
        "--reward-replicas",
        Count(min=1, max=1024),
        1,
        "Replicas of the reward model, each on its own card or part of the CPU.",
    ),
    click.option("--embed", help="An embedding model: a folder as sentence-transformers keeps it, or a hub id."),
    embed_revision_option,
    click.option(
        "--served-embed-name", multiple=True, help="Name of the embedding model in requests. May be repeated."
    ),
    click.option("--embed-quant", default="auto", show_default=True, help="Quantization of the embedding model."),
    number_option(
        "--embed-replicas",
        Count(min=1, max=1024),
        1,
        "Replicas of the embedding model, each on its own card or part of the CPU.",
    ),
    click.option(
        "--host", default="127.0.0.1", show_default=True, help="Address to listen on; any but loopback needs a key."
    ),
    click.option(
        "--port",
        type=click.IntRange(0, 65535),
        default=8000,
        show_default=True,
        help="Port to listen on; 0 takes a free one.",
    ),
    click.option(
        "--takeover",
        is_flag=True,
        help="Take port and workers over from your service that runs on this port, without a lost request.",
    ),
    click.option(
        "--api-key",
        multiple=True,
        envvar="QSERVE_API_KEY",
        help="A key that every request but /health needs; a file is safer (--api-key-file). May be repeated.",
    ),
    click.option(
        "--api-key-file",
        multiple=True,
        type=click.Path(path_type=Path),
        help="A file of such keys, one per line. May be repeated.",
    ),
    click.option(
        "--admin-key-file",
        multiple=True,
        type=click.Path(path_type=Path),
        help="A file with keys, one per line, that may also restart the workers: POST /v1/qserve/restart. May be "
        "repeated.",
    ),
    click.option(
        "--keys",
        type=click.Path(path_type=Path),
        help="A file of keys with names, each with its models, limits, priority and last day; `qserve keys add` makes "
        "it. Changes hold within a second.",
    ),
    click.option("--ui/--no-ui", default=None, help="Start the web UI at once, or never [when a browser opens /]."),
    click.option("--cors-origin", multiple=True, help="A web origin that browsers may call from. May be repeated."),
    number_option(
        "--gateway-processes",
        Count(min=1, max=64),
        1,
        "Processes that relay requests, for more than one core's throughput.",
    ),
    click.option(
        "--shared-prefix-cache",
        is_flag=True,
        help="Let keys share cached prompts: faster with a common system prompt, but the time to an answer "
        "shows a client what others have sent.",
    ),
    number_option("--max-queue", Count(min=0), 256, "Requests that may wait; more are refused with 429."),
    number_option(
        "--resume-wait",
        FiniteRange(min=0),
        60.0,
        "Seconds that a stream whose worker died waits for another to continue it; 0: it ends with an error.",
    ),
    number_option("--max-body-mib", Count(min=1), 16, "Largest request; larger ones are refused with 413."),
    number_option(
        "--drain-timeout", FiniteRange(min=0), 30.0, "Seconds that running requests may take to finish after Ctrl-C."
    ),
    click.option(
        "--start-timeout",
        type=FiniteRange(min=1),
        help="Seconds without progress that end a start [120 to 1800, by phase].",
    ),
    click.option(
        "--min-free-ram",
        type=SIZE,
        help="RAM below which new requests are refused, and workers are ended before the kernel does it; 0: never "
        "[2 %; 7.5 % where the GPU shares the RAM].",
    ),
    click.option(
        "--state-dir",
        type=click.Path(path_type=Path),
        envvar="QSERVE_STATE_DIR",
        help="Where runs and logs are kept [~/.local/state/qserve].",
    ),
    number_option(
        "--keep-runs-days", FiniteRange(0, min_open=True), 90.0, "Delete runs that ended longer ago, with their logs."
    ),
    number_option(
        "--keep-runs-gib",
        FiniteRange(0.001),
        1.0,
        "Size of the run store; above it, requests of the oldest runs are deleted.",
    ),
    number_option("--max-file-mib", Count(min=1), 200, "Largest file of requests (POST /v1/files)."),
    number_option(
        "--keep-files-days", FiniteRange(0, min_open=True), 30.0, "Delete files and batches after so many days."
    ),
    number_option(
        "--keep-files-gib", FiniteRange(0.001), 10.0, "Size of all files together; above it, uploads are refused."
    ),
    number_option(
        "--keep-responses-mib",
        Count(min=1),
        128,
        "Memory of background responses (POST /v1/responses), of which a client may hold half; above it, those that "
        "ended are forgotten first, then new ones are refused with 429.",
    ),
    number_option(
        "--keep-responses-minutes",
        FiniteRange(0, min_open=True),
        60.0,
        "Forget background responses so long after their end.",
    ),
    number_option(
        "--packed-cache-gib",
        FiniteRange(0),
        PACKED_CACHE_GIB,
        "Size of the packed weights kept in ~/.cache/qserve/packed, for faster starts on a CPU; 0 keeps none.",
    ),
    click.option(
        "--ready-file",
        type=click.Path(path_type=Path),
        help="Write a JSON file with url and pid when ready, for scripts.",
    ),
    click.option(
        "-v", "--verbose", is_flag=True, help="Show each term of memory, the phases of the start and the self-test."
    ),
    click.option(
        "--log-level",
        type=click.Choice(["debug", "info", "warning"]),
        default="warning",
        show_default=True,
        help="info prints one line per request.",
    ),
    click.option(
        "--log-format",
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        help="json: one object per line on standard error, for log collectors.",
    ),
    click.option(
        "--otlp-traces-endpoint",
        help="Send a span per request to this OpenTelemetry collector: http://127.0.0.1:4318/v1/traces.",
    ),
    click.option("--engine-args", default="", help='Further flags of vLLM, as one string: "--seed 7 --enable-lora".'),
    click.option(
        "--load-format",
        type=click.Choice(["auto", "dummy"]),
        default="auto",
        show_default=True,
        help="dummy: random weights from the config alone, to size a model that is not on disk.",
    ),
    click.option(
        "--strict", is_flag=True, help="Exit with status 5 if the chat model serves noise, instead of a warning."
    ),
    click.option(
        "--verify-quant", is_flag=True, help="Measure what quantizing while loading costs: KL, changed top tokens."
    ),
)


def service_options(function: Function) -> Function:
    """Adds them to a command."""
    for decorate in reversed(_OPTIONS):
        function = decorate(function)
    return function
