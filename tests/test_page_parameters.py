# ruff: noqa: F401, F811  (fixtures are imported, and named again as arguments)
"""The page "Parameters" in a real browser: its address, its entries, the way back to a step, and how it prints."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("playwright.sync_api")
from playwright.sync_api import Locator, Page, expect

from playground.engine.knobs import knobs_of
from playground.engine.stages import VLLM_ORDER, stages
from playground.ui.parameters import parameters
from tests.test_page import Opener, address, browser, open_page

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]

PARAMETERS = "/?show=parameters"
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}


def card(page: Page, name: str) -> Locator:
    return page.locator(f"[data-parameter={name}]")


def at_parameters(open_page: Opener, query: str = PARAMETERS, **context: object) -> Page:
    """The page, opened at its own address; the model may still be loading."""
    page = open_page(None, ready=False, query=query, **context)
    expect(page.locator(".parameter").first).to_be_visible(timeout=120_000)
    return page


def test_every_knob_has_a_card_and_a_row_and_compare_is_out_of_sight(open_page: Opener) -> None:
    page = at_parameters(open_page)
    names = [entry["name"] for entry in parameters()["entries"]]
    assert sorted(page.locator(".parameter").evaluate_all("all => all.map((one) => one.dataset.parameter)")) == sorted(names)
    assert sorted(page.locator(".parameters-overview tbody tr").evaluate_all("all => all.map((one) => one.dataset.row)")) == sorted(names)
    expect(page.locator(".ask")).to_be_hidden()
    expect(page.locator("[data-ref=lanes]")).to_be_hidden()
    expect(page.locator(".pages [aria-current=page]")).to_have_text("Parameters")
    assert page.title() == "Parameters · Decoding Playground"
    text = page.locator(".parameters").inner_text()
    assert "undefined" not in text and "null" not in text and not re.search(r"\{\w+\}(?!\])", text.replace("{(id, id): number}", ""))


def test_a_card_says_what_was_asked_of_it(open_page: Opener) -> None:
    top_p = card(at_parameters(open_page), "top_p")
    for text in (
        "Off at",
        "Range",
        "Larger",
        "Tokens alive",
        "Cost",
        "Common mistake",
        "transformers",
        "vLLM",
        "OpenAI",
        "Acts on probabilities",
        "(0, 1]",
    ):
        expect(top_p).to_contain_text(text)
    expect(top_p.locator(".drawing thead th")).to_have_count(5)
    expect(top_p.locator(".drawing tbody tr")).to_have_count(12)
    expect(top_p.locator(".drawing tbody tr td:nth-child(3).gone")).to_have_count(9)  # top-p 0.5 leaves three of twelve


def test_the_address_names_the_page_and_the_entry(open_page: Opener) -> None:
    page = at_parameters(open_page, f"{PARAMETERS}#min_p")
    expect(card(page, "min_p")).to_be_in_viewport()
    expect(card(page, "min_p")).to_be_focused()
    page.locator("[data-row=top_k] a").click()
    expect(card(page, "top_k")).to_be_focused()
    assert page.url.endswith(f"{PARAMETERS}#top_k")
    page.go_back()
    expect(card(page, "min_p")).to_be_focused()
    page.locator(".pages").get_by_text("Compare").click()
    expect(page.locator(".ask")).to_be_visible()
    assert "show=" not in page.url and "#" not in page.url
    page.go_back()
    expect(card(page, "min_p")).to_be_in_viewport()


def test_an_address_that_names_no_entry_shows_the_page(open_page: Opener) -> None:
    page = at_parameters(open_page, f'{PARAMETERS}#"]<img src=x onerror=window.__pwned=1>')
    expect(page.locator(".parameter.named")).to_have_count(0)
    assert page.evaluate("window.__pwned") is None


def test_the_field_filters_cards_and_rows(open_page: Opener) -> None:
    page = at_parameters(open_page)
    page.get_by_role("searchbox").fill("penalty output")
    expect(page.locator(".parameter:visible").first).to_be_visible()
    shown = set(page.locator(".parameter:visible").evaluate_all("all => all.map((one) => one.dataset.parameter)"))
    assert {"presence_penalty", "frequency_penalty"} <= shown and "top_k" not in shown
    assert set(page.locator(".parameters-overview tbody tr:visible").evaluate_all("all => all.map((one) => one.dataset.row)")) == shown
    page.get_by_role("searchbox").fill("no such thing")
    expect(page.get_by_text("No parameter has these words.")).to_be_visible()


def test_the_overview_stands_in_the_order_that_is_chosen(open_page: Opener) -> None:
    page = at_parameters(open_page)
    page.get_by_role("button", name="vLLM", exact=True).click()
    rows = page.locator(".parameters-overview [data-group=warper] tr, .parameters-overview tr[data-group=warper]").evaluate_all(
        "all => [...new Set(all.map((one) => one.dataset.row))]"
    )
    warpers = [name for name in VLLM_ORDER if stages.get(name).kind == "warper"]
    assert rows == [knob for name in warpers for knob in knobs_of(stages.get(name))]
    expect(page.get_by_role("button", name="vLLM", exact=True)).to_be_focused()


def test_show_on_this_step_opens_the_what_if_knob_of_a_recorded_step(open_page: Opener) -> None:
    page = open_page(None, ready=True)
    page.wait_for_function("window.__playground.replay && !window.__playground.replay.playing", timeout=60_000)
    page.locator(".pages").get_by_text("Parameters").click()
    card(page, "temperature").get_by_role("button", name="Show on this step").click()
    expect(page.locator(".ask")).to_be_visible()
    expect(page.locator("[data-what-if=temperature]")).to_be_focused()
    expect(page.locator("[data-what-if=temperature]")).to_be_in_viewport()


def test_a_knob_that_cannot_be_decided_again_opens_in_the_lanes_settings(open_page: Opener) -> None:
    page = open_page(ready=False)
    expect(page.locator("[data-ref=settings]")).to_be_enabled(timeout=120_000)
    page.locator(".pages").get_by_text("Parameters").click()
    card(page, "typical_p").get_by_role("button", name="Show on this step").click()
    expect(page.locator(".drawer [data-knob=typical_p] input").first).to_be_focused()
    expect(page.locator(".drawer-title")).to_contain_text("top-p")  # greedy has no use for a warper


def test_a_strategy_that_no_lane_uses_gets_a_lane(open_page: Opener) -> None:
    page = open_page(ready=False)
    expect(page.locator("[data-ref=settings]")).to_be_enabled(timeout=120_000)
    page.locator(".pages").get_by_text("Parameters").click()
    card(page, "num_beams").get_by_role("button", name="Show on this step").click()
    expect(page.locator(".lane")).to_have_count(3)
    expect(page.locator(".drawer [data-knob=num_beams]")).to_be_visible()


def test_a_lanes_settings_lead_to_the_entry(open_page: Opener) -> None:
    page = open_page(ready=False)
    expect(page.locator("[data-ref=settings]")).to_be_enabled(timeout=120_000)
    page.locator(".lane").nth(1).locator(".chip-open").first.click()
    page.locator(".drawer [data-knob=temperature] .knob-entry").click()
    expect(card(page, "temperature")).to_be_focused()
    expect(page.locator(".drawer")).to_be_hidden()


@pytest.mark.parametrize("context", [{"locale": "zh-CN"}, PHONE, {"color_scheme": "dark"}, {**PHONE, "locale": "zh-CN"}])
def test_nothing_overflows(open_page: Opener, context: dict[str, object]) -> None:
    page = at_parameters(open_page, **context)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert (
        page.locator(".parameter").evaluate_all(
            "all => all.filter((one) => one.scrollWidth > one.clientWidth + 1).map((one) => one.dataset.parameter)"
        )
        == []
    )
    if context.get("locale") == "zh-CN":
        assert page.title() == "参数 · 解码实验场"
        expect(card(page, "top_p")).to_contain_text("常见误区")


def test_it_prints_black_on_white_and_no_card_is_cut(open_page: Opener) -> None:
    page = at_parameters(open_page, color_scheme="dark")
    page.emulate_media(media="print", color_scheme="dark")
    style = "getComputedStyle(document.querySelector('{}')).{}"
    assert page.evaluate(style.format("body", "backgroundColor")) == "rgb(255, 255, 255)"
    assert page.evaluate(style.format(".parameter", "color")) == "rgb(0, 0, 0)"
    assert page.evaluate(style.format(".parameter", "breakInside")) == "avoid"
    for control in (".pages", ".parameters-tools", ".parameter-tools", ".top-tools"):
        expect(page.locator(control).first).to_be_hidden()
    # Chromium cuts what doesn't fit on a page off where anything around it is a flexible box or hides what overflows.
    around = page.evaluate("""() => {
        const styles = [];
        for (let node = document.querySelector(".parameters").parentElement; node; node = node.parentElement) {
            const { display, overflowY } = getComputedStyle(node);
            styles.push([display, overflowY]);
        }
        return styles;
    }""")
    assert {tuple(one) for one in around} == {("block", "visible")}
    # A card that is higher than a page would be cut whatever the rule says: A4 less its margins is 186 by 275 mm.
    page.set_viewport_size({"width": 703, "height": 1039})
    assert page.locator(".parameter").evaluate_all("all => Math.max(...all.map((one) => one.getBoundingClientRect().height))") < 1039
    assert page.pdf(prefer_css_page_size=True).startswith(b"%PDF")


def test_opening_the_comparison_asks_for_no_parameters(open_page: Opener) -> None:
    asked: list[str] = []
    page = open_page(None, ready=False)
    page.on("request", lambda request: asked.append(request.post_data or "") if "component_server" in request.url else None)
    page.reload()
    expect(page.locator("[data-ref=settings]")).to_be_enabled(timeout=120_000)
    assert any("declarations" in data for data in asked)
    assert not any('"parameters"' in data for data in asked)
    page.locator(".pages").get_by_text("Parameters").click()
    expect(page.locator(".parameter").first).to_be_visible(timeout=60_000)
    assert sum('"parameters"' in data for data in asked) == 1
