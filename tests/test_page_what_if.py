# ruff: noqa: F401, F811  (fixtures are imported, and named again as arguments)
"""Where lanes part, and what if, in a real browser: on recordings and on live runs of the real default model."""

from __future__ import annotations

import re
import statistics
from typing import Any

import pytest

pytest.importorskip("playwright.sync_api")
from playwright.sync_api import Locator, Page, expect

from tests.test_page import (
    LONG,
    TWO_LANES,
    Opener,
    address,
    browser,
    lane,
    open_bare,
    open_page,
    request,
    run,
    tokens_of,
    wait_for_end,
    wait_for_parting,
    wait_for_tokens,
    without_model,
)

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]

PHONE: dict[str, Any] = {"viewport": {"width": 390, "height": 844}, "has_touch": True}

#: Moves a slider as a hand does, and tells how many ms each move took until its picture was drawn.
MOVES = """async ([name, values]) => {
  const slider = document.querySelector(`[data-what-if=${name}]`), took = [];
  for (const value of values) {
    const before = window.__playground.stats.draws, began = performance.now();
    slider.value = value;
    slider.dispatchEvent(new Event('input', { bubbles: true }));
    while (window.__playground.stats.draws === before && performance.now() - began < 5000) await new Promise((go) => setTimeout(go, 1));
    took.push(performance.now() - began);
    await new Promise((go) => setTimeout(go, 300));
  }
  return took;
}"""


def knob(page: Page, name: str) -> Locator:
    """A knob of what if, once it can be moved: the server is there."""
    slider = page.locator(f"[data-what-if={name}]")
    expect(slider).to_be_enabled(timeout=120_000)
    return slider


def colder(page: Page, times: int = 6) -> None:
    """The temperature of the lane in focus, lower by so many steps of the slider, from the keyboard."""
    knob(page, "temperature").focus()
    for _ in range(times):
        page.keyboard.press("ArrowLeft")


# --- where lanes part --------------------------------------------------------------------


def test_a_recording_tells_the_cause_with_no_model(open_bare: Opener) -> None:
    page = open_bare()
    wait_for_parting(page)
    expect(page.locator("[data-ref=parting]")).to_contain_text("greedy took")
    expect(page.locator("[data-ref=partingWhy]")).to_contain_text("The cause is the strategy", timeout=120_000)
    expect(page.locator("[data-ref=partingWhy]")).to_contain_text("Top-2 margin: 0.987 logits")
    expect(page.locator(".token.parted")).to_have_count(2)


def test_other_lanes_are_chosen_and_their_own_parting_is_told(open_bare: Opener) -> None:
    page = open_bare()
    wait_for_parting(page)
    page.locator(".parting-lane").first.select_option(label="top-k")
    expect(page.locator("[data-ref=parting]")).to_contain_text("top-k’s die")
    expect(page.locator("[data-ref=partingWhy]")).to_contain_text("The cause is top-p.", timeout=120_000)
    marked = page.locator(".lane:has(.token.parted)")
    expect(marked).to_have_count(2)
    expect(marked.first).to_have_attribute("aria-label", "top-p")


@pytest.mark.parametrize("narrow", [False, True])
def test_both_pipelines_stand_side_by_side_or_one_above_the_other(open_bare: Opener, narrow: bool) -> None:
    page = open_bare(**(PHONE if narrow else {}))
    wait_for_parting(page)
    page.get_by_role("button", name="Both pipelines").click()
    sides = page.locator(".pair-side")
    for index, name in enumerate(("greedy", "top-p")):
        expect(sides.nth(index).locator(".where")).to_contain_text(f"{name} · Token 6")
        sides.nth(index).scroll_into_view_if_needed()
        expect(sides.nth(index).locator(".main-svg").first).to_be_visible(timeout=60_000)
    first, second = (sides.nth(index).bounding_box() for index in (0, 1))
    assert first is not None and second is not None
    assert (first["x"] == second["x"]) == narrow and (first["y"] == second["y"]) != narrow
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    page.get_by_role("button", name="Compare the two here").click()
    expect(page.locator(".pair-view")).to_be_hidden()
    expect(page.locator(".what-if")).to_be_visible()


def test_a_live_run_tells_its_parting_while_it_runs(open_page: Opener) -> None:
    page = open_page(LONG)
    run(page)
    expect(page.locator("[data-ref=parting]")).to_contain_text("they part", timeout=120_000)
    expect(page.locator("[data-ref=partingWhy]")).to_contain_text("The cause is the strategy", timeout=60_000)
    assert page.evaluate("window.__playground.run.phase") == "running"
    position = int(re.findall(r"Token (\d+)", page.locator("[data-ref=parting]").inner_text())[0]) - 1
    first, second = tokens_of(page)
    assert first[:position] == second[:position] and first[position] != second[position]
    page.locator("[data-ref=stop]").click()
    wait_for_end(page)


def test_lanes_that_never_part_are_told_in_words(open_page: Opener) -> None:
    page = open_page(request(lane("long", tokens=12), lane("short", tokens=5)))
    run(page)
    wait_for_end(page)
    expect(page.locator("[data-ref=parting]")).to_contain_text("short is the beginning of long, the same for all of its 5 tokens")
    expect(page.get_by_role("button", name="Both pipelines")).to_be_disabled()


def test_a_lane_runs_twice_and_the_lanes_before_come_back(open_page: Opener) -> None:
    page = open_page()
    run(page)
    wait_for_end(page)
    before = tokens_of(page)
    page.locator(".lane").nth(1).locator(".token").nth(2).click()
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Run “top-p” twice").click()
    page.wait_for_function("window.__playground.run?.phase === 'done' && document.querySelectorAll('.lane').length === 2", timeout=120_000)
    expect(page.locator(".parting-verdict")).to_have_text("It reproduced itself, token for token. ", timeout=120_000)
    expect(page.locator(".lane-name").nth(1)).to_have_value("top-p, again")
    assert tokens_of(page) == [before[1], before[1]]
    page.get_by_role("button", name="Back to the lanes before").click()
    expect(page.locator(".lane-name").first).to_have_value("greedy")
    page.wait_for_function("window.__playground.run?.phase === 'done'", timeout=30_000)
    assert tokens_of(page) == before
    expect(page.locator(".parting-verdict")).to_have_count(0)


def test_a_recorded_lane_runs_twice_and_the_recording_comes_back(open_page: Opener) -> None:
    page = open_page(asked=None)
    wait_for_parting(page)
    page.get_by_role("button", name=re.compile("Run “.*” twice")).click()
    expect(page.locator(".parting-verdict")).to_contain_text("It reproduced itself", timeout=180_000)
    page.get_by_role("button", name="Back to the lanes before").click()
    wait_for_parting(page)
    assert page.evaluate("window.__playground.replay.name") == "classic"


# --- what if -----------------------------------------------------------------------------


def test_a_knob_redraws_the_step_and_marks_the_token_that_would_flip(open_bare: Opener) -> None:
    page = open_bare()
    wait_for_parting(page)
    colder(page)
    sentence = page.locator(".single-view > .sentence")
    expect(sentence).to_contain_text("What if · from the record", timeout=30_000)
    expect(sentence).to_contain_text("would take ␣crucial (0.12) instead of ␣an")
    expect(page.locator(".what-if-result")).to_contain_text("Token 6 would become ␣crucial: the first that changes.")
    expect(page.locator("#playground-panel-pipeline .plot-area").first).to_contain_text("temperature 0.5")
    flipped = page.locator(".token[data-flip]")
    expect(flipped).to_have_attribute("data-flip", "␣crucial")
    expect(flipped).to_have_attribute("data-position", "5")
    page.get_by_role("button", name="Back to what was recorded").click()
    expect(page.locator(".token[data-flip]")).to_have_count(0)
    expect(sentence).to_contain_text("top-p took ␣an")
    expect(page.locator("#playground-panel-pipeline .plot-area").first).to_contain_text("temperature 0.8")
    expect(knob(page, "temperature")).to_have_value("0.8")


def test_a_greedy_lane_says_that_temperature_does_nothing_and_can_roll_the_die(open_bare: Opener) -> None:
    page = open_bare()
    wait_for_parting(page)
    page.locator(".lane").first.locator(".token").nth(5).click()
    page.keyboard.press("Escape")
    colder(page)
    expect(page.locator(".what-if-note")).to_contain_text("temperature, top-k, top-p and min-p can't change which one that is")
    expect(page.locator(".what-if-result")).to_contain_text("No token changes: all 6 stay.", timeout=30_000)
    page.get_by_role("button", name="the whole run").click()
    expect(page.locator(".what-if-result")).to_contain_text("No token changes: all 80 stay.", timeout=30_000)
    page.get_by_role("button", name="by the die").click()
    expect(page.locator(".what-if-result")).to_contain_text("the first that changes", timeout=30_000)


def test_what_the_record_can_not_decide_is_said(open_page: Opener) -> None:
    page = open_page(request(lane("steered", "sample", tokens=12, knobs={"temperature": 0.9, "mirostat_tau": 3.0})))
    run(page)
    wait_for_end(page)
    colder(page)
    expect(page.locator(".single-view > .sentence")).to_contain_text("undecided here", timeout=30_000)
    expect(page.locator(".what-if-result")).to_contain_text("needs the model")
    expect(page.locator(".token[data-flip]")).to_have_count(0)


def test_what_if_on_a_live_run_and_its_knobs_become_a_lane(open_page: Opener) -> None:
    page = open_page(TWO_LANES)
    run(page)
    wait_for_end(page)
    page.locator(".lane").nth(1).locator(".token").nth(3).click()
    page.keyboard.press("Escape")
    knob(page, "top_k").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("[data-what-if=top_k-box]")).to_have_value("1")
    expect(page.locator(".what-if-badge")).to_be_visible(timeout=30_000)
    expect(page.locator(".what-if-result")).to_contain_text(re.compile("the first that changes|No token changes"))
    page.get_by_role("button", name="Keep this as a lane").click()
    expect(page.locator(".lane")).to_have_count(3)
    added = page.locator(".lane").nth(2)
    expect(added.locator(".lane-name")).to_have_value("top-p, what if")
    expect(added.locator(".chip")).to_have_text(["temperature 0.8", "top-k 1", "top-p 0.95"])
    expect(added.locator(".lane-note")).to_contain_text("Not in this run")


def test_a_refused_value_says_why(open_bare: Opener) -> None:
    page = open_bare()
    wait_for_parting(page)
    knob(page, "top_p")
    box = page.locator("[data-what-if=top_p-box]")
    box.fill("7")
    box.press("Enter")
    expect(page.locator(".what-if-note.wrong")).to_contain_text("(0, 1]", timeout=30_000)


@pytest.mark.parametrize("context", [{}, {"color_scheme": "dark", **PHONE}], ids=["wide", "phone"])
def test_everything_is_said_in_chinese_and_nothing_overflows(open_bare: Opener, context: dict[str, Any]) -> None:
    page = open_bare(locale="zh-CN", **context)
    wait_for_parting(page)
    colder(page)
    expect(page.locator(".what-if-badge")).to_have_text("如果 · 依据记录", timeout=30_000)
    expect(page.locator(".what-if-result")).to_contain_text("第 6 个词元会变成")
    expect(page.locator("[data-ref=partingWhy]")).to_contain_text("原因是策略", timeout=60_000)
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    said = page.locator(".parted-bar").inner_text() + page.locator(".single-view").inner_text()
    assert "undefined" not in said and "NaN" not in said and not re.search(r"\{\w+\}", said)


def test_a_move_of_the_slider_is_drawn_soon(open_bare: Opener) -> None:
    page = open_bare()
    wait_for_parting(page)
    knob(page, "temperature").scroll_into_view_if_needed()
    expect(page.locator("#playground-panel-pipeline .main-svg").first).to_be_visible(timeout=60_000)
    page.wait_for_timeout(1000)
    took = page.evaluate(MOVES, ["temperature", [round(0.1 + 0.05 * step, 2) for step in range(31) if step != 14]])
    print(f"30 moves of a slider, from the move to its picture: median {statistics.median(took):.0f} ms, worst {max(took):.0f} ms")
    assert len(took) == 30 and statistics.median(took) < 1000  # shared machines are slow; the figure is what is looked at


def test_the_sentence_is_of_the_step_that_the_picture_shows(open_page: Opener) -> None:
    """While a run is followed the picture is fetched: what stands above it must not run ahead."""
    page = open_page(LONG)
    run(page)
    wait_for_tokens(page, 5)
    page.locator("#playground-panel-pipeline .plot-area").first.scroll_into_view_if_needed()
    expect(page.locator("#playground-panel-pipeline .main-svg").first).to_be_visible(timeout=60_000)
    page.wait_for_timeout(500)
    seen = page.evaluate(
        """async () => {
      const seen = [];
      for (let look = 0; look < 60; look++) {
        const said = document.querySelector('.walker .where').textContent.match(/Token (\\\\d+)/)[1];
        const drawn = document.querySelector('.single-view .plot-area').getAttribute('aria-label').match(/token (\\\\d+)/)[1];
        seen.push([said, drawn]);
        await new Promise((go) => setTimeout(go, 50));
      }
      return seen;
    }""".replace("\\\\", "\\")
    )
    assert len({drawn for _, drawn in seen}) > 1
    assert [pair for pair in seen if pair[0] != pair[1]] == []
    page.locator("[data-ref=stop]").click()
    wait_for_end(page)
