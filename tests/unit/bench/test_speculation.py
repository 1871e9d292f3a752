"""The verdict on drafts: up to how many streams they help, from where on they cost, and what to serve with."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from qserve.bench.speculation import Drafted, LoadKey, Setting, verdict_of
from qserve.cli.bench.show_speculation import show_speculation
from qserve.cli.bench.speculation import Compared

PLAIN_RATES = {1: 100.0, 8: 342.0, 32: 900.0}
FLAGS = ("--num-ngram-tokens", "3")


def setting(name: str, *gains: tuple[float, ...], flags: tuple[str, ...] = FLAGS) -> Setting:
    """`gains` over PLAIN_RATES at 1, 8 and 32 streams, for each prompt length."""
    loads = {}
    for length, of_length in zip((256, 1024), gains, strict=False):
        for (streams, rate), gain in zip(PLAIN_RATES.items(), of_length, strict=True):
            loads[LoadKey(length, streams)] = Drafted(rate * gain, 50.0, 10.0, 100, 300, 120)
    return Setting(name, flags, loads)


PLAIN = setting("no drafts", (1, 1, 1), (1, 1, 1), flags=())


def test_the_worse_prompt_length_decides() -> None:
    verdict = verdict_of(PLAIN, [setting("n-grams, 3", (1.4, 1.2, 0.9), (1.3, 1.1, 0.8))])
    assert verdict.sentences == (
        "n-grams, 3: a gain up to 8 streams (+10 % to +40 %), a loss from 32 streams on (-20 % at worst).",
        "Serve with n-grams, 3 for up to 8 streams, and without drafts from 32 on.",
    )
    assert (verdict.name, verdict.flags, verdict.loss_from) == ("n-grams, 3", FLAGS, 32)


def test_drafts_that_cost_are_left_out() -> None:
    """vllm#39680: 342 tokens a second without, 128 with."""
    verdict = verdict_of(PLAIN, [setting("n-grams, 3", (1.04, 128 / 342, 0.4), (1.2, 1.2, 1.2))])
    assert verdict.sentences == ("n-grams, 3: a loss from 8 streams on (-63 % at worst).", "Serve without drafts.")
    assert (verdict.name, verdict.flags, verdict.loss_from) == ("no drafts", (), None)
    assert verdict_of(PLAIN, []).sentences == ("Serve without drafts.",)
    level = verdict_of(PLAIN, [setting("n-grams, 3", (1.0, 1.0, 1.0))])
    assert level.sentences[0] == "n-grams, 3: no difference beyond the noise."


def test_of_several_the_one_that_reaches_further_is_taken() -> None:
    near, far = setting("n-grams, 3", (2.0, 1.0, 1.0)), setting("MTP head, 3", (1.2, 1.2, 1.2), flags=("--mtp",))
    verdict = verdict_of(PLAIN, [near, far])
    assert (verdict.name, verdict.flags, verdict.loss_from) == ("MTP head, 3", ("--mtp",), None)
    assert verdict.sentences[-1] == "Serve with MTP head, 3."


@pytest.mark.parametrize("others", [1, 2])
def test_a_table_fits_80_columns(others: int) -> None:
    drafted = tuple(setting(name, (1.4, 1.2, 0.9), (1.3, 1.1, 0.8)) for name in ("n-grams, 3", "MTP head, 3")[:others])
    verdict = verdict_of(PLAIN, drafted)
    compared = Compared("demo", ("--model", "demo"), PLAIN, drafted, ("MTP head, 3: does not fit",), verdict, True)
    out = io.StringIO()
    show_speculation(Console(file=out, width=80), compared)
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    at = next(number for number, line in enumerate(lines) if line.lstrip().startswith("1,024"))
    assert lines[at].split() == ["1,024", "1", "no", "drafts", "100", "40", "%", "2.20", "10.0"]
    assert lines[at + 1].split() == ["n-grams,", "3", "130", "+30", "%", "40", "%", "2.20", "10.0"]
    assert len([line for line in lines if "2.20" in line]) == 6 * (1 + others)
    assert "not tried, MTP head, 3: does not fit" in lines
    assert lines[-1] == "Next    qserve up --model demo --num-ngram-tokens 3"
    document = compared.to_json()
    assert document["settings"][1]["loads"][0]["acceptance"] == 0.4
    assert document["settings"][1]["loads"][0]["tokens_per_step"] == 2.2
    assert document["verdict"]["next_command"] == "qserve up --model demo --num-ngram-tokens 3"
