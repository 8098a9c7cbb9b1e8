# ruff: noqa: F401, F811  (fixtures are imported, and named again as arguments)
"""The page for everybody: what axe-core finds, everything by keyboard, and no motion for those who asked for none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("playwright.sync_api")
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from tests.test_page import Opener, address, browser, open_bare, open_page, run, wait_for_end, wait_for_parting, without_model

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]

WIDE, PHONE = {"width": 1400, "height": 900}, {"width": 390, "height": 844}
#: Every width with both themes and both languages.
LOOKS = [
    pytest.param({"viewport": WIDE, "color_scheme": "light", "locale": "en-US"}, id="wide-light-en"),
    pytest.param({"viewport": WIDE, "color_scheme": "dark", "locale": "zh-CN"}, id="wide-dark-zh"),
    pytest.param({"viewport": PHONE, "color_scheme": "light", "locale": "zh-CN", "has_touch": True}, id="phone-light-zh"),
    pytest.param({"viewport": PHONE, "color_scheme": "dark", "locale": "en-US", "has_touch": True}, id="phone-dark-en"),
]


def serious(page: Page, state: str, context: str | None = None) -> list[str]:
    """What axe-core calls serious or critical, a line per element; `context` is where to look if not everywhere."""
    page.wait_for_timeout(250)  # transitions of colour end
    found = Axe().run(page, context).response["violations"]
    return [
        f"{state}: {violation['id']} ({violation['impact']}) at {node['target']}: {node['failureSummary']}"
        for violation in found
        if violation["impact"] in ("serious", "critical")
        for node in violation["nodes"]
    ]


def everything_declared(page: Page) -> None:
    """The controls that need the engine's declarations can be used, though there is no model."""
    expect(page.locator("[data-ref=settings]")).to_be_enabled(timeout=120_000)


def states(page: Page) -> dict[str, Callable[[], Any]]:
    """What a visitor may have in front of them, and how they get there from the one before."""
    tabs = {
        f"tab {name}": (lambda name=name: page.locator(f"#{name}").click())
        for name in page.locator(".focus .tab:visible").evaluate_all("(tabs) => tabs.map((tab) => tab.id)")
    }

    def closed(then: Callable[[], Any]) -> Callable[[], Any]:
        return lambda: (page.keyboard.press("Escape"), then())

    return {
        "as it stands": lambda: None,
        "a token's candidates": lambda: page.locator(".lane:visible .token").nth(2).click(),
        **{name: closed(act) for name, act in tabs.items()},
        "recordings": closed(lambda: page.locator("[data-ref=recordings]").click()),
        "a lane's menu": closed(lambda: page.locator(".lane:visible .lane-head button").nth(1).click()),
        "a lane's settings": closed(lambda: page.locator(".lane:visible .lane-head button").first.click()),
        "settings": closed(lambda: page.locator("[data-ref=settings]").click()),
    }


@pytest.mark.parametrize("look", LOOKS)
def test_axe_finds_nothing_serious_where_a_recording_plays(open_bare: Opener, look: dict[str, Any]) -> None:
    page = open_bare(**look)
    wait_for_parting(page)
    everything_declared(page)
    found = []
    for state, reach in states(page).items():
        reach()
        found += serious(page, state)
    page.keyboard.press("Escape")
    page.locator("[data-ref=pages] [data-page=parameters]").click()
    expect(page.locator(".parameter").first).to_be_visible(timeout=60_000)
    page.locator(".parameter:nth-of-type(n + 4)").evaluate_all("(cards) => cards.forEach((card) => card.remove())")  # all are made alike
    found += serious(page, "the page Parameters")
    assert not found, "\n".join(found)


@pytest.mark.parametrize("look", LOOKS[1:3])
def test_axe_finds_nothing_serious_where_a_run_has_ended(open_page: Opener, look: dict[str, Any]) -> None:
    page = open_page(**look)
    found = serious(page, "before the run")
    run(page)
    wait_for_end(page)
    found += serious(page, "after the run")
    page.locator(".rendered summary").click()
    found += serious(page, "the rendered prompt")
    page.locator("#playground-tab-record").click()
    expect(page.locator(".record tbody tr")).to_have_count(2, timeout=30_000)
    found += serious(page, "the record")
    assert not found, "\n".join(found)


# --- the keyboard ----------------------------------------------------------------------------

#: Everything in view that Tab has to reach: what can be used, and isn't reached by arrows inside its group.
REACHABLE = """() => [...document.querySelectorAll("#playground :is(button, input, select, textarea, summary, a[href], [tabindex='0'])")]
  .filter((node) => !node.disabled && node.tabIndex >= 0 && node.checkVisibility({ visibilityProperty: true }) && !node.closest(".popover"))
  .filter((node) => node.type !== "radio" || node.checked)"""
NAMED = """(node) => node.dataset.ref || node.id || node.getAttribute("aria-label") || node.textContent.trim().slice(0, 40) || node.className"""


def test_tab_reaches_everything_and_shows_where_it_is(open_bare: Opener) -> None:
    page = open_bare()
    wait_for_parting(page)
    everything_declared(page)
    page.evaluate(f"for (const [index, node] of ({REACHABLE})().entries()) node.dataset.stop = index")
    reached: set[str] = set()
    unseen = []
    for _ in range(400):
        page.keyboard.press("Tab")
        stop = page.evaluate(
            """() => {
              const now = document.activeElement, style = getComputedStyle(now);
              const seen = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2;
              return { stop: now.dataset.stop ?? null, seen, name: now.outerHTML.slice(0, 120) };
            }"""
        )
        if stop["stop"] in reached:
            break
        if stop["stop"] is not None:
            reached.add(stop["stop"])
            unseen += [] if stop["seen"] else [stop["name"]]
    missed = page.evaluate(
        f"(reached) => ({REACHABLE})().filter((node) => node.dataset.stop && !reached.includes(node.dataset.stop)).map({NAMED})", sorted(reached)
    )
    assert len(reached) > 20 and not missed
    assert not unseen


def test_every_kind_of_control_works_by_keyboard(open_bare: Opener) -> None:
    page = open_bare()
    wait_for_parting(page)
    everything_declared(page)
    focused = "document.activeElement"
    # A button.
    page.locator("[data-ref=replayPlay]").focus()
    page.keyboard.press("Enter")
    page.wait_for_function("window.__playground.replay.playing")
    page.keyboard.press(" ")
    page.wait_for_function("!window.__playground.replay.playing")
    # A menu: it takes the focus, arrows walk it, Escape gives the focus back.
    page.locator("[data-ref=recordings]").focus()
    page.keyboard.press("Enter")
    expect(page.locator(".popover .menu-item").first).to_be_focused()
    page.keyboard.press("ArrowDown")
    expect(page.locator(".popover .menu-item").nth(1)).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.locator("[data-ref=recordings]")).to_be_focused()
    # The drawer: a dialog with a select, a slider and a box.
    gear = page.locator(".lane").nth(1).locator(".lane-head button").first
    gear.focus()
    page.keyboard.press("Enter")
    assert page.evaluate(f"Boolean({focused}.closest('.drawer'))")
    slider = page.locator("[data-knob=temperature] input[type=range]")
    before = slider.input_value()
    slider.focus()
    page.keyboard.press("ArrowRight")
    assert slider.input_value() != before
    page.keyboard.press("Escape")
    expect(page.locator(".drawer")).to_be_hidden()
    expect(gear).to_be_focused()
    # The tokens, and the tabs below them.
    page.locator(".lane").first.locator(".token[tabindex='0']").focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    expect(page.locator(".where").first).to_contain_text("Token 2 of")
    page.keyboard.press("ArrowDown")
    expect(page.locator(".where").first).to_contain_text("beam 4")
    page.locator(".tab[aria-selected=true]").focus()
    page.keyboard.press("End")
    expect(page.locator("#playground-tab-record")).to_be_focused()
    expect(page.locator("#playground-panel-record")).to_be_visible()


def test_nothing_moves_for_those_who_asked_for_no_motion(open_bare: Opener) -> None:
    page = open_bare(reduced_motion="reduce")
    moving = """() => document.getAnimations().filter((one) => one.playState === "running").length"""
    assert page.evaluate(moving) == 0
    wait_for_parting(page)
    everything_declared(page)
    still = page.evaluate("window.__playground.replay.tokens.map((tokens) => tokens.length)")
    assert page.evaluate(moving) == 0
    page.locator(".lane-head button").first.click()
    assert page.evaluate(moving) == 0
    page.keyboard.press("Escape")
    page.wait_for_timeout(1500)
    assert page.evaluate("window.__playground.replay.tokens.map((tokens) => tokens.length)") == still
    assert page.evaluate("window.__playground.replay.playing") is False
