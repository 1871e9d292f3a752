"""Agent frameworks and SDKs, as they are, against a server that runs: which of them get what they ask for.

    qserve up --model demo --port 8000 &
    for client in openai anthropic instructor langchain-openai litellm inspect-ai; do
        python -m venv /tmp/$client && /tmp/$client/bin/pip install $client openai mcp
        /tmp/$client/bin/python bench/clients.py --url http://127.0.0.1:8000 --model demo --only ${client%-*}
    done

Each in an environment of its own: they allow different releases of openai, and together pip goes back to old ones.

Each is asked for an object of a schema, a call of a tool, or an answer that is graded. What the content is worth is the
model's affair; that it arrives as the framework's own object is the server's. Thoughts are off (`reasoning_effort`):
the demo model thinks to its limit over the long prompts that frameworks write. Needs nothing of qserve's own packages.
Exit status: 0 all came, 1 some did not.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from typing import Any, Literal

from pydantic import BaseModel

QUESTION: Any = [{"role": "user", "content": "What is 17 + 25?"}]
NO_THOUGHTS = {"reasoning_effort": "none"}


class Sum(BaseModel):
    """The answer to a sum."""

    a: Literal[17, 25]
    b: Literal[17, 25]
    is_sum: bool


FUNCTION = {"name": "calculator", "description": "Adds.", "parameters": Sum.model_json_schema()}
TOOL = {"type": "function", "function": FUNCTION}


def openai_parse(url: str, model: str, key: str) -> None:
    """`chat.completions.parse`, `responses.parse`."""
    import openai

    client = openai.OpenAI(base_url=f"{url}/v1", api_key=key)
    chat = client.chat.completions.parse(model=model, messages=QUESTION, response_format=Sum, **NO_THOUGHTS)
    assert isinstance(chat.choices[0].message.parsed, Sum)
    answer = client.responses.parse(
        model=model, input="What is 17 + 25?", text_format=Sum, reasoning={"effort": "none"}, max_output_tokens=200
    )
    assert isinstance(answer.output_parsed, Sum)


def openai_stream(url: str, model: str, key: str) -> None:
    """`chat.completions.stream` with a tool that must be called."""
    import openai

    client = openai.OpenAI(base_url=f"{url}/v1", api_key=key)
    tool: Any = openai.pydantic_function_tool(Sum, name="calculator")
    with client.chat.completions.stream(
        model=model, messages=QUESTION, tools=[tool], tool_choice="required", max_tokens=400, extra_body=NO_THOUGHTS
    ) as stream:
        final = stream.get_final_completion()
    assert isinstance(final.choices[0].message.tool_calls[0].function.parsed_arguments, Sum)


def anthropic_runner(url: str, model: str, key: str) -> None:
    """`beta.messages.tool_runner`: a tool is called and its answer goes back."""
    import anthropic

    called = []

    @anthropic.beta_tool
    def calculator(expression: str) -> str:
        """Calculates.

        Args:
            expression: A product.
        """
        called.append(expression)
        return "391"

    client = anthropic.Anthropic(base_url=url, api_key=key)
    asked: Any = [{"role": "user", "content": "What is 17 * 23?"}]
    runner = client.beta.messages.tool_runner(model=model, max_tokens=300, messages=asked, tools=[calculator])
    messages = list(runner)
    assert called, messages[-1].content
    assert messages[-1].stop_reason == "end_turn"


def anthropic_tool(url: str, model: str, key: str) -> None:
    """`messages.stream` with a tool that must be called."""
    import anthropic

    client = anthropic.Anthropic(base_url=url, api_key=key)
    tool: Any = {"name": "calculator", "description": "Adds.", "input_schema": Sum.model_json_schema()}
    with client.messages.stream(
        model=model,
        max_tokens=300,
        messages=QUESTION,
        tools=[tool],
        tool_choice={"type": "any"},
        thinking={"type": "disabled"},
    ) as stream:
        final = stream.get_final_message()
    Sum.model_validate(next(block for block in final.content if block.type == "tool_use").input)


def instructor_mode(name: str) -> Callable[[str, str, str], None]:
    """`instructor.from_openai` in one of its modes."""

    def ask(url: str, model: str, key: str) -> None:
        import instructor
        import openai

        client = instructor.from_openai(
            openai.OpenAI(base_url=f"{url}/v1", api_key=key), mode=getattr(instructor.Mode, name)
        )
        fields: dict[str, Any] = {"max_tokens": 400, **NO_THOUGHTS}
        if name.startswith("RESPONSES"):
            fields = {"max_output_tokens": 400, "reasoning": {"effort": "none"}}
        answer = client.chat.completions.create(
            model=model, messages=QUESTION, response_model=Sum, max_retries=0, **fields
        )
        assert isinstance(answer, Sum)

    return ask


def langchain_method(method: str) -> Callable[[str, str, str], None]:
    """`with_structured_output` of langchain-openai."""

    def ask(url: str, model: str, key: str) -> None:
        from langchain_openai import ChatOpenAI

        chat = ChatOpenAI(base_url=f"{url}/v1", api_key=key, model=model, max_tokens=400, **NO_THOUGHTS)
        assert isinstance(chat.with_structured_output(Sum, method=method).invoke("What is 17 + 25?"), Sum)

    return ask


def langchain_tools(url: str, model: str, key: str) -> None:
    """`bind_tools` with a tool that must be called, streamed."""
    from langchain_openai import ChatOpenAI

    chat = ChatOpenAI(base_url=f"{url}/v1", api_key=key, model=model, max_tokens=400, **NO_THOUGHTS)
    whole: Any = None
    for chunk in chat.bind_tools([TOOL], tool_choice="calculator").stream("What is 17 + 25?"):
        whole = chunk if whole is None else whole + chunk
    Sum.model_validate(whole.tool_calls[0]["args"])


def litellm_tools(url: str, model: str, key: str) -> None:
    """litellm's `openai/` provider: a tool, whole and streamed."""
    import litellm

    fields: dict[str, Any] = {
        "model": f"openai/{model}",
        "api_base": f"{url}/v1",
        "api_key": key,
        "messages": QUESTION,
        "tools": [TOOL],
        "tool_choice": "required",
        "max_tokens": 400,
        "extra_body": NO_THOUGHTS,
    }
    call = litellm.completion(**fields).choices[0].message.tool_calls[0]
    Sum.model_validate(json.loads(call.function.arguments))
    chunks = list(litellm.completion(**fields, stream=True))
    built: Any = litellm.stream_chunk_builder(chunks)
    Sum.model_validate(json.loads(built.choices[0].message.tool_calls[0].function.arguments))


def inspect_tools(url: str, model: str, key: str) -> None:
    """inspect-ai: an evaluation of one sample in which a tool is called and its answer goes back."""
    import os

    import inspect_ai
    from inspect_ai.dataset import Sample
    from inspect_ai.model import GenerateConfig, get_model
    from inspect_ai.scorer import includes
    from inspect_ai.solver import generate, use_tools
    from inspect_ai.tool import tool

    @tool
    def calculator() -> Any:
        async def execute(a: int, b: int) -> str:
            """Add two numbers.

            Args:
                a: The first.
                b: The second.
            """
            return str(a + b)

        return execute

    os.environ["QSERVE_API_KEY"], os.environ["QSERVE_BASE_URL"] = key, f"{url}/v1"
    served = get_model(f"openai-api/qserve/{model}", config=GenerateConfig(max_tokens=200, extra_body=NO_THOUGHTS))
    task = inspect_ai.Task(
        dataset=[Sample(input="What is 17 + 25?", target="42")],
        solver=[use_tools(calculator(), tool_choice="any"), generate(tool_calls="single")],
        scorer=includes(),
    )
    with tempfile.TemporaryDirectory() as logs:
        (log,) = inspect_ai.eval(task, model=served, log_dir=logs, display="none")
        assert log.status == "success", log.error
        messages = log.samples[0].messages  # read from its file when they are asked for
    assert any(getattr(message, "tool_calls", None) for message in messages), "no tool was called"
    assert any(message.role == "tool" for message in messages), "no tool answered"


TRIES: dict[str, tuple[str, Callable[[str, str, str], None]]] = {
    "openai parse": ("openai", openai_parse),
    "openai stream": ("openai", openai_stream),
    "anthropic tool": ("anthropic", anthropic_tool),
    "anthropic tool_runner": ("anthropic", anthropic_runner),
    "instructor TOOLS": ("instructor", instructor_mode("TOOLS")),
    "instructor TOOLS_STRICT": ("instructor", instructor_mode("TOOLS_STRICT")),
    "instructor JSON": ("instructor", instructor_mode("JSON")),
    "instructor JSON_SCHEMA": ("instructor", instructor_mode("JSON_SCHEMA")),
    "instructor RESPONSES_TOOLS": ("instructor", instructor_mode("RESPONSES_TOOLS")),
    "langchain function_calling": ("langchain-openai", langchain_method("function_calling")),
    "langchain json_schema": ("langchain-openai", langchain_method("json_schema")),
    "langchain bind_tools": ("langchain-openai", langchain_tools),
    "litellm tools": ("litellm", litellm_tools),
    "inspect-ai tools": ("inspect-ai", inspect_tools),
}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--model", default="demo")
    parser.add_argument("--api-key", default="none")
    parser.add_argument("--only", default="", help="those whose name holds this")
    args = parser.parse_args()
    num_failed = 0
    for name, (package, ask) in TRIES.items():
        if args.only not in name:
            continue
        try:
            ask(args.url, args.model, args.api_key)
            outcome = "ok"
        except Exception as error:
            num_failed += 1
            outcome = f"{type(error).__name__}: {str(error)[:300]}"
        try:
            release = version(package)
        except Exception:
            release = "not installed"
        print(f"{name} ({package} {release}): {outcome}", flush=True)
    sys.exit(bool(num_failed))


if __name__ == "__main__":
    main()
