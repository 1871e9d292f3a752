"""The page of training runs in a browser: it follows one that goes on, by itself, and shows what came of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Page, expect

from qserve.core.hardware import Hardware
from qserve.hub import resolve
from qserve.planner.training import TrainingJob, TrainingRequest
from qserve.runs import RunStore
from qserve.training import record as record_module
from qserve.training.job import DataSource, TrainingRun
from qserve.training.outcome import outcome_of
from qserve.training.record import TrainingRecord
from qserve.units import GIB, MIB
from tests.browser.conftest import PATIENCE_MS, Stack
from tests.browser.test_accessibility import AXE, serious

expect.set_options(timeout=PATIENCE_MS)
HARDWARE = Hardware((), 8 * GIB, 6 * GIB, 2)
HOSTILE = "<img src=x onerror=document.title='owned'> is 5"


class Training:
    """A run of GRPO as `qserve train` keeps it; its steps are told by the test."""

    def __init__(self, folder: Path, state: Path) -> None:
        request = TrainingRequest("grpo", precision="fp32", max_length=128, beta=0.0)
        self.job = TrainingJob("demo", resolve("demo").spec, "none", (HARDWARE.cpu_device,), request)
        run = TrainingRun(request, "demo", DataSource("d.jsonl"), folder / "out", plan=self.job.plan().to_json())
        run.write()
        (run.folder / "train.yaml").write_text("model_name_or_path: demo\n")
        self.state, self.log = state, folder / "log"
        self.record = TrainingRecord(run, state, ("qserve", "train", "grpo", "--model", "demo"), HARDWARE)

    def events(self, steps: int) -> list[dict]:
        logged = [
            {
                "event": "logged",
                "unix_s": 1000.0 + n,
                "step": n,
                "loss": 0.7 / n,
                "step_s": 0.5,
                "reward": n / 40,
                "num_tokens": 100.0 * n,
                "learning_rate": 1e-4,
            }
            for n in range(1, steps + 1)
        ]
        memory = {
            "event": "memory",
            "step": 1,
            "source": "VmHWM",
            "weights_bytes": 8 * MIB,
            "backward_bytes": 700 * MIB,
        }
        sample = {"prompt": "2+3?", "completion": HOSTILE, "rewards": {"rules": 1.0}, "reward": 1.0, "advantage": 0.5}
        rollouts = {"event": "rollouts", "step": 1, "samples": [sample]}
        return [{"event": "train", "from_step": 0, "to_step": 40}, memory, rollouts, *logged]

    def end(self) -> None:
        told = [*self.events(40), {"event": "ended", "step": 40}]
        assert self.record.close(outcome_of(told, 0, self.log, self.job), None, 0)


@pytest.fixture
def training(stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Training]]:
    """A list for the run that the test begins; it is taken out of the store again."""
    monkeypatch.setattr(record_module, "_LEAST_S", 0.0)
    monkeypatch.setattr(record_module, "_OF_ITS_AGE", 0.0)
    monkeypatch.setattr(record_module, "_TIMES_ITS_COST", 0.0)
    begun: list[Training] = []
    yield begun
    for one in begun:
        one.record._writer.close(1)
        store = RunStore.open(one.state)
        store.delete([store.run(one.record.id)])


def test_a_run_is_followed_by_itself_to_its_end(
    page: Page, stack: Stack, tmp_path: Path, training: list[Training]
) -> None:
    page.get_by_role("tab", name="Train").click()
    expect(page.locator("#qs-train-head code")).to_contain_text("qserve train reward --model demo --data demo")
    training.append(Training(tmp_path, stack.run_folder.parent.parent))
    training[0].record.progress(training[0].events(20))
    expect(page.locator("#qs-train-head")).to_contain_text("20 / 40")
    expect(page.locator("#qs-train-head")).to_contain_text("running")
    figures = page.locator("#qs-train-curves figcaption")
    expect(figures).to_have_text(["Loss", "Reward", "Learning rate", "Tokens per second"])
    training[0].end()
    expect(page.locator("#qs-train-head")).to_contain_text("40 / 40")
    expect(page.locator("#qs-train-head")).to_contain_text("ended")
    expect(page.locator("#qs-train-run input")).to_have_value(re.compile("^grpo demo · .* · ended$"))
    bars = page.locator("#qs-train-held .bar-track")
    expect(bars.nth(0)).to_have_attribute("aria-label", re.compile("planned: weights .* optimizer .* runtime"))
    expect(bars.nth(1)).to_have_attribute("aria-label", re.compile("^measured: weights 8 MiB"))
    expect(page.locator("#qs-train-rollouts td").first).to_have_text(HOSTILE)
    assert page.title() == "qserve"
    again = page.locator("#qs-train-configuration")
    expect(again.locator(".qs-command code")).to_have_text("qserve train grpo --model demo")
    expect(again.locator(".qs-file code")).to_have_text("model_name_or_path: demo\n", use_inner_text=False)
    assert not AXE.exists() or not serious(page)


@pytest.mark.parametrize(("scheme", "width"), [("light", 390), ("dark", 390), ("dark", 1280)])
def test_it_fits_a_phone_and_can_be_read_in_the_dark(
    page: Page, stack: Stack, tmp_path: Path, training: list[Training], scheme: Literal["light", "dark"], width: int
) -> None:
    """Nothing is wider than the screen; a table that is can be moved within its own frame."""
    training.append(Training(tmp_path, stack.run_folder.parent.parent))
    training[0].end()
    page.set_viewport_size({"width": width, "height": 844})
    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    page.goto(f"/?__theme={scheme}")
    page.get_by_role("tab", name="Train").click()
    expect(page.locator("#qs-train-head")).to_contain_text("40 / 40")
    expect(page.locator("#qs-train-curves figcaption")).to_have_count(4)
    page.locator("#qs-train-configuration summary").first.click()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for view in ("head", "curves", "held", "rollouts", "configuration"):
        box = page.locator(f"#qs-train-{view}").bounding_box()
        assert box is not None and box["x"] >= 0 and box["x"] + box["width"] <= width, view
    assert cut_off(page) == []
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    channels = [int(one) for one in re.findall(r"\d+", background)[:3]]
    assert (sum(channels) < 150) == (scheme == "dark"), background
    page.wait_for_timeout(500)  # colours fade in
    assert not AXE.exists() or not serious(page)


def cut_off(page: Page) -> list[str]:
    """Parts of the page whose text goes beyond the right edge and that nothing around them lets a finger move to."""
    return page.evaluate(
        """() => [...document.querySelectorAll('[id^=qs-train-] *')].filter((one) => {
          if (one.getBoundingClientRect().right <= innerWidth + 1) return false
          for (let up = one; up; up = up.parentElement)
            if (['auto', 'scroll'].includes(getComputedStyle(up).overflowX)) return false
          return true
        }).map((one) => one.tagName + ' ' + one.className)"""
    )
