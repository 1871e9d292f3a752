"""Commands with their options in sections, and the model behind the command: `qserve up MODEL`."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from qserve.cli.options.completions import ModelName
from qserve.cli.options.revisions import take_revisions
from qserve.cli.options.sections import SECTIONS, Place, place_of
from qserve.errors import UsageError

__all__ = [
    "ALL_OPTIONS",
    "Command",
    "CommandGroup",
    "embed_revision_option",
    "model_options",
    "needed_model",
    "reward_revision_option",
]

Function = TypeVar("Function", bound=Callable[..., Any])

ALL_OPTIONS = "qserve.all_options"
"""Key in `click.Context.meta`: show every option in the help."""
_NO_MODEL = "qserve.no_model"
_NO_PROMPT = "of a command that takes none"
_FROM_USER = (ParameterSource.COMMANDLINE, ParameterSource.DEFAULT_MAP)
_MODEL = "model_argument"
_MODEL_TEXT = "The same as MODEL: a folder, a hub id, a short name (qwen3-8b), or demo."
# A page of 80 columns holds so many options; a command with more hides those that few people need.
_MOST_ON_A_PAGE = 32
# Headings for so few options would be longer than what is below them.
_WITHOUT_HEADINGS = 9
# click's words for numbers, and bounds that say no more than that a count is not negative.
_NUMBERS = (("INTEGER RANGE", "N"), ("FLOAT RANGE", "X"), ("INTEGER", "N"), ("FLOAT", "X"))
_PLAIN = r"(?:x(?:>=?[01]|<=None)|[01]<=x<=\d{5,})"
_PLAIN_BOUND = re.compile(rf"  \[{_PLAIN}\]|; {_PLAIN}(?=\])")
# The widest option beside which its text begins on the same line.
_WIDEST = 28


class Command(click.Command):
    """A command with sections in its help; a positional model is the same as --model."""

    def get_help_option_names(self, ctx: click.Context) -> list[str]:
        """Both, in any context: click keeps the option that the first context asked for."""
        return ["-h", "--help"]

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Its parameters, and --help-all before --help."""
        *own, last = super().get_params(ctx)
        if ctx.meta.get(_NO_MODEL) is ctx or ctx.command is not self:  # the latter: a subcommand tells its path
            own = [one for one in own if one.name != _MODEL]
        return [*own, _help_all(is_hidden=not self._hides_some()), last]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections, then how many options are not shown."""
        shows_all = ALL_OPTIONS in ctx.meta or not self._hides_some()
        rows: dict[str, list[tuple[str, str]]] = {section.title: [] for section in SECTIONS}
        num_hidden = 0
        for place, record in self._records(ctx):
            if shows_all or place.is_everyday:
                rows[place.title].append(record)
            else:
                num_hidden += 1
        if sum(map(len, rows.values())) <= _WITHOUT_HEADINGS:
            rows = {"Options": [record for section in rows.values() for record in section]}
        width = max((len(term) for records in rows.values() for term, _ in records if len(term) <= _WIDEST), default=0)
        for title, records in rows.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl([(term.ljust(width), text) for term, text in records], col_max=width)
        if num_hidden:
            formatter.write_paragraph()
            formatter.write_text(f"{num_hidden} more options: {ctx.command_path} --help-all")
        if isinstance(self, click.Group):
            self.format_commands(ctx, formatter)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse, and take the positional model for --model, or for the prompt of a command that has one and got its
        model from a flag or a file. Raises UsageError if two models are given and differ.
        """
        rest = super().parse_args(ctx, args)
        _take_model(ctx)
        take_revisions(ctx)
        return rest

    def _hides_some(self) -> bool:
        shown = [one for one in self.params if isinstance(one, click.Option) and not one.hidden]
        return len(shown) > _MOST_ON_A_PAGE

    def _records(self, ctx: click.Context) -> list[tuple[Place, tuple[str, str]]]:
        """Each option's place and its line of help, in the order of the table."""
        options = (one for one in self.get_params(ctx) if isinstance(one, click.Option))
        found = [(place_of(str(self.name), str(one.name)), one.get_help_record(ctx)) for one in options]
        return sorted(
            ((place, _plain(record)) for place, record in found if record is not None), key=lambda one: one[0].order
        )


class CommandGroup(Command, click.Group):
    """A command that has subcommands as well: `qserve plan MODEL` and `qserve plan train`."""

    command_class = Command

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """`[OPTIONS] [MODEL]`; of a command that is nothing by itself `[OPTIONS] COMMAND [ARGS]...`."""
        return (click.Command if self.invoke_without_command else click.Group).collect_usage_pieces(self, ctx)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As a group if the first word is a subcommand, else as a command with options behind its arguments."""
        if not any(one.name == _MODEL for one in self.params):
            return super().parse_args(ctx, args)
        ctx.meta[_NO_MODEL] = ctx
        _, words, _ = self.make_parser(ctx).parse_args(list(args))
        if words and words[0] in self.list_commands(ctx):
            return super().parse_args(ctx, args)
        if not ctx.resilient_parsing:
            _refuse_near_miss(words[:1], self.list_commands(ctx))
        del ctx.meta[_NO_MODEL]
        ctx.allow_interspersed_args, ctx.allow_extra_args = True, False
        rest = click.Command.parse_args(self, ctx, args)
        _take_model(ctx)
        take_revisions(ctx)
        return rest


def model_options(text: str = _MODEL_TEXT, *, is_loaded: bool = True) -> Callable[[Function], Function]:
    """Adds --model, and MODEL as an argument that means the same; of one that `is_loaded` --revision as well."""

    def decorate(function: Function) -> Function:
        named = click.option("--model", type=ModelName(), help=text)
        behind = click.argument(_MODEL, metavar="[MODEL]", required=False, type=ModelName())
        return behind(named(_REVISION(function) if is_loaded else function))

    return decorate


_REVISION = click.option(
    "--revision", help="Branch, tag or commit of a model of the hub, the same as MODEL@REVISION [main]."
)
reward_revision_option = click.option(
    "--reward-revision", help="Branch, tag or commit of a reward model of the hub, the same as ID@REVISION [main]."
)
embed_revision_option = click.option(
    "--embed-revision", help="Branch, tag or commit of an embedding model of the hub, the same as ID@REVISION [main]."
)


def needed_model(model: str | None, example: str) -> str:
    """The model that was named. Raises UsageError with an example if none was."""
    if model is None:
        raise UsageError(f"no model is named; write it after the command: {example}")
    return model


def _refuse_near_miss(words: Sequence[str], commands: Sequence[str]) -> None:
    """`plan trian` is no model of that name. Raises UsageError."""
    for word in words:
        if "/" in word or Path(word).exists():
            continue
        if near := difflib.get_close_matches(word, commands, n=1, cutoff=0.75):
            raise UsageError(f"no such command: {word}; did you mean {near[0]}? (a model of that name: --model {word})")


def _take_model(ctx: click.Context) -> None:
    given = ctx.params.pop(_MODEL, None)
    if given is None:
        return
    flag, source = ctx.params.get("model"), ctx.get_parameter_source("model")
    is_named = flag is not None and flag != given and source in _FROM_USER
    if is_named and ctx.params.get("prompt", _NO_PROMPT) is None:
        ctx.params["prompt"] = given
        ctx.set_parameter_source("prompt", ParameterSource.COMMANDLINE)
        return
    if is_named and source is ParameterSource.COMMANDLINE and not ctx.resilient_parsing:
        raise UsageError(f"two models are named, {given} and --model {flag}; give one of them")
    ctx.params["model"] = given
    ctx.set_parameter_source("model", ParameterSource.COMMANDLINE)


def _help_all(is_hidden: bool) -> click.Option:
    def show(ctx: click.Context, _: click.Parameter, value: bool) -> None:
        if value and not ctx.resilient_parsing:
            ctx.meta[ALL_OPTIONS] = True
            click.echo(ctx.get_help(), color=ctx.color)
            ctx.exit()

    return click.Option(
        ["--help-all"],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=show,
        hidden=is_hidden,
        help="Show all options and exit.",
    )


def _plain(record: tuple[str, str]) -> tuple[str, str]:
    term, text = record
    for word, short in _NUMBERS:
        term = term.replace(word, short)
    return term, _PLAIN_BOUND.sub("", text)
