"""The demo's tokenizer: byte-level BPE as Qwen2Tokenizer builds it, trained on the demo's own conversations.

Any text round-trips (up to Unicode's NFC, which Qwen's tokenizers apply), each digit is a token of its own, and the
special tokens are Qwen3's, in Qwen3's order. There is no BOS; `<|im_end|>` ends an answer, `<|endoftext|>` pads.
"""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, trainers
from tokenizers.models import BPE

from qserve.demo.conversations import sample_conversation
from qserve.demo.words import WORDS

__all__ = ["SPECIAL_TOKENS", "VOCAB_SIZE", "train_tokenizer", "write_tokenizer"]

VOCAB_SIZE = 1280

# Qwen2Tokenizer's (transformers, models/qwen2/tokenization_qwen2.py): \p{N} alone makes digits single tokens.
SPLIT_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

# Qwen3's added tokens, in the order of its tokenizer_config.json; False: kept in decoded text.
SPECIAL_TOKENS: dict[str, bool] = {
    "<|endoftext|>": True,
    "<|im_start|>": True,
    "<|im_end|>": True,
    "<|object_ref_start|>": True,
    "<|object_ref_end|>": True,
    "<|box_start|>": True,
    "<|box_end|>": True,
    "<|quad_start|>": True,
    "<|quad_end|>": True,
    "<|vision_start|>": True,
    "<|vision_end|>": True,
    "<|vision_pad|>": True,
    "<|image_pad|>": True,
    "<|video_pad|>": True,
    "<tool_call>": False,
    "</tool_call>": False,
    "<|fim_prefix|>": False,
    "<|fim_middle|>": False,
    "<|fim_suffix|>": False,
    "<|fim_pad|>": False,
    "<|repo_name|>": False,
    "<|file_sep|>": False,
    "<tool_response>": False,
    "</tool_response>": False,
    "<think>": False,
    "</think>": False,
}


def train_tokenizer(num_conversations: int = 30_000, seed: int = 0) -> Tokenizer:
    """A tokenizer of VOCAB_SIZE tokens, special tokens last, from `num_conversations` sampled conversations."""
    tokenizer = Tokenizer(BPE())
    tokenizer.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(SPLIT_PATTERN), behavior="isolated", invert=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_corpus(num_conversations, seed), trainer)
    tokenizer.add_special_tokens(
        [AddedToken(t, special=True, normalized=False) for t, s in SPECIAL_TOKENS.items() if s]
    )
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t, s in SPECIAL_TOKENS.items() if not s])
    return tokenizer


def _corpus(num_conversations: int, seed: int) -> list[str]:
    rng = Random(seed)  # noqa: S311 (data, not secrets)
    texts = [
        exchange.question + "\n" + exchange.answer
        for _ in range(num_conversations)
        for exchange in sample_conversation(rng).exchanges
    ]
    # Every word becomes one token, with a space before it and without.
    words = [f"{word} {word}" for word in WORDS] * (num_conversations // 50)
    return [*texts, *words, *["system\nuser\nassistant"] * num_conversations]


def write_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json, as AutoTokenizer and vLLM read them."""
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": {
            str(tokenizer.token_to_id(token)): {
                "content": token,
                "lstrip": False,
                "normalized": False,
                "rstrip": False,
                "single_word": False,
                "special": special,
            }
            for token, special in SPECIAL_TOKENS.items()
        },
        "additional_special_tokens": [t for t, special in SPECIAL_TOKENS.items() if special and t != "<|endoftext|>"],
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": 2048,
        "pad_token": "<|endoftext|>",
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n")
