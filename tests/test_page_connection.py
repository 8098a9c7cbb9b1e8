# ruff: noqa: F401, F811  (fixtures are imported, and named again as arguments)
"""The page when the app behind it goes away and comes back, and what it says of runs that went with it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import pytest

pytest.importorskip("playwright.sync_api")
from playwright.sync_api import Browser, Page, expect

from playground.experiments import app_process
from tests.test_page import Opener, browser, open_bare, recorded_counts, wait_for_parting, without_model

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]

Starter = Callable[[], AbstractContextManager[str]]


@pytest.fixture
def start(tmp_path: Path) -> Starter:
    """Starts the app without a model, every time on the same port."""
    port = app_process.free_port()
    bare = {"PLAYGROUND_OFFLINE": "1", "PLAYGROUND_CACHE": str(tmp_path / "cache")}
    return lambda: app_process.served(tmp_path / "log.txt", bare, port)


@pytest.fixture
def visitor(browser: Browser) -> Iterator[Page]:
    """A page of a new visitor, on which no script may throw."""
    context = browser.new_context(viewport={"width": 1400, "height": 900}, locale="en-US")
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    yield page
    context.close()
    assert not errors


def no_nonsense(page: Page) -> None:
    shown = page.locator(".pg").inner_text()
    assert not re.search(r"\bNaN\b|\bundefined\b|\bnull\b|\[object", shown), shown


def test_the_page_says_that_the_app_is_gone_plays_on_and_goes_on_with_the_next_one(start: Starter, visitor: Page) -> None:
    page = visitor
    with ExitStack() as first:
        page.goto(first.enter_context(start()))
        wait_for_parting(page)
        expect(page.locator("[data-ref=settings]")).to_be_enabled(timeout=60_000)
        expect(page.locator("[data-ref=gone]")).to_be_hidden()
    expect(page.locator("[data-ref=gone]")).to_contain_text("The app doesn't answer", timeout=40_000)
    expect(page.locator("[data-ref=run]")).to_be_disabled()
    page.keyboard.press("Control+Enter")
    before = recorded_counts(page)
    page.locator("[data-ref=replayPlay]").click()
    page.wait_for_function("window.__playground.replay.ended", timeout=60_000)
    assert sum(recorded_counts(page)) > sum(before)
    page.locator("[data-ref=recordings]").click()
    items = page.locator(".popover .recording")
    expect(items.filter(has_text="not loaded on this page yet").first).to_be_disabled()
    here = items.filter(has_not_text="not loaded on this page yet").first
    here.click()
    page.wait_for_function("!window.__playground.replay.ended", timeout=10_000)
    expect(page.locator("[data-ref=made]")).to_be_hidden()
    no_nonsense(page)
    with start():
        expect(page.locator("[data-ref=gone]")).to_be_hidden(timeout=60_000)
        page.locator("[data-ref=recordings]").click()
        other = page.locator(".popover .recording").nth(1)
        expect(other).to_be_enabled()
        other.click()
        page.wait_for_function("window.__playground.replay.name !== 'classic' && window.__playground.replay.tokens[0].length > 0", timeout=30_000)
        no_nonsense(page)


def test_a_link_to_a_run_that_is_not_here_says_so(open_bare: Opener, without_model: str) -> None:
    page = open_bare()
    page.goto(f"{without_model}?run=made-up")
    expect(page.locator("[data-ref=statusText]")).to_contain_text("This run is no longer here", timeout=60_000)
    expect(page.locator("[data-ref=status]")).to_have_class(re.compile("wrong"))
    page.wait_for_timeout(9_000)  # longer than a passing complaint stands
    expect(page.locator("[data-ref=statusText]")).to_contain_text("runs live as long as the app")
    no_nonsense(page)
