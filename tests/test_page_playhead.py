# ruff: noqa: F401, F811  (fixtures are imported, and named again as arguments)
"""What the page shows while a recording plays belongs to that recording, and to the moment at which it stands."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("playwright.sync_api")
from playwright.sync_api import Browser, Page, expect

from playground.records.recordings import RECORDINGS
from playground.ui.app import ASSETS
from playground.ui.recordings import Recordings
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


#: The page's own scripts around what stands above the lanes, with nothing else of the page: plays a recording, and gives after
#: every packet what is said of every two lanes, and what those lanes show.
TELL = """
(recording, live) => {
  language = "en";
  const node = () => document.createElement("div");
  const uids = recording.about.lanes.map((_, lane) => `lane-${lane}`);
  const app = {
    run: recordedRun(recording, uids), replay: live ? null : new Replay(recording, () => {}), whole: true, canStart: false,
    ref: { parted: node(), parting: node(), partingWhy: node(), partedTools: node() }, request: { lanes: [{ uid: uids[0] }] },
    selection: { uid: uids[0] }, lanes: { card: () => null }, laneName: (uid) => recording.about.lanes[uids.indexOf(uid)].name,
    colourOf: () => "red", theme: () => "light", stage: () => null, call: async () => ({ position: null, sides: [] }),
  };
  const parting = new Parting(app);
  const pairs = uids.flatMap((_, a) => uids.slice(a + 1).map((_, b) => [a, a + 1 + b]));
  const told = [];
  for (const packet of recording.packets) {
    app.run.apply({ ...packet, state: app.run.state });
    if (app.replay) app.replay.next += 1;
    const lanes = app.run.lanes.map((log) => log.tokens.map((token) => token.n));
    const sentences = [null, ...pairs].map((pair) => {
      parting.chosen = pair && pair.map((lane) => uids[lane]);
      parting.draw();
      const codes = [...app.ref.parting.querySelectorAll("code")];
      return { chosen: pair, pair: parting.lanes, said: app.ref.parting.textContent, tokens: codes.map((code) => code.textContent) };
    });
    told.push({ lanes, sentences });
  }
  return told;
}
"""


def false_of_the_lanes(said: str, names: list[str], texts: list[list[str]], final: list[list[str]]) -> str | None:
    """What is wrong with a sentence about two lanes, given their tokens now and at the end; None where it is true."""
    a, b = texts
    differ = next((at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)
    at_the_end = next((at for at, (x, y) in enumerate(zip(*final, strict=False)) if x != y), None)
    both = re.escape(f"{names[0]} and {names[1]}")
    if said == "Nothing to compare yet.":
        return None if not a or not b else "there is something to compare"
    if found := re.fullmatch(rf"{both} are the same so far: (\d+) tokens\.", said):
        return None if differ is None and int(found[1]) == min(len(a), len(b)) else f"they differ at {differ}"
    if found := re.fullmatch(rf"{both} never part: both wrote the same (\d+) tokens\.", said):
        return None if a == b == final[0] == final[1] and len(a) == int(found[1]) else "they wrote, or will write, something else"
    if found := re.fullmatch(rf"{both} never part: (.+) is the beginning of (.+), the same for all of its (\d+) tokens\.", said):
        short, long = (final[names.index(found[1])], final[names.index(found[2])])
        return None if len(short) == int(found[3]) and long[: len(short)] == short and differ is None else "it isn't the beginning"
    if found := re.match(rf"As they stand, {both} differ from token (\d+) on; that isn't settled yet: (.+) can still replace its text\.$", said):
        return None if differ == int(found[1]) - 1 and found[2] in names else f"they differ at {differ}"
    if found := re.match(r"Token (\d+): they part\.", said):
        return None if differ == at_the_end == int(found[1]) - 1 else f"they differ at {differ}, in the end at {at_the_end}"
    return "nobody knows this sentence"


Tell = Callable[[dict[str, Any], bool], list[dict[str, Any]]]


@pytest.fixture
def tell(browser: Browser) -> Iterator[Tell]:
    """Gives what is said of the lanes of a recording after every packet, as it plays or as if it were a live run."""
    scripts = "\n".join((ASSETS / f"{name}.js").read_text() for name in ("dom", "texts", "numbers", "run", "replay", "plots", "parting"))
    page = browser.new_page()
    page.route("**/*", lambda route: route.fulfill(body="<!doctype html>", content_type="text/html"))
    page.goto("http://page.test/")
    yield lambda recording, live: page.evaluate(f"([recording, live]) => {{ {scripts}; return ({TELL})(recording, live); }}", [recording, live])
    page.close()


@pytest.mark.parametrize("recording", [one.name for one in RECORDINGS])
def test_what_is_said_of_two_lanes_is_true_of_what_they_show_at_every_step(tell: Tell, recording: str) -> None:
    answer = Recordings().recording(recording)
    wrong, unsettled = [], 0
    for live in (False, True):
        told = tell(answer, live)
        final = told[-1]["lanes"]
        names = [lane["name"] for lane in answer["about"]["lanes"]]
        for lanes, one in [(moment["lanes"], one) for moment in told for one in moment["sentences"]]:
            pair = one["pair"]
            if not live and one["chosen"] is None and one["said"] == answer["line"]["en"]:
                continue  # what the recording is about
            texts = [lanes[lane] for lane in pair]
            if false := false_of_the_lanes(one["said"], [names[lane] for lane in pair], texts, [final[lane] for lane in pair]):
                wrong.append((live, pair, one["said"], false))
            if one["tokens"]:
                position = int(re.search(r"\d+", one["said"])[0]) - 1
                assert one["tokens"] == [text[position] for text in texts]
            unsettled += "isn't settled yet" in one["said"]
    assert not wrong, f"{len(wrong)} sentences are false, first {wrong[0]}"
    assert (unsettled > 0) == any(lane["strategy"] == "beam" for lane in answer["about"]["lanes"])


def test_tokens_of_two_vocabularies_are_compared_by_what_they_write(tell: Tell) -> None:
    answer = Recordings().recording("copying")  # two lanes that write the same
    as_it_is = [moment["sentences"][1]["said"] for moment in tell(answer, True)]
    about = {**answer["about"], "lanes": [{**lane, "model": f"model {index}"} for index, lane in enumerate(answer["about"]["lanes"])]}
    renumbered = [
        {
            **packet,
            "events": [[lane, kind, {**event, "t": event["t"] + lane} if kind == "token" else event] for lane, kind, event in packet["events"]],
        }
        for packet in answer["packets"]
    ]
    assert [moment["sentences"][1]["said"] for moment in tell({**answer, "about": about, "packets": renumbered}, True)] == as_it_is


def expect_record(page: Page, counts: list[int]) -> None:
    """The record has so many tokens, lane by lane."""
    page.locator("#playground-tab-record").click()
    expect(page.locator(".record tbody tr td:nth-child(4)")).to_have_text([str(count) for count in counts])


def test_figures_and_tables_follow_the_playhead_until_the_whole_run_is_wanted(open_bare: Opener) -> None:
    page = open_bare()
    wait_for_parting(page)
    counts = recorded_counts(page)
    expect_record(page, counts)
    page.locator("#playground-tab-kv").click()
    panel = page.locator("#playground-panel-kv")
    panel.locator(".plot-area").scroll_into_view_if_needed()
    caption = panel.locator(".plot-text")
    for kv in page.locator(".lane .measure", has_text="KV").locator("b").all_text_contents():
        expect(caption).to_contain_text(f"{kv} MB")
    before = caption.text_content()
    page.locator("[data-ref=replayStep]").click()
    expect(caption).not_to_have_text(before)
    expect(caption).to_contain_text(f"{page.locator('.lane .measure', has_text='KV').locator('b').first.text_content()} MB")
    whole = page.locator(".extent [data-whole=true]")
    whole.click()
    expect(caption).to_contain_text("greedy: 123 × 1")
    expect_record(page, [80] * 4)
    assert recorded_counts(page) != [80] * 4  # the lanes still stand where they stood
    page.locator(".extent [data-whole=false]").click()
    expect(page.locator(".record tbody tr td:nth-child(4)").first).to_have_text(str(recorded_counts(page)[0]))


def accepted_at_rest(page: Page) -> str:
    """What the head of the rounds says once the recording stands still."""
    page.wait_for_function("!window.__playground.replay.playing")
    page.evaluate("() => new Promise(requestAnimationFrame).then(() => new Promise(requestAnimationFrame))")
    head = page.locator(".speculation:not(.remote-speculation) .where").text_content()
    return re.search(r"\d+ of \d+ guesses accepted", head)[0]


def test_the_speculation_tab_tells_of_one_moment(open_bare: Opener) -> None:
    page = open_bare()
    wait_for_parting(page)
    choose(page, "copying")
    page.wait_for_function("window.__playground.replay.tokens[1].length > 20")
    page.locator("[data-ref=replayPlay]").click()
    head, verdict = page.locator(".speculation:not(.remote-speculation) .where"), page.locator(".draft-verdict")
    here = accepted_at_rest(page)
    expect(verdict).to_contain_text(here)
    page.locator(".extent [data-whole=true]").click()
    expect(head).to_contain_text("51 of 85 guesses accepted")
    expect(verdict).to_contain_text("51 of 85 guesses accepted")
    expect(page.locator(".draft-round")).to_have_count(28)
    told = verdict.text_content()
    for _ in range(2):
        page.locator("[data-ref=replaySpeed]").click()
    page.locator("[data-ref=replayPlay]").click()
    page.wait_for_function("window.__playground.replay.ended", timeout=60_000)
    expect(page.locator(".extent [data-whole=true]")).to_have_attribute("aria-pressed", "true")
    assert verdict.text_content() == told
    page.locator(".extent [data-whole=false]").click()
    expect(page.locator(".draft-round")).to_have_count(28)
    expect(verdict).to_have_text(told)
    # Played again from its beginning, nothing of its end is left.
    page.locator("[data-ref=replayPlay]").click()
    page.wait_for_function("window.__playground.replay.tokens[1].length > 8")
    page.locator("[data-ref=replayPlay]").click()
    here = accepted_at_rest(page)
    assert here != "51 of 85 guesses accepted"
    expect(verdict).to_contain_text(here)


#: Chooses a recording, and notes at every frame of the next two seconds of which run the page is and what its picture is said to show.
FRAMES = """async (index) => {
  const seen = [], began = performance.now();
  document.querySelectorAll(".menu-item.recording")[index].click();
  while (performance.now() - began < 2000) {
    const area = document.querySelector("#playground-panel-kv .plot-area");
    seen.push([window.__playground.replay.name, area.getAttribute("aria-label"), area.parentElement.querySelector("figcaption").textContent]);
    await new Promise(requestAnimationFrame);
  }
  return seen;
}"""


def test_no_frame_shows_the_picture_of_another_run(open_bare: Opener) -> None:
    page = open_bare(reduced_motion="reduce")
    wait_for_parting(page)
    page.locator("#playground-tab-kv").click()
    area = page.locator("#playground-panel-kv .plot-area")
    area.scroll_into_view_if_needed()
    expect(area.locator(".main-svg").first).to_be_visible(timeout=30_000)
    old = area.get_attribute("aria-label")
    page.evaluate("scrollTo(0, 0)")
    page.wait_for_timeout(200)  # a menu closes when the page scrolls
    page.locator("[data-ref=recordings]").click()
    expect(page.locator(".menu-item.recording").first).to_be_visible()
    frames = page.evaluate(FRAMES, [one.name for one in RECORDINGS].index("temperature"))
    after = [frame for frame in frames if frame[0] == "temperature"]
    assert after and old
    assert not [frame for frame in after if old in (frame[1], frame[2])]


def test_a_picture_out_of_sight_is_brought_up_to_date(open_bare: Opener) -> None:
    page = open_bare(reduced_motion="reduce", viewport={"width": 1400, "height": 500})
    wait_for_parting(page)
    page.locator("#playground-tab-kv").click()
    area = page.locator("#playground-panel-kv .plot-area")
    area.scroll_into_view_if_needed()
    expect(area.locator(".main-svg").first).to_be_visible(timeout=30_000)
    before = area.get_attribute("aria-label")
    page.evaluate("scrollTo(0, 0)")
    expect(area).not_to_be_in_viewport()
    page.evaluate("document.querySelector('[data-ref=replayStep]').click()")
    expect(area).not_to_have_attribute("aria-label", before, timeout=10_000)
    expect(page.locator("#playground-panel-kv figure").first).to_have_attribute("aria-busy", "false")
    expect(area).not_to_be_in_viewport()
