# ruff: noqa: F401, F811  (fixtures are imported, and named again as arguments)
"""What the page looks like: pictures for people (in test-results/screens), and what can be checked of them by rule."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("playwright.sync_api")
from playwright.sync_api import Page, Route, expect

from tests.test_page import ROOT, Opener, address, browser, open_bare, open_page, run, wait_for_end, wait_for_parting, without_model

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]

FOLDER = ROOT / "test-results" / "screens"
SIZES = {"laptop": (1400, 900), "projector": (1280, 720), "phone": (390, 844)}

#: Elements that stick out of the window, unless they lie in something that scrolls or clips.
STICKING_OUT = """() => [...document.querySelectorAll("#playground *")].filter((node) => {
  if (!node.checkVisibility({ visibilityProperty: true }) || node.classList.contains("skip")) return false;
  const box = node.getBoundingClientRect();
  if (!box.width || (box.right <= innerWidth + 1 && box.left >= -1)) return false;
  for (let at = node.parentElement; at && at.id !== "playground"; at = at.parentElement) {
    if (getComputedStyle(at).overflowX !== "visible") return false;
  }
  return true;
}).map((node) => node.outerHTML.slice(0, 160))"""

#: Buttons that are narrower or lower than what they say.
CLIPPED = """() => [...document.querySelectorAll("#playground button")].filter((node) => node.checkVisibility({ visibilityProperty: true })
  && (node.scrollWidth > node.clientWidth + 1 || node.scrollHeight > node.clientHeight + 2)).map((node) => `${node.className}: ${node.innerText}`)"""

#: Two ideographs drawn with the page's font: where no font has them both are the same box.
IDEOGRAPHS = """() => ["解", "码"].map((sign) => {
  const canvas = Object.assign(document.createElement("canvas"), { width: 64, height: 64 });
  const context = canvas.getContext("2d");
  context.font = `40px ${getComputedStyle(document.querySelector("#playground")).fontFamily}`;
  context.fillText(sign, 4, 48);
  return [canvas.toDataURL(), context.measureText(sign).width];
})"""


def looks_right(page: Page, name: str) -> list[str]:
    """Take the picture, and say what is wrong with it by rule."""
    page.wait_for_timeout(400)
    FOLDER.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=FOLDER / f"{name}.png")
    found = [f"{name}: sticks out: {node}" for node in page.evaluate(STICKING_OUT)]
    found += [f"{name}: clipped: {button}" for button in page.evaluate(CLIPPED)]
    if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
        found.append(f"{name}: the page scrolls sideways")
    raw = re.findall(r"\{\w+\}|undefined|NaN|\[object", page.locator("#playground").inner_text())
    return found + [f"{name}: raw text {text}" for text in raw]


def chinese_is_drawn(page: Page) -> bool:
    (first, width), (second, _) = page.evaluate(IDEOGRAPHS)
    return first != second and abs(width - 40) < 2


@pytest.mark.parametrize("size", SIZES)
def test_the_opening_recording_looks_right(open_bare: Opener, size: str) -> None:
    width, height = SIZES[size]
    page = open_bare(viewport={"width": width, "height": height}, has_touch=size == "phone", color_scheme="light")
    wait_for_parting(page)
    found = []
    for theme in ("light", "dark"):
        if page.evaluate("document.documentElement.dataset.theme") != theme:
            page.locator("[data-ref=theme]").click()
        for language in ("en", "zh"):
            page.locator(f"[data-language={language}]").click()
            page.mouse.move(0, 0)
            found += looks_right(page, f"opening-{size}-{theme}-{language}")
    assert chinese_is_drawn(page)
    assert not found, "\n".join(found)


@pytest.mark.parametrize("size", ["projector", "phone"])
def test_a_finished_run_looks_right(open_page: Opener, size: str) -> None:
    width, height = SIZES[size]
    page = open_page(viewport={"width": width, "height": height}, has_touch=size == "phone")
    run(page)
    wait_for_end(page)
    found = looks_right(page, f"finished-{size}")
    assert not found, "\n".join(found)


def test_what_can_not_work_yet_is_off_while_the_app_is_still_coming_up(open_bare: Opener) -> None:
    held: list[Route] = []

    def hold(route: Route) -> None:
        body = route.request.post_data or ""
        if '"declarations"' in body:
            held.append(route)
        else:
            route.continue_()

    page = open_bare(before=lambda opened: opened.route(re.compile("component_server"), hold))
    wait_for_parting(page)
    assert held
    usable = page.locator(".ask button:enabled, .lanes button:enabled, .lanes input:enabled, .lanes select:enabled").evaluate_all(
        "(nodes) => nodes.filter((node) => node.checkVisibility()).map((node) => node.dataset.ref ?? node.textContent)"
    )
    # Colours, recordings and their addresses work without the engine.
    assert set(usable) <= {"recordings", "share", "Probability", "Entropy", "Rank"}
    assert not page.locator("#playground-prompt").is_editable()
    for route in held:
        route.continue_()
    expect(page.locator("[data-ref=settings]")).to_be_enabled(timeout=120_000)
    expect(page.locator("[data-ref=run]")).to_be_disabled()  # there is no model
