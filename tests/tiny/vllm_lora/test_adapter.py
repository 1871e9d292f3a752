"""A LoRA adapter of vLLM is a model of its own: listed, asked by its name, told from the base."""

from __future__ import annotations

import openai

from tests.tiny.serving.served import Service


def test_an_adapter_is_a_model_of_its_own(service: Service) -> None:
    with openai.OpenAI(base_url=f"{service.url}/v1", api_key="none", max_retries=0, timeout=120) as client:
        cards = {card.id: card for card in client.models.list()}
        assert set(cards) == {"demo", "tuned"} and cards["tuned"].parent == "demo" and cards["tuned"].root == "tuned"
        extra = {"ignore_eos": True}
        of_base, of_adapter = (
            client.completions.create(
                model=name, prompt="What is 17 + 25?", max_tokens=8, temperature=0, extra_body=extra
            )
            for name in ("demo", "tuned")
        )
    assert of_adapter.model == "tuned" and of_base.choices[0].text != of_adapter.choices[0].text
    counted = 'qserve_gateway_requests_total{model="tuned",route="/v1/completions",status="200"} 1.0'
    assert counted in service.get("/metrics").text
