# ruff: noqa: F401, F811  (fixtures are imported, and named again as arguments)
"""What the page shows while a recording plays belongs to that recording, and to the moment at which it stands."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("playwright.sync_api")
from playwright.sync_api import Page

from playground.records.recordings import RECORDINGS
from tests.test_page import Opener, browser, open_bare, recorded_counts, wait_for_parting, without_model

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]

#: What stands on the page: the prompt, the lanes by name, and how many tokens each shows.
SHOWN = """() => ({
  prompt: document.querySelector("#playground-prompt").value,
  lanes: [...document.querySelectorAll(".lane-name")].map((name) => name.value),
  tokens: [...document.querySelectorAll(".lane .strip")].map((strip) => strip.querySelectorAll(".token").length),
})"""


def every_ordered_pair(names: list[str]) -> list[str]:
    """A way through all names in which every one follows every other one once."""
    way, left = [names[0]], {(a, b) for a in names for b in names if a != b}

    def walk() -> bool:
        if not left:
            return True
        for pair in [pair for pair in sorted(left) if pair[0] == way[-1]]:
            left.remove(pair)
            way.append(pair[1])
            if walk():
                return True
            left.add(pair)
            way.pop()
        return False

    assert walk()
    return way


def choose(page: Page, name: str) -> None:
    """Choose a recording from the menu, and wait until it is there."""
    page.locator("[data-ref=recordings]").click()
    page.locator(".menu-item.recording").nth([one.name for one in RECORDINGS].index(name)).click()
    page.wait_for_function(f"window.__playground.replay?.name === {json.dumps(name)}")


def test_any_recording_can_be_chosen_after_any_other(open_bare: Opener) -> None:
    complaints: list[str] = []

    def listen(page: Page) -> None:
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)

    page = open_bare(listen, reduced_motion="reduce")  # each stands at its parting, or at its end, as soon as it is chosen
    wait_for_parting(page)
    requests = {one.name: one.request for one in RECORDINGS}
    first, *rest = every_ordered_pair([one.name for one in RECORDINGS])
    before = first
    for name in rest:
        choose(page, name)
        page.wait_for_function("window.__playground.replay.tokens.some((tokens) => tokens.length)")
        page.evaluate("() => new Promise(requestAnimationFrame).then(() => new Promise(requestAnimationFrame))")
        shown: dict[str, Any] = page.evaluate(SHOWN)
        where = f"{name} after {before}"
        assert shown["prompt"] == requests[name]["prompt"]["text"], where
        assert shown["lanes"] == [lane["name"] for lane in requests[name]["lanes"]], where
        assert shown["tokens"] == recorded_counts(page), where
        assert not complaints, where
        before = name
