"""The loop of a chat: a message, its answer, and the commands that begin with a slash."""

from __future__ import annotations

import contextlib
import difflib
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import click

from qserve.cli.chat.conversation import SETTINGS, Conversation
from qserve.cli.chat.find import Partner
from qserve.cli.chat.lines import BLOCK, read_message
from qserve.cli.chat.screen import AnswerOnScreen, note
from qserve.cli.chat.stream import NoAnswer, stream_answer
from qserve.errors import UsageError
from qserve.evaluation.server import post_json

__all__ = ["Session"]

_LEAVE = ("/bye", "/exit", "/quit", "exit", "quit")


@dataclass
class Session:
    """One chat.

    Attributes:
        draft: the message that got no answer; an empty line sends it again.
        scores: show the reward of each answer.
        verbose: show the tokens/s of each answer.
    """

    partner: Partner
    conversation: Conversation
    verbose: bool = False
    scores: bool = True
    draft: str = ""
    _commands: dict[str, tuple[str, str, Callable[[str], None]]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._commands = {
            "help": ("", "this list", self._help),
            "clear": ("", "forget the conversation, keep the system prompt", self._clear),
            "system": ("TEXT", "set the system prompt; without TEXT remove it", self._system),
            "set": ("NAME VALUE", "set a sampling parameter; alone it lists them", self._set),
            "reward": ("", "show the reward of each answer, or hide it", self._reward),
            "verbose": ("", "show tokens/s of each answer, or hide them", self._verbose),
            "save": ("FILE", "keep the conversation", self._save),
            "load": ("FILE", "load a conversation", self._load),
        }

    def talk(self) -> None:
        """Ask and answer until the user leaves."""
        while True:
            try:
                text = read_message()
            except EOFError:
                click.echo()
                return
            except UnicodeDecodeError:
                note(f"the message is not valid {sys.stdin.encoding}; send it as such, or change the locale (LC_ALL)")
                continue
            except KeyboardInterrupt:
                click.echo()
                note("/bye or Ctrl-D leaves the chat")
                continue
            if text.strip() in _LEAVE:
                return
            if text.startswith("/"):
                self._command(text)
            elif message := text if text.strip() else self.draft:
                self._answer(message)

    def answer_once(self, message: str) -> None:
        """One answer, for a prompt of the command line or from a pipe. Raises NoAnswer."""
        self.conversation.add("user", message)
        with AnswerOnScreen() as screen:
            for delta in stream_answer(self.partner.url, self.partner.api_key, self.conversation.request()):
                screen.show(delta)
        if not screen.text:
            raise NoAnswer("the answer is empty; a thought may have used all of max_tokens")
        if self.verbose:
            note(screen.figures())

    def _answer(self, message: str) -> None:
        self.draft = ""
        self.conversation.add("user", message)
        screen = AnswerOnScreen()
        stopped, problem = False, ""
        try:
            with (
                screen,
                contextlib.closing(
                    stream_answer(self.partner.url, self.partner.api_key, self.conversation.request())
                ) as pieces,
            ):
                for delta in pieces:
                    screen.show(delta)
        except KeyboardInterrupt:
            stopped = True
        except NoAnswer as error:
            problem = str(error)
        if problem or not screen.text:
            self._take_back(message, problem, stopped=stopped)
            return
        self.conversation.add("assistant", screen.text)
        if stopped:
            note("stopped; the answer so far is part of the conversation")
            return
        if self.scores and self.partner.reward is not None:
            self._show_reward(self.partner.reward)
        if self.verbose:
            note(screen.figures())

    def _take_back(self, message: str, problem: str, *, stopped: bool) -> None:
        """A turn without an answer is no turn: the model would be asked twice."""
        self.conversation.messages.pop()
        self.draft = message
        said = problem or ("stopped" if stopped else "the answer is empty")
        note(f"{said}; your message is kept: press Enter to send it again")

    def _show_reward(self, reward: str) -> None:
        body = {"model": reward, "conversations": [self.conversation.turns()]}
        try:
            answer = post_json(f"{self.partner.url}/v1/reward", self.partner.api_key, body)
            note(f"reward {float(answer['data'][0]['reward']):.3f} by {reward}")
        except KeyboardInterrupt:
            note("no reward: stopped")
        except (UsageError, LookupError, TypeError, ValueError) as error:
            note(f"no reward: {error}")

    def _command(self, text: str) -> None:
        name, _, rest = text[1:].partition(" ")
        try:
            if name not in self._commands:
                near = difflib.get_close_matches(name, self._commands, n=1)
                raise UsageError(
                    f"there is no /{name}; " + (f"did you mean /{near[0]}?" if near else "/help lists all")
                )
            *_, run = self._commands[name]
            run(rest.strip())
        except UsageError as error:
            note(str(error))

    def _help(self, _: str) -> None:
        rows = [(f"/{name} {takes}", about) for name, (takes, about, _run) in self._commands.items()]
        rows += [("/bye", "leave, as Ctrl-D does"), ("Ctrl-C", "stop an answer")]
        rows += [
            (BLOCK, "begin and end a message of several lines"),
            ("\\", "at the end of a line: the next one follows"),
        ]
        for name, about in rows:
            note(f"{name:<18} {about}")

    def _clear(self, _: str) -> None:
        self.conversation.messages.clear()
        note("the conversation is empty" + ("; Enter sends your last message again" if self.draft else ""))

    def _system(self, text: str) -> None:
        self.conversation.system = text or None
        note("the system prompt is set" if text else "there is no system prompt")

    def _set(self, text: str) -> None:
        name, _, value = text.partition(" ")
        if name:
            self.conversation.set(name, value.strip())
        for one in (name,) if name else SETTINGS:
            now = self.conversation.settings.get(one, "default")
            shown = ("off", "on")[now] if isinstance(now, bool) else str(now)
            note(f"{one:<18} {shown:<8} {SETTINGS[one][1]}")

    def _reward(self, _: str) -> None:
        if self.partner.reward is None:
            raise UsageError(
                f"this service has no reward model; start one with: qserve up {self.partner.model} --reward …"
            )
        self.scores = not self.scores
        note(f"rewards are {'shown' if self.scores else 'not shown'}")

    def _verbose(self, _: str) -> None:
        self.verbose = not self.verbose
        note(f"tokens/s are {'shown' if self.verbose else 'not shown'}")

    def _save(self, text: str) -> None:
        path = _path(text, "/save")
        self.conversation.save(path)
        note(f"saved: {path}")

    def _load(self, text: str) -> None:
        path = _path(text, "/load")
        self.conversation.load(path)
        note(f"loaded {len(self.conversation.messages)} messages from {path}")


def _path(text: str, command: str) -> Path:
    if not text:
        raise UsageError(f"{command} needs a file: {command} chat.json")
    return Path(text).expanduser()
