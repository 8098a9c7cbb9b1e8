# ruff: noqa: F401, F811  (fixtures are imported, and named again as arguments)
"""Servers in a real browser: a recorded vLLM behind the page, a baseline beside it, and no model on this machine."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("playwright.sync_api")
from playwright.sync_api import Browser, Page, expect

from tests.recorded_server import RECORDED, Ask, RecordedServer, Reply, chunked, recorded, serving, text, vllm
from tests.test_page import Opener, browser, lane, open_page, request, served, wait_for_end
from tests.test_screens import looks_right
from tests.test_server_speculation import page as metrics_page

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]

WORDS = ["the", " cat", " sat", " on", " the", " mat", ".", "\n"]


def fast(ask: Ask) -> Reply:
    """vLLM with n-gram speculation: the recording, a few times faster."""
    return vllm(ask, speed=10.0)


def plain(ask: Ask) -> Reply:
    """The same without speculation: a token per chunk, no figures of drafts."""
    if ask.path == "/metrics":
        return text("\n".join(line for line in (RECORDED / "metrics.txt").read_text().splitlines() if "spec_decode" not in line), kind="text/plain")
    return vllm(ask, stream=token_by_token, speculates=False)


def token_by_token(ask: Ask, certain: bool = False) -> Reply:
    """A completion of whole tokens with ids and log-probabilities; `certain` ones are 0.0 without a rival."""
    count = min(int(ask.body["max_tokens"]), 24)
    chunks: list[dict[str, Any]] = []
    for index in range(count):
        word = WORDS[index % len(WORDS)]
        top = {word: 0.0} if certain else {word: -0.2, " dog": -2.0}
        logprobs = {"tokens": [word], "token_logprobs": [top[word]], "top_logprobs": [top]}
        ended = "length" if index == count - 1 else None
        chunks.append({"choices": [{"text": word, "token_ids": [100 + index % len(WORDS)], "logprobs": logprobs, "finish_reason": ended}]})
    usage = {"prompt_tokens": 5, "completion_tokens": count, "total_tokens": 5 + count}
    times = {"time_to_first_token_ms": 4.0, "queue_time_ms": 0.1, "generation_time_ms": 200.0, "mean_itl_ms": 9.0, "tokens_per_second": 110.0}
    return chunked([*chunks, {"choices": [], "usage": usage, "metrics": times}], pause=0.008)


@pytest.fixture(scope="module")
def lab() -> Iterator[RecordedServer]:
    with serving(fast) as server:
        yield server


@pytest.fixture(scope="module")
def bare() -> Iterator[RecordedServer]:
    with serving(plain) as server:
        yield server


@pytest.fixture(scope="module")
def address(lab: RecordedServer, bare: RecordedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The app where no model can ever arrive, with two servers configured."""
    folder = tmp_path_factory.mktemp("servers")
    environment = {"PLAYGROUND_OFFLINE": "1", "PLAYGROUND_CACHE": str(folder / "cache"), "PLAYGROUND_SERVERS": f"lab={lab.url} plain={bare.url}"}
    with served(folder / "log.txt", **environment) as address:
        yield address


@pytest.fixture(autouse=True)
def as_recorded(lab: RecordedServer, bare: RecordedServer) -> None:
    lab.answer, bare.answer = fast, plain


def on(server: str, name: str, **more: Any) -> dict[str, Any]:
    return lane(name, tokens=48, server=server, **more)


def run_it(page: Page) -> None:
    expect(page.locator("[data-ref=run]")).to_be_enabled(timeout=120_000)
    page.locator("[data-ref=run]").click()
    page.wait_for_function("window.__playground.run !== null && window.__playground.run !== undefined", timeout=30_000)
    wait_for_end(page)


def servers_page(opener: Opener, **context: Any) -> Page:
    page = opener(None, ready=False, query="?show=servers", **context)
    page.locator(".server-card").first.wait_for(timeout=120_000)
    return page


def test_what_a_server_can_do_is_asked_once_and_shown(open_page: Opener, lab: RecordedServer) -> None:
    page = servers_page(open_page)
    card = page.locator('.server-card[data-server="lab"]')
    expect(card).to_contain_text("Not asked yet.")
    card.get_by_role("button", name="Ask what it can do").click()
    expect(card.locator('[data-can="kind"]')).to_contain_text("vLLM 0.32.0", timeout=60_000)
    expect(card.locator('[data-can="logprobs"]')).to_contain_text("5 per step · raw, before temperature")
    expect(card.locator('[data-can="chat"] .can')).to_have_text("–")
    expect(card.locator('[data-can="request_speculation"] .can')).to_have_text("✓")
    expect(card.locator('[data-can="refused"]')).to_contain_text("min_p, logit_bias")
    # An address that nobody answers at has one clear message.
    page.get_by_label("Address").fill("http://127.0.0.1:9")
    page.get_by_label("Address").press("Enter")
    gone = page.locator('.server-card[data-server="127.0.0.1:9"]')
    expect(gone.locator(".error")).to_be_visible(timeout=30_000)
    gone.get_by_role("button", name="Forget").click()
    expect(gone).to_have_count(0)
    card.get_by_role("button", name="Add a lane on it").click()
    expect(page.locator(".lane .server-chip")).to_contain_text("on lab smol")


def test_a_server_lane_streams_with_chunks_numbers_and_its_own_figures(open_page: Opener) -> None:
    page = open_page(request(on("lab", "far")), ready=False)
    run_it(page)
    card = page.locator(".lane").first
    expect(card.locator(".strip .token")).to_have_count(48)
    # Chunks of 1, nine of 5, and 2 tokens: each of several tokens is one group.
    expect(card.locator(".token.chunk-on:not(.chunk-in)")).to_have_count(10)
    expect(card.locator(".token.chunk-in:not(.chunk-on)")).to_have_count(10)
    names = [name.strip() for name in card.locator(".numbers .measure:visible dt").all_inner_texts()]
    assert {"TTFT", "TPOT", "chunk gap p50", "amortised p50", "tok/chunk", "queue", "mean ITL"} <= set(names)
    assert not any(name.startswith("ITL") for name in names)  # a chunk gap is no token latency
    expect(card.locator(".measure", has_text="tok/chunk").locator("b")).to_have_text("4.36")
    expect(card.locator(".measures-reported")).to_have_text("reported by the server")
    card.locator(".token").nth(2).click()
    expect(page.locator(".popover")).to_contain_text("raw, before temperature")
    expect(page.locator(".popover")).to_contain_text("Chunk 2: 5 tokens")
    page.keyboard.press("Escape")
    for tab in ("loop", "kv"):
        page.locator(f"#playground-tab-{tab}").click()
        expect(page.locator(".remote-note")).to_contain_text("n/a (remote)")
    page.locator("#playground-tab-speculation").click()
    expect(page.locator(".remote-rounds .draft-round")).to_have_count(10)
    expect(page.locator('.remote-speculation [data-row="accepted"]')).to_contain_text("40")
    expect(page.locator(".remote-source")).to_contain_text("for this request")
    page.locator(".remote-go").nth(1).click()
    expect(card.locator(".token.of-round")).to_have_count(5)


def aborting(ask: Ask) -> Reply:
    """A server that gives every reply up after three tokens."""
    ends = (None, None, "abort")
    return vllm(ask, stream=lambda _: chunked([{"choices": [{"text": word, "finish_reason": end}]} for word, end in zip(WORDS, ends, strict=False)]))


def test_a_lane_shows_its_servers_own_word_for_an_end_that_is_no_normal_one(open_page: Opener, lab: RecordedServer) -> None:
    page = open_page(request(on("lab", "far")), ready=False)
    lab.answer = aborting
    run_it(page)
    card = page.locator(".lane").first
    expect(card.locator(".strip .token")).to_have_count(3)
    expect(card.locator(".end-mark")).to_have_text("abort")
    expect(card.locator(".lane-note.wrong")).to_contain_text("“abort”")


def test_what_a_server_cannot_do_stands_on_the_lane_before_the_run(open_page: Opener) -> None:
    page = open_page(request(on("lab", "far")), ready=False)
    expect(page.locator("[data-ref=run]")).to_be_enabled(timeout=120_000)
    page.get_by_role("button", name="Settings of far").click()
    expect(page.locator('[data-knob="no_repeat_ngram_size"] .stage-off')).to_have_text("unknown to lab", timeout=60_000)
    expect(page.locator('[data-knob="min_p"] .stage-off')).to_have_text("refused by lab")
    page.keyboard.press("Escape")
    page.locator(".lane-strategy").select_option("beam")
    expect(page.locator("[data-ref=statusText]")).to_contain_text("not while it streams", timeout=30_000)
    expect(page.locator(".lane-strategy")).to_have_value("greedy")


def test_a_reply_that_breaks_off_keeps_its_tokens_and_the_other_lane_goes_on(open_page: Opener, lab: RecordedServer) -> None:
    def broken(_: Ask) -> Reply:
        whole = recorded("completions_ngram_greedy", 10)
        return Reply(list(whole.body)[:4], breaks=True)

    page = open_page(request(on("lab", "far"), on("plain", "beside")), ready=False)
    page.locator(".server-chip").first.wait_for(timeout=60_000)
    page.get_by_role("link", name="Servers").click()
    page.locator('.server-card[data-server="lab"] .capabilities, .server-card[data-server="lab"] button').first.wait_for()
    if not page.locator('.server-card[data-server="lab"] .capabilities').count():
        page.locator('.server-card[data-server="lab"]').get_by_role("button", name="Ask what it can do").click()
        expect(page.locator('.server-card[data-server="lab"] .capabilities')).to_be_visible(timeout=60_000)
    page.get_by_role("link", name="Compare").click()
    lab.answer = lambda ask: vllm(ask, stream=broken)
    run_it(page)
    first, second = page.locator(".lane").nth(0), page.locator(".lane").nth(1)
    expect(first.locator(".lane-note.wrong")).to_contain_text("incomplete")
    assert 0 < first.locator(".strip .token").count() < 48
    expect(second.locator(".strip .token")).to_have_count(24)


def test_numbers_that_cannot_be_right_are_called_untrustworthy(open_page: Opener, bare: RecordedServer) -> None:
    bare.answer = lambda ask: vllm(ask, stream=lambda a: token_by_token(a, certain=a.body["max_tokens"] > 8), speculates=False)
    page = open_page(request(on("plain", "sure")), ready=False)
    run_it(page)
    expect(page.locator(".lane-note")).to_contain_text("untrustworthy")
    page.locator(".lane .token").first.click()
    expect(page.locator(".popover .doubt")).to_contain_text("names no other")
    expect(page.locator(".popover .candidates")).to_have_count(0)


def test_the_experiment_runs_and_gives_record_figures_and_an_answer(open_page: Opener) -> None:
    page = servers_page(open_page)
    panel = page.locator("section[aria-labelledby=playground-servers-load]")
    panel.locator("[data-focus=baseline]").select_option("plain")
    panel.locator("[data-focus=speculative]").select_option("lab")
    panel.get_by_label("Streams at once").fill("1, 2")
    panel.get_by_label("Repeats").fill("2")
    panel.get_by_label("Most new tokens").fill("48")
    panel.get_by_label("Requests per load").fill("2")
    panel.get_by_role("button", name="Measure").click()
    # Figures appear with the first numbers, long before the answer.
    live = panel.locator(".load-live [data-figure=throughput]")
    live.locator("h4").scroll_into_view_if_needed(timeout=60_000)
    expect(live.locator(".main-svg").first).to_be_visible(timeout=30_000)
    expect(panel.locator(".load-result .draft-verdict")).to_have_count(0)
    expect(panel.locator(".load-result .draft-verdict")).not_to_be_empty(timeout=120_000)
    expect(panel.locator(".load-live")).to_be_hidden()
    expect(panel.locator(".verdict-levels li")).to_have_count(2)
    rows = panel.locator(".load-compared tbody tr")
    expect(rows).to_have_count(2)
    expect(rows.nth(0)).to_contain_text("1 stream")
    expect(rows.nth(0)).to_contain_text("100.0 %")  # of what the recording drafted all was accepted
    figure = panel.locator("h4", has_text="Speed-up against the load").locator("xpath=following-sibling::figure")
    figure.scroll_into_view_if_needed()
    expect(figure.locator(".main-svg").first).to_be_visible(timeout=30_000)
    expect(figure.locator(".plot-text")).to_contain_text("speed-up of one stream")
    assert looks_right(page, "servers-experiment") == []
    # Another theme is another picture.
    figure.scroll_into_view_if_needed()
    light = figure.locator(".annotation-text").first.evaluate("node => getComputedStyle(node).fill")
    page.emulate_media(color_scheme="dark")
    page.wait_for_function(
        "before => getComputedStyle(document.querySelector('.load-result .annotation-text')).fill !== before", arg=light, timeout=15_000
    )
    page.reload()
    expect(page.locator(".load-compared tbody tr")).to_have_count(2, timeout=60_000)
    answer = panel.locator(".load-result .draft-verdict").inner_text()
    # The answer is put to the test: the server is restarted with its setting, and only that side is measured again.
    panel.get_by_role("button", name="Confirm it with a run").click()
    expect(panel.locator(".load-progress")).to_contain_text("num_speculative_tokens", timeout=30_000)
    panel.get_by_role("button", name="It is restarted: go on").click()
    expect(panel.locator(".verdict-levels li[data-confirmed]")).to_have_count(2, timeout=120_000)
    expect(panel.locator(".load-result .draft-verdict")).to_contain_text("onfirmed: as expected at")
    expect(panel.locator(".pasted-note").first).to_contain_text("The baseline is the one that was measured at")
    assert looks_right(page, "servers-confirmed") == []
    panel.get_by_role("button", name="The result that this confirms").click()
    expect(panel.locator(".load-result .draft-verdict")).to_have_text(answer, timeout=30_000)


def test_two_snapshots_give_a_verdict_without_any_server(open_page: Opener) -> None:
    page = servers_page(open_page)
    panel = page.locator("section[aria-labelledby=playground-servers-pasted]")
    go = panel.get_by_role("button", name="What do they say?")
    expect(go).to_be_disabled()
    panel.get_by_label("Before").fill("no metrics at all {")
    panel.get_by_label("After").fill("x")
    go.click()
    expect(panel.locator(".error")).to_contain_text("no /metrics page")
    panel.get_by_label("Before").fill(metrics_page(10, 40, 20, (9, 6, 3, 2), 100, 50))
    panel.get_by_label("After").fill(metrics_page(30, 120, 70, (25, 20, 15, 10), 171, 72))
    go.click()
    expect(panel.locator(".draft-verdict")).to_contain_text("speculation pays if", timeout=30_000)
    expect(panel.locator('[data-row="accepted"]')).to_contain_text("50")
    expect(panel.locator('[data-row="acceptance"]')).to_contain_text("0.625")


def test_two_bench_files_give_a_comparison(open_page: Opener, tmp_path: Path) -> None:
    result = {"model_id": "m", "num_prompts": 40, "max_concurrency": 4, "completed": 40, "failed": 0, "duration": 10.0, "total_output_tokens": 4000}
    files = {
        "base.json": {**result, "mean_tpot_ms": 20.0, "output_throughput": 400.0},
        "spec.json": {
            **result, "mean_tpot_ms": 10.0, "output_throughput": 700.0, "spec_decode_num_drafts": 1500, "spec_decode_draft_tokens": 6000,
            "spec_decode_accepted_tokens": 2460, "spec_decode_per_position_acceptance_rates": [0.7, 0.5, 0.3, 0.14],
        },
    }  # fmt: skip
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    page = servers_page(open_page)
    panel = page.locator("section[aria-labelledby=playground-servers-pasted]")
    panel.get_by_role("button", name="Two bench results").click()
    for index, name in enumerate(files):
        panel.locator("input[type=file]").nth(index).set_input_files(tmp_path / name)
        expect(panel.locator(".paste-box").nth(index)).to_contain_text(name)
    panel.get_by_role("button", name="What do they say?").click()
    expect(panel.locator(".draft-verdict")).to_contain_text("2.00×", timeout=30_000)
    expect(panel.locator(".copy-line code")).to_contain_text("--speculative-config")
    expect(panel.locator(".verdict-levels li")).to_have_count(1)


def test_servers_on_a_dark_phone_in_chinese_fit(open_page: Opener) -> None:
    page = servers_page(
        open_page,
        viewport={"width": 390, "height": 844},
        locale="zh-CN",
        color_scheme="dark",
        has_touch=True,
        is_mobile=True,
        reduced_motion="reduce",
    )
    card = page.locator(".server-card").first
    if card.get_by_role("button", name="询问其能力").count():
        card.get_by_role("button", name="询问其能力").click()
    expect(card.locator(".capabilities")).to_be_visible(timeout=60_000)
    expect(page.get_by_role("heading", name="基线与推测对比")).to_be_visible()
    page.locator(".load-commands summary").click()
    assert looks_right(page, "servers-phone-dark-zh") == []
    assert page.evaluate("document.documentElement.scrollWidth") == 390
