# ruff: noqa: F401, F811  (fixtures are imported, and named again as arguments)
"""Speculative decoding in a real browser: rounds, origins, ledger and factors from a record without a model, and live on the default model."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("playwright.sync_api")
from playwright.sync_api import Page, expect

from playground import presets
from playground.engine.strategies import strategies
from playground.measures.parts import lane_parts
from playground.records import recordings
from playground.trace import DraftJudged, Trace
from tests.test_page import Opener, address, browser, lane, open_bare, open_page, request, wait_for_parting, without_model
from tests.test_page_beams import play_to_the_end
from tests.test_page_opened import open_file
from tests.toy_drafts import draft_trace

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]


def open_drafts(page: Page, folder: Path, trace: Trace, lane: int = 1) -> None:
    file = folder / "drafts.json"
    file.write_text(trace.to_json(), encoding="utf-8")
    wait_for_parting(page)
    open_file(page, file)
    page.wait_for_function("window.__playground.replay.name.startsWith('opened-')", timeout=60_000)
    play_to_the_end(page)
    page.locator(".strip").nth(lane).locator(".token").first.click()
    page.keyboard.press("Escape")
    page.locator("#playground-tab-speculation").click()


def test_every_token_tells_where_it_comes_from(open_bare: Opener, tmp_path: Path) -> None:
    page = open_bare(reduced_motion="reduce")
    open_drafts(page, tmp_path, draft_trace())
    strip = page.locator(".strip").nth(1)
    counts = {origin: strip.locator(f'.token[data-origin="{origin}"]').count() for origin in ("accepted", "resampled", "bonus", "plain")}
    assert counts == {"accepted": 8, "resampled": 2, "bonus": 2, "plain": 3}
    # By default a speculative lane is coloured by origin, and the four have four shapes of line.
    lines = {
        origin: strip.locator(f'.token[data-origin="{origin}"]').first.evaluate("(node) => getComputedStyle(node).textDecorationStyle")
        for origin in counts
    }
    assert lines == {"accepted": "solid", "resampled": "wavy", "bonus": "double", "plain": "dotted"}
    expect(page.locator(".legend.origins li")).to_have_count(4)
    page.get_by_role("button", name="Entropy").click()
    expect(page.locator(".legend.origins")).to_have_count(0)
    assert strip.locator('.token[data-origin="bonus"]').first.evaluate("(node) => getComputedStyle(node).textDecorationLine") == "none"
    page.get_by_role("button", name="Origin").click()
    strip.locator('.token[data-origin="resampled"]').first.click()
    told = page.locator(".popover .draft-told")
    expect(told).to_contain_text("was rejected here: p 0.50, q 1.00, accept probability 0.50, die u = 0.250")


def test_the_rounds_are_walked_by_the_keyboard_and_select_their_tokens(open_bare: Opener, tmp_path: Path) -> None:
    page = open_bare(reduced_motion="reduce")
    open_drafts(page, tmp_path, draft_trace())
    rounds = page.locator("#playground-panel-speculation .draft-round")
    expect(rounds).to_have_count(7)
    expect(rounds.nth(0).locator(".draft-guess.accepted")).to_have_count(3)
    expect(rounds.nth(1).locator(".draft-cut + .draft-guess.rejected + .draft-guess.never")).to_have_count(1)
    expect(rounds.nth(6).locator(".draft-guess.cut")).to_have_count(1)
    expect(rounds.nth(6).locator(".draft-extra")).to_have_count(0)
    # Times to one scale: 70 ms (less what nobody counted) beside 45 ms.
    widths = [rounds.nth(n).locator(".draft-part.verifying").bounding_box()["width"] for n in (0, 2)]
    assert widths[1] / widths[0] == pytest.approx(35 / 60, abs=0.03)
    rounds.nth(1).click()
    strip = page.locator(".strip").nth(1)
    expect(strip.locator(".token.of-round")).to_have_count(2)
    expect(strip.locator(".token.selected")).to_have_attribute("data-position", "6")
    detail = page.locator("#playground-panel-speculation .draft-detail")
    expect(detail.locator("tbody tr")).to_have_count(3)
    expect(detail.locator("tbody tr").nth(1)).to_contain_text("✗ rejected")
    page.keyboard.press("ArrowDown")
    expect(rounds.nth(2)).to_have_attribute("aria-selected", "true")
    expect(detail).to_contain_text("the drafter found nothing")
    page.keyboard.press("End")
    expect(strip.locator(".token.of-round")).to_have_count(2)
    expect(rounds.nth(6)).to_be_focused()


def test_the_ledger_says_what_won_and_the_factors_ask_what_if(open_bare: Opener, tmp_path: Path) -> None:
    page = open_bare(reduced_motion="reduce")
    open_drafts(page, tmp_path, draft_trace())
    expect(page.locator("#playground-panel-speculation .draft-verdict")).to_contain_text("It paid: 1.27 times as fast as the plain lane")
    row = page.locator('#playground-panel-speculation .draft-ledger tr[data-row="acceptance_rate"]')
    expect(row).to_contain_text("0.643")
    expect(row).to_contain_text("accepted / guessed = 9 / 14")
    expect(page.locator('#playground-panel-speculation .draft-ledger tr[data-row="speed_up"]')).to_contain_text("1.27")
    expect(page.locator("#playground-panel-speculation .draft-same")).to_contain_text("15 of 15 compared are equal (float32)")
    alpha = page.locator('#playground-panel-speculation .draft-factor[data-factor="alpha"]')
    expect(alpha).to_contain_text("0.82")
    expect(alpha).to_contain_text("measured")
    page.locator("#playground-panel-speculation .draft-factor-box").scroll_into_view_if_needed()
    expect(page.locator("#playground-panel-speculation .draft-run")).to_have_text(re.compile(r"Run it with k = \d+"), timeout=20_000)
    alpha.locator("input").evaluate("(slider) => { slider.value = '0'; slider.dispatchEvent(new Event('input')); }")
    expect(alpha).to_contain_text("estimated")
    expect(page.locator("#playground-panel-speculation .draft-run")).to_have_text("No k pays here: plain decoding is fastest", timeout=20_000)
    page.get_by_role("button", name="Back to measured").click()
    expect(alpha).to_contain_text("measured")
    # The plain lane has no guesses: the tab goes.
    page.locator(".lane").first.click(position={"x": 120, "y": 6})
    expect(page.locator("#playground-tab-speculation")).to_be_hidden()


def test_a_lane_without_a_plain_one_is_offered_it(open_bare: Opener, tmp_path: Path) -> None:
    page = open_bare(reduced_motion="reduce")
    open_drafts(page, tmp_path, draft_trace(plain=False), lane=0)
    expect(page.locator("#playground-panel-speculation .draft-verdict")).to_contain_text("whether it paid was not measured")
    expect(page.get_by_role("button", name="Add the plain lane and run")).to_be_visible()


def test_speculation_on_a_phone_in_chinese_fits(open_bare: Opener, tmp_path: Path) -> None:
    page = open_bare(
        viewport={"width": 390, "height": 844}, locale="zh-CN", color_scheme="dark", has_touch=True, is_mobile=True, reduced_motion="reduce"
    )
    wait_for_parting(page)
    file = tmp_path / "drafts.json"
    file.write_text(draft_trace().to_json(), encoding="utf-8")
    open_file(page, file)
    page.wait_for_function("window.__playground.replay.name.startsWith('opened-')", timeout=60_000)
    play_to_the_end(page)
    page.locator(".lane-tab").nth(1).click()
    page.locator("#playground-tab-speculation").click()
    expect(page.locator("#playground-panel-speculation .draft-verdict")).to_contain_text("划算")
    assert page.evaluate("document.documentElement.scrollWidth") == 390


def test_the_pair_runs_live_on_the_default_model(open_page: Opener) -> None:
    copying = presets.pair("copying")
    asked = {**copying, "lanes": [{**one, "max_new_tokens": 28} for one in copying["lanes"]]}
    page = open_page(asked)
    page.locator("[data-ref=run]").click()
    expect(page.locator(".lane").nth(1).locator(".token").first).to_be_visible(timeout=120_000)
    page.locator(".lane").nth(1).click(position={"x": 120, "y": 6})
    page.locator("#playground-tab-speculation").click()
    page.wait_for_function("window.__playground.run.phase === 'done'", timeout=240_000)
    tokens = page.evaluate("window.__playground.run.tokens")
    assert tokens[0] == tokens[1]
    expect(page.locator("#playground-panel-speculation .draft-verdict")).to_contain_text("times as fast as the plain lane", timeout=20_000)
    expect(page.locator("#playground-panel-speculation .draft-same")).to_contain_text("28 of 28 compared are equal")
    assert page.locator("#playground-panel-speculation .draft-guess.accepted").count() > 0
    shown = page.locator("#playground-panel-speculation .draft-round").count()
    assert int(page.locator('#playground-panel-speculation .draft-ledger tr[data-row="forwards"] .draft-value').inner_text()) == shown
    # The settings of the lane show the chosen drafter's knobs alone.
    page.get_by_role("button", name="Settings of speculative").click()
    expect(page.locator('[data-knob="ngram_max"]')).to_be_visible()
    for other in ("suffix_min", "exit_layer", "recorded", "draft_model", "confidence"):
        expect(page.locator(f'[data-knob="{other}"]')).to_have_count(0)
    page.locator('[data-knob="drafter"] select').select_option("recorded")
    expect(page.locator('[data-knob="recorded"] textarea')).to_be_visible()
    expect(page.locator('[data-knob="ngram_max"]')).to_have_count(0)


def test_an_accept_probability_is_the_quotient_of_the_p_and_q_beside_it(open_bare: Opener, tmp_path: Path) -> None:
    whole, p, q = draft_trace(), 0.00449, 0.0135  # 0.004 / 0.014 were 0.29
    events = [(n, replace(e, guesses=tuple(replace(one, p=p, q=q, accept=p / q) for one in e.guesses)) if isinstance(e, DraftJudged) else e)
              for n, e in whole.events]  # fmt: skip
    page = open_bare(reduced_motion="reduce")
    open_drafts(page, tmp_path, Trace(whole.about, events))
    page.locator(".strip").nth(1).locator('.token[data-origin="resampled"]').first.click()
    told = page.locator(".popover .draft-told")
    expect(told).to_contain_text("accept probability")
    shown = re.search(r"p ([\d.]+), q ([\d.]+), accept probability ([\d.]+\d)", told.inner_text())
    assert shown is not None and f"{float(shown[1]) / float(shown[2]):.2f}" == shown[3] == "0.33"


@pytest.mark.parametrize("recording", ["copying", "classic"])
def test_the_speed_on_a_card_follows_from_its_tokens_and_its_decode_time(open_bare: Opener, recording: str) -> None:
    """So does the tooltip, worked out with what the card shows; the prompt was read once, so that no card claims an E2E."""
    page = open_bare()
    page.goto(f"{page.url.partition('?')[0]}?run=recording:{recording}")
    page.wait_for_function(f"window.__playground?.replay?.name === '{recording}'", timeout=60_000)
    play_to_the_end(page)
    for card in page.locator(".lane").all():
        measures = card.locator(".measure:visible")
        shown = {one.locator("dt").inner_text(): one.locator("dd").inner_text() for one in measures.all()}
        seconds, unit = shown["decode"].split()
        assert "E2E" not in shown and "TTFT" not in shown and unit == "s"
        speed = float(shown["tok/s"])
        assert abs((float(shown["tokens"]) - 1) / float(seconds) - speed) <= 0.1
        measures.filter(has_text="tok/s").scroll_into_view_if_needed()
        page.mouse.move(1, 1)
        page.wait_for_timeout(300)  # a page that moves closes tooltips
        measures.filter(has_text="tok/s").hover()
        hint = page.locator(".popover .hint.muted").first
        expect(hint).to_have_text(f"(tokens − 1) / decode time = ({shown['tokens']} − 1) / {shown['decode']}")


@pytest.mark.parametrize("width", [1400, 390])
def test_the_loop_gives_each_part_once_with_the_share_that_latency_gives_and_cuts_no_code(open_bare: Opener, width: int) -> None:
    page = open_bare(reduced_motion="reduce", viewport={"width": width, "height": 900})
    wait_for_parting(page)
    play_to_the_end(page)
    trace = recordings.load("classic")
    for number in (0, 1):
        if width > 700:
            page.locator(".lane").nth(number).click(position={"x": 120, "y": 6})
        else:
            page.locator(".lane-tab").nth(number).click()
        page.locator("#playground-tab-loop").click()
        expect(page.locator("#playground-panel-loop .where")).to_contain_text(trace.about.lanes[number].name)
        parts = {part.name: f"{part.share.value:.1%}" for part in lane_parts(trace, number)}
        names = list(dict.fromkeys(part for part, _ in strategies.get(trace.about.lanes[number].strategy).loop))
        shown = [text.replace(" ", "") for text in page.locator(".loop-share").all_inner_texts()]
        assert shown == [parts[name] for name in names]
        for code in page.locator(".loop-line code").all():
            assert code.evaluate("(node) => node.scrollWidth <= node.clientWidth + 1 && getComputedStyle(node).textOverflow === 'clip'")
