"""How the demo model learns one tool: a calculator, called in the way of Hermes, for what it can't do in its head.

The client's tool has a name and one parameter of its own choice; the model reads both from the system prompt. It calls
it with the expression of the question, and then says what came back. Before three numbers it thinks a line. Where no
calculator is offered, or nothing is to be calculated, it answers as without tools. Written by hand as the chat template
writes it, for speed; a test holds it to the template.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from random import Random
from typing import Any

from qserve.demo.about import SYSTEM_PROMPTS
from qserve.demo.conversations import EMPTY_THINK
from qserve.demo.tasks import TASKS, is_held_out, sample_exchange

__all__ = ["ToolConversation", "calculator", "held_out_tool_conversations", "sample_tool_conversation"]

_HEAD = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with function "
    "signatures within <tools></tools> XML tags:\n<tools>"
)
_TAIL = (
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
    '<tool_call></tool_call> XML tags:\n<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n'
    "</tool_call><|im_end|>\n"
)
_NAMES = (*("calculator",) * 9, "calculate", "calc", "math")
_PARAMETERS = (*("expression",) * 9, "expr", "input", "query")
_DESCRIPTIONS = (
    "Evaluates an arithmetic expression.", "Calculates.", "A calculator.", "Evaluate a mathematical expression.",
    "Calculate the value of an expression, for example 2+3*4.", "Does arithmetic: + - * /.", "",
    "Evaluate an arithmetic expression and return the result.", "Useful for when you need to do math.",
)  # fmt: skip
_OF_PARAMETERS = ("", "", "The expression to evaluate.", "For example 2+3.", "An arithmetic expression.")
_OTHERS = (
    ("get_weather", "The weather of a city.", "city"), ("search", "Searches the web.", "query"),
    ("get_time", "What time it is.", "timezone"), ("send_email", "Sends an email.", "to"),
    ("submit", "Submit an answer.", "answer"), ("read_file", "Reads a file.", "path"),
)  # fmt: skip
_FORMS = {
    "+": ("What is {a}+{b}?", "What is {a} + {b}?", "Add {a} and {b}.", "{a}+{b}", "How much is {a} plus {b}?",
          "What is the sum of {a} and {b}?", "Calculate {a}+{b}.", "Use the calculator: {a}+{b}"),
    "-": ("What is {a}-{b}?", "What is {a} - {b}?", "What is {a} minus {b}?", "Subtract {b} from {a}.",
          "Calculate {a}-{b}.", "{a}-{b}", "Use the calculator: {a}-{b}"),
    "*": ("What is {a}*{b}?", "What is {a} * {b}?", "What is {a} times {b}?", "Multiply {a} by {b}.", "{a}*{b}",
          "Calculate {a}*{b}.", "How much is {a} times {b}?", "What is the product of {a} and {b}?",
          "Use the calculator: {a}*{b}"),
    "/": ("What is {a}/{b}?", "What is {a} / {b}?", "Divide {a} by {b}.", "What is {a} divided by {b}?", "{a}/{b}",
          "Calculate {a}/{b}."),
}  # fmt: skip
_LONG_FORMS = ("What is {x}?", "Calculate {x}.", "{x}", "How much is {x}?", "Compute {x}.")
_RESULTS = ("{y}", "{y}", "{y}", "{y}.0", '{{"result": {y}}}', "{x} = {y}", "Result: {y}")
_SYSTEM_SHARE, _NO_THINKING_SHARE, _PLAIN_SHARE, _RESULT_SHARE = 0.4, 0.15, 0.3, 0.45


@dataclass(frozen=True)
class ToolConversation:
    """A question under a list of tools, and what is said to it.

    Attributes:
        tools: as a client's request has them.
        question: the user's.
        thought: before the first answer; "" for none.
        call: name and arguments of the call that the model makes; None: it answers at once.
        result: what the tool returned; "" where the conversation ends with the call.
        answer: the last word, "" where the conversation ends with the call.
        system: the client's own system prompt.
        empty_think: as in `Conversation`.
    """

    tools: tuple[dict[str, Any], ...]
    question: str
    thought: str = ""
    call: tuple[str, dict[str, Any]] | None = None
    result: str = ""
    answer: str = ""
    system: str | None = None
    empty_think: bool = False

    def pieces(self) -> list[tuple[str, bool]]:
        """The text in pieces, each with whether the model learns to say it."""
        own = "" if self.system is None else f"{self.system}\n\n"
        tools = "".join("\n" + json.dumps(tool, ensure_ascii=False) for tool in self.tools)
        asked = f"<|im_start|>user\n{self.question}<|im_end|>\n<|im_start|>assistant\n"
        prompt = f"<|im_start|>system\n{own}{_HEAD}{tools}{_TAIL}{asked}"
        prefix = EMPTY_THINK if self.empty_think else ""
        if self.call is None:
            return [(prompt + prefix, False), (f"{self.answer}<|im_end|>", True)]
        name, arguments = self.call
        call = f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments)}}}\n</tool_call><|im_end|>'
        if not self.result:
            thought = f"<think>\n{self.thought}\n</think>\n\n" if self.thought and not prefix else ""
            return [(prompt + prefix, False), (thought + call, True)]
        returned = f"\n<|im_start|>user\n<tool_response>\n{self.result}\n</tool_response><|im_end|>\n"
        return [
            (f"{prompt}{call}{returned}<|im_start|>assistant\n{prefix}", False), (f"{self.answer}<|im_end|>", True),
        ]  # fmt: skip


def calculator(name: str, parameter: str, description: str, of_parameter: str = "", **more: Any) -> dict[str, Any]:
    """The tool as OpenAI's clients describe it; `more` stands beside its parameters."""
    described = {"description": of_parameter} if of_parameter else {}
    parameters = {
        "type": "object", "properties": {parameter: {"type": "string", **described}}, "required": [parameter], **more,
    }  # fmt: skip
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": {key: value for key, value in function.items() if value}}


def sample_tool_conversation(rng: Random, *, held_out: bool = False) -> ToolConversation:
    """A conversation for training, or of those that training never sees."""
    system = rng.choice(SYSTEM_PROMPTS) if rng.random() < _SYSTEM_SHARE else None
    empty_think = rng.random() < _NO_THINKING_SHARE
    if rng.random() < _PLAIN_SHARE:
        return _without_a_call(rng, system, empty_think, held_out=held_out)
    expression, question, value, has_three = _to_calculate(rng, held_out=held_out)
    name, parameter = rng.choice(_NAMES), rng.choice(_PARAMETERS)
    return ToolConversation(
        tools=_shuffled(rng, _calculator(rng, name, parameter)),
        question=question,
        thought=f"{expression}: I ask the {name}." if has_three else "",
        call=(name, {parameter: expression}),
        system=system,
        empty_think=empty_think,
        **_returned(rng, expression, value),
    )


def held_out_tool_conversations(num: int, seed: int) -> list[ToolConversation]:
    """Conversations that training never sees."""
    rng = Random(f"{seed}:tools")  # noqa: S311 (data, not secrets)
    return [sample_tool_conversation(rng, held_out=True) for _ in range(num)]


def _without_a_call(rng: Random, system: str | None, empty_think: bool, *, held_out: bool) -> ToolConversation:
    """Nothing to calculate, or nothing to calculate it with."""
    has_calculator = rng.random() < 0.6
    kinds = ("reverse_words", "copy_words", "count_words", "about", "compare") if has_calculator else tuple(TASKS)
    exchange = sample_exchange(TASKS[rng.choice(kinds)], rng, held_out=held_out)
    tools = _shuffled(rng, _calculator(rng, rng.choice(_NAMES), rng.choice(_PARAMETERS))) if has_calculator else ()
    return ToolConversation(
        tools or (_other(rng),), exchange.question, answer=exchange.answer, system=system, empty_think=empty_think
    )


def _to_calculate(rng: Random, *, held_out: bool) -> tuple[str, str, str, bool]:
    """An expression, a question that asks for it, its value, and whether it has three numbers."""
    while True:
        has_three = rng.random() < 0.3
        numbers = [_number(rng) for _ in range(3 if has_three else 2)]
        if has_three:
            signs = [rng.choice("+-*") for _ in range(2)]
            expression = f"{numbers[0]}{signs[0]}{numbers[1]}{signs[1]}{numbers[2]}"
            spaced = f"{numbers[0]} {signs[0]} {numbers[1]} {signs[1]} {numbers[2]}"
            question = rng.choice(_LONG_FORMS).format(x=rng.choice((expression, spaced)))
        else:
            sign = rng.choice("+-***/")
            expression = f"{numbers[0]}{sign}{numbers[1]}"
            question = rng.choice(_FORMS[sign]).format(a=numbers[0], b=numbers[1])
        if is_held_out("tools", expression) == held_out:
            return expression, question, _value(expression), has_three


def _number(rng: Random) -> int:
    return rng.randrange(1, 10 ** rng.choice((1, 2, 2, 3, 3, 4)))


def _value(expression: str) -> str:
    value = eval(expression, {"__builtins__": {}})  # noqa: S307 - numbers and signs that stand above
    return f"{value:g}" if isinstance(value, float) and not value.is_integer() else str(int(value))


def _returned(rng: Random, expression: str, value: str) -> dict[str, str]:
    """What the tool says and what the model says to that; nothing where the conversation ends with the call."""
    if rng.random() >= _RESULT_SHARE:
        return {}
    form = rng.choice(_RESULTS)
    if "." in value and form.endswith(".0"):
        form = "{y}"
    result = form.format(x=expression, y=value)
    return {"result": result, "answer": result if form == "{y}.0" else value}


def _calculator(rng: Random, name: str, parameter: str) -> dict[str, Any]:
    more: dict[str, Any] = rng.choice(({}, {}, {"additionalProperties": False}))
    return calculator(name, parameter, rng.choice(_DESCRIPTIONS), rng.choice(_OF_PARAMETERS), **more)


def _other(rng: Random) -> dict[str, Any]:
    name, description, parameter = rng.choice(_OTHERS)
    return calculator(name, parameter, description)


def _shuffled(rng: Random, tool: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    """Mostly alone; at times beside another, in front of it or behind."""
    if rng.random() < 0.85:
        return (tool,)
    return tuple(rng.sample((tool, _other(rng)), 2))
