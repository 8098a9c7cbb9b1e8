"""Colours and shapes, defined once for figures and for the page's CSS.

All hues are safe for colour-blind readers (after Okabe and Ito, darkened or lightened until they
stand out from the background), and nothing is told by colour alone: a lane also has a dash and a marker.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Theme = Literal["light", "dark"]


@dataclass(frozen=True)
class Palette:
    """The colours of one theme. `surface` is what lies behind a figure, which itself is transparent."""

    surface: str
    text: str
    muted: str
    line: str
    bar: str
    bar_other: str
    on_bar: str
    chosen: str
    on_chosen: str
    chosen_tint: str
    removed: str
    rest: str
    lanes: tuple[str, ...]
    parts: tuple[str, ...]


PALETTES: dict[Theme, Palette] = {
    "light": Palette(
        surface="#ffffff",
        text="#1b1f24",
        muted="#59636e",
        line="#d5dbe1",
        bar="#0b6fae",
        bar_other="#3d93cb",
        on_bar="#ffffff",
        chosen="#c44e00",
        on_chosen="#ffffff",
        chosen_tint="rgba(213,94,0,0.10)",
        removed="#8b949e",
        rest="#e3e8ed",
        lanes=("#0072b2", "#d55e00", "#00815d", "#a8437f", "#806000", "#4a4f57"),
        parts=("#d55e00", "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#8b949e"),
    ),
    "dark": Palette(
        surface="#0f141a",
        text="#e8edf2",
        muted="#a3adb8",
        line="#333c46",
        bar="#5ab2ea",
        bar_other="#2f84bb",
        on_bar="#06121c",
        chosen="#ffae42",
        on_chosen="#1f1200",
        chosen_tint="rgba(255,174,66,0.13)",
        removed="#7d8893",
        rest="#2a323b",
        lanes=("#56b4e9", "#ff9351", "#2ecb9c", "#e79bc6", "#f0e442", "#c5ccd4"),
        parts=("#ff9351", "#56b4e9", "#f0b429", "#2ecb9c", "#e79bc6", "#2f84bb", "#8b949e"),
    ),
}

#: Plotly's names; lane n has the n-th of each.
LANE_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
LANE_MARKERS = ("circle", "square", "diamond", "triangle-up", "x", "star")
#: The same markers as characters, for text and CSS.
LANE_GLYPHS = ("●", "■", "◆", "▲", "✖", "★")
PART_PATTERNS = ("|", "", "/", "\\", "x", ".", "-")


def css_variables(theme: Theme) -> dict[str, str]:
    """The palette as CSS custom properties: `--lane-0` … `--lane-5`, `--bar`, `--chosen`, …"""
    palette = PALETTES[theme]
    plain = ("surface", "text", "muted", "line", "bar", "bar_other", "on_bar", "chosen", "on_chosen", "chosen_tint", "removed", "rest")
    names = {f"--{name.replace('_', '-')}": getattr(palette, name) for name in plain}
    return {**names, **{f"--lane-{lane}": colour for lane, colour in enumerate(palette.lanes)}}
