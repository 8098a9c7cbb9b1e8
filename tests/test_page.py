"""The page in a real browser, on the real default model: everything here goes through `python app.py`."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("playwright.sync_api")
from playwright.sync_api import Browser, BrowserContext, Error, Page, expect, sync_playwright

from playground.experiments import app_process

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]

ROOT = app_process.ROOT
PAYLOAD = "<img src=x onerror=window.__pwned=1> ${window.__pwned=1} {{constructor}}"


def lane(name: str, strategy: str = "greedy", tokens: int = 24, **more: Any) -> dict[str, Any]:
    return {"name": name, "strategy": strategy, "max_new_tokens": tokens, **more}


def request(*lanes: dict[str, Any], prompt: str = "Name three colours.") -> dict[str, Any]:
    return {"prompt": {"text": prompt}, "lanes": list(lanes), "seed": 7}


TWO_LANES = request(lane("greedy"), lane("top-p", "sample", knobs={"temperature": 0.8, "top_p": 0.95}))
#: Two lanes that go on until somebody stops them.
ENDLESS = {"min_new_tokens": 1000}
LONG = request(lane("greedy", tokens=1000, knobs=ENDLESS), lane("drawn", "sample", tokens=1000, knobs=ENDLESS), prompt="Tell a long story.")


@contextmanager
def served(log: Path, **environment: str) -> Iterator[str]:
    """The app in a process of its own, once it answers."""
    with app_process.served(log, environment) as address:
        yield address


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The app as everybody starts it, with the default model."""
    with served(tmp_path_factory.mktemp("app") / "log.txt") as address:
        yield address


@pytest.fixture(scope="module")
def without_model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The app where no model can ever arrive: offline, with an empty cache."""
    folder = tmp_path_factory.mktemp("bare")
    with served(folder / "log.txt", PLAYGROUND_OFFLINE="1", PLAYGROUND_CACHE=str(folder / "cache")) as address:
        yield address


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        try:
            running = playwright.chromium.launch(executable_path=app_process.chromium(), args=app_process.CHROMIUM_FLAGS)
        except Error as error:
            pytest.skip(f"no Chromium browser: {error}")
        yield running
        running.close()


Opener = Callable[..., Page]


@pytest.fixture
def open_page(browser: Browser, address: str) -> Iterator[Opener]:
    """Opens the page as a new visitor, with a request of the test's own; no page may throw an error."""
    contexts: list[BrowserContext] = []
    errors: list[str] = []

    def opened(asked: dict[str, Any] | None = TWO_LANES, ready: bool = True, query: str = "", **context: Any) -> Page:
        contexts.append(browser.new_context(**{"viewport": {"width": 1400, "height": 900}, "locale": "en-US", **context}))
        page = contexts[-1].new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda message: errors.append(message.text) if "js_on_load" in message.text else None)
        if asked is not None:
            page.add_init_script(
                f"localStorage.getItem('playground.request') ?? localStorage.setItem('playground.request', {json.dumps(json.dumps(asked))})"
            )
        page.goto(address + query)
        if ready:
            expect(page.locator("[data-ref=run]")).to_be_enabled(timeout=300_000)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert not errors


def run(page: Page) -> None:
    page.locator("[data-ref=run]").click()
    page.wait_for_function("window.__playground.run !== null && window.__playground.run !== undefined", timeout=30_000)


def wait_for_tokens(page: Page, count: int, lane: int = 0) -> None:
    page.wait_for_function(f"(window.__playground?.run?.tokens[{lane}]?.length ?? 0) >= {count}", timeout=120_000)


def wait_for_end(page: Page) -> None:
    page.wait_for_function("['done', 'failed'].includes(window.__playground?.run?.phase)", timeout=300_000)
    assert page.evaluate("window.__playground.run.phase") == "done"


def tokens_of(page: Page) -> list[list[int]]:
    return page.evaluate("window.__playground.run.tokens")


def test_the_page_opens_and_shows_every_lane_with_its_stages(open_page: Opener) -> None:
    page = open_page()
    expect(page.get_by_role("heading", name="Decoding Playground")).to_be_visible()
    expect(page.locator(".lane")).to_have_count(2)
    expect(page.locator(".lane").nth(1).locator(".chip")).to_have_text(["temperature 0.8", "top-p 0.95"])


def test_two_lanes_stream_their_tokens_and_numbers(open_page: Opener) -> None:
    page = open_page()
    run(page)
    wait_for_end(page)
    page.wait_for_timeout(300)
    counts = [len(tokens) for tokens in tokens_of(page)]
    assert all(2 <= count <= 24 for count in counts)
    for index, count in enumerate(counts):
        card = page.locator(".lane").nth(index)
        expect(card.locator(".strip .token")).to_have_count(count)
        expect(card.locator(".measure", has_text="tok/s").locator("b")).to_have_text(re.compile(r"^\d+(\.\d+)?$"))
    assert page.evaluate("window.__playground.stats.gaps") == 0


def test_a_step_is_selected_by_click_and_by_arrow_keys(open_page: Opener) -> None:
    page = open_page()
    run(page)
    wait_for_end(page)
    first, second = (page.locator(".lane").nth(index) for index in (0, 1))
    first.locator(".token").nth(1).click()
    where = page.locator(".where").first
    expect(where).to_contain_text("Token 2 of")
    first.locator(".token").nth(1).press("ArrowRight")
    expect(where).to_contain_text("Token 3 of")
    expect(first.locator(".token").nth(2)).to_be_focused()
    page.keyboard.press("Home")
    expect(where).to_contain_text("Token 1 of")
    page.keyboard.press("ArrowDown")
    expect(second.locator(".token").nth(0)).to_be_focused()
    expect(where).to_contain_text("top-p · Token 1 of")
    expect(page.locator(".token[aria-selected=true]")).to_have_count(1)
    page.locator(".focus").scroll_into_view_if_needed()
    expect(page.locator("#playground-panel-pipeline .main-svg").first).to_be_visible(timeout=30_000)


def test_hovering_a_token_shows_its_candidates_before_and_after(open_page: Opener) -> None:
    page = open_page()
    run(page)
    wait_for_end(page)
    page.locator(".lane").nth(1).locator(".token").nth(1).hover()
    expect(page.locator(".popover .candidate.chosen")).to_have_count(1)
    expect(page.locator(".popover")).to_contain_text("die 0.")


def test_every_tab_below_the_lanes_shows_something(open_page: Opener) -> None:
    page = open_page()
    run(page)
    wait_for_end(page)
    page.locator("#playground-tab-loop").click()
    expect(page.locator(".loop-line").first).to_contain_text("model(")
    expect(page.locator(".loop-line").first).to_contain_text("ms")
    for name, figures in (("latency", 2), ("kv", 1), ("entropy", 1)):
        page.locator(f"#playground-tab-{name}").click()
        for index in range(figures):
            area = page.locator(f"#playground-panel-{name} .plot-area").nth(index)
            area.scroll_into_view_if_needed()
            expect(area.locator(".main-svg").first).to_be_visible(timeout=30_000)
    page.locator("#playground-tab-record").click()
    expect(page.locator(".record tbody tr")).to_have_count(2, timeout=30_000)


def test_stop_ends_the_run_and_keeps_what_was_generated(open_page: Opener) -> None:
    page = open_page(LONG)
    run(page)
    wait_for_tokens(page, 5)
    page.locator("[data-ref=stop]").click()
    wait_for_end(page)
    counts = [len(tokens) for tokens in tokens_of(page)]
    assert 5 <= counts[0] < 1000
    expect(page.locator(".lane").first.locator(".end-mark")).to_have_text("stopped")
    expect(page.locator("[data-ref=run]")).to_be_enabled()


def test_pause_holds_the_run_step_moves_every_lane_by_one_resume_goes_on(open_page: Opener) -> None:
    page = open_page(LONG)
    run(page)
    wait_for_tokens(page, 3, lane=1)
    page.locator("[data-ref=pause]").click()
    expect(page.locator("[data-ref=pause]")).to_have_text("Resume")
    page.wait_for_timeout(500)
    before = [len(tokens) for tokens in tokens_of(page)]
    page.locator("[data-ref=step]").click()
    wait_for_tokens(page, before[0] + 1, lane=0)
    wait_for_tokens(page, before[1] + 1, lane=1)
    page.wait_for_timeout(500)
    assert [len(tokens) for tokens in tokens_of(page)] == [count + 1 for count in before]
    page.locator("[data-ref=pause]").click()
    wait_for_tokens(page, before[0] + 4)
    page.locator("[data-ref=stop]").click()
    wait_for_end(page)


def test_the_language_follows_the_browser_and_the_switch_and_lasts(open_page: Opener) -> None:
    page = open_page(locale="zh-CN")
    expect(page.get_by_role("heading", name="解码实验场")).to_be_visible()
    page.get_by_role("button", name="EN", exact=True).click()
    expect(page.get_by_role("heading", name="Decoding Playground")).to_be_visible()
    assert page.evaluate("document.documentElement.lang") == "en"
    page.reload()
    expect(page.get_by_role("heading", name="Decoding Playground")).to_be_visible()
    expect(page.locator("[data-ref=run]")).to_contain_text("Run")


def test_hostile_text_is_shown_and_never_run(open_page: Opener) -> None:
    stop = PAYLOAD[:40]
    page = open_page(request(lane(PAYLOAD[:60], tokens=8, stop=[stop]), lane("b", "sample", tokens=8), prompt=PAYLOAD))
    expect(page.locator(".lane-name").first).to_have_value(PAYLOAD[:60])
    run(page)
    wait_for_end(page)
    page.locator(".rendered summary").click()
    expect(page.locator(".rendered-tokens")).to_contain_text("onerror")
    page.locator(".lane").first.locator(".token").first.hover()
    page.locator(".lane").first.locator(".lane-head button").first.click()
    expect(page.locator(".drawer-title")).to_contain_text("<img src=x onerror")
    expect(page.locator("[data-focus=lane-stop]")).to_have_value(stop)
    page.keyboard.press("Escape")
    for name in ("latency", "entropy", "record"):
        page.locator(f"#playground-tab-{name}").click()
        page.locator(".focus").scroll_into_view_if_needed()
        page.wait_for_timeout(1500)
    assert page.evaluate("window.__pwned") is None
    assert page.locator("img[src=x]").count() == 0


def test_a_reload_in_mid_run_picks_it_up_with_no_token_missing(open_page: Opener) -> None:
    page = open_page(LONG)
    run(page)
    wait_for_tokens(page, 12)
    before = tokens_of(page)
    page.reload()
    wait_for_tokens(page, len(before[0]) + 5)
    page.locator("[data-ref=stop]").click()
    wait_for_end(page)
    after = tokens_of(page)
    for old, new in zip(before, after, strict=True):
        assert new[: len(old)] == old
    page.wait_for_timeout(300)
    for index, tokens in enumerate(after):
        expect(page.locator(".lane").nth(index).locator(".strip .token")).to_have_count(len(tokens))


def test_the_same_run_asked_for_again_and_again_runs_every_time(open_page: Opener) -> None:
    """What is on the page already isn't shown again: Run again runs, and writes the same."""
    page = open_page(request(lane("greedy"), prompt="Name three rivers."))
    run(page)
    wait_for_end(page)
    tokens = tokens_of(page)
    for again in range(3):
        if again == 1:
            page.reload()
            wait_for_end(page)
        follows, made = page.evaluate("[window.__playground.bus.follows, window.__playground.run.id]")
        expect(page.locator("[data-ref=run]")).to_contain_text("Run again")
        page.locator("[data-ref=run]").click()
        page.wait_for_function(f"window.__playground.bus.follows > {follows} && window.__playground.run?.id !== {made!r}", timeout=30_000)
        wait_for_end(page)
        assert tokens_of(page) == tokens


def test_a_refused_value_goes_back_and_says_why(open_page: Opener) -> None:
    page = open_page()
    page.locator(".lane").nth(1).locator(".lane-head button").first.click()
    box = page.locator("[data-focus=knob-top_p]")
    expect(box).to_have_value("0.95")
    box.fill("7")
    box.press("Tab")
    expect(page.locator("[data-knob=top_p] .error")).to_contain_text("(0, 1]")
    expect(box).to_have_value("0.95")


def test_an_inherited_default_is_removed_in_one_click(open_page: Opener) -> None:
    page = open_page(request(lane("inherits", "sample", defaults="inherit")))
    chip = page.locator(".lane .chip", has_text="top-k")
    expect(chip).to_contain_text("transformers’ default")
    chip.locator(".chip-off").click()
    expect(chip).to_have_count(0)


def test_two_visitors_wait_in_one_line_and_see_their_own_runs(open_page: Opener) -> None:
    first, second = open_page(LONG), open_page(request(lane("mine", tokens=6)))
    run(first)
    wait_for_tokens(first, 3)
    run(second)
    expect(second.locator("[data-ref=statusText]")).to_contain_text("1 ahead", timeout=20_000)
    assert first.evaluate("window.__playground.run.id") != second.evaluate("window.__playground.run.id")
    first.locator("[data-ref=stop]").click()
    wait_for_end(first)
    wait_for_end(second)
    assert len(tokens_of(second)) == 1 and len(tokens_of(second)[0]) <= 6


def test_closing_the_tab_frees_the_device_for_the_next_visitor(open_page: Opener) -> None:
    first, second = open_page(LONG), open_page(request(lane("mine", tokens=4)))
    run(first)
    wait_for_tokens(first, 3)
    run(second)
    first.close()
    wait_for_end(second)
    assert len(tokens_of(second)[0]) >= 1


def test_a_run_can_be_watched_by_its_address_but_not_controlled(open_page: Opener) -> None:
    owner = open_page(LONG)
    run(owner)
    wait_for_tokens(owner, 3)
    guest = open_page(ready=False, query=f"?run={owner.evaluate('window.__playground.run.id')}")
    wait_for_tokens(guest, 5)
    expect(guest.locator("#playground-prompt")).to_have_value("Tell a long story.")
    expect(guest.locator("[data-ref=stop]")).to_be_hidden()
    owner.locator("[data-ref=stop]").click()
    wait_for_end(owner)
    wait_for_end(guest)
    assert tokens_of(guest) == tokens_of(owner)


def test_a_run_that_the_server_has_forgotten_leaves_the_page_idle(open_page: Opener) -> None:
    page = open_page()
    page.evaluate("sessionStorage.setItem('playground.run', JSON.stringify({id: 'gone', uids: ['a'], ranAs: []}))")
    page.reload()
    page.wait_for_function("window.__playground?.run === null", timeout=60_000)
    expect(page.locator("[data-ref=run]")).to_be_visible()
    expect(page.locator("[data-ref=run]")).to_be_enabled(timeout=60_000)


@pytest.mark.parametrize("language", ["en-US", "zh-CN"])
def test_nothing_overflows_on_a_phone(open_page: Opener, language: str) -> None:
    page = open_page(viewport={"width": 390, "height": 844}, has_touch=True, locale=language)
    run(page)
    wait_for_end(page)
    expect(page.locator(".lane:visible")).to_have_count(1)
    page.locator(".lane-tab").nth(1).click()
    page.locator(".lane.front .token").first.tap()
    expect(page.locator(".popover.sheet")).to_be_visible()
    page.keyboard.press("Escape")
    for tab in ("pipeline", "loop", "latency", "kv", "entropy", "record"):
        page.locator(f"#playground-tab-{tab}").click()
        page.wait_for_timeout(600)
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, tab
    page.locator("[data-ref=settings]").click()
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0


# --- recordings --------------------------------------------------------------------------


def wait_for_parting(page: Page) -> None:
    page.wait_for_function("(window.__playground?.replay?.tokens?.[0]?.length ?? 0) > 0", timeout=30_000)
    page.wait_for_function("window.__playground.replay.playing === false", timeout=30_000)


def recorded_counts(page: Page) -> list[int]:
    return page.evaluate("window.__playground.replay.tokens.map((tokens) => tokens.length)")


@pytest.fixture
def open_bare(browser: Browser, without_model: str) -> Iterator[Opener]:
    """Opens the page as a visitor who was never here, where there is no model; no page may throw an error."""
    contexts: list[BrowserContext] = []
    errors: list[str] = []

    def opened(before: Callable[[Page], None] | None = None, **context: Any) -> Page:
        contexts.append(browser.new_context(**{"viewport": {"width": 1400, "height": 900}, "locale": "en-US", **context}))
        page = contexts[-1].new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))
        if before is not None:
            before(page)
        page.goto(without_model)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert not errors


def test_a_recording_moves_with_no_model_and_stops_where_the_lanes_part(open_bare: Opener) -> None:
    began = time.monotonic()
    page = open_bare()
    page.wait_for_function("(window.__playground?.replay?.tokens?.[0]?.length ?? 0) > 0", timeout=30_000)
    seconds = time.monotonic() - began
    print(f"from opening the page to the first recorded token: {seconds:.2f} s")
    assert seconds < 8
    wait_for_parting(page)
    expect(page.locator(".recorded-badge")).to_have_text("Recorded")
    expect(page.locator("[data-ref=recordedFrom]")).to_contain_text("CPU cores")
    expect(page.locator("[data-ref=parting]")).to_contain_text("they part")
    expect(page.locator(".token.parted")).to_have_count(2)
    expect(page.locator("[data-ref=run]")).to_contain_text("Run it here")
    expect(page.locator("[data-ref=run]")).to_be_disabled()
    expect(page.locator(".token[aria-selected=true]")).to_have_count(1)


def test_every_view_of_a_recording_works_without_a_model(open_bare: Opener) -> None:
    page = open_bare()
    wait_for_parting(page)
    page.locator(".lane").nth(2).locator(".token").nth(1).click()
    expect(page.locator(".where").first).to_contain_text("top-p · Token 2 of")
    for name in ("pipeline", "latency", "kv", "entropy"):
        page.locator(f"#playground-tab-{name}").click()
        area = page.locator(f"#playground-panel-{name} .plot-area").first
        area.scroll_into_view_if_needed()
        expect(area.locator(".main-svg").first).to_be_visible(timeout=30_000)
    page.locator("#playground-tab-loop").click()
    expect(page.locator(".loop-line").first).to_contain_text("model(")
    page.locator("#playground-tab-record").click()
    expect(page.locator(".record tbody tr")).to_have_count(page.locator(".lane").count(), timeout=30_000)
    page.locator("#playground-tab-latency").click()
    expect(page.locator("#playground-panel-latency .plot-area").first).to_contain_text("RECORDED")


def test_a_recording_steps_plays_faster_and_begins_anew(open_bare: Opener) -> None:
    page = open_bare()
    wait_for_parting(page)
    before = recorded_counts(page)
    page.locator("[data-ref=replayStep]").click()
    page.wait_for_function(f"window.__playground.replay.tokens.every((tokens, lane) => tokens.length > {json.dumps(before)}[lane])")
    page.locator("[data-ref=replaySpeed]").click()
    page.locator("[data-ref=replaySpeed]").click()
    expect(page.locator("[data-ref=replaySpeed]")).to_have_text("4×")
    page.locator("[data-ref=replayPlay]").click()
    page.wait_for_function("window.__playground.replay.ended", timeout=60_000)
    expect(page.locator(".end-mark")).to_have_count(page.locator(".lane").count())
    expect(page.locator("[data-ref=replayStep]")).to_be_disabled()
    page.locator("[data-ref=replayPlay]").click()
    page.wait_for_function("[1, 2, 3, 4, 5].includes(window.__playground.replay.tokens[0].length)")
    page.locator("[data-ref=replayPlay]").click()
    expect(page.locator("[data-ref=replayPlay]")).to_have_text("Play on")


def test_with_reduced_motion_a_recording_starts_where_the_lanes_part(open_bare: Opener) -> None:
    page = open_bare(reduced_motion="reduce")
    wait_for_parting(page)
    expect(page.locator("[data-ref=parting]")).to_contain_text("they part")
    # The lanes that sample stand where greedy does; a beam search takes longer over each token.
    greedy, beams, *drawn = recorded_counts(page)
    assert beams <= greedy and set(drawn) == {greedy}


@pytest.mark.parametrize("language", ["en-US", "zh-CN"])
def test_a_recording_fits_a_phone(open_bare: Opener, language: str) -> None:
    page = open_bare(viewport={"width": 390, "height": 844}, has_touch=True, locale=language)
    wait_for_parting(page)
    expect(page.locator(".lane:visible")).to_have_count(2)  # the two that part
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    page.locator("[data-ref=recordings]").tap()
    expect(page.locator(".menu-item.recording")).to_have_count(7)  # six, and a file of one's own
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0


def test_another_recording_is_chosen_and_lasts_over_a_reload(open_bare: Opener) -> None:
    page = open_bare()
    wait_for_parting(page)
    page.locator("[data-ref=recordings]").click()
    page.locator(".menu-item.recording", has_text="0.2").first.click()
    page.wait_for_function("window.__playground.replay.name === 'temperature'")
    expect(page.locator("#playground-prompt")).to_have_value(re.compile("robot"))
    expect(page.locator(".lane-name").nth(2)).to_have_value("T = 1.8")
    page.reload()
    wait_for_parting(page)
    assert page.evaluate("window.__playground.replay.name") == "temperature"


def test_a_live_run_replaces_the_recording(open_page: Opener) -> None:
    page = open_page(asked=None)
    wait_for_parting(page)
    run(page)
    expect(page.locator("[data-ref=recorded]")).to_be_hidden()
    wait_for_tokens(page, 2)
    assert page.evaluate("window.__playground.replay") is None
    page.locator("[data-ref=stop]").click()
    wait_for_end(page)


def test_a_request_of_ones_own_is_not_replaced_by_a_recording(open_page: Opener) -> None:
    page = open_page()
    expect(page.locator("[data-ref=recorded]")).to_be_hidden()
    expect(page.locator("[data-ref=recordings]")).to_be_visible()
    assert page.evaluate("window.__playground.replay") is None


def test_a_slow_answer_never_overwrites_what_is_being_typed(open_page: Opener) -> None:
    """Values typed faster than they are answered: the field keeps the newest; a refused one goes back everywhere, and says so beside the field."""
    page = open_page()
    page.route(re.compile("component_server"), lambda route: (time.sleep(0.6), route.continue_())[1])
    page.locator(".lane").nth(1).locator(".lane-head button").first.click()
    box, note = page.locator("[data-focus=knob-top_p]"), page.locator(".lane").nth(1).locator(".lane-note")
    for value in ("-1", "abc"):
        box.fill(value)
        box.press("Enter")
        page.wait_for_timeout(400)
    box.fill("99999")
    page.wait_for_timeout(3_000)
    expect(box).to_have_value("99999")
    box.press("Tab")
    expect(page.locator("[data-knob=top_p] .error")).to_contain_text("99999", timeout=20_000)
    expect(box).to_have_value("0.95")
    expect(page.locator("[data-focus=knob-top_p-slider]")).to_have_value("0.95")
    expect(page.locator(".lane").nth(1).locator(".chip", has_text="top-p")).to_have_text("top-p 0.95")
    expect(note).not_to_contain_text("top_p")
    page.unroute_all(behavior="ignoreErrors")
