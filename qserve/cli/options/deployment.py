"""`--config FILE`: the flags of `qserve up` in a YAML file, with the plan that is expected of them.

A file holds the options of `plan` and `up` with underscores (`max_model_len: 8192`), and keys that are no flags: `gpu`,
the cards that it was written for, `expect`, the plan on them, `models` and `residency` (service_models.py).
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem
from click.types import StringParamType

from qserve.cli.main import cli
from qserve.core import facts
from qserve.errors import UsageError
from qserve.planner.plan import Plan
from qserve.yaml_errors import yaml_problem

if TYPE_CHECKING:
    import yaml

    from qserve.cli.options.service_models import ModelEntry
    from qserve.service.residents import ResidentsRequest

__all__ = ["Deployment", "Expectation", "bundled", "config_option", "deployment_of", "load", "many_models"]

Function = TypeVar("Function", bound=Callable[..., Any])

_IN_CONTEXT = "qserve.deployment"
_SECRET = "api_key"  # noqa: S105 - the name of an option
# Options of a single call, not of the service.
_NOT_IN_A_FILE = frozenset({"config", "as_json", "explain", "help", "takeover"})
# They describe cards of another machine; a service takes those that are installed.
_FOR_NAMED_CARDS = ("plan", "pull", "deploy")
# A tag such as 1.0 and a commit of digits alone are texts, whatever YAML takes them for.
_REVISIONS = ("revision", "reward_revision", "embed_revision")
# It decides itself where a service listens; no other command may leave out a setting of the file.
_MAY_IGNORE = ("run",)
# They take a file that lists several models.
_OF_MANY = ("plan", "up", "serve")
_TYPES: dict[str, type] = {"bool": bool, "int | None": int, "str | None": str}


@dataclass(frozen=True)
class Expectation:
    """The expected figures of a deployment's plan. None: any.

    `max_model_len` and `kv_cache_tokens` are lower bounds, `reward_scheme` is the reward model's; the rest is exact.
    """

    fits: bool = True
    engine: str | None = None
    scheme: str | None = None
    checkpoint: str | None = None
    tensor_parallel_size: int | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    kv_cache_tokens: int | None = None
    reward_scheme: str | None = None

    def differences(self, plan: Plan, reward: Plan | None = None) -> tuple[str, ...]:
        """One sentence for each figure in which the plan differs."""
        if plan.fits != self.fits:
            return (f"expected to {'fit' if self.fits else 'not fit'}, but {plan.why_not or 'it fits'}",)
        found: list[tuple[str, Any, Any]] = [
            ("engine", self.engine, plan.engine),
            ("scheme", self.scheme, plan.quant.scheme),
            ("checkpoint", self.checkpoint, plan.quant.checkpoint),
            ("tensor_parallel_size", self.tensor_parallel_size, plan.placement.tensor_parallel_size),
            ("max_num_seqs", self.max_num_seqs, plan.workload.max_num_seqs),
            ("reward_scheme", self.reward_scheme, reward.quant.scheme if reward else None),
        ]
        bounds: list[tuple[str, int | None, int]] = [
            ("max_model_len", self.max_model_len, plan.workload.max_model_len),
            ("kv_cache_tokens", self.kv_cache_tokens, plan.kv_cache_tokens),
        ]
        return (
            *(f"{name} is {is_}, expected {wanted}" for name, wanted, is_ in found if wanted not in (None, is_)),
            *(
                f"{name} is {is_}, expected at least {low}"
                for name, low, is_ in bounds
                if low is not None and is_ < low
            ),
        )


@dataclass(frozen=True)
class Deployment:
    """A checked deployment file; `options`: values by option name, converted to the options' types.

    `models` are those of a service that has many; `residency`: as it was read.
    """

    path: Path
    options: Mapping[str, Any]
    gpu: str | None = None
    expect: Expectation = field(default_factory=Expectation)
    models: tuple[ModelEntry, ...] = ()
    residency: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """What --config takes for it: the name of a bundled one, else the path."""
        return self.path.stem if bundled().get(self.path.stem) == self.path else str(self.path)


def bundled() -> dict[str, Path]:
    """The deployments that come with qserve, by name (the file's, without .yaml)."""
    return {path.stem: path for folder in facts.folders() for path in sorted((folder / "deployments").glob("*.yaml"))}


def load(name: str) -> Deployment:
    """The deployment in the file `name`, or the bundled one of that name.

    Raises UsageError for a file that is missing or no YAML, and for a key or a value that no option takes.
    """
    path = _path_of(name)
    values, words = _parsed(path)
    listed, residency = values.pop("models", None), values.pop("residency", {})
    if residency and listed is None:
        raise UsageError(f"{path}: residency is for a service of many models; list them under models:")
    _refuse_unknown(path, values)
    for key, value, word in words:
        _check_text(path, key, value, word)
    models = () if listed is None else _entries(path, listed)
    gpu, expect = values.pop("gpu", None), values.pop("expect", {})
    options = {key: _converted(path, key, value) for key, value in values.items()}
    return Deployment(path, options, None if gpu is None else str(gpu), _expectation(path, expect), models, residency)


def _entries(path: Path, listed: Any) -> tuple[ModelEntry, ...]:
    from qserve.cli.options.service_models import entries_of  # imports the planner, which --help does without

    return entries_of(path, listed, partial(_of_entry, path))


def _of_entry(path: Path, where: str, key: str, value: Any) -> Any:
    return _converted(f"{path}: {where}", key, value)


def config_option(function: Function) -> Function:
    """Adds --config to a command: the file's values replace the options' defaults, so that flags override them."""
    return click.option(
        "--config",
        metavar="FILE",
        is_eager=True,
        shell_complete=_complete_config,
        expose_value=False,
        callback=_into_defaults,
        help="A YAML file of flags, or a bundled deployment (qwen3-32b-1x24gb); flags given here win.",
    )(function)


def _complete_config(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Bundled deployments that begin so, else files."""
    names = [CompletionItem(name) for name in bundled() if name.startswith(incomplete)]
    return names or [CompletionItem(incomplete, type="file")]


def deployment_of(ctx: click.Context) -> Deployment | None:
    """The deployment that --config named; None without."""
    found: Deployment | None = ctx.meta.get(_IN_CONTEXT)
    return found


def many_models(values: Mapping[str, Any]) -> ResidentsRequest | None:
    """The `models:` of the file of this call; None without. `values` are those of the command."""
    deployment = deployment_of(click.get_current_context())
    if deployment is None or not deployment.models:
        return None
    from qserve.cli.options.service_models import residents_of

    return residents_of(deployment.models, deployment.residency, values, deployment.path)


def _into_defaults(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    if value is None:
        return
    deployment = load(value)
    own = {option.name for option in ctx.command.params}
    strange = [key for key in deployment.options if key not in own]
    if deployment.models and ctx.command.name not in _OF_MANY:
        raise UsageError(
            f"{deployment.path}: `qserve {ctx.command.name}` takes one service of one chat model, and models: lists "
            "several; qserve plan and qserve up take such a file"
        )
    if strange and ctx.command.name not in _MAY_IGNORE:
        raise UsageError(f"{deployment.path}: `qserve {ctx.command.name}` has no {', '.join(strange)}; leave it out")
    defaults = {key: setting for key, setting in deployment.options.items() if key in own}
    if deployment.gpu is not None and (ctx.command.name in _FOR_NAMED_CARDS or deployment.gpu == "none"):
        defaults["gpu"] = deployment.gpu
    ctx.meta[_IN_CONTEXT] = deployment
    ctx.default_map = {**(ctx.default_map or {}), **defaults}


def _options() -> dict[str, click.Parameter]:
    """All options that a file may hold: those of `up` and `plan`, except for `gpu`."""
    commands = filter(None, (cli.get_command(click.Context(cli), name) for name in ("plan", "up")))
    both = {
        str(option.name): option
        for command in commands
        for option in command.params
        if isinstance(option, click.Option)
    }
    return {name: option for name, option in both.items() if name not in _NOT_IN_A_FILE}


def _path_of(name: str) -> Path:
    path = Path(name).expanduser()
    if path.is_file():
        return path
    if path.name in bundled() and path == Path(path.name):
        return bundled()[path.name]
    near = difflib.get_close_matches(path.stem, bundled(), n=4, cutoff=0.4)
    hint = f"close to it: {', '.join(near)}" if near else f"there are {', '.join(bundled())}"
    raise UsageError(f"--config {name}: there is no such file, and no deployment of that name in configs; {hint}")


def _parsed(path: Path) -> tuple[dict[str, Any], list[tuple[str, Any, str]]]:
    """The mapping in the file, and each single value with its key and the word that stands there. Duplicate keys are
    refused: YAML would silently take the last one.
    """
    import yaml

    try:
        text = path.read_text()
        tree = yaml.compose(text, yaml.SafeLoader)
        values = yaml.safe_load(text)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UsageError(f"{path} can't be read as YAML: {yaml_problem(error)}") from None
    if not isinstance(tree, yaml.MappingNode):
        raise UsageError(f"{path} has no settings; write for example `model: Qwen/Qwen3-8B`, one setting per line")
    return {str(key): value for key, value in values.items()}, list(_words(path, values, tree))


def _words(path: Path, values: Mapping[Any, Any], tree: yaml.MappingNode) -> Iterator[tuple[str, Any, str]]:
    """Of a mapping and of those in its lists. Raises UsageError for a key that stands twice in one."""
    import yaml

    names = [str(key.value) for key, _ in tree.value]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"{path} sets {twice} twice; leave one of the two lines out")
    read = {str(key): value for key, value in values.items()}
    for key, node in ((str(key.value), node) for key, node in tree.value if str(key.value) in read):
        pairs: Iterable[tuple[Any, yaml.Node]] = [(read[key], node)]
        if isinstance(node, yaml.SequenceNode):
            pairs = zip(read[key], node.value, strict=True)
        for value, one in pairs:
            if isinstance(one, yaml.ScalarNode):
                yield key, value, one.value
            elif isinstance(one, yaml.MappingNode) and isinstance(node, yaml.SequenceNode):
                yield from _words(path, value, one)


def _refuse_unknown(path: Path, values: Mapping[str, Any]) -> None:
    allowed = [name for name in (*_options(), "expect", "models", "residency") if name != _SECRET]
    for key in values:
        if key == _SECRET:
            raise UsageError(
                f"{path}: a key does not belong in a file of settings; put it into another file, name that with "
                "api-key-file, "
                "or set QSERVE_API_KEY"
            )
        if key not in allowed:
            raise UsageError(f"{path}: {key} is not a setting. {_near(key, allowed)}")


def _near(key: str, allowed: list[str]) -> str:
    near = difflib.get_close_matches(key.lower().replace("-", "_"), allowed, n=3, cutoff=0.5)
    return f"Near matches: {', '.join(near)}" if near else f"Known are {', '.join(sorted(allowed))}"


def _check_text(path: Path, key: str, value: Any, word: str) -> None:
    """Raises UsageError for a text that YAML reads as a number or a date: of 1.10 is left 1.1, of 0123 is left 83."""
    option = _options().get(key)
    if option is None or not isinstance(option.type, StringParamType) or value is None:
        return
    if isinstance(value, str) or (key not in _REVISIONS and str(value) == word):
        return
    raise UsageError(
        f"{path}: {key} is {word}, which YAML reads as the {type(value).__name__} {value}, and it takes a text; write "
        f"it in quotes: '{word}'"
    )


def _converted(path: Path | str, key: str, value: Any) -> Any:
    """The value converted to the option's type; refuses YAML's `true` for a number and a string for a list."""
    option = _options()[key]
    is_flag = getattr(option, "is_flag", False)
    several = getattr(option, "multiple", False)
    if value is None or isinstance(value, dict) or isinstance(value, bool) != is_flag:
        takes = "true or false" if is_flag else "a number or a text"
        raise UsageError(f"{path}: {key} is {value!r}, but takes {takes}; leave the line out for the default")
    if isinstance(value, list) and not several:
        raise UsageError(f"{path}: {key} is a list, but takes one value")
    try:
        context = click.Context(click.Command("up"))
        return option.type_cast_value(context, [value] if several and not isinstance(value, list) else value)
    except click.BadParameter as error:
        raise UsageError(f"{path}: {key} is {value!r}: {error.message}") from None
    except ValueError as error:  # of a path with the character 0, which a command line can't hold
        raise UsageError(f"{path}: {key} is {value!r}: {error}") from None


def _expectation(path: Path, values: Any) -> Expectation:
    known = {item.name: _TYPES[str(item.type)] for item in fields(Expectation)}
    if not isinstance(values, dict):
        raise UsageError(f"{path}: expect takes an indented block of settings: {', '.join(known)}")
    for key, value in values.items():
        if key not in known:
            raise UsageError(f"{path}: expect has no {key}. {_near(str(key), list(known))}")
        if type(value) is not known[key]:
            raise UsageError(f"{path}: expect.{key} is {value!r}, but takes a value of type {known[key].__name__}")
    return Expectation(**values)
