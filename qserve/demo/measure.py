"""Exact match of a served demo model on held-out questions, asked over HTTP one by one, greedily.

    python -m qserve.demo.measure --url http://127.0.0.1:8123 --num 200 --concurrency 16

The questions come from the same code that trained the model; `tasks.is_held_out` keeps them out of the training.
Intervals are Wilson's, 95 %.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from qserve.client.answer import NotJson, Refused, Unreachable
from qserve.client.api import ApiClient
from qserve.confidence import wilson_interval
from qserve.demo.tasks import TASKS, Exchange, held_out_exchanges

__all__ = ["TaskResult", "main", "measure"]

QUESTION_SEED = 1


@dataclass(frozen=True)
class TaskResult:
    """Exact match on one task; `low` and `high` bound the share that would be right in the long run (95 %)."""

    task: str
    num_right: int
    num_asked: int
    exact_match: float
    low: float
    high: float
    first_wrong: tuple[str, str, str] | None  # question, right answer, given answer


def task_result(task: str, exchanges: list[Exchange], answers: list[str]) -> TaskResult:
    """Count the answers that equal the right one, spaces at the ends aside."""
    pairs = list(zip(exchanges, answers, strict=True))
    wrong = [(exchange, answer) for exchange, answer in pairs if answer.strip() != exchange.answer]
    num_right = len(exchanges) - len(wrong)
    low, high = wilson_interval(num_right, len(exchanges))
    first = (wrong[0][0].question, wrong[0][0].answer, wrong[0][1]) if wrong else None
    return TaskResult(task, num_right, len(exchanges), num_right / max(1, len(exchanges)), low, high, first)


async def measure(url: str, model: str | None, api_key: str | None, num: int, concurrency: int) -> list[TaskResult]:
    """Ask `num` held-out questions of each task at POST {url}/v1/chat/completions.

    Raises Refused, Unreachable, NotJson.
    """
    gate = asyncio.Semaphore(concurrency)
    async with ApiClient(url, api_key, timeout_s=600) as client:
        name = model or await _served_model(client)

        async def ask(exchange: Exchange) -> str:
            async with gate:
                return await _answer(client, name, exchange.question)

        results = []
        for task in TASKS.values():
            exchanges = held_out_exchanges(task, num, QUESTION_SEED)
            answers = await asyncio.gather(*(ask(exchange) for exchange in exchanges))
            results.append(task_result(task.name, exchanges, answers))
        return results


async def _served_model(client: ApiClient) -> str:
    answer = await client.ask("GET", "/v1/models")
    return str(answer.raise_for_status().json()["data"][0]["id"])


async def _answer(client: ApiClient, model: str, question: str) -> str:
    body = {"model": model, "messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": 256}
    answer = await client.ask("POST", "/v1/chat/completions", body)
    return str(answer.raise_for_status().json()["choices"][0]["message"]["content"])


def table(results: list[TaskResult]) -> str:
    """The results as a Markdown table."""
    lines = ["| held-out task | right | asked | exact match | 95 % interval |", "|---|---:|---:|---:|---|"]
    lines += [
        f"| {r.task} | {r.num_right} | {r.num_asked} "
        f"| {100 * r.exact_match:.1f} % | {100 * r.low:.1f}–{100 * r.high:.1f} % |"
        for r in results
    ]
    return "\n".join(lines)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m qserve.demo.measure", description=__doc__.split("\n")[0])
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="where qserve listens (default %(default)s)")
    parser.add_argument("--model", help="served model name (default: the first that /v1/models lists)")
    parser.add_argument("--api-key", default=os.environ.get("QSERVE_API_KEY"), help="default: $QSERVE_API_KEY")
    parser.add_argument("--num", type=int, default=200, help="questions per task (default %(default)s)")
    parser.add_argument("--concurrency", type=int, default=16, help="requests in flight (default %(default)s)")
    parser.add_argument("--json", type=Path, help="write the results to this file as well")
    args = parser.parse_args()
    started_s = time.monotonic()
    try:
        results = asyncio.run(measure(args.url, args.model, args.api_key, args.num, args.concurrency))
    except (Refused, Unreachable, NotJson) as error:
        sys.exit(f"{args.url} did not answer as an OpenAI server does: {error}. Start one: qserve up --model demo")
    num_asked = sum(result.num_asked for result in results)
    sys.stdout.write(f"{table(results)}\n\n{num_asked} questions in {time.monotonic() - started_s:.1f} s\n")
    for result in results:
        if result.first_wrong is not None:
            question, right, given = result.first_wrong
            sys.stdout.write(f"{result.task}: {question!r} is {right!r}, answered {given!r}\n")
    if args.json is not None:
        args.json.write_text(json.dumps([asdict(result) for result in results], indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
