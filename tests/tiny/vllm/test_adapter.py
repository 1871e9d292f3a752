"""A LoRA adapter of vLLM is a model of its own: listed, asked by its name, told from the base, given at its start or
loaded while it serves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

from tests.tiny.lora import write_adapter, write_saying
from tests.tiny.serving.served import Service
from tests.tiny.vllm.conftest import ADAPTER, NAMES


def test_an_adapter_is_a_model_of_its_own(service: Service, client: openai.OpenAI) -> None:
    cards = {card.id: card for card in client.models.list()}
    assert set(cards) == {*NAMES, ADAPTER}
    assert cards[ADAPTER].parent == NAMES[0] and cards[ADAPTER].root == ADAPTER
    extra = {"ignore_eos": True}
    of_base, of_adapter = (
        client.completions.create(model=name, prompt="What is 17 + 25?", max_tokens=8, temperature=0, extra_body=extra)
        for name in (NAMES[0], ADAPTER)
    )
    assert of_adapter.model == ADAPTER and of_base.choices[0].text != of_adapter.choices[0].text
    counted = f'qserve_gateway_requests_total{{model="{ADAPTER}",route="/v1/completions",status="200"}} 1.0'
    assert counted in service.get("/metrics").text


ID = {"ke": 300, "ache": 500, "red": 900}
# Longer than a page of vLLM's on a CPU, so that the second time finds it in the cache.
_LONG = "What is 17 + 25? " * 40


def _post(service: Service, name: str, path: Path, **more: object) -> httpx.Response:
    body = {"name": name, "path": str(path), **more}
    return httpx.post(f"{service.url}/v1/qserve/adapters", json=body, timeout=120)


@pytest.fixture(autouse=True)
def unloaded(service: Service) -> Iterator[None]:
    """What a test has loaded is gone behind it."""
    yield
    url = f"{service.url}/v1/qserve/adapters"
    for one in httpx.get(url).json()["data"]:
        httpx.delete(f"{url}/{one['id']}").raise_for_status()


def _answer(client: openai.OpenAI, name: str, prompt: str = _LONG) -> tuple[str, int]:
    """Its text, and how many tokens of the prompt were cached."""
    made = client.completions.create(
        model=name, prompt=prompt, max_tokens=8, temperature=0, extra_body={"ignore_eos": True}
    )
    assert made.model == name and made.usage is not None and made.usage.prompt_tokens_details is not None
    return made.choices[0].text, made.usage.prompt_tokens_details.cached_tokens or 0


def test_adapters_come_change_and_go_while_it_serves(service: Service, client: openai.OpenAI, tmp_path: Path) -> None:
    trained = write_adapter(tmp_path / "trained")  # as the one that was given at the start
    assert _post(service, "sql", trained).status_code == 200
    first, _ = _answer(client, "sql")
    assert first == _answer(client, ADAPTER)[0] != _answer(client, NAMES[0])[0]
    again, num_cached = _answer(client, "sql")
    assert again == first and num_cached > 0

    write_adapter(trained, seed=1)
    assert _answer(client, "sql")[0] == first  # nothing changes before it is loaded
    reloaded = _post(service, "sql", trained, load_inplace=True)
    assert reloaded.status_code == 200 and reloaded.json()["num_loads"] == 2
    second, num_cached = _answer(client, "sql")
    assert num_cached == 0 and second != first
    assert _post(service, "same", trained).status_code == 200
    assert _answer(client, "same")[0] == second
    assert _answer(client, ADAPTER)[0] == first

    assert _post(service, "fourth", trained).status_code == 409  # three with the one of the start
    assert _post(service, ADAPTER, trained).status_code == 409
    with pytest.raises(openai.NotFoundError):
        client.post("/load_lora_adapter", body={"lora_name": "x", "lora_path": str(trained)}, cast_to=object)
    for name in ("sql", "same"):
        assert httpx.delete(f"{service.url}/v1/qserve/adapters/{name}").status_code == 200
        with pytest.raises(openai.NotFoundError):
            _answer(client, name)
    assert {card.id for card in client.models.list()} == {*NAMES, ADAPTER}


async def test_who_runs_keeps_the_weights_that_it_began_with(service: Service, tmp_path: Path) -> None:
    """Two versions of one name, another adapter and the base in the same steps, each with its own answer."""
    words = ("ache", "red", "ke")
    moving, later, still = (write_saying(tmp_path / word, ID[word]) for word in words)
    loaded = [_post(service, "moving", moving), _post(service, "still", still)]
    assert [one.status_code for one in loaded] == [200, 200]
    async with openai.AsyncOpenAI(base_url=f"{service.url}/v1", api_key="none", max_retries=0) as client:

        async def text(name: str, num_tokens: int) -> str:
            made = await client.completions.create(
                model=name, prompt="1 + 1", max_tokens=num_tokens, temperature=0, extra_body={"ignore_eos": True}
            )
            return made.choices[0].text

        alone = await text(NAMES[0], 150)
        running = [asyncio.create_task(text(name, 150)) for name in ("moving", "still", NAMES[0])]
        await asyncio.sleep(0.2)
        assert (await asyncio.to_thread(_post, service, "moving", later, load_inplace=True)).status_code == 200
        assert not any(one.done() for one in running)
        assert await text("moving", 8) == "red" * 8
        for path, word in [(moving, "ache"), (later, "red")] * 5:  # bench/adapters.py does it a hundred times
            assert (await asyncio.to_thread(_post, service, "moving", path, load_inplace=True)).status_code == 200
            assert await text("moving", 2) == word * 2
        old, other, base = await asyncio.gather(*running)
    assert (old, other) == ("ache" * 150, "ke" * 150)
    assert base[:20] == alone[:20], (base, alone)


async def test_log_probabilities_of_prompts_are_those_of_the_adapter(service: Service, tmp_path: Path) -> None:
    """Beside sequences that run: on a CPU vLLM 0.32 ends its engine there."""
    assert _post(service, "saying", write_saying(tmp_path / "saying", ID["ache"])).status_code == 200
    async with openai.AsyncOpenAI(base_url=f"{service.url}/v1", api_key="none", max_retries=0) as client:

        async def last(name: str) -> float:
            made = await client.completions.create(
                model=name, prompt="1 + 1acheache", max_tokens=1, temperature=0, logprobs=1, echo=True
            )
            told = made.choices[0].logprobs
            assert told is not None and told.tokens is not None and told.token_logprobs is not None
            return told.token_logprobs[-2]

        more = {"ignore_eos": True}
        beside = [
            asyncio.create_task(client.completions.create(model=name, prompt="1", max_tokens=60, extra_body=more))
            for name in (NAMES[0], "saying", ADAPTER)
        ]
        await asyncio.sleep(0.2)
        of_adapter, of_base = await last("saying"), await last(NAMES[0])
        await asyncio.gather(*beside)
    assert of_adapter > -0.1 and of_base < -1
    assert "self-test passed" in service.output
