"""TRL's trainer of a run, from TRL's own configuration file, with the mixin that records."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import trl
from datasets import load_dataset
from transformers import AutoModelForSequenceClassification, AutoTokenizer, EarlyStoppingCallback, PreTrainedModel
from trl import ModelConfig, ScriptArguments, TrlParser, get_peft_config, get_quantization_config

from qserve.training.job import TrainingRun
from qserve.training.process.recorded import Recorded
from qserve.training.process.rewards import reward_functions
from qserve.training.process.sharding import shard_on_cpu

__all__ = ["make_trainer", "parse_configuration", "trainer_class"]


_NAMES = {"reward": "Reward", "sft": "SFT", "dpo": "DPO", "grpo": "GRPO"}


def parse_configuration(trainer: str, file: Path) -> tuple[Any, Any, Any]:
    """(script arguments, TRL's config, model config) by TRL's own parser. Raises ValueError for a field it lacks."""
    configuration = getattr(trl, f"{_NAMES[trainer]}Config")
    parser = TrlParser((ScriptArguments, configuration, ModelConfig))
    parsed = parser.parse_args_and_config(args=["--config", str(file)])
    return parsed[0], parsed[1], parsed[2]


def trainer_class(name: str) -> type[Any]:
    """TRL's trainer behind the mixin. Only it is imported: GRPO's alone brings vLLM and openai, 2 s and 100 MiB."""
    theirs = getattr(trl, f"{_NAMES[name]}Trainer")
    return type(theirs.__name__, (Recorded, theirs), {"__doc__": "TRL's."})


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
    with args.main_process_first(desc="mapping the data"):  # one process writes the table, all map it
        data = load_dataset("json", data_files=files, cache_dir=str(run.folder / "cache"))
    test = data["test"] if "test" in data and args.eval_strategy != "no" else None
    if run.schedule.patience is not None and test is not None and run.trainer == "reward":
        callbacks = [*callbacks, EarlyStoppingCallback(run.schedule.patience)]
    common = {
        "args": args, "train_dataset": data["train"], "eval_dataset": test, "callbacks": callbacks,
        "processing_class": _tokenizer(model.model_name_or_path),
    }  # fmt: skip
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
    if not run.request.freeze_base:
        return trainer_class("reward")(model=model.model_name_or_path, **_adapters(model), **common)
    frozen = _frozen(model.model_name_or_path, args)
    args.model_init_kwargs = None
    return trainer_class("reward")(model=frozen, **common)


def _frozen(folder: str, args: Any) -> PreTrainedModel:
    """The base without gradients; its new head drawn by the run's seed."""
    from transformers import set_seed
    from trl.trainer.reward_trainer import suppress_seqcls_warning

    set_seed(args.seed)
    with suppress_seqcls_warning():
        model = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=1, **args.model_init_kwargs)
    model.requires_grad_(False)
    model.score.requires_grad_(True)
    return model


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
    "sft": _sft, "reward": _reward, "dpo": _dpo, "grpo": _grpo,
}  # fmt: skip
