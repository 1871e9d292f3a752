"""TRL's trainer of a run, from TRL's own configuration file, with the mixin that records."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import trl
from datasets import load_dataset
from transformers import AutoTokenizer, EarlyStoppingCallback
from trl import ModelConfig, ScriptArguments, TrlParser, get_peft_config, get_quantization_config

from qserve.reward.checkpoints.heads import STEP_TOKEN
from qserve.training.job import TrainingRun
from qserve.training.process.recorded import Recorded, Weighed, WithoutTies
from qserve.training.process.rewards import reward_functions
from qserve.training.process.sharding import shard_on_cpu
from qserve.training.process.token_rows import check_token_rows

__all__ = ["make_trainer", "parse_configuration", "trainer_class"]


_NAMES = {"reward": "Reward", "sft": "SFT", "dpo": "DPO", "grpo": "GRPO"}


def parse_configuration(trainer: str, file: Path) -> tuple[Any, Any, Any]:
    """(script arguments, TRL's config, model config) by TRL's own parser. Raises ValueError for a field it lacks."""
    script: type[Any] = ScriptArguments
    if trainer == "grpo":
        from trl.scripts.grpo import GRPOScriptArguments

        script = GRPOScriptArguments
    parser = TrlParser((script, getattr(trl, f"{_NAMES[trainer]}Config"), ModelConfig))
    parsed = parser.parse_args_and_config(args=["--config", str(file)])
    return parsed[0], parsed[1], parsed[2]


def trainer_class(name: str) -> type[Any]:
    """TRL's trainer behind the mixin, or ours of pairs and scores. Only it is imported."""
    if name == "reward":
        from qserve.training.process.pairs import PairTrainer

        return type("RewardTrainer", (Recorded, Weighed, WithoutTies, PairTrainer), {"__doc__": PairTrainer.__doc__})
    if name in ("scores", "steps"):
        from qserve.training.process.scores import ScoreTrainer
        from qserve.training.process.steps import StepTrainer

        ours = ScoreTrainer if name == "scores" else StepTrainer
        return type(ours.__name__, (Recorded, Weighed, ours), {"__doc__": ours.__doc__})
    theirs = getattr(trl, f"{_NAMES[name]}Trainer")
    mixins = {"dpo": (Recorded, Weighed, WithoutTies), "sft": (Recorded, Weighed)}
    bases = (*mixins.get(name, (Recorded,)), theirs)
    return type(theirs.__name__, bases, {"__doc__": "TRL's."})


def make_trainer(run: TrainingRun, callbacks: list[Any]) -> Any:
    """The trainer, its model loaded and its data mapped from disk."""
    script, args, model = parse_configuration(run.trainer, run.folder / "train.yaml")
    shard_on_cpu(run)
    args.model_init_kwargs = {
        "revision": model.model_revision,
        "attn_implementation": model.attn_implementation,
        "dtype": model.dtype,
        **(args.model_init_kwargs or {}),
    }
    files = {path.stem: str(path) for path in sorted(Path(script.dataset_name).glob("*.jsonl"))}
    tokenizer = _tokenizer(model.model_name_or_path)
    if not run.request.step_labels:  # whose embedding is made wide enough
        check_token_rows(model.model_name_or_path, tokenizer, files)
    with args.main_process_first(desc="mapping the data"):  # one process writes the table, all map it
        data = load_dataset(script.dataset_name, cache_dir=str(run.folder / "cache"))
    test = data["test"] if "test" in data and args.eval_strategy != "no" else None
    if run.schedule.patience is not None and test is not None and run.trainer == "reward":
        callbacks = [*callbacks, EarlyStoppingCallback(run.schedule.patience)]
    common = {
        "args": args,
        "train_dataset": data["train"],
        "eval_dataset": test,
        "callbacks": callbacks,
        "processing_class": tokenizer,
    }
    made = _MAKERS[run.trainer](run, args, model, common)
    _train_head_in_fp32(run, made.model)
    return made


def _tokenizer(folder: str) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def _adapters(model: ModelConfig) -> dict[str, Any]:
    return {"quantization_config": get_quantization_config(model), "peft_config": get_peft_config(model)}


def _reward(run: TrainingRun, args: Any, model: ModelConfig, common: dict[str, Any]) -> Any:
    if run.request.step_labels:
        return _steps(run, args, model, common)
    labels, adapters = run.data.labels, _adapters(model)
    pairs = {"label_smoothing": run.label_smoothing}
    if not labels and not run.request.freeze_base:
        return trainer_class("reward")(model=model.model_name_or_path, **pairs, **adapters, **common)
    from qserve.training.process.scores import load_classifier

    loaded = load_classifier(model.model_name_or_path, args, len(labels) or 1, adapters["quantization_config"])
    _freeze(run, loaded)
    args.model_init_kwargs = None
    common = {**common, "model": loaded, "peft_config": adapters["peft_config"]}
    if not labels:
        return trainer_class("reward")(**pairs, **common)
    return trainer_class("scores")(labels=labels, weights=run.label_weights, **common)


def _steps(run: TrainingRun, args: Any, model: ModelConfig, common: dict[str, Any]) -> Any:
    from qserve.training.process.steps import load_step_classifier, with_step_token

    tokenizer = with_step_token(common["processing_class"], STEP_TOKEN)
    loaded = load_step_classifier(model.model_name_or_path, args, len(tokenizer))
    _freeze(run, loaded)
    args.model_init_kwargs = None
    token_id = tokenizer.convert_tokens_to_ids(STEP_TOKEN)
    labels = {"labels": run.data.labels, "weights": {}}
    return trainer_class("steps")(model=loaded, step_token_id=token_id, **labels, **common)


def _freeze(run: TrainingRun, model: Any) -> None:
    if run.request.freeze_base:
        model.requires_grad_(False)
        model.score.requires_grad_(True)


def _train_head_in_fp32(run: TrainingRun, model: Any) -> None:
    """A head over 16-bit weights learns nothing in 16 bit: its steps are lost in rounding."""
    if run.trainer != "reward" or run.request.tuning == "full" or run.request.precision == "pure":
        return
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and parameter.is_floating_point() and "score" in name:
            parameter.data = parameter.data.float()


def _sft(run: TrainingRun, args: Any, model: ModelConfig, common: dict[str, Any]) -> Any:
    return trainer_class("sft")(model=model.model_name_or_path, **_adapters(model), **common)


def _dpo(run: TrainingRun, args: Any, model: ModelConfig, common: dict[str, Any]) -> Any:
    return trainer_class("dpo")(model=model.model_name_or_path, **_adapters(model), **common)


def _grpo(run: TrainingRun, args: Any, model: ModelConfig, common: dict[str, Any]) -> Any:
    functions = reward_functions(run.rewards)
    return trainer_class("grpo")(model=model.model_name_or_path, reward_funcs=functions, **_adapters(model), **common)


_MAKERS: dict[str, Callable[[TrainingRun, Any, ModelConfig, dict[str, Any]], Any]] = {
    "sft": _sft,
    "reward": _reward,
    "dpo": _dpo,
    "grpo": _grpo,
}
