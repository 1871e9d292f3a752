"""configs/gpus.toml: every card loads, says where its figures are from, and obeys the rules of the page's head."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest

from qserve.core.facts import load
from qserve.core.hardware import formats_of, known_gpu, known_gpus, parse_gpu
from qserve.core.plan_only import plan_only_rows
from qserve.errors import UsageError
from qserve.units import GIB

ROWS = load("gpus")["gpus"]


def figures_of(row: dict[str, Any]) -> tuple[str, ...]:
    return ("sm", "bandwidth", "cc") if "cc" in row else ("sm", "bandwidth")


def test_every_figure_names_where_it_was_read_and_every_source_is_used() -> None:
    used = {row[f"{figure}_source"] for row in ROWS.values() for figure in figures_of(row)}
    assert used - {"log"} == set(load("gpus")["sources"])


def test_there_are_enough_cards() -> None:
    assert len(ROWS) >= 30
    assert sum(row["total"] == "measured" for row in ROWS.values()) >= 40


@pytest.mark.parametrize("key", ROWS)
def test_a_card_loads_and_names_its_sources(key: str) -> None:
    row, (device,) = ROWS[key], parse_gpu(key)
    assert device.name == row["name"]
    assert device.total_bytes > 5 * GIB
    assert device.sm_count > 0
    assert 100e9 < device.bandwidth_bytes_per_s < 10e12
    assert device.formats
    assert row["total"] in ("measured", "derived")
    assert {row[f"{figure}_source"] for figure in figures_of(row)} <= {*load("gpus")["sources"], "log"}
    assert set(row.get("formats", ())) <= set(formats_of((99, 0)))


@pytest.mark.parametrize("key", [key for key, row in ROWS.items() if row["total"] == "measured"])
def test_a_measured_total_is_the_one_its_log_prints(key: str) -> None:
    row = ROWS[key]
    mib = [float(number) for number in re.findall(r"(\d+(?:\.\d+)?)\s?Mi?B", row["log"])]
    mib += [float(number) * 1024 for number in re.findall(r"(\d+(?:\.\d+)?) Gi?B", row["log"])]
    mib += [int(number) / 1024**2 for number in re.findall(r"totalMem=(\d+)", row["log"])]
    assert min(abs(number - row["total_mib"]) for number in mib) <= 0.002 * row["total_mib"]


def test_no_two_cards_share_a_name() -> None:
    names = Counter(name for key, row in ROWS.items() for name in (key, *row["aliases"]))
    assert [name for name, count in names.items() if count > 1] == []
    assert set(names) <= set(known_gpus())


def test_no_name_is_lost_to_another_card() -> None:
    """A driver's name finds cards as their keys and aliases do (as people write it), and one of each kind would hide
    the other.
    """
    names = {key: {key, *row["aliases"], row["name"]} for key, row in ROWS.items()}
    assert [(name, key) for key, own in names.items() for name in own if parse_gpu(name)[0] != known_gpus()[key]] == []


@pytest.mark.parametrize(
    ("printed", "key"),
    [
        ("AMD Instinct MI300X OAM", "mi300x"),
        ("AMD Instinct MI300X VF", "mi300x"),
        ("AMD_Instinct_MI325X_OAM", "mi325x"),
        ("AMD Radeon AI PRO R9700", "r9700"),
        ("Radeon AI PRO R9700", "r9700"),
        ("AMD Radeon PRO W7900", "w7900"),
        ("AMD Radeon Pro W7900 48GB", "w7900"),
        ("AMD Radeon Pro W7900 Dual Slot ", "w7900"),
        ("pro-w7900", "w7900"),
        ("Radeon RX 7900 XTX", "rx-7900-xtx"),
        ("AMD Radeon RX 7900 XTX 24 GB", "rx-7900-xtx"),
        ("Radeon 8060S Graphics", "strix-halo"),
        ("AMD Radeon(TM) 8060S Graphics", "strix-halo"),
        ("AMD Radeon 8060S", "strix-halo"),
    ],
)
def test_an_amd_card_is_found_by_the_names_of_several_releases(printed: str, key: str) -> None:
    for said in (printed, printed.upper(), printed.lower()):
        assert known_gpu(said) == known_gpus()[key]
    assert known_gpu("AMD Radeon PRO W7800 48GB") is None


def test_which_gpus_share_the_machines_ram() -> None:
    said = {key for key, device in known_gpus().items() if device.shares_ram and key in ROWS}
    assert said == {"strix-halo", *(key for key, row in ROWS.items() if row.get("cc") in ("8.7", "11.0", "12.1"))}
    assert all(known_gpus()[key].shares_ram == (row["kind"] == "mps") for key, row in plan_only_rows().items())
    (described, likewise) = parse_gpu("memory=100GiB,cc=12.1") + parse_gpu("like=strix-halo,memory=96GiB,name=mine")
    assert described.shares_ram
    assert likewise.shares_ram
    assert not parse_gpu("memory=24GiB")[0].shares_ram


@pytest.mark.parametrize(
    ("printed", "key"),
    [
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "rtx-pro-6000-workstation"),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "rtx-pro-6000-max-q"),
        ("NVIDIA RTX PRO 5000 Blackwell", "rtx-pro-5000"),
        ("NVIDIA RTX PRO 5000 72GB Blackwell", "rtx-pro-5000-72gb"),
        ("NVIDIA RTX PRO 4500 Blackwell", "rtx-pro-4500"),
        ("NVIDIA RTX PRO 4000 Blackwell", "rtx-pro-4000"),
        ("NVIDIA GeForce RTX 5050", "rtx-5050"),
        ("NVIDIA GeForce RTX 5050 Laptop GPU", "rtx-5050-laptop"),
        ("NVIDIA GeForce RTX 5070 Ti Laptop GPU", "rtx-5070-ti-laptop"),
        ("NVIDIA GeForce RTX 5090 Laptop GPU", "rtx-5090-laptop"),
        ("NVIDIA B300 SXM6 AC", "b300"),
        ("NVIDIA GB200", "gb200"),
        ("NVIDIA GB300", "gb300"),
        ("AMD Instinct MI355X", "mi355x"),
        ("AMD Radeon AI PRO R9700", "r9700"),
        ("AMD Radeon PRO W7900", "w7900"),
        ("Radeon 8060S Graphics", "strix-halo"),
        ("Ryzen AI Max+ 395", "strix-halo"),
    ],
)
def test_a_card_is_found_by_what_its_tools_print(printed: str, key: str) -> None:
    assert parse_gpu(printed) == parse_gpu(key)


@pytest.mark.parametrize(
    ("mistyped", "near"),
    [("rtx-pro-5500", "rtx-pro-5000"), ("b350", "b300"), ("mi335x", "mi355x"), ("rtx-5050-laptopp", "rtx-5050-laptop")],
)
def test_an_unknown_card_names_those_near_it(mistyped: str, near: str) -> None:
    with pytest.raises(UsageError, match=rf"near matches: .*\b{near}\b"):
        parse_gpu(mistyped)


@pytest.mark.parametrize(("key", "usual"), [("rtx-4090-48gb", "rtx-4090"), ("rtx-3080-20gb", "rtx-3080")])
def test_a_card_with_larger_chips_goes_by_its_size(key: str, usual: str) -> None:
    """The driver calls both by one name, which stays that of the usual card."""
    (card,) = parse_gpu(key)
    assert card.total_bytes > 1.9 * known_gpus()[usual].total_bytes
    assert parse_gpu(known_gpus()[usual].name) == parse_gpu(usual)


@pytest.mark.parametrize(
    "name", ["NVIDIA A100-SXM4-80GB", "Tesla T4", "NVIDIA RTX A6000", "AMD Instinct MI300X", "NVIDIA L4"]
)
def test_the_drivers_own_name_is_understood(name: str) -> None:
    assert parse_gpu(name)[0].name == name


@pytest.mark.parametrize("key", [key for key, row in ROWS.items() if row["sm_source"] == "log"])
def test_sms_and_capability_are_those_of_the_log(key: str) -> None:
    row = ROWS[key]
    assert f"multi_processor_count={row['sm_count']}" in row["log"]
    if "cc" in row:
        major, minor = row["cc"].split(".")
        assert f"major={major}, minor={minor}" in row["log"]
