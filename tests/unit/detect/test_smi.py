"""Cards of other makers by what their tools print. No such card is here: outputs are those of public reports."""

from __future__ import annotations

import functools
import json
import subprocess
from collections.abc import Sequence

import pytest

from qserve.core.hardware import Device, known_gpus, parse_gpu
from qserve.detect import detect, smi
from qserve.detect.host import HostMemory
from qserve.detect.smi import SeenCard, of_npu_smi, of_rocm_smi, of_sysctl, of_xpu_smi, read_devices
from qserve.units import GIB, MIB

HOST = HostMemory(64 * GIB, 50 * GIB)

# https://github.com/marimo-team/marimo/issues/9237
ROCM = """
{
  "card0": {
    "GPU use (%)": "0",
    "VRAM Total Memory (B)": "21458059264",
    "VRAM Total Used Memory (B)": "27856896",
    "Card Series": "Radeon RX 7900 XT",
    "Card Model": "0x744c",
    "Card Vendor": "Advanced Micro Devices, Inc. [AMD/ATI]",
    "GFX Version": "gfx1100"
  }
}
"""
# Rows of https://github.com/mudler/LocalAI/pull/7761 (an integrated one beside a card), names of a card that is known;
# the warning is that of a card that sleeps, as ROCm prints it.
ROCM_TWO = """WARNING: AMD GPU device(s) is/are in a low-power state. Check power control/runtime_status

{"card0": {"VRAM Total Memory (B)": "25753026560", "VRAM Total Used Memory (B)": "692142080",
 "Card Series": "AMD Radeon RX 7900 XTX"}, "card1": {"VRAM Total Memory (B)": "67108864",
 "VRAM Total Used Memory (B)": "26079232", "Card Series": "Raphael"}, "system": {"Driver version": "6.8"}}
"""
# The form is that of https://github.com/intel/xpumanager/blob/master/doc/smi_user_guide.md; name and memory are those
# of https://github.com/intel/xpumanager/issues/169 and https://github.com/sgl-project/sglang/pull/38873.
XPU = """Device ID,Device Name,Memory Physical Size
0,"Intel(R) Arc(TM) Pro B60 Graphics","24480.00 MiB"
1,"Intel(R) Arc(TM) Pro B60 Graphics","21414.00 MiB"
"""
# https://github.com/Project-HAMi/HAMi-WebUI/issues/47
NPU = """+------------------------------------------------------------------------------------------------+
| npu-smi 25.2.0                   Version: 25.2.0                                               |
+---------------------------+---------------+----------------------------------------------------+
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 0     910B4-1             | OK            | 91.3        33                0    / 0             |
| 0                         | 0000:xx:00.0  | 0           0    / 0          3197 / 65536         |
+===========================+===============+====================================================+
| 1     910B4-1             | OK            | 88.1        32                0    / 0             |
| 0                         | 0000:xx:00.0  | 0           0    / 0          3197 / 65536         |
"""
# https://github.com/Syllo/nvtop/issues/421
DUO = """+--------------------------------------------------------------------------------------------------------+
| npu-smi 25.2.0                                   Version: 25.2.0                                       |
+-------------------------------+-----------------+------------------------------------------------------+
| NPU     Name                  | Health          | Power(W)     Temp(C)           Hugepages-Usage(page) |
| Chip    Device                | Bus-Id          | AICore(%)    Memory-Usage(MB)                        |
+===============================+=================+======================================================+
| 2       310P3                 | OK              | NA           45                0     / 0             |
| 0       0                     | 0000:01:00.0    | 0            1529 / 44280                            |
+-------------------------------+-----------------+------------------------------------------------------+
| 2       310P3                 | OK              | NA           43                0     / 0             |
| 1       1                     | 0000:01:00.0    | 0            1412 / 43693                            |
+===============================+=================+======================================================+
+-------------------------------+-----------------+------------------------------------------------------+
| NPU     Chip                  | Process id      | Process name             | Process memory(MB)        |
+===============================+=================+======================================================+
"""
# https://gist.github.com/chockenberry/1d08129bdf41bfb70e98c3a75ce74578 (the chip); hw.memsize and the limit in the same
# form: public notes on an M2 Pro with 32 GiB, macOS 26.5.
MAC = """machdep.cpu.brand_string: Apple M4 Max
hw.memsize: 68719476736
iogpu.wired_limit_mb: 0
"""


def asked(
    outputs: dict[str, str], *, has_rocm: bool = False, platform: str = "linux", environ: dict[str, str] | None = None
) -> tuple[tuple[Device, ...], tuple[str, ...]]:
    return read_devices(
        environ or {},
        HOST,
        has_rocm=has_rocm,
        ask=lambda command: outputs[command[0]],
        find=lambda name: name if name in outputs else None,
        platform=platform,
    )


def test_rocm_smi_names_cards_and_their_memory() -> None:
    assert list(of_rocm_smi(ROCM)) == [SeenCard("Radeon RX 7900 XT", 21458059264, 27856896)]
    assert [card.name for card in of_rocm_smi(ROCM_TWO)] == ["AMD Radeon RX 7900 XTX", "Raphael"]
    assert list(of_rocm_smi("")) == []


def test_xpu_smi_names_cards_and_their_memory() -> None:
    name = "Intel(R) Arc(TM) Pro B60 Graphics"
    assert list(of_xpu_smi(XPU)) == [SeenCard(name, 24480 * MIB), SeenCard(name, 21414 * MIB)]
    assert list(of_xpu_smi("No device discovered\n")) == []


def test_npu_smi_names_chips_and_what_others_hold() -> None:
    assert list(of_npu_smi(NPU)) == [SeenCard("910B4-1", 65536 * MIB, 3197 * MIB)] * 2
    assert list(of_npu_smi(DUO)) == [
        SeenCard("310P3", 44280 * MIB, 1529 * MIB),
        SeenCard("310P3", 43693 * MIB, 1412 * MIB),
    ]


def test_a_macs_gpu_has_a_share_of_the_ram_or_the_limit_that_is_set() -> None:
    assert list(of_sysctl(MAC)) == [SeenCard("Apple M4 Max 64 GB", 48 * GIB)]
    raised = MAC.replace("limit_mb: 0", "limit_mb: 57344")
    assert list(of_sysctl(raised)) == [SeenCard("Apple M4 Max 64 GB", 56 * GIB)]
    assert list(of_sysctl(MAC.replace("Apple M4 Max", "Intel(R) Core(TM) i7-9750H CPU @ 2.60GHz"))) == []


@pytest.mark.parametrize(
    ("outputs", "platform", "flags"),
    [
        ({"xpu-smi": XPU}, "linux", ["arc-pro-b60", "like=arc-pro-b60,memory=21414MiB"]),
        ({"npu-smi": NPU}, "linux", ["ascend-910b"]),
        ({"npu-smi": DUO}, "linux", ["like=ascend-310p,memory=44280MiB", "ascend-310p"]),
        ({"sysctl": MAC}, "darwin", ["m4-max-64gb"]),
        ({"sysctl": MAC.replace("limit_mb: 0", "limit_mb: 57344")}, "darwin", ["like=m4-max-64gb,memory=57344MiB"]),
    ],
)
def test_a_card_that_no_engine_runs_on_is_named_with_the_flag_that_plans_for_it(
    outputs: dict[str, str], platform: str, flags: list[str]
) -> None:
    devices, notes = asked(outputs, platform=platform)
    assert devices == ()
    assert len(notes) == len(flags)
    for note, flag in zip(notes, flags, strict=True):
        (device,) = parse_gpu(flag)
        assert device.is_plan_only
        assert note.startswith(f"no engine of qserve runs on {device.name}, where ")
        assert note.endswith(f": models run on the CPU here; --gpu {flag} plans for the card")


def test_an_amd_card_counts_beside_a_torch_that_computes_on_it() -> None:
    (device,), notes = asked({"rocm-smi": ROCM_TWO}, has_rocm=True)
    assert (device.name, device.total_bytes) == ("AMD Radeon RX 7900 XTX", 25753026560)
    assert device.used_by_others_bytes == 692142080
    assert notes == (
        "rocm-smi names Raphael, which no table of qserve has: it is not counted; --gpu like=rx-7900-xtx,memory=64MiB "
        "plans for one like it",
    )
    devices, (note, _) = asked({"rocm-smi": ROCM_TWO})
    assert devices == ()
    assert "rocm-smi names AMD Radeon RX 7900 XTX, and the installed torch has no ROCm: it is not counted" in note


def test_what_is_in_no_table_is_told_and_not_counted() -> None:
    devices, (note,) = asked({"rocm-smi": ROCM}, has_rocm=True)
    assert devices == ()
    assert "Radeon RX 7900 XT, which no table of qserve has" in note


def test_a_tool_that_fails_is_told_and_the_next_one_asked() -> None:
    def ask(command: Sequence[str]) -> str:
        if command[0] == "xpu-smi":
            raise subprocess.TimeoutExpired("xpu-smi", 5.0)
        return NPU

    devices, (failed, named) = read_devices({}, HOST, has_rocm=False, ask=ask, find=lambda name: name, platform="linux")
    assert devices == ()
    assert failed.startswith("xpu-smi is here and does not answer (")
    assert "Ascend 910B" in named


def test_broken_output_is_no_crash() -> None:
    devices, (note,) = asked({"rocm-smi": "{broken"}, has_rocm=True)
    assert devices == ()
    assert "rocm-smi is here and does not answer" in note


def test_no_tool_is_run_where_none_is_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("a tool was run"))
    assert read_devices({}, HOST, has_rocm=False, find=lambda _: None) == ((), ())


def test_a_tool_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smi, "_MOST_SECONDS", 0.2)
    with pytest.raises(subprocess.TimeoutExpired):
        smi._ask(["sleep", "5"])
    assert smi._ask(["sh", "-c", "echo told; exit 1"]) == "told\n"
    with pytest.raises(OSError, match="no driver"):
        smi._ask(["sh", "-c", "echo no driver >&2; exit 1"])


@pytest.mark.parametrize(
    ("tool", "output", "variable", "shown"),
    [
        ("xpu-smi", XPU, {"ZE_AFFINITY_MASK": "1"}, ["21414"]),
        ("xpu-smi", XPU, {"ZE_AFFINITY_MASK": "1.0,0"}, ["21414", "b60 plans"]),
        ("npu-smi", DUO, {"ASCEND_RT_VISIBLE_DEVICES": "0"}, ["44280"]),
        ("npu-smi", DUO, {"ASCEND_RT_VISIBLE_DEVICES": ""}, []),
        ("npu-smi", DUO, {"ZE_AFFINITY_MASK": "0"}, ["44280", "310p plans"]),
        ("rocm-smi", ROCM_TWO, {"HIP_VISIBLE_DEVICES": ""}, []),
    ],
)
def test_cards_that_a_runtime_hides_are_not_named(
    tool: str, output: str, variable: dict[str, str], shown: list[str]
) -> None:
    devices, notes = asked({tool: output}, environ=variable)
    assert devices == ()
    assert len(notes) == len(shown)
    assert all(part in note for part, note in zip(shown, notes, strict=True))


# Totals of https://github.com/ROCm/rocm-systems/pull/8475 and https://github.com/ROCm/legacy-rocm-build/issues/6004.
@pytest.mark.parametrize(
    ("vram", "gtt", "total"),
    [
        (536870912, 118111600640, 118111600640),
        (8589934592, 133143986176, 133143986176),
        (103079215104, 16643998720, 103079215104),
        (4294967296, "N/A", 4294967296),
    ],
)
def test_a_gpu_that_shares_the_ram_has_the_larger_of_what_is_kept_and_what_it_may_take(
    vram: int, gtt: int | str, total: int
) -> None:
    row = {"VRAM Total Memory (B)": str(vram), "VRAM Total Used Memory (B)": "1", "GTT Total Memory (B)": str(gtt)}
    text = json.dumps({"card0": {**row, "Card Series": "Radeon 8060S Graphics"}})
    roomy = HostMemory(128 * GIB, 100 * GIB)
    (device,), _ = read_devices({}, roomy, has_rocm=True, ask=lambda _: text, find=lambda name: name, platform="linux")
    assert (device.total_bytes, device.shares_ram) == (total, True)
    shared = total == gtt
    assert device.available_bytes == (min(total, 100 * GIB) if shared else total - 1)
    beside = text.replace("Radeon 8060S Graphics", "AMD Radeon RX 7900 XTX")
    (card,), _ = read_devices({}, roomy, has_rocm=True, ask=lambda _: beside, find=lambda name: name, platform="linux")
    assert (card.total_bytes, card.shares_ram) == (vram, False)


EIGHT = json.dumps(
    {
        f"card{number}": {
            "Card Series": "AMD Instinct MI300X",
            "VRAM Total Memory (B)": str((190 - number) * GIB),
            "Unique ID": f"0x18f68e602b8a790{number}",
        }
        for number in range(8)
    }
)


@pytest.mark.parametrize(
    ("variables", "numbers"),
    [
        ({}, [0, 1, 2, 3, 4, 5, 6, 7]),
        ({"ROCR_VISIBLE_DEVICES": "2,3"}, [2, 3]),
        ({"HIP_VISIBLE_DEVICES": "3,1"}, [3, 1]),
        ({"CUDA_VISIBLE_DEVICES": "5"}, [5]),
        ({"ROCR_VISIBLE_DEVICES": "4,5,6", "HIP_VISIBLE_DEVICES": "2,0"}, [6, 4]),
        ({"ROCR_VISIBLE_DEVICES": "4,5,6", "CUDA_VISIBLE_DEVICES": "1"}, [5]),
        ({"HIP_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "2"}, [1]),
        ({"ROCR_VISIBLE_DEVICES": "GPU-18f68e602b8a7906"}, [6]),
        ({"ROCR_VISIBLE_DEVICES": "GPU-18F68E602B8A7906,1"}, [6, 1]),
        ({"HIP_VISIBLE_DEVICES": "0,-1,1"}, [0]),
        ({"ROCR_VISIBLE_DEVICES": "8"}, []),
        ({"ROCR_VISIBLE_DEVICES": ""}, []),
    ],
)
def test_an_amd_card_is_hidden_by_every_variable_of_its_runtimes(variables: dict[str, str], numbers: list[int]) -> None:
    devices, _ = asked({"rocm-smi": EIGHT}, has_rocm=True, environ=variables)
    assert [device.total_bytes // GIB for device in devices] == [190 - number for number in numbers]


@pytest.mark.parametrize(
    "text",
    [
        '{"card0": "N/A"}',
        '{"card0": null, "card1": []}',
        "{}",
        "[1, 2]",
        '[{"card0": {}}]',
        "null {}",
        '{"card0": {"VRAM Total Memory (B)": "N/A", "VRAM Total Used Memory (B)": null, "Card Series": "N/A"}}',
        '{"card0": {"VRAM Total Memory (B)": {"value": 3}, "Card Series": ["x"], "Unique ID": 5}}',
        '{"card0": {"VRAM Total Memory (B)": "-5", "Card Series": 7900}}',
    ],
)
@pytest.mark.parametrize("tool", ["rocm-smi", "xpu-smi", "npu-smi", "sysctl"])
def test_odd_output_is_no_crash(text: str, tool: str) -> None:
    devices, notes = asked({tool: text}, has_rocm=True, platform="darwin" if tool == "sysctl" else "linux")
    assert devices == ()
    assert all("not counted" in note or "does not answer" in note for note in notes)


@pytest.mark.parametrize("odd", ["N/A", None, [], 3, {"VRAM Total Memory (B)": "N/A"}])
def test_an_odd_row_hides_no_card_beside_it(odd: object) -> None:
    rows = {"card0": odd, "card1": {"Card Series": "AMD Instinct MI300X", "VRAM Total Memory (B)": str(190 * GIB)}}
    (device,), _ = asked({"rocm-smi": json.dumps(rows)}, has_rocm=True)
    assert device.total_bytes == 190 * GIB


def test_a_known_card_whose_memory_is_not_told_has_the_tables() -> None:
    text = '{"card0": {"VRAM Total Memory (B)": "N/A", "Card Series": "N/A", "Device Name": "AMD Instinct MI300X"}}'
    (device,), _ = asked({"rocm-smi": text}, has_rocm=True)
    assert device.total_bytes == known_gpus()["mi300x"].total_bytes


@pytest.mark.parametrize(
    ("tool", "output", "flag"),
    [
        ("xpu-smi", XPU.replace("Pro B60", "A770"), "like=arc-pro-b60,memory=24480MiB"),
        ("npu-smi", NPU.replace("910B4-1", "950PR"), "like=ascend-910b,memory=65536MiB"),
        ("npu-smi", NPU.replace("910B4-1", "950PR").replace("65536", "24576"), "like=ascend-910b4,memory=24576MiB"),
        ("sysctl", MAC.replace("M4 Max", "M6 Max"), "like=m5-max-64gb,memory=49152MiB"),
        ("sysctl", MAC.replace("M4 Max", "M6"), "like=m5-"),
        ("rocm-smi", ROCM, "like=rx-7900-xtx,memory=20464MiB"),
        (
            "rocm-smi",
            '{"card0": {"Card Series": "Radeon 890M", "VRAM Total Memory (B)": "536870912", "GTT Total Memory (B)": '
            '"17179869184"}}',
            "like=strix-halo,memory=16384MiB",
        ),
    ],
)
def test_an_unknown_card_is_described_by_one_of_its_maker(tool: str, output: str, flag: str) -> None:
    _, notes = asked({tool: output}, has_rocm=True, platform="darwin" if tool == "sysctl" else "linux")
    assert f"--gpu {flag}" in notes[0]
    described = notes[0].partition("--gpu ")[2].partition(" ")[0]
    (device,) = parse_gpu(described)
    assert device.compute_capability is None
    assert (device.kind == "cuda") == (tool == "rocm-smi")


@pytest.mark.parametrize("ram", [8, 16, 24, 32, 36, 48, 64])
def test_a_mac_of_any_size_is_planned_by_its_name_alone(ram: int) -> None:
    chips = [key for key in known_gpus() if key.endswith(f"-{ram}gb") and key.startswith("m") and key[1].isdigit()]
    for key in chips:
        name = known_gpus()[key].name.rpartition(" ")[0].rpartition(" ")[0]
        text = MAC.replace("Apple M4 Max", name).replace("68719476736", str(ram * GIB))
        _, (note,) = asked({"sysctl": text}, platform="darwin")
        assert f"--gpu {key} plans for the card" in note


def test_the_machine_names_the_cards_of_a_tool_where_nvml_finds_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """It serves on its CPU, as a Mac does: a card that nothing of ours runs on stops nobody."""
    monkeypatch.setattr("qserve.detect.nvml.read_devices", lambda *_: ((), ()))
    monkeypatch.setattr(smi, "read_devices", functools.partial(read_devices, find=_only_xpu, ask=lambda _: XPU))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    machine = detect()
    assert machine.devices == ()
    assert sum("Intel Arc Pro B60" in note for note in machine.notes) == 2
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert detect().notes == ()


def _only_xpu(name: str) -> str | None:
    return name if name == "xpu-smi" else None
