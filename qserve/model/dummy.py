"""Random weights for a model that is known by its config alone: to size it on a card without downloading it.

The weights are made tensor by tensor through the library's own loading, in the plan's dtype and quantization and where
the plan puts them; there is never a second or a 16-bit copy of the whole. What such a model says is noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from qserve.core.schemes import SCHEMES
from qserve.errors import UsageError
from qserve.planner.plan import Plan

__all__ = ["NOISE_NOTE", "empty_model", "random_weights", "stand_in_tokenizer"]

NOISE_NOTE = "--load-format dummy: the weights are random, so every answer is NOISE; memory and speed are real"

_STANDARD_DEVIATION = 0.02
# Values that are drawn once; every tensor takes its own from a different place. No power of two, so that the rows of a
# matrix differ.
_DRAWN = 4_194_319
_SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def empty_model(folder: Path, plan: Plan) -> Any:
    """The model of the folder's config.json, without weights (on torch's meta device).

    Raises UsageError where the plan counts on a checkpoint that is stored quantized: nobody can make that up.
    """
    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    scheme = plan.quant.scheme
    if getattr(config, "quantization_config", None) or not (plan.quant.in_flight or SCHEMES[scheme].bits >= 16):
        raise UsageError(
            f"--load-format dummy can't make a checkpoint that is stored as {scheme}; give the 16-bit model, and "
            "--quant bf16, bnb-int8 or bnb-nf4"
        )
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)


def random_weights(empty: Any, device: torch.device) -> dict[str, RandomTensor]:
    """What stands for the checkpoint's tensors: each is made, on `device`, when the library reads it."""
    generator = torch.Generator(device).manual_seed(0)
    drawn = torch.empty(_DRAWN, dtype=torch.bfloat16, device=device).normal_(
        0, _STANDARD_DEVIATION, generator=generator
    )
    tied = set(empty.all_tied_weights_keys) if empty.config.get_text_config().tie_word_embeddings else set()
    buffers = {name for name, _ in empty.named_buffers()}
    names = [name for name in empty.state_dict() if name not in tied | buffers]
    shapes = empty.state_dict()
    return {name: RandomTensor(name, tuple(shapes[name].shape), drawn, 7919 * i) for i, name in enumerate(names)}


@dataclass(frozen=True)
class RandomTensor:
    """Has the three methods of safetensors' lazy slices that the library calls."""

    name: str
    shape: tuple[int, ...]
    drawn: torch.Tensor
    offset: int

    def get_shape(self) -> list[int]:
        return list(self.shape)

    def get_dtype(self) -> str:
        return "BF16"

    def __getitem__(self, index: Any) -> torch.Tensor:
        """All of it; the index is `...`. Norms are ones: a scale near zero would make every output the same."""
        if "norm" in self.name.rsplit(".", 2)[-2] and self.name.endswith(".weight"):
            return torch.ones(self.shape, dtype=self.drawn.dtype, device=self.drawn.device)
        size = math.prod(self.shape)
        tensor = torch.empty(size, dtype=self.drawn.dtype, device=self.drawn.device)
        done, start = 0, self.offset % self.drawn.numel()
        while done < size:
            piece = self.drawn[start : start + size - done]
            tensor[done : done + piece.numel()] = piece
            done, start = done + piece.numel(), 0
        return tensor.view(self.shape)


def stand_in_tokenizer(vocab_size: int) -> PreTrainedTokenizerFast:
    """Byte-level, without merges, one word for each id that is left, Qwen's special tokens last: every id is text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    fillers = vocab_size - len(letters) - len(_SPECIAL_TOKENS)
    if fillers < 0:
        raise UsageError(
            f"a vocabulary of {vocab_size} has no room for the {len(letters)} bytes of a stand-in tokenizer"
        )
    words = [*letters, *(f"Ġw{index}" for index in range(fillers))]
    tokenizer = Tokenizer(models.BPE(vocab={word: index for index, word in enumerate(words)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=_SPECIAL_TOKENS[2],
        pad_token=_SPECIAL_TOKENS[0],
        additional_special_tokens=[_SPECIAL_TOKENS[1]],
        chat_template=_CHAT_TEMPLATE,
    )
