# ruff: noqa: F401, F811  (fixtures are imported, and named again as arguments)
"""A visitor's own trace, opened from a file, in a real browser and without a model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("playwright.sync_api")
from playwright.sync_api import Page, expect

from playground.records import recordings
from tests.test_page import Opener, browser, open_bare, recorded_counts, wait_for_parting, without_model

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]

#: Counts, while a recording plays for at most so many ms, the frames in which a token came to any strip.
COUNT_UPDATES = """async (most) => {
  const began = performance.now();
  let [frames, tokens, known] = [0, 0, document.querySelectorAll(".strip .token").length];
  while (window.__playground.replay.playing && performance.now() - began < most) {
    await new Promise(requestAnimationFrame);
    const now = document.querySelectorAll(".strip .token").length;
    if (now > known) [frames, tokens] = [frames + 1, tokens + now - known];
    known = now;
  }
  const seconds = (performance.now() - began) / 1000;
  return { updates: frames / seconds, tokens: tokens / seconds };
}"""


def open_file(page: Page, file: Path) -> None:
    expect(page.locator("[data-ref=settings]")).to_be_enabled(timeout=120_000)
    page.locator("[data-ref=recordings]").click()
    with page.expect_file_chooser() as chooser:
        page.locator(".menu-item.recording").last.click()
    chooser.value.set_files(file)


def test_a_saved_trace_of_four_lanes_is_opened_and_plays(open_bare: Opener, tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    file.write_text(recordings.load("classic").to_json(), encoding="utf-8")
    page = open_bare()
    wait_for_parting(page)
    open_file(page, file)
    page.wait_for_function("window.__playground.replay.name.startsWith('opened-')", timeout=60_000)
    expect(page.locator(".lane")).to_have_count(4)
    expect(page.locator("[data-ref=recordedTitle]")).to_have_text("Opened from a file")
    expect(page.locator("[data-ref=recordedFrom]")).to_contain_text("CPU cores")
    wait_for_parting(page)
    for speed in (1, 2, 4):
        page.locator("[data-ref=replayPlay]").click()
        found = page.evaluate(COUNT_UPDATES, 2500)
        print(f"four lanes at {speed} times the recorded pace: {found['updates']:.1f} updates and {found['tokens']:.0f} tokens a second")
        assert found["updates"] > 1
        if page.evaluate("window.__playground.replay.playing"):
            page.locator("[data-ref=replayPlay]").click()
        page.locator("[data-ref=replaySpeed]").click()
    counts = recorded_counts(page)
    drawn = [page.locator(".lane").nth(index).locator(".strip .token").count() for index in range(4)]
    assert drawn == counts
    # Every view, and the same again after a reload.
    for name in ("pipeline", "latency"):
        page.locator(f"#playground-tab-{name}").click()
        area = page.locator(f"#playground-panel-{name} .plot-area").first
        area.scroll_into_view_if_needed()
        expect(area.locator(".main-svg").first).to_be_visible(timeout=60_000)
    expect(page.locator("#playground-panel-latency .plot-area").first).to_contain_text("RECORDED")
    page.reload()
    wait_for_parting(page)
    expect(page.locator(".lane")).to_have_count(4)


def test_a_hostile_or_broken_file_is_refused_in_words_and_changes_nothing(open_bare: Opener, tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    page = open_bare()
    wait_for_parting(page)
    before = recorded_counts(page)
    file.write_text("{}", encoding="utf-8")
    open_file(page, file)
    expect(page.locator("[data-ref=statusText]")).to_have_text("This file is not a trace.", timeout=30_000)
    file.write_text("x" * 12_100_000, encoding="utf-8")
    open_file(page, file)
    expect(page.locator("[data-ref=statusText]")).to_contain_text("larger than 12 MB", timeout=30_000)
    assert page.evaluate("window.__playground.replay.name") == "classic" and recorded_counts(page) == before
    payload = "<img src=x onerror=window.__pwned=1>"
    raw = json.loads(recordings.load("classic").to_json())
    raw["about"]["machine"] = raw["about"]["lanes"][0]["name"] = raw["about"]["request"]["lanes"][0]["name"] = payload
    file.write_text(json.dumps(raw), encoding="utf-8")
    open_file(page, file)
    page.wait_for_function("window.__playground.replay.name.startsWith('opened-')", timeout=60_000)
    expect(page.locator("[data-ref=recordedFrom]")).to_contain_text(payload)
    assert page.evaluate("window.__pwned") is None and page.locator("img[src=x]").count() == 0
