"""What is printed on a terminal: text that can't command it, and one line of progress."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import Any

#: Control characters but the line feed and the tab, and what turns the direction of a text around.
COMMANDS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """The text with its control characters as escapes: a model's or a server's text must not move the cursor or hide itself."""
    return COMMANDS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def say(text: str, error: bool = False) -> None:
    """Print lines of text that anybody may have written, on standard output or standard error."""
    print(printable(text), file=sys.stderr if error else sys.stdout, flush=True)


class ProgressBar:
    """One line on a terminal: what is loading, then how many tokens are written. Silent in a pipe."""

    WIDTH = 30

    def __init__(self, tokens: int) -> None:
        self._most, self._done = tokens, 0
        self._terminal = sys.stderr.isatty()

    def say(self, text: str, fraction: float | None) -> None:
        self._draw(text, fraction or 0.0)

    def advance(self, events: Sequence[tuple[int | None, Any]]) -> None:
        self._done += sum(event.kind == "token_chosen" for _, event in events)
        self._draw(f"{self._done} of at most {self._most} tokens", self._done / self._most)

    def _draw(self, text: str, fraction: float) -> None:
        if self._terminal:
            full = round(self.WIDTH * min(fraction, 1.0))
            print(f"\r\x1b[K[{'█' * full}{'·' * (self.WIDTH - full)}] {printable(text)}", end="", file=sys.stderr, flush=True)

    def close(self) -> None:
        if self._terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
