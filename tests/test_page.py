"""The page in a real browser, on the real default model: everything here goes through `python app.py`."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[1]
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip

PAYLOAD = "<img src=x onerror=window.__pwned=1> ${window.__pwned=1} {{constructor}}"


def lane(name: str, strategy: str = "greedy", tokens: int = 24, **more: Any) -> dict[str, Any]:
    return {"name": name, "strategy": strategy, "max_new_tokens": tokens, **more}


def request(*lanes: dict[str, Any], prompt: str = "Name three colours.") -> dict[str, Any]:
    return {"prompt": {"text": prompt}, "lanes": list(lanes), "seed": 7}


TWO_LANES = request(lane("greedy"), lane("top-p", "sample", knobs={"temperature": 0.8, "top_p": 0.95}))
LONG = request(
    lane("greedy", tokens=400), lane("drawn", "sample", tokens=400, knobs={"temperature": 1.5}), prompt="Write a long story about a lighthouse."
)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The app in a process of its own, once its model is ready."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "app.py"],
        cwd=ROOT,
        env={**os.environ, "GRADIO_SERVER_PORT": str(port)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    address = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 180
        while True:
            assert process.poll() is None, process.stdout.read() if process.stdout else ""
            assert time.monotonic() < deadline, "the app did not start within three minutes"
            try:
                urllib.request.urlopen(address, timeout=5).close()
                break
            except (urllib.error.URLError, OSError):
                time.sleep(0.3)
        yield address
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        chromium = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
        running = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        yield running
        running.close()


Opener = Callable[..., Page]


@pytest.fixture
def open_page(browser: Browser, address: str) -> Iterator[Opener]:
    """Opens the page as a new visitor, with a request of the test's own; no page may throw an error."""
    contexts: list[BrowserContext] = []
    errors: list[str] = []

    def opened(asked: dict[str, Any] = TWO_LANES, ready: bool = True, query: str = "", **context: Any) -> Page:
        contexts.append(browser.new_context(**{"viewport": {"width": 1400, "height": 900}, "locale": "en-US", **context}))
        page = contexts[-1].new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda message: errors.append(message.text) if "js_on_load" in message.text else None)
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
    page.wait_for_function(f"(window.__playground.run?.tokens[{lane}]?.length ?? 0) >= {count}", timeout=120_000)


def wait_for_end(page: Page) -> None:
    page.wait_for_function("['done', 'failed'].includes(window.__playground.run?.phase)", timeout=300_000)
    assert page.evaluate("window.__playground.run.phase") == "done"


def tokens_of(page: Page) -> list[list[int]]:
    return page.evaluate("window.__playground.run.tokens")


def test_the_page_opens_and_shows_every_lane_with_its_stages(open_page: Opener) -> None:
    page = open_page()
    expect(page.get_by_role("heading", name="Decoding Playground")).to_be_visible()
    expect(page.locator(".lane")).to_have_count(2)
    expect(page.locator(".lane").nth(1).locator(".chip")).to_have_text([r"temperature 0.8", "top-p 0.95"])


def test_two_lanes_stream_their_tokens_and_numbers(open_page: Opener) -> None:
    page = open_page()
    run(page)
    wait_for_end(page)
    page.wait_for_timeout(300)
    counts = [len(tokens) for tokens in tokens_of(page)]
    assert all(1 <= count <= 24 for count in counts)
    for index, count in enumerate(counts):
        expect(page.locator(".lane").nth(index).locator(".strip .token")).to_have_count(count)
        expect(page.locator(".lane").nth(index).locator(".measure", has_text="tok/s").locator("b")).to_have_text(lambda_number())
    assert page.evaluate("window.__playground.stats.gaps") == 0


def lambda_number() -> Any:
    """A number as the page writes it."""
    import re

    return re.compile(r"^\d+(\.\d+)?$")
