"""The same checkpoint in plain transformers: `generate`, and one forward for log-probabilities. No batch, no cache."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode


@dataclass(frozen=True)
class Reference:
    model: Any
    tokenizer: Any

    @classmethod
    def load(cls, folder: Path, dtype: torch.dtype = torch.float32) -> Reference:
        torch.set_num_threads(1)  # the served engine computes on the same cores
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
        return cls(model, AutoTokenizer.from_pretrained(folder))

    def greedy(self, prompt_ids: list[int], max_new_tokens: int) -> list[int]:
        """New tokens, the one that ended it left out."""
        ids = torch.tensor([prompt_ids])
        out = self.model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=max_new_tokens
        )[0, len(prompt_ids) :].tolist()
        ends = set(self.model.generation_config.eos_token_id)
        return [token for token in out if token not in ends]

    def greedy_text(self, prompt_ids: list[int], max_new_tokens: int) -> str:
        return self.tokenizer.decode(self.greedy(prompt_ids, max_new_tokens), skip_special_tokens=True)

    @torch.no_grad()
    def logprobs(self, ids: list[int]) -> torch.Tensor:
        """[tokens, vocab]: row i is the distribution of the token after ids[i]."""
        return torch.log_softmax(self.model(torch.tensor([ids])).logits[0].float(), dim=-1)

    def token_logprobs(self, ids: list[int]) -> list[float]:
        """Of ids[1:], each given those before it."""
        return self.logprobs(ids)[:-1].gather(1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()


def id_of_label(tokenizer: Any, label: str) -> int:
    """The token of a byte-level BPE that logprobs call `label`."""
    if label.startswith("bytes:"):
        raw = bytes(int(part, 16) for part in label.removeprefix("bytes:\\x").split("\\x"))
    else:
        raw = label.encode()
    found = tokenizer.get_vocab().get("".join(bytes_to_unicode()[byte] for byte in raw))
    return int(tokenizer.convert_tokens_to_ids(label) if found is None else found)
