# ruff: noqa: F401, F811  (fixtures are imported, and named again as arguments)
"""The tree of a beam search in a real browser: a recorded search of 8 beams and 80 steps without a model, and one that runs on the default model."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("playwright.sync_api")
from playwright.sync_api import Page, expect

from playground.measures.beams import beam_tree
from playground.trace import Trace
from tests.test_page import Opener, address, browser, lane, open_bare, open_page, request, wait_for_parting, without_model
from tests.test_page_opened import open_file
from tests.toy_beams import beam_trace

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]


def open_search(page: Page, folder: Path, trace: Trace) -> None:
    """Open a search from a file, and choose its beam lane's tab."""
    file = folder / "search.json"
    file.write_text(trace.to_json(), encoding="utf-8")
    open_file(page, file)
    page.wait_for_function("window.__playground.replay.name.startsWith('opened-')", timeout=60_000)
    page.wait_for_function("window.__playground.replay.tokens[0].length > 0", timeout=60_000)
    page.locator(".lane").first.click(position={"x": 120, "y": 6})
    page.locator("#playground-tab-beams").click()


def play_to_the_end(page: Page) -> None:
    for _ in range(400):
        if page.evaluate("window.__playground.replay.ended"):
            return
        if not page.evaluate("window.__playground.replay.playing"):
            page.locator("[data-ref=replayPlay]").click()
        page.wait_for_timeout(100)
    raise AssertionError("the recording never came to its end")


def test_eight_beams_and_eighty_steps_draw_as_they_come(open_bare: Opener, tmp_path: Path) -> None:
    trace = beam_trace(beams=8, steps=80)
    tree = beam_tree(trace, 0)
    page = open_bare()
    wait_for_parting(page)
    open_search(page, tmp_path, trace)
    play_to_the_end(page)
    # The same again, measured: one step at a time, each drawn before the next comes. The processor time of the page's thread counts: other
    # programs on the machine don't.
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    page.locator("[data-ref=replayPlay]").click()
    page.locator("[data-ref=replayPlay]").click()

    def busy() -> float:
        return next(one["value"] for one in session.send("Performance.getMetrics")["metrics"] if one["name"] == "TaskDuration")

    began, drawn = busy(), page.evaluate("window.__playground.stats.tree.steps")
    draws = 0
    while draws < 100 and not page.evaluate("window.__playground.replay.ended"):
        page.evaluate(
            """new Promise((done) => {
              document.querySelector('[data-ref=replayStep]').click();
              requestAnimationFrame(() => requestAnimationFrame(done));
            })"""
        )
        draws += 1
    each = (busy() - began) / draws
    print(f"8 beams × 80 steps: {draws} drawings of the page, {1000 * each:.0f} ms of its thread each: {1 / each:.1f} updates a second at most")
    assert draws >= 3 and page.evaluate("window.__playground.stats.tree.steps") - drawn >= draws  # some steps came before the pause was heard
    assert 1 / each >= 8
    kept = sum(len(step.living) for step in tree.steps)
    expect(page.locator(".beam-node.living, .beam-node.best, .beam-node.dead")).to_have_count(kept + 8)  # and the eight that finished
    expect(page.locator(".beam-node.best")).to_have_count(80)
    words = [text.replace("␣", " ") for text in page.locator(".beam-node.best text:first-of-type").all_text_contents()]
    assert "".join(words) == "".join(trace.names("toy")[event.token].piece.decode() for event in trace.output(0))


def test_the_keyboard_walks_the_tree_and_every_node_tells_its_end(open_bare: Opener, tmp_path: Path) -> None:
    trace = beam_trace(beams=4, steps=30, end=0.1)
    page = open_bare(reduced_motion="reduce")
    wait_for_parting(page)
    open_search(page, tmp_path, trace)
    play_to_the_end(page)
    expect(page.locator(".beam-scroll")).to_have_attribute("role", "tree")
    last = page.locator('.beam-node[data-key="29.0"]')
    last.click()
    expect(page.locator(".beam-obituary")).to_contain_text("It won")
    for key, wanted in (("ArrowLeft", "28."), ("Home", "0."), ("ArrowRight", "1."), ("End", "29.")):
        page.keyboard.press(key)
        focused = page.evaluate("document.activeElement.dataset.key")
        assert focused.startswith(wanted), (key, focused)
        expect(page.locator(".beam-node.selected")).to_have_attribute("data-key", focused)
    page.keyboard.press("ArrowLeft")
    before = page.evaluate("document.activeElement.dataset.key")
    page.keyboard.press("ArrowDown")
    after = page.evaluate("document.activeElement.dataset.key")
    assert before != after and before.split(".")[0] == after.split(".")[0]
    expect(page.locator(f'.beam-node[data-key="{after}"]')).to_have_attribute("aria-label", re.compile("step 29, .*sum −"))
    # A candidate that was dropped: who pushed it out, by how much, and which penalty would have saved it.
    dropped = page.locator('.beam-node.dropped[data-key="6.5"]')
    dropped.click()
    expect(page.locator(".beam-obituary")).to_contain_text(re.compile(r"Beaten at step 7: “.+” took the last of the 4 places; it was 0\.\d+ ahead"))
    expect(page.locator(".beam-detail")).to_contain_text("length penalty")
    # Another penalty ranks the recorded texts anew, and says where a re-run would have gone another way.
    rows = page.locator(".beam-table tbody tr")
    first = rows.first.inner_text()
    page.locator(".beam-rank-by .slider").evaluate("(slider) => { slider.value = '0'; slider.dispatchEvent(new Event('input')); }")
    expect(page.locator(".beam-penalty")).to_have_text("0.00")
    expect(page.locator(".beam-difference")).to_contain_text("raw sums alone")
    expect(rows.first).not_to_have_text(first)
    # The marks in the strip say what was replaced.
    mark = page.locator(".strip .token.switched").first
    expect(mark).to_have_attribute("aria-label", re.compile("another beam became the best one"))
    # Folded, the beginning that all share is one node.
    many = page.locator(".beam-node").count()
    page.locator(".beam-fold input").check()
    assert page.locator(".beam-node").count() < many
    expect(page.locator(".beam-node").first).to_contain_text("shared")


def test_a_search_on_a_phone_in_chinese_fits(open_bare: Opener, tmp_path: Path) -> None:
    page = open_bare(
        viewport={"width": 390, "height": 844}, locale="zh-CN", color_scheme="dark", has_touch=True, is_mobile=True, reduced_motion="reduce"
    )
    wait_for_parting(page)
    open_search(page, tmp_path, beam_trace(beams=4, steps=30, end=0.1))
    play_to_the_end(page)
    expect(page.locator("#playground-tab-beams")).to_have_text("束")
    page.locator('.beam-node[data-key="28.1"]').tap()
    expect(page.locator(".beam-obituary")).to_contain_text(re.compile("[一-鿿]"))
    assert page.evaluate("document.documentElement.scrollWidth") == 390


def test_beams_run_live_on_the_default_model(open_page: Opener) -> None:
    asked = request(lane("greedy", tokens=32), lane("beam 4", "beam", tokens=32, knobs={"num_beams": 4}), prompt="Name three colours.")
    page = open_page(asked)
    page.locator("[data-ref=run]").click()
    expect(page.locator(".lane").nth(1).locator(".token").first).to_be_visible(timeout=120_000)
    page.locator(".lane").nth(1).click(position={"x": 120, "y": 6})
    page.locator("#playground-tab-beams").click()
    page.wait_for_function("window.__playground.run.phase === 'done'", timeout=240_000)
    steps = page.evaluate("window.__playground.stats.tree.steps")
    shown = page.locator(".beam-node.best").count()
    tokens = page.evaluate("window.__playground.run.tokens[1].length")
    assert shown == tokens and steps >= tokens  # every step was drawn; the best finished text may be a shorter one
    expect(page.locator(".beam-table tbody tr").first).to_be_visible(timeout=20_000)
    expect(page.locator(".beams")).to_contain_text("÷ greedy")
    # A beam that was never the best has no recorded distribution: the model reads its text again.
    unseen = page.get_by_role("button", name="Read it again with the model")
    nodes = page.locator(".beam-node.dead")
    for index in range(nodes.count()):
        nodes.nth(index).click(force=True)
        expect(page.locator(".beam-obituary")).to_be_visible()
        page.wait_for_timeout(250)
        if unseen.count():
            break
    unseen.click()
    page.locator(".beam-plot").scroll_into_view_if_needed()  # what nobody sees isn't drawn
    expect(page.locator(".beam-plot .plot-text")).to_contain_text("its sum decides", timeout=60_000)
    # Another lane has no beams: its tab goes, and comes back.
    page.locator(".lane").first.click(position={"x": 120, "y": 6})
    expect(page.locator("#playground-tab-beams")).to_be_hidden()
    expect(page.locator("#playground-panel-pipeline")).to_be_visible()
