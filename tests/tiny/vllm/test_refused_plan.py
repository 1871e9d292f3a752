"""A plan that vLLM refuses for memory is tried once more with vLLM's own number, told, and then it serves."""

from __future__ import annotations

from qserve.runs import RunStore
from tests.tiny.serving.served import Service
from tests.tiny.vllm.conftest import MAX_MODEL_LEN, NAMES


def test_one_retry_with_the_length_that_vllm_reports(service: Service) -> None:
    store = RunStore.open(service.state / "qserve")
    (retry,) = [event.details for event in store.events(store.run()) if event.event == "retry"]
    assert "--max-model-len" in retry["reason"]
    assert "Planned on" in retry["refused"], "the plan's numbers stand beside vLLM's"
    assert f"trying once more, {retry['reason']}" in " ".join(service.output.split())
    (entry,) = service.get("/v1/qserve/memory").json()["data"]
    longest = entry["planned"]["workload"]["max_model_len"]
    assert 512 <= longest < MAX_MODEL_LEN
    cards = {card["id"]: card for card in service.get("/v1/models").json()["data"]}
    assert {cards[name]["max_model_len"] for name in NAMES} == {longest}
    assert entry["memory"]["kv_cache_tokens"] >= longest
    answer = service.post("/v1/completions", prompt="a", max_tokens=2, ignore_eos=True)
    assert answer.status_code == 200 and answer.json()["usage"]["completion_tokens"] == 2
