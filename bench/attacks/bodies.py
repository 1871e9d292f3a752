"""Attacks by what a body says: texts, numbers of prompts and responses, names, masks."""

from __future__ import annotations

import asyncio

from attacks.service import CHAT, Attack, Service, chat, in_words

__all__ = ["ATTACKS"]


async def nothing(service: Service) -> str:
    """The control: two seconds without an attack."""
    await asyncio.sleep(2)
    return ""


async def template_arguments(service: Service) -> str:
    """Arguments of the tokenizer in chat_template_kwargs: three times `return_tensors`, and a padding of 20 million."""
    options = ({"return_tensors": "pt"}, {"return_tensors": "np"}, {"padding": "max_length", "max_length": 20_000_000})
    answers = [await service.post(CHAT, chat("x", chat_template_kwargs=one)) for one in options]
    statuses = [status for status, _ in answers]
    return f"statuses {statuses}"


async def long_text(service: Service) -> str:
    """1 MB of `a `, which is far from fitting."""
    return in_words(await service.post("/v1/completions", {"model": "demo", "prompt": "a " * (1 << 19)}))


async def very_long_text(service: Service) -> str:
    """15 MB of `a `."""
    return in_words(await service.post("/v1/completions", {"model": "demo", "prompt": "a " * (15 << 19)}))


async def many_prompts(service: Service) -> str:
    """20,000 prompts in one request."""
    body = {"model": "demo", "prompt": ["a b c"] * 20_000, "max_tokens": 1}
    return in_words(await service.post("/v1/completions", body))


async def million_prompts(service: Service) -> str:
    """A million prompts in one request, and the same again."""
    body = {"model": "demo", "prompt": ["a b c"] * 1_000_000, "max_tokens": 1}
    return ", then ".join([in_words(await service.post("/v1/completions", body)) for _ in range(2)])


async def many_responses(service: Service) -> str:
    """20,000 responses for the reward model; a client asks for the rewards of two meanwhile."""
    responses = [f"it is {n} and no more" for n in range(20_000)]
    body = {"model": "demo-reward", "prompt": "what is 2+2", "responses": responses}
    attack = asyncio.create_task(service.post("/v1/reward", body))
    await asyncio.sleep(0.5)
    status, seconds = await service.post("/v1/reward", {**body, "responses": ["4", "5"]})
    return f"two responses: {status} after {seconds:.2f} s; the 20,000: {in_words(await attack)}"


async def unknown_names(service: Service) -> str:
    """Six bodies of 11 MiB of unknown names; a client sends a valid one of 200 kB meanwhile."""
    body = b'{"model": "demo", "prompt": "x", ' + b",".join(b'"k%d": 1' % n for n in range(930_000)) + b"}"
    valid = {"model": "demo", "prompt": [5] * 20, "max_tokens": 1, "metadata": {"padding": "x" * 200_000}}
    _, alone_s = await service.post("/v1/completions", valid)
    attack = [asyncio.create_task(service.post("/v1/completions", body)) for _ in range(6)]
    await asyncio.sleep(0.5)
    status, seconds = await service.post("/v1/completions", valid)
    await asyncio.gather(*attack)
    return f"200 kB: {status} after {seconds:.2f} s (alone {alone_s:.2f} s)"


async def slow_masks(service: Service) -> str:
    """Four answers to a regular expression whose masks take up to 50 ms each."""
    body = chat("x", structured_outputs={"regex": "(a{1,1000}){1,1000}b"}, n=4) | {"max_tokens": 128}
    status, seconds = await service.post(CHAT, body)
    return f"{status} after {seconds:.2f} s"


async def many_logprobs(service: Service) -> str:
    """128 answers of 64 tokens, with twenty alternatives for each."""
    body = chat("x", logprobs=True, top_logprobs=20, n=128, ignore_eos=True) | {"max_tokens": 64}
    status, seconds = await service.post(CHAT, body)
    return f"{status} after {seconds:.2f} s"


ATTACKS: tuple[Attack, ...] = (
    nothing,
    template_arguments,
    long_text,
    very_long_text,
    many_prompts,
    million_prompts,
    many_responses,
    unknown_names,
    slow_masks,
    many_logprobs,
)
