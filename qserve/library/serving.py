"""`qserve.up`: a service for the time of a `with` block, in processes of its own."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qserve.errors import MissingExtra, UsageError
from qserve.evaluation.server import get_json, post_json, report_of
from qserve.library.flags import Value, flags_of
from qserve.library.own_server import own_server
from qserve.state_folder import state_folder

if TYPE_CHECKING:
    import openai

__all__ = ["Service", "up"]


@dataclass(frozen=True)
class Service:
    """A running `qserve up`.

    Attributes:
        url: of the gateway, without /v1.
        api_key: made for this service; it is in no log.
        start_s: seconds from nothing to ready.
        log: what the service said.
    """

    url: str
    api_key: str = field(repr=False)
    start_s: float
    log: Path

    @cached_property
    def client(self) -> openai.OpenAI:
        """OpenAI's own client for this service. Raises MissingExtra without the package `openai`."""
        try:
            import openai
        except ImportError as error:
            raise MissingExtra("openai", "Service.client") from error
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=self.api_key)

    @property
    def models(self) -> list[str]:
        """Names that requests may carry, the reward model's among them."""
        return [str(card["id"]) for card in get_json(f"{self.url}/v1/models", self.api_key)["data"]]

    @property
    def report(self) -> list[dict[str, Any]]:
        """A worker each: its plan, and what it holds as measured."""
        return list(report_of(self.url, self.api_key)["data"])

    def score(self, prompt: str, responses: Sequence[str], model: str | None = None) -> list[float]:
        """The reward of each response to `prompt`, in order. Raises UsageError where no reward model is served."""
        body = {"model": model or self._reward_model(), "prompt": prompt, "responses": list(responses)}
        answer = post_json(f"{self.url}/v1/reward", self.api_key, body)
        return [float(one["reward"]) for one in answer["data"]]

    def _reward_model(self) -> str:
        names = [
            name
            for worker in self.report
            if worker.get("role", worker["worker"]) == "reward"
            for name in worker["models"]
        ]
        if not names:
            raise UsageError("this service has no reward model; start it with qserve.up(…, reward=…)")
        return str(names[0])


@contextlib.contextmanager
def up(model: str | None = None, *, reward: str | None = None, **options: Value) -> Iterator[Service]:
    """Serve `model`, a reward model, or both, until the block ends; running requests finish first.

    Args:
        model: a folder, a hub id, a short name, or `demo`.
        reward: a trained reward model: a folder, a hub id, or `demo`.
        options: the flags of `qserve up` by name: `quant="4bit"`, `max_model_len=4096`, `engine="vllm"`,
            `embed="Qwen/Qwen3-Embedding-0.6B"`.

    A free port on the loopback address and a key of its own. The service ends with this process, however that ends.
    Raises UsageError, DoesNotFit or WorkerFailed with its last words where it does not start.

    """
    if model is None and reward is None and options.get("embed") is None:
        raise UsageError(
            "qserve.up serves a model, a reward model (reward=), an embedding model (embed=), or a model and one of "
            "these: qserve.up('demo', reward='demo')"
        )
    given = options.pop("state_dir", None)
    state_dir = Path(str(given)) if given is not None else None
    log = state_folder(state_dir) / "library" / f"{time.strftime('%Y%m%d-%H%M%S')}.log"
    words = flags_of({"model": model, "reward": reward, **options})
    with own_server(words, log, state_dir, "library") as server:
        yield Service(server.url, server.api_key, server.start_s, log)
