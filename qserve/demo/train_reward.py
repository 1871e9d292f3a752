"""Trains the demo reward model on preferences, on a CPU: the demo chat model's layers, two more, and a scoring head.

    python -m qserve.demo.train_reward --out DIR --minutes 12 --seed 0

The chat model's layers stay as they are: at each token they hold what it would say next. The two layers above them
learn to compare that with what is said, and to gather what they find at the last token.

A run may go on from where another ended: --init DIR. Every few minutes it prints pairwise accuracy on held-out pairs
per task and saves a loadable Qwen3ForSequenceClassification into DIR.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3ForSequenceClassification
from transformers.utils import logging as transformers_logging

from qserve.demo import chat_model_path
from qserve.demo.preferences import Preference, held_out_preferences
from qserve.demo.reward_batches import Batch, batches, encode, stack
from qserve.demo.tasks import TASKS

__all__ = ["RewardRecipe", "main", "pairwise_accuracy", "train"]

_NEW_LAYERS = 2
_COPIED = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
_NOT_WRITTEN = {
    "_name_or_path",
    "chunk_size_feed_forward",
    "is_encoder_decoder",
    "max_window_layers",
    "output_attentions",
    "output_hidden_states",
    "problem_type",
    "return_dict",
    "sliding_window",
    "use_sliding_window",
}


@dataclass(frozen=True)
class RewardRecipe:
    """What decides a run. `minutes` is wall time; each question comes with `num_rejected` bad answers."""

    minutes: float = 12.0
    seed: int = 0
    questions_per_batch: int = 32
    num_rejected: int = 3
    matrix_lr: float = 0.02
    other_lr: float = 3e-3
    lr_scale: float = 1.0
    warmup_share: float = 0.05
    weight_decay: float = 0.05
    # Which tokens of a bad answer make it bad is known: from the first that differs on. Asking at each token whether
    # the answer is good so far teaches in minutes what the comparison of whole answers teaches in hours.
    token_weight: float = 1.0
    report_every_minutes: float = 3.0
    init: Path | None = None


def train(recipe: RewardRecipe, out: Path) -> None:
    """Train for `recipe.minutes` and leave the checkpoint in `out`."""
    torch.manual_seed(recipe.seed)
    tokenizer = Tokenizer.from_file(str(chat_model_path() / "tokenizer.json"))
    model = _model(recipe)
    optimizers = _optimizers(model, recipe)
    started_s = reported_s = time.monotonic()
    for num_steps, batch in enumerate(
        batches(tokenizer, recipe.seed, recipe.num_rejected, recipe.questions_per_batch), start=1
    ):
        progress = (time.monotonic() - started_s) / (60 * recipe.minutes)
        if progress >= 1:
            break
        share = _schedule(progress, recipe.warmup_share)
        for group in (group for optimizer in optimizers for group in optimizer.param_groups):
            group["lr"] = share * group["peak_lr"]
        loss = _loss(_values(model, batch), batch, recipe)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_([p for p in model.parameters() if p.requires_grad], 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        if time.monotonic() - reported_s > 60 * recipe.report_every_minutes:
            minutes = (time.monotonic() - started_s) / 60
            _report(model, tokenizer, f"{minutes:.1f} min, step {num_steps}, loss {loss.item():.4f}")
            save_reward_checkpoint(model, out)
            reported_s = time.monotonic()
    save_reward_checkpoint(model, out)
    _report(model, tokenizer, "done")


def _model(recipe: RewardRecipe) -> Qwen3ForSequenceClassification:
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    # Eager attention: at these lengths faster than the fused kernels, whose bf16 backward is slow on a CPU.
    if recipe.init is not None:
        model = Qwen3ForSequenceClassification.from_pretrained(
            recipe.init, dtype=torch.float32, attn_implementation="eager"
        )
    else:
        model = _grown()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(_is_new(name))
    return model.train()


def _grown() -> Qwen3ForSequenceClassification:
    """The chat model with layers on top that pass everything on as it is, to begin with."""
    chat = Qwen3ForCausalLM.from_pretrained(chat_model_path(), dtype=torch.float32)
    config = Qwen3Config(
        **{
            **chat.config.to_dict(),
            "num_hidden_layers": chat.config.num_hidden_layers + _NEW_LAYERS,
            "layer_types": None,
            "num_labels": 1,
            "architectures": None,
        }
    )
    model = Qwen3ForSequenceClassification._from_config(config, attn_implementation="eager")
    model.model.load_state_dict(chat.model.state_dict(), strict=False)
    for layer in model.model.layers[-_NEW_LAYERS:]:
        torch.nn.init.zeros_(layer.self_attn.o_proj.weight)
        torch.nn.init.zeros_(layer.mlp.down_proj.weight)
    torch.nn.init.normal_(model.score.weight, std=1 / math.sqrt(config.hidden_size))
    return model


def _is_new(name: str) -> bool:
    """Whether a parameter is trained: those above the chat model's own layers."""
    match = re.match(r"model\.layers\.(\d+)\.", name)
    return int(match[1]) >= _num_chat_layers() if match else name in ("model.norm.weight", "score.weight")


def _num_chat_layers() -> int:
    return int(json.loads((chat_model_path() / "config.json").read_text())["num_hidden_layers"])


def _optimizers(model: Qwen3ForSequenceClassification, recipe: RewardRecipe) -> list[torch.optim.Optimizer]:
    """Muon for the layers' matrices, AdamW for the rest, as the chat model was trained."""
    trained = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    matrices = [parameter for name, parameter in trained if ".layers." in name and parameter.ndim == 2]
    others = [parameter for name, parameter in trained if ".layers." not in name or parameter.ndim != 2]
    muon = torch.optim.Muon(matrices, lr=recipe.matrix_lr, momentum=0.95, weight_decay=recipe.weight_decay)
    adamw = torch.optim.AdamW(others, lr=recipe.other_lr, betas=(0.9, 0.98), weight_decay=0.01, fused=True)
    for group in (*muon.param_groups, *adamw.param_groups):
        group["peak_lr"] = recipe.lr_scale * group["lr"]
    return [muon, adamw]


def _values(model: Qwen3ForSequenceClassification, batch: Batch) -> torch.Tensor:
    """[rows, length], fp32: the head at each token."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = model.model(
            input_ids=batch.input_ids,
            position_ids=batch.position_ids,
            attention_mask={"full_attention": batch.mask},
            use_cache=False,
        ).last_hidden_state
    return torch.nn.functional.linear(hidden.float(), model.score.weight)[..., 0]


def _loss(values: torch.Tensor, batch: Batch, recipe: RewardRecipe) -> torch.Tensor:
    """Bradley and Terry over all pairs of a question, and at each token whether the answer is good so far."""
    rewards = values.gather(1, batch.last)
    pairs = -torch.nn.functional.logsigmoid(rewards[:, :1] - rewards[:, 1:]).mean()
    answered = batch.labels >= 0
    tokens = torch.nn.functional.binary_cross_entropy_with_logits(values[answered], batch.labels[answered])
    return pairs + recipe.token_weight * tokens


def _schedule(progress: float, warmup_share: float) -> float:
    """Linear warm-up, then a cosine down to zero."""
    if progress < warmup_share:
        return progress / warmup_share
    return 0.5 + 0.5 * math.cos(math.pi * (progress - warmup_share) / (1 - warmup_share))


@torch.inference_mode()
def pairwise_accuracy(model: Qwen3ForSequenceClassification, tokenizer: Tokenizer, pairs: list[Preference]) -> float:
    """Share of pairs whose good answer has the higher reward."""
    right = 0
    for start in range(0, len(pairs), 32):
        rows = [encode(tokenizer, pair) for pair in pairs[start : start + 32]]
        batch = stack(rows, max(row.num_tokens for row in rows))
        rewards = _values(model, batch).gather(1, batch.last)
        right += int((rewards[:, 0] > rewards[:, 1]).sum())
    return right / max(1, len(pairs))


def _report(model: Qwen3ForSequenceClassification, tokenizer: Tokenizer, heading: str, num: int = 100) -> None:
    model.eval()
    shares = {task: pairwise_accuracy(model, tokenizer, held_out_preferences(task, num, 1)) for task in TASKS}
    model.train()
    mean = sum(shares.values()) / len(shares)
    each = ", ".join(f"{task} {100 * share:.0f}" for task, share in shares.items())
    sys.stdout.write(f"{heading}: held-out pairs right, mean {100 * mean:.1f} %: {each}\n")
    sys.stdout.flush()


def save_reward_checkpoint(model: Qwen3ForSequenceClassification, folder: Path) -> None:
    """Write what transformers loads as a Qwen3ForSequenceClassification: bf16 body, fp32 head, config, tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as temporary:
        fresh = Path(temporary)
        tensors = {
            name: tensor.detach().to(torch.float32 if name.startswith("score.") else torch.bfloat16).contiguous()
            for name, tensor in model.state_dict().items()
        }
        save_file(tensors, fresh / "model.safetensors", metadata={"format": "pt"})
        (fresh / "model.safetensors").chmod(0o644)
        config = {key: value for key, value in model.config.to_dict().items() if key not in _NOT_WRITTEN}
        config |= {
            "dtype": "bfloat16",
            "architectures": ["Qwen3ForSequenceClassification"],
            "id2label": {"0": "reward"},
            "label2id": {"reward": 0},
        }
        (fresh / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
        for copied in _COPIED:
            shutil.copyfile(chat_model_path() / copied, fresh / copied)
        for file in sorted(fresh.iterdir()):
            file.replace(folder / file.name)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m qserve.demo.train_reward", description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for the checkpoint")
    parser.add_argument("--minutes", type=float, default=RewardRecipe.minutes, help="wall time (default %(default)s)")
    parser.add_argument("--seed", type=int, default=RewardRecipe.seed)
    parser.add_argument("--lr-scale", type=float, default=RewardRecipe.lr_scale, help="factor for both learning rates")
    parser.add_argument("--init", type=Path, help="continue from this reward checkpoint (default: the demo chat model)")
    args = parser.parse_args()
    recipe = RewardRecipe(minutes=args.minutes, seed=args.seed, lr_scale=args.lr_scale, init=args.init)
    train(recipe, args.out)


if __name__ == "__main__":
    main()
