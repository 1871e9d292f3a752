"""The chat page in a browser: answers stream and stop, are scored and ranked, and the browser keeps what was said."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, CDPSession, Locator, Page, expect

from tests.browser.conftest import PATIENCE_MS, keep_conversation

COUNTING = "Count from 1 to 30"
expect.set_options(timeout=PATIENCE_MS)


@pytest.fixture
def page(page: Page) -> Page:
    """Once it is known which models are served."""
    expect(page.locator("#qs-model input")).to_have_value("demo")
    return page


def ask(page: Page, question: str) -> None:
    page.locator("#qs-question textarea").fill(question)
    page.locator("#qs-question textarea").press("Enter")


def bot(page: Page, side: int = 0) -> Locator:
    return page.locator(f"#qs-bot-{side} [data-testid=bot]")


def rested(page: Page) -> None:
    """The last answer is whole, scored and drawn."""
    expect(page.locator("#qs-send")).to_be_visible()
    expect(page.locator(".qs-writing")).to_have_count(0)
    page.wait_for_timeout(500)  # Gradio's event ends a moment after its last update, and drops what is asked before


def say(page: Page, question: str) -> None:
    ask(page, question)
    expect(page.locator("#qs-bot-0 [data-testid=user]").last).to_have_text(question)
    rested(page)


def kept(page: Page) -> dict:
    """The conversation as the browser keeps it."""
    found = """() => {
        const told = localStorage.getItem("qserve.chat." + sessionStorage.getItem("qserve.current"));
        return told === JSON.stringify(qserve.shown()) && told;
    }"""
    return json.loads(page.wait_for_function(found).json_value())


def test_an_answer_has_its_figures_and_its_reward_and_is_exported(page: Page, tmp_path: Path) -> None:
    say(page, "What is 17 + 25?")
    expect(bot(page).first).to_contain_text("42")
    figures = page.locator("#qs-bot-0 .qs-figures")
    expect(figures).to_contain_text(re.compile(r"reward -?\d+\.\d{3}.*first token after \d+ ms.*18 \+ 3 tokens.*demo"))
    conversation = kept(page)
    answer = conversation["turns"][0]["sides"][0][0]
    assert answer["content"] == "42" and answer["finish_reason"] == "stop"
    with page.expect_download() as waited:
        page.locator("#qs-export").click()
    waited.value.save_as(tmp_path / "out.json")
    assert json.loads((tmp_path / "out.json").read_text()) == conversation
    say(page, COUNTING)
    expect(figures.last).to_contain_text("tokens/s")


def test_an_answer_streams_without_moving_the_page_and_stops(page: Page, stack) -> None:
    # Sixteen answers at once take long enough; the page itself stops them when it shows the first words.
    page.locator("#qs-best-of input[type=number]").fill("16")
    page.locator("#qs-best-of input[type=number]").press("Tab")
    page.evaluate(
        """() => {
            window.seen = new Set();
            window.places = new Set();
            const place = (id) => Object.values(document.querySelector(id).getBoundingClientRect().toJSON());
            const look = () => {
                window.places.add([place("#qs-bot-0"), place("#qs-question")].join(" "));
                requestAnimationFrame(look);
            };
            look();
            new MutationObserver(() => {
                const text = document.querySelector("#qs-bot-0 [data-testid=bot]")?.textContent ?? "";
                window.seen.add(text);
                if (text.includes("1, 2, 3")) document.querySelector("#qs-stop")?.click();
            }).observe(document.querySelector("#qs-bot-0"), { childList: true, subtree: true, characterData: true });
        }"""
    )
    ask(page, COUNTING)
    expect(bot(page).first).to_contain_text("1, 2, 3")
    rested(page)
    assert page.evaluate("window.seen.size") > 2, "it came at once"
    assert len(page.evaluate("[...window.places]")) == 1, "the page jumped while it streamed"
    answers = kept(page)["turns"][0]["sides"][0]
    assert "stopped" in {one["finish_reason"] for one in answers}
    # Some of them may have ended before: any that was stopped says so.
    expect(page.locator("#qs-bot-0 .qs-figures").filter(has_text="stopped").first).to_be_attached()
    # It is the request that ends, not only what is shown of it.
    headers = {"authorization": f"Bearer {stack.key}"}
    idle = 'qserve_gateway_sequences_running{worker="chat"} 0.0'
    stack.until(lambda: idle in page.context.request.get("/metrics", headers=headers).text())


def test_best_of_n_shows_all_and_the_best_first(page: Page) -> None:
    page.locator("#qs-best-of input[type=number]").fill("6")
    page.locator("#qs-best-of input[type=number]").press("Tab")
    page.locator("#qs-settings > button").click()
    page.locator("#qs-temperature input").fill("2")
    page.locator("#qs-seed input").fill("7")
    say(page, "Tell me about yourself")
    answers = kept(page)["turns"][0]["sides"][0]
    rewards = [one["reward"] for one in answers]
    assert len(rewards) == 6 and rewards == sorted(rewards, reverse=True)
    assert rewards[0] > rewards[-1], "six answers at temperature 2 that are all the same show nothing"
    texts = list(dict.fromkeys(one["content"] for one in answers))
    expect(page.locator("#qs-bot-0 details.qs-other")).to_have_count(len(texts) - 1)
    expect(page.locator("#qs-bot-0 .qs-figures").first).to_contain_text(f"reward {rewards[0]:.3f}")
    last = next(one["reward"] for one in answers if one["content"] == texts[-1])
    expect(page.locator("#qs-bot-0 details.qs-other summary").last).to_contain_text(f"reward {last:.3f}")
    page.locator("#qs-temperature input").fill("0")
    say(page, "What is 17 + 25?")
    turn = page.locator("#qs-bot-0 [data-testid=bot]").last
    expect(turn.locator(".qs-same")).to_contain_text("All 6 answers are identical: at temperature 0")
    expect(turn.locator("details.qs-other")).to_have_count(0)


def test_two_settings_answer_side_by_side_from_the_middle_of_a_conversation(page: Page) -> None:
    say(page, "What is 17 + 25?")
    page.locator("#qs-compare > button").click()
    switch = page.locator("#qs-compare input[type=checkbox]")
    switch.check()
    expect(page.locator("#qs-bot-1")).to_be_visible()
    expect(bot(page, 1)).to_contain_text(["42"])  # both sides continue from it
    say(page, "What is 30 - 12?")
    for side in (0, 1):
        expect(page.locator(f"#qs-bot-{side} [data-testid=user]")).to_have_text(
            ["What is 17 + 25?", "What is 30 - 12?"]
        )
        expect(bot(page, side)).to_contain_text(["42", "18"])
    assert [len(turn["sides"]) for turn in kept(page)["turns"]] == [1, 2]
    page.reload()
    expect(bot(page, 1)).to_contain_text(["42", "18"])
    page.locator("#qs-compare > button").click()
    expect(switch).to_be_checked()
    switch.uncheck()
    expect(page.locator("#qs-bot-1")).to_be_hidden()
    say(page, "What is 5 + 5?")
    assert [len(turn["sides"]) for turn in kept(page)["turns"]] == [1, 2, 1]
    switch.check()
    expect(bot(page, 1)).to_contain_text(["42", "18", "10"])


def test_a_reload_keeps_the_conversation_and_a_new_one_leaves_it_in_the_list(page: Page) -> None:
    say(page, "你好，你是谁？")
    expect(bot(page).first).to_contain_text("你好！我是 qserve 演示模型。")
    kept(page)
    page.reload()
    expect(bot(page).first).to_contain_text("你好！我是 qserve 演示模型。")
    say(page, "What is 3 + 4?")
    assert [turn["question"] for turn in kept(page)["turns"]] == ["你好，你是谁？", "What is 3 + 4?"]
    page.locator("#qs-new").click()
    expect(page.locator("#qs-bot-0 [data-testid=user]")).to_have_count(0)
    page.locator("#qs-history .qs-open").click()
    expect(page.locator("#qs-bot-0 [data-testid=user]")).to_have_count(2)
    page.locator("#qs-history .qs-delete").click()
    expect(page.locator("#qs-history .qs-none")).to_be_visible()
    assert page.evaluate("Object.keys(localStorage).filter((key) => key.startsWith('qserve.chat.'))") == []


def test_a_question_can_be_edited_and_asked_again(page: Page) -> None:
    say(page, "What is 2 + 3?")
    say(page, "What is 5 + 5?")
    page.locator("#qs-bot-0 button[aria-label=Edit]").first.click()
    page.locator("#qs-bot-0 textarea").first.fill("What is 20 + 30?")
    page.locator("#qs-bot-0 button[aria-label=Submit]").click()
    expect(bot(page).first).to_contain_text("50")
    rested(page)
    assert [turn["question"] for turn in kept(page)["turns"]] == ["What is 20 + 30?"]
    answer_anew(page, "#qs-again")
    expect(bot(page).first).to_contain_text("50")
    assert len(kept(page)["turns"]) == 1


def test_an_answer_that_was_cut_is_continued(page: Page) -> None:
    page.locator("#qs-settings > button").click()
    page.locator("#qs-max-tokens input").fill("12")
    page.locator("#qs-temperature input").fill("0")
    say(page, COUNTING)
    expect(page.locator("#qs-bot-0 .qs-figures")).to_contain_text("length limit reached")
    before = kept(page)["turns"][0]["sides"][0][0]["content"]
    page.locator("#qs-max-tokens input").fill("")
    page.locator("#qs-continue").click()
    expect(bot(page).first).to_contain_text("29, 30")
    rested(page)
    after = kept(page)["turns"][0]["sides"][0][0]["content"]
    assert after.startswith(before) and after == ", ".join(str(number) for number in range(1, 31))


def answer_anew(page: Page, button: str) -> None:
    """Presses a button that asks for the first answer once more, and waits for its end, which may come at once."""
    took = "qserve.shown().turns[0].sides?.[0]?.[0]?.ttft_ms"
    before = page.evaluate(took)
    page.locator(button).click()
    page.wait_for_function(f"before => {took} !== before", arg=before)
    rested(page)


def test_an_answer_that_is_continued_keeps_its_others(page: Page) -> None:
    turn = ("What is 1 + 1?", [["It is", "second", "third"]])
    keep_conversation(page, [turn])
    answer_anew(page, "#qs-continue")
    first, *others = kept(page)["turns"][0]["sides"][0]
    assert first["content"].startswith("It is") and [one["content"] for one in others] == ["second", "third"]
    expect(page.locator("#qs-bot-0 details.qs-other")).to_have_count(2)


def test_both_sides_answer_in_a_new_conversation_and_are_continued(page: Page) -> None:
    page.locator("#qs-compare > button").click()
    page.locator("#qs-compare input[type=checkbox]").check()
    say(page, "What is 30 - 12?")
    page.locator("#qs-new").click()
    expect(page.locator("#qs-bot-0 [data-testid=user]")).to_have_count(0)
    expect(page.locator("#qs-bot-1")).to_be_visible()
    say(page, "What is 5 + 5?")
    expect(bot(page, 1).first).to_contain_text("10")
    answer_anew(page, "#qs-continue")
    sides = kept(page)["turns"][0]["sides"]
    assert len(sides) == 2 and all(side[0]["content"].startswith("10") for side in sides)


def slow_down(page: Page) -> None:
    """Sixteen answers at once: long enough for somebody to do something else."""
    page.locator("#qs-best-of input[type=number]").fill("16")
    page.locator("#qs-best-of input[type=number]").press("Tab")


def _bound_downloads(network: CDPSession, bytes_per_s: int) -> None:
    """-1: no bound."""
    network.send(
        "Network.emulateNetworkConditions",
        {"offline": False, "latency": 0, "downloadThroughput": bytes_per_s, "uploadThroughput": -1},
    )


def test_a_reload_while_an_answer_streams_keeps_what_came(page: Page) -> None:
    slow_down(page)
    network = page.context.new_cdp_session(page)
    network.send("Network.enable")
    _bound_downloads(network, 20_000)  # else a busy machine has shown nothing yet when the answers have ended
    ask(page, COUNTING)
    page.wait_for_function("document.querySelector('#qs-bot-0 [data-testid=bot]')?.textContent.includes('1, 2, 3')")
    with page.expect_navigation(wait_until="commit"):
        page.evaluate("location.reload()")
    _bound_downloads(network, -1)
    expect(page.locator("#qs-bot-0 [data-testid=user]")).to_have_text(COUNTING)
    expect(bot(page).first).to_contain_text("1, 2")
    rested(page)
    expect(page.locator("#qs-bot-0 .qs-figures").first).to_contain_text("stopped")


def test_new_while_an_answer_is_on_its_way_leaves_it_behind(page: Page) -> None:
    slow_down(page)
    ask(page, COUNTING)
    expect(page.locator("#qs-stop")).to_be_visible()
    page.locator("#qs-new").click()
    expect(page.locator("#qs-bot-0 [data-testid=user]")).to_have_count(0)
    page.locator("#qs-best-of input[type=number]").fill("1")
    page.locator("#qs-best-of input[type=number]").press("Tab")
    say(page, "What is 2 + 2?")
    assert [turn["question"] for turn in kept(page)["turns"]] == ["What is 2 + 2?"]
    expect(page.locator("#qs-bot-0 [data-testid=user]")).to_have_count(1)


def test_an_edit_box_ends_with_its_conversation_and_holds_what_was_written(page: Page) -> None:
    keep_conversation(page, [("if **a**<b", [["x"]]), ("then", [["y"]])])
    page.locator("#qs-bot-0 button[aria-label=Edit]").first.click()
    expect(page.locator("textarea.edit-textarea")).to_have_value("if **a**<b")
    page.locator("#qs-history .qs-open").click()
    expect(page.locator("textarea.edit-textarea")).to_have_count(1)  # the same conversation, nothing has changed
    say(page, "What is 3 + 3?")
    expect(page.locator("textarea.edit-textarea")).to_have_count(0)
    expect(page.locator("#qs-bot-0 [data-testid=user]")).to_have_count(3)


def test_two_tabs_on_one_conversation_are_both_kept(signed_in: BrowserContext) -> None:
    one = signed_in.new_page()
    one.goto("/")
    expect(one.locator("#qs-model input")).to_have_value("demo")
    keep_conversation(one, [("What is 1 + 1?", [["2"]])])
    two = signed_in.new_page()
    two.goto("/")
    expect(two.locator("#qs-model input")).to_have_value("demo")
    two.locator("#qs-history .qs-open").click()
    expect(two.locator("#qs-bot-0 [data-testid=user]")).to_have_count(1)
    say(one, "What is 2 + 2?")
    say(two, "What is 3 + 3?")
    expect(two.locator(".qs-notice")).to_contain_text("kept as a copy")
    expect(one.locator("#qs-history .qs-open")).to_have_text(["What is 1 + 1? (copy)", "What is 1 + 1?"])
    questions = {tab: [turn["question"] for turn in kept(tab)["turns"]] for tab in (one, two)}
    assert questions == {one: ["What is 1 + 1?", "What is 2 + 2?"], two: ["What is 1 + 1?", "What is 3 + 3?"]}
    two.reload()
    say(two, "What is 4 + 4?")
    assert [turn["question"] for turn in kept(two)["turns"]][-2:] == ["What is 3 + 3?", "What is 4 + 4?"]


def test_a_reader_who_scrolls_up_is_left_there(page: Page) -> None:
    page.set_viewport_size({"width": 1000, "height": 480})
    area = page.locator("#qs-bot-0 [role=log]")
    at_the_end = "area => area.scrollHeight - area.clientHeight - area.scrollTop < 9"
    slow_down(page)
    page.locator("#qs-settings > button").click()
    page.locator("#qs-temperature input").fill("2")  # answers that differ: identical ones become one
    ask(page, COUNTING)
    follows = f"area.scrollTop > 100 && ({at_the_end})(area)"
    page.wait_for_function(f"(area => {follows})(document.querySelector('#qs-bot-0 [role=log]'))")
    area.hover()
    page.mouse.wheel(0, -5000)
    page.wait_for_function("document.querySelector('#qs-bot-0 [role=log]').qsFollows === false")
    rested(page)
    assert area.evaluate("area => area.scrollTop") < 100, "it took the reader down"


def test_two_tabs_talk_at_once(signed_in: BrowserContext) -> None:
    tabs = [signed_in.new_page() for _ in range(2)]
    for tab in tabs:
        tab.goto("/")
        expect(tab.locator("#qs-model input")).to_have_value("demo")
    for tab, question in zip(tabs, ("What is 6 + 6?", "What is 40 + 2?"), strict=True):
        ask(tab, question)
    for tab, answer, other in zip(tabs, ("12", "42"), ("40 + 2", "6 + 6"), strict=True):
        expect(bot(tab).first).to_contain_text(answer)
        expect(tab.get_by_role("log").first.get_by_text(other)).to_have_count(0)
        rested(tab)
        assert len(kept(tab)["turns"]) == 1
    assert len(tabs[0].evaluate("Object.keys(localStorage).filter((key) => key.startsWith('qserve.chat.'))")) == 2


def test_the_language_can_be_switched(page: Page) -> None:
    expect(page.get_by_role("tab", name="Score")).to_be_visible()
    page.locator(".qs-language select").select_option("zh-CN")
    expect(page.get_by_role("tab", name="评分")).to_be_visible()
    expect(page.locator("#qs-send")).to_have_text("发送")
    assert page.locator("html").get_attribute("lang") == "zh-CN"
    say(page, "What is 17 + 25?")
    expect(page.locator("#qs-bot-0 .qs-figures")).to_contain_text("奖励")
    kept(page)
    page.reload()
    expect(page.get_by_role("tab", name="评分")).to_be_visible()
    expect(page.locator("#qs-bot-0 .qs-figures")).to_contain_text("奖励")


def test_what_a_user_writes_is_no_html_and_a_number_that_is_none_is_told(page: Page) -> None:
    say(page, '<img src=x onerror="window.broken = true"><script>window.broken = true</script>')
    assert page.evaluate("window.broken") is None
    page.locator("#qs-settings > button").click()
    page.locator("#qs-temperature input").fill("warm")
    ask(page, "Hello")
    expect(page.get_by_text("Temperature: “warm” is not a number")).to_be_visible()
    page.locator("#qs-temperature input").fill("9")
    ask(page, "Hello")
    expect(page.locator("#qs-bot-0 .qs-error")).to_contain_text("temperature")
