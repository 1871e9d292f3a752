"""A LoRA adapter of vLLM is a model of its own: listed, asked by its name, told from the base."""

from __future__ import annotations

import openai

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
