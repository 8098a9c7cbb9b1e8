"""The page in Chromium against a real vLLM: the part of `make vllm-check` that a visitor would see.

Everything is done as a visitor does it: a server's card is asked what it can do, a comparison is run with the button, the guided
experiment is measured, the server is restarted where the page asks for it. What is then read off the screen is held against
what the page itself knows, and pictures are kept where somebody asks for them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from playground.experiments.app_process import CHROMIUM_FLAGS, chromium, served

if TYPE_CHECKING:
    from playwright.sync_api import Page

#: Seconds for a model to load, and for a comparison or an experiment to end.
READY, ENDED = 300.0, 900.0
SIZES = {"wide": (1400, 900), "phone": (390, 844)}

Lane = dict[str, Any]


class PageMissing(Exception):
    """The page can't be driven here; the text says why."""


@dataclass
class Visitor:
    """One visitor of the app with the server under its name."""

    address: str
    page: Page
    pictures: Path | None
    anew: Callable[[], Page]

    # --- a comparison ---------------------------------------------------------------------------

    def begin(self, prompt: str, *lanes: Lane) -> None:
        """Open the page with these lanes, as somebody who has never been there, and press Run."""
        asked = json.dumps({"prompt": {"text": prompt}, "lanes": list(lanes), "seed": 7})
        self.page = self.anew()
        self.page.add_init_script(f"localStorage.setItem('playground.request', {json.dumps(asked)})")
        self.page.goto(self.address)
        run = self.page.locator("[data-ref=run]")
        self.until(lambda: run.is_enabled(), READY, "the button to run")
        run.click()
        self.until(lambda: self.page.evaluate("Boolean(window.__playground?.run)"), 60, "the run")

    def finish(self) -> list[list[int]]:
        """Wait for the end; the token ids of every lane."""
        self.until(lambda: self.page.evaluate("['done', 'failed'].includes(window.__playground.run.phase)"), ENDED, "the end of the comparison")
        self.page.wait_for_timeout(500)  # the last tokens are drawn at the next frame
        return self.tokens()

    def tokens(self) -> list[list[int]]:
        return self.page.evaluate("window.__playground.run.tokens")

    def shown(self, lane: int) -> list[str]:
        """The tokens of a lane as they stand on the screen."""
        return self.page.locator(".lane").nth(lane).locator(".strip .token").all_inner_texts()

    def numbers(self, lane: int) -> dict[str, str]:
        """A lane's numbers line: name → value."""
        found = {}
        for one in self.page.locator(".lane").nth(lane).locator(".numbers .measure:visible").all():
            found[one.locator("dt").inner_text().strip()] = one.locator("b").inner_text().strip()
        return found

    def message(self, lane: int) -> str:
        """What is said of a lane that went wrong; empty where nothing did."""
        notes = self.page.locator(".lane").nth(lane).locator(".lane-note.wrong")
        return notes.first.inner_text().strip() if notes.count() else ""

    def ledger(self, lane: int) -> tuple[dict[str, int], int, int]:
        """The server's own counts of its guesses, how many rounds are drawn, and how many of them lead to their place in the text."""
        self.page.locator(".lane").nth(lane).locator(".strip .token").first.click()
        self.page.keyboard.press("Escape")  # the token's own window
        self.page.locator("#playground-tab-speculation").click()
        rows = self.page.locator(".remote-speculation [data-row]")
        self.until(lambda: rows.count() > 0, 60, "the ledger")
        counts = {}
        for name in ("steps", "drafted", "accepted", "forwards"):
            text = self.page.locator(f'.remote-speculation [data-row="{name}"] .draft-value').inner_text()
            counts[name] = int("".join(character for character in text.split(" ")[0] if character.isdigit()) or -1)
        rounds = self.page.locator(".remote-rounds .draft-round")
        return counts, rounds.count(), self.page.locator(".remote-rounds .remote-go").count()

    # --- the page of servers ----------------------------------------------------------------------

    def capabilities(self, name: str) -> dict[str, str]:
        """Ask a server on its card what it can do; the table's rows."""
        self.page.goto(f"{self.address}?show=servers")
        card = self.page.locator(f'.server-card[data-server="{name}"]')
        card.wait_for(timeout=READY * 1000)
        if not card.locator(".capabilities").count():
            card.locator(".server-tools button").first.click()
        card.locator(".capabilities").wait_for(timeout=READY * 1000)
        rows = card.locator(".capabilities tr").all()
        return {str(row.get_attribute("data-can")): row.locator("td").inner_text().strip() for row in rows}

    def begin_experiment(self, name: str, fields: dict[str, str], config: dict[str, Any]) -> None:
        """Fill in the guided experiment with one server twice, press Measure, and wait until the page asks for the restart."""
        panel = self._panel()
        for side in ("baseline", "speculative"):
            panel.locator(f"[data-focus={side}]").select_option(name)
        for field, value in fields.items():
            panel.locator(f"[data-focus={field}]").fill(value)
        panel.locator(".load-form details summary").click()
        panel.locator("[data-focus=config]").fill(json.dumps(config))
        panel.locator(".load-buttons .primary").click()
        self.until(lambda: panel.locator(".load-restart").count() > 0, ENDED, "the page to ask for the restart")

    def end_experiment(self) -> tuple[str, list[list[str]]]:
        """Say that the server is restarted, and wait for the answer; its sentence and the table of baseline against speculative."""
        panel = self._panel()
        panel.locator(".load-progress .primary").click()
        verdict = panel.locator(".load-result .draft-verdict")
        self.until(lambda: verdict.count() > 0 and bool(verdict.inner_text().strip()), ENDED, "the verdict")
        rows = [[cell.strip() for cell in row.locator("td, th").all_inner_texts()] for row in panel.locator(".load-compared tr").all()]
        return verdict.inner_text().strip(), rows

    def _panel(self) -> Any:
        return self.page.locator("section[aria-labelledby=playground-servers-load]")

    # --- around it --------------------------------------------------------------------------------

    def until(self, found: Callable[[], bool], seconds: float, what: str) -> None:
        deadline = time.monotonic() + seconds
        while not found():
            if time.monotonic() > deadline:
                raise PageMissing(f"The page didn't show {what} within {seconds:.0f} s.")
            self.page.wait_for_timeout(200)

    def picture(self, name: str, of: str | None = None) -> None:
        """Keep a picture of the page as it stands, in both sizes and both themes; nothing where nobody asked for pictures."""
        if self.pictures is None:
            return
        self.pictures.mkdir(parents=True, exist_ok=True)
        for size, (width, height) in SIZES.items():
            self.page.set_viewport_size({"width": width, "height": height})
            for theme in ("light", "dark"):
                self.page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
                if of is not None:
                    self.page.locator(of).first.scroll_into_view_if_needed()
                self.page.wait_for_timeout(900)  # figures are drawn again for the size and the theme
                self.page.screenshot(path=self.pictures / f"{name}-{size}-{theme}.png", full_page=of is None)
        self.page.set_viewport_size({"width": SIZES["wide"][0], "height": SIZES["wide"][1]})
        self.page.emulate_media(color_scheme="light")


@contextmanager
def visitor(environment: Mapping[str, str], log: Path, pictures: Path | None = None) -> Iterator[Visitor]:
    """The app in a process of its own and one visitor in Chromium. Raises `PageMissing` or `AppMissing` where one of them doesn't start."""
    try:
        from playwright.sync_api import Error, sync_playwright  # noqa: PLC0415  (comes with the tests)
    except ImportError as error:
        raise PageMissing("Playwright isn't installed: `pip install -r tests/requirements.txt`.") from error
    with served(log, environment) as address, sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(executable_path=chromium(), args=CHROMIUM_FLAGS)
        except Error as error:
            raise PageMissing(f"No Chromium starts here: {error}") from error
        width, height = SIZES["wide"]

        def anew() -> Page:
            for context in browser.contexts:
                context.close()
            return browser.new_context(viewport={"width": width, "height": height}, locale="en-US").new_page()

        yield Visitor(address, anew(), pictures, anew)
        browser.close()


def same(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two texts share from their beginning."""
    return next((index for index, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
