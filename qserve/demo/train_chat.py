"""Trains the demo chat model from scratch, on conversations that code generates, on a CPU.

    python -m qserve.demo.train_chat --out DIR --minutes 50 --seed 0

A second run may go on from where the first one ended, with a fresh and lower learning-rate curve:

    python -m qserve.demo.train_chat --init DIR --out DIR2 --minutes 12 --seed 1 --lr-scale 0.3 --weight count_up=3

Every few minutes it prints exact match on held-out questions per task and saves a loadable checkpoint into DIR.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import Qwen3Config, Qwen3ForCausalLM

from qserve.demo.batches import answer_logits, exact_matches, training_batches
from qserve.demo.calling import held_out_callings
from qserve.demo.checkpoint import save_chat_checkpoint
from qserve.demo.conversations import Conversation
from qserve.demo.tasks import held_out_exchanges
from qserve.demo.thinking import ALL_TASKS
from qserve.demo.tokenizer import VOCAB_SIZE, train_tokenizer

__all__ = ["Recipe", "chat_config", "main", "train"]


@dataclass(frozen=True)
class Recipe:
    """What decides a training run. `minutes` is wall time: a faster machine takes more steps in it.

    `lr_scale` multiplies both learning rates; `init` is a checkpoint to go on from, None trains from scratch; `weights`
    by task name go before the tasks' own.
    """

    minutes: float = 50.0
    seed: int = 0
    tokens_per_batch: int = 4096
    matrix_lr: float = 0.02
    other_lr: float = 3e-3
    lr_scale: float = 1.0
    warmup_share: float = 0.03
    weight_decay: float = 0.05
    report_every_minutes: float = 3.0
    report_num: int = 100
    init: Path | None = None
    weights: Mapping[str, float] = field(default_factory=dict)
    calling_share: float = 0.0


def chat_config(tokenizer: Tokenizer) -> Qwen3Config:
    """The demo's shape: two million parameters; head_dim and hidden size are ones that vLLM's kernels take."""
    return Qwen3Config(
        vocab_size=VOCAB_SIZE,
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=2048,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=True,
        use_cache=True,
        bos_token_id=None,
        eos_token_id=tokenizer.token_to_id("<|im_end|>"),
        pad_token_id=tokenizer.token_to_id("<|endoftext|>"),
    )


def train(recipe: Recipe, out: Path) -> None:
    """Train for `recipe.minutes` and leave the checkpoint in `out`."""
    torch.manual_seed(recipe.seed)
    tokenizer = train_tokenizer()
    model = _model(recipe, tokenizer)
    optimizers = _optimizers(model, recipe)
    started_s = reported_s = time.monotonic()
    num_steps = 0
    batches = training_batches(tokenizer, recipe.tokens_per_batch, recipe.seed, recipe.weights, recipe.calling_share)
    for batch in batches:
        progress = (time.monotonic() - started_s) / (60 * recipe.minutes)
        if progress >= 1:
            break
        _set_learning_rates(optimizers, recipe.lr_scale * _schedule(progress, recipe.warmup_share))
        # bf16 where autocast allows it: about twice as fast as fp32 on a CPU with AVX512-BF16; the weights stay fp32.
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits, labels = answer_logits(model, batch)
        loss = torch.nn.functional.cross_entropy(logits, labels)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        num_steps += 1
        if time.monotonic() - reported_s > 60 * recipe.report_every_minutes:
            heading = f"{(time.monotonic() - started_s) / 60:.1f} min, step {num_steps}, loss {loss.item():.4f}"
            _report(model, tokenizer, heading, recipe.report_num)
            save_chat_checkpoint(model, tokenizer, out)
            reported_s = time.monotonic()
    save_chat_checkpoint(model, tokenizer, out)
    _report(model, tokenizer, f"done after {num_steps} steps", recipe.report_num)


def _model(recipe: Recipe, tokenizer: Tokenizer) -> Qwen3ForCausalLM:
    # Eager attention: at these lengths faster than the fused kernels, whose bf16 backward is slow on a CPU.
    if recipe.init is not None:
        model = Qwen3ForCausalLM.from_pretrained(recipe.init, dtype=torch.float32, attn_implementation="eager")
        return model.train()
    return Qwen3ForCausalLM._from_config(chat_config(tokenizer), attn_implementation="eager")


def _optimizers(model: Qwen3ForCausalLM, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """Muon for the layers' matrices, AdamW for embedding and norms: in short runs far ahead of AdamW for everything."""
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed_tokens" not in name]
    others = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed_tokens" in name]
    muon = torch.optim.Muon(matrices, lr=recipe.matrix_lr, momentum=0.95, weight_decay=recipe.weight_decay)
    adamw = torch.optim.AdamW(others, lr=recipe.other_lr, betas=(0.9, 0.98), weight_decay=0.01, fused=True)
    for optimizer in (muon, adamw):
        for group in optimizer.param_groups:
            group["peak_lr"] = group["lr"]
    return [muon, adamw]


def _set_learning_rates(optimizers: list[torch.optim.Optimizer], share: float) -> None:
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = share * group["peak_lr"]


def _schedule(progress: float, warmup_share: float) -> float:
    """Linear warm-up, then a cosine down to zero."""
    if progress < warmup_share:
        return progress / warmup_share
    return 0.5 + 0.5 * math.cos(math.pi * (progress - warmup_share) / (1 - warmup_share))


def _report(model: Qwen3ForCausalLM, tokenizer: Tokenizer, heading: str, num_per_task: int) -> None:
    model.eval()
    shares = []
    for task in ALL_TASKS.values():
        conversations = [Conversation((exchange,)) for exchange in held_out_exchanges(task, num_per_task, seed=1)]
        right = exact_matches(model, conversations, tokenizer)
        shares.append(f"{task.name} {100 * sum(right) / len(right):.1f}")
    for kind in ("call", "result", "none"):
        right = exact_matches(model, held_out_callings(kind, num_per_task, seed=1), tokenizer)
        shares.append(f"tool:{kind} {100 * sum(right) / len(right):.1f}")
    model.train()
    sys.stdout.write(f"{heading}: held-out exact match, %: {', '.join(shares)}\n")
    sys.stdout.flush()


def _task_weight(text: str) -> tuple[str, float]:
    task, _, share = text.partition("=")
    if task not in ALL_TASKS:
        raise argparse.ArgumentTypeError(f"{task!r} is not a task; the tasks are {', '.join(ALL_TASKS)}")
    return task, float(share)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m qserve.demo.train_chat", description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for the checkpoint")
    parser.add_argument(
        "--minutes", type=float, default=Recipe.minutes, help="wall time of the training (default %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=Recipe.seed)
    parser.add_argument("--init", type=Path, help="continue from this checkpoint (default: train from scratch)")
    parser.add_argument("--lr-scale", type=float, default=Recipe.lr_scale, help="factor for both learning rates")
    parser.add_argument("--weight", type=_task_weight, action="append", default=[], metavar="TASK=SHARE")
    parser.add_argument(
        "--calling-share", type=float, default=Recipe.calling_share, help="conversations with a tool (default none)"
    )
    args = parser.parse_args()
    recipe = Recipe(
        minutes=args.minutes,
        seed=args.seed,
        lr_scale=args.lr_scale,
        init=args.init,
        weights=dict(args.weight),
        calling_share=args.calling_share,
    )
    train(recipe, args.out)


if __name__ == "__main__":
    main()
