# ruff: noqa: F401, F811  (fixtures are imported, and named again as arguments)
"""Branches, and runs that were made here before, in a real browser on the real default model."""

from __future__ import annotations

import re
from typing import Any

import pytest

pytest.importorskip("playwright.sync_api")
from playwright.sync_api import Page, Route, expect

from tests.test_page import (
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


def two_lanes(prompt: str, tokens: int = 12) -> dict[str, Any]:
    return request(lane("greedy", tokens=tokens), lane("top-p", "sample", tokens=tokens, knobs={"temperature": 0.8, "top_p": 0.95}), prompt=prompt)


def finished(open_page: Opener, asked: dict[str, Any], **context: Any) -> Page:
    page = open_page(asked, **context)
    run(page)
    wait_for_end(page)
    return page


def wait_for_lanes(page: Page, count: int) -> None:
    page.wait_for_function(f"window.__playground.run?.tokens.length === {count}", timeout=60_000)
    wait_for_end(page)


# --- branches --------------------------------------------------------------------------------


def test_a_candidate_of_a_clicked_token_makes_a_lane_that_goes_on_with_it(open_page: Opener) -> None:
    page = finished(open_page, two_lanes("Name three rivers."))
    before = tokens_of(page)
    page.locator(".lane").nth(1).locator(".token").nth(3).click()
    other = page.locator(".popover.held .candidate-go").first
    text = other.locator(".candidate-text").inner_text()
    other.click()
    expect(page.locator(".popover")).to_be_hidden()
    wait_for_lanes(page, 3)
    after = tokens_of(page)
    assert after[0] == before[0] and after[1] == before[1]
    assert after[2][:3] == before[1][:3] and after[2][3] != before[1][3]
    branched = page.locator(".lane").nth(2)
    expect(branched.locator(".lane-name")).to_have_value(f"top-p ↳ 4: ‘{text.removeprefix('␣')}’")
    expect(branched.locator(".chip.branched")).to_contain_text("branched from top-p at token 4")
    expect(branched.locator(".token.forced")).to_have_count(4)
    expect(branched.locator(".token.fork")).to_have_attribute("aria-label", re.compile("^Token 4.*forced$"))
    expect(page.locator(".sentence", has_text="was given")).to_be_visible()
    # Its origin is one click away.
    branched.locator(".chip.branched .chip-open").click()
    expect(page.locator(".lane").nth(1).locator(".token[aria-selected=true]")).to_have_attribute("data-position", "3")
    # It lasts over a reload, and can be dropped.
    page.reload()
    wait_for_end(page)
    expect(branched.locator(".token.forced")).to_have_count(4)
    branched.locator(".chip.branched .chip-off").click()
    expect(page.locator(".chip.branched")).to_have_count(0)
    expect(branched.locator(".lane-note")).to_contain_text("changed since this run")


def test_a_branch_by_keyboard_alone(open_page: Opener) -> None:
    page = finished(open_page, two_lanes("Name three seas."))
    token = page.locator(".lane").first.locator(".token").nth(2)
    token.focus()
    page.keyboard.press("Enter")
    buttons = page.locator(".popover.held .candidate-go")
    expect(buttons.first).to_be_focused()
    page.keyboard.press("ArrowDown")
    expect(buttons.nth(1)).to_be_focused()
    page.wait_for_timeout(600)
    expect(buttons.nth(1)).to_be_focused()  # it stays as long as the keyboard is in it
    page.keyboard.press("Escape")
    expect(page.locator(".popover")).to_be_hidden()
    expect(token).to_be_focused()
    page.keyboard.press("Enter")
    expect(buttons.first).to_be_focused()
    page.keyboard.press("Enter")
    wait_for_lanes(page, 3)
    assert tokens_of(page)[1][:2] == tokens_of(page)[0][:2] and tokens_of(page)[1][2] != tokens_of(page)[0][2]


def test_hovering_only_looks_and_lets_the_pointer_through(open_page: Opener) -> None:
    page = finished(open_page, two_lanes("Name three seas."))
    page.locator(".lane").first.locator(".token").nth(2).hover()
    expect(page.locator(".popover .branch-hint.when-looking")).to_be_visible()
    assert page.locator(".popover").evaluate("node => getComputedStyle(node).pointerEvents") == "none"


def test_a_branch_from_a_recording_takes_its_tokens_and_waits_for_run_without_a_model(open_bare: Opener) -> None:
    page = open_bare()
    wait_for_parting(page)
    recorded = page.evaluate("window.__playground.replay.tokens[2].slice(0, 3)")
    expect(page.locator("[data-ref=add]")).to_be_enabled(timeout=60_000)
    page.locator(".lane").nth(2).locator(".token").nth(3).click()
    page.locator(".branches .branch-go").first.scroll_into_view_if_needed()
    page.locator(".branches .branch-go").first.click()
    branched = page.locator(".lane").nth(3)
    expect(branched.locator(".chip.branched")).to_contain_text("branched from top-p at token 4")
    expect(branched.locator(".lane-note")).to_contain_text("Not in this run")
    kept = page.evaluate("JSON.parse(sessionStorage.getItem('playground.request')).lanes[3].branch")
    assert kept["tokens"][:3] == recorded and len(kept["tokens"]) == 4 and kept["model"].startswith("smollm2")
    assert page.evaluate("window.__playground.replay !== null")


def test_the_most_lanes_possible_is_said(open_page: Opener) -> None:
    full = request(*(lane(f"lane {index}", tokens=3) for index in range(6)), prompt="Name three lakes.")
    page = finished(open_page, full)
    page.locator(".lane").first.locator(".token").nth(1).click()
    expect(page.locator(".branches")).to_contain_text("6 lanes, the most possible")
    expect(page.locator(".popover .branch-hint.when-held")).to_contain_text("6 lanes, the most possible")
    expect(page.locator(".popover .candidate-go").first).to_be_disabled()


def test_a_branch_of_another_models_tokens_is_refused_by_name(open_page: Opener) -> None:
    foreign = {"tokens": [11, 12], "lane": "greedy", "position": 1, "model": "gpt2@607a30d/cpu/float32"}
    page = open_page(request(lane("greedy", tokens=4), lane("foreign", tokens=4, branch=foreign)), ready=True)
    expect(page.locator(".lane").nth(1).locator(".lane-note")).to_contain_text("gpt2 wrote", timeout=30_000)
    expect(page.locator(".lane").nth(1).locator(".chip.branched .chip-open")).to_contain_text("token 2")


# --- runs that were made before ------------------------------------------------------------------


def test_a_second_visitor_gets_the_run_that_was_made_and_can_run_it_afresh(open_page: Opener) -> None:
    asked = two_lanes("Name three birds.")
    first = finished(open_page, asked)
    expect(first.locator("[data-ref=made]")).to_be_hidden()
    second = finished(open_page, asked)
    assert second.evaluate("window.__playground.run.id") == first.evaluate("window.__playground.run.id")
    expect(second.locator("[data-ref=made]")).to_contain_text(re.compile(r"Made here \d+ (s|min) ago"))
    second.reload()
    wait_for_end(second)
    expect(second.locator("[data-ref=made]")).to_contain_text("Made here")
    second.locator("[data-ref=made] button").click()
    second.wait_for_function(f"window.__playground.run?.id !== {first.evaluate('window.__playground.run.id')!r}")
    wait_for_end(second)
    expect(second.locator("[data-ref=made]")).to_be_hidden()
    assert tokens_of(second) == tokens_of(first)


def test_a_run_that_somebody_else_is_making_is_watched_and_not_controlled(open_page: Opener) -> None:
    asked = request(lane("endless", tokens=300, knobs={"min_new_tokens": 300}), prompt="Count the stars.")
    owner = open_page(asked)
    run(owner)
    wait_for_tokens(owner, 3)
    guest = open_page(asked)
    run(guest)
    wait_for_tokens(guest, 5)
    expect(guest.locator("[data-ref=made]")).to_contain_text("by somebody else")
    expect(guest.locator("[data-ref=stop]")).to_be_hidden()
    expect(guest.locator("[data-ref=made] button")).to_be_enabled()
    owner.locator("[data-ref=stop]").click()
    wait_for_end(guest)


def test_what_a_crowded_host_says_of_a_request_is_shown(open_page: Opener) -> None:
    page = open_page(two_lanes("Name three fish."))

    def crowded(route: Route) -> None:
        answer = route.fetch()
        given = answer.json()
        if isinstance(given, dict) and "place" in given:
            given["note"] = {"en": "Many people are waiting here: 40 tokens.", "zh": "此处排队的人很多。"}
        route.fulfill(response=answer, json=given)

    page.route(re.compile("component_server"), crowded)
    run(page)
    expect(page.locator("[data-ref=made] .made-note")).to_have_text("Many people are waiting here: 40 tokens.")
    expect(page.locator("[data-ref=made] button")).to_be_hidden()
    wait_for_end(page)
    expect(page.locator("[data-ref=made] .made-note")).to_have_text("Many people are waiting here: 40 tokens.")
    page.unroute_all(behavior="ignoreErrors")


def test_the_run_button_tells_a_range_of_seconds_and_only_of_what_was_measured(open_page: Opener) -> None:
    finished(open_page, two_lanes("Name three trees."))
    page = open_page(two_lanes("Name three oaks."))
    expect(page.locator("[data-ref=run] .run-time")).to_have_text(re.compile(r"^about [\d.]+( (s|ms|min))?(–[\d.]+ (s|ms|min))?$"), timeout=20_000)
    page.locator("#playground-prompt").fill("Name three oaks. " * 300)
    expect(page.locator("[data-ref=run] .run-time")).to_have_count(0, timeout=20_000)


def test_showing_what_was_made_is_named_so_and_run_again_runs(open_page: Opener) -> None:
    asked = two_lanes("Name three stones.")
    first = finished(open_page, asked)
    made = first.evaluate("window.__playground.run.id")
    expect(first.locator("[data-ref=run]")).to_contain_text("Run again")
    second = open_page(asked)
    expect(second.locator("[data-ref=run]")).to_have_text("Show the answer made here", timeout=20_000)
    expect(second.locator("[data-ref=made] button")).to_have_text("Run afresh")
    second.locator("#playground-prompt").fill("Name three stones!")
    expect(second.locator("[data-ref=run]")).to_contain_text("Run")
    expect(second.locator("[data-ref=run]")).not_to_contain_text("Show")
    second.locator("#playground-prompt").fill("Name three stones.")
    expect(second.locator("[data-ref=run]")).to_have_text("Show the answer made here", timeout=20_000)
    run(second)
    wait_for_end(second)
    assert second.evaluate("window.__playground.run.id") == made
    expect(second.locator("[data-ref=run]")).to_contain_text("Run again")
    second.locator("[data-ref=run]").click()
    second.wait_for_function(f"window.__playground.run?.id !== {made!r}")
    wait_for_end(second)
    assert tokens_of(second) == tokens_of(first)


def test_a_changed_prompt_is_marked_and_a_shared_link_says_which_run_it_shows(open_page: Opener) -> None:
    page = finished(open_page, two_lanes("Name three winds."))
    note = page.locator(".lane").first.locator(".lane-note")
    expect(note).to_be_hidden()
    page.locator("[data-ref=share]").click()
    expect(page.locator("[data-ref=made] .made-note")).to_have_text("It works as long as this app runs and keeps the run.")
    page.locator("#playground-prompt").fill("Name three seas.")
    expect(note).to_contain_text("changed since this run")
    page.locator("[data-ref=share]").click()
    expect(page.locator("[data-ref=made] .made-note")).to_contain_text("of the prompt “Name three winds.”, not what was changed since")
    page.locator("#playground-prompt").fill("Name three winds.")
    expect(note).to_be_hidden()
    page.locator("[data-ref=settings]").click()
    for field, value in (("seed", "8"), ("system", "Be brief.")):
        before = page.locator(f"[data-focus={field}]").input_value()
        page.locator(f"[data-focus={field}]").fill(value)
        page.locator(f"[data-focus={field}]").press("Tab")
        expect(note).to_contain_text("changed since this run")
        page.locator(f"[data-focus={field}]").fill(before)
        page.locator(f"[data-focus={field}]").press("Tab")
        expect(note).to_be_hidden()


@pytest.mark.parametrize("size", [(1400, 900), (390, 844)])
def test_share_copies_the_link_by_which_others_watch(open_page: Opener, size: tuple[int, int]) -> None:
    page = finished(
        open_page, two_lanes("Name three birds."), viewport={"width": size[0], "height": size[1]}, permissions=["clipboard-read", "clipboard-write"]
    )
    share = page.locator("[data-ref=share]")
    expect(share).to_be_in_viewport()
    share.click()
    link = page.evaluate("navigator.clipboard.readText()")
    assert link.endswith(f"?run={page.evaluate('window.__playground.run.id')}")
    guest = open_page(asked=None, ready=False, query=link[link.index("/?") :])
    wait_for_end(guest)
    assert tokens_of(guest) == tokens_of(page)
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
