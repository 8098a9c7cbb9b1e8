"""What all figures share: fonts and axes, names that nobody has checked made safe, and numbers as people write them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from playground.errors import Text
from playground.figures.palette import LANE_DASHES, LANE_GLYPHS, LANE_MARKERS
from playground.measures.text import display_name
from playground.trace import TokenName, Trace

if TYPE_CHECKING:
    from playground.figures import Look, Spec

FONT = "Inter, system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans CJK SC', 'PingFang SC', 'Microsoft YaHei', sans-serif"
MONO = "ui-monospace, 'Cascadia Code', Menlo, Consolas, 'DejaVu Sans Mono', 'Noto Sans Mono CJK SC', 'Noto Sans CJK SC', monospace"
FONT_SIZE = 14
SMALL = 13

_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", "$": "&#36;", "%": "&#37;", "{": "&#123;"})


def literal(text: str, most: int | None = None) -> str:
    """Text that Plotly shows exactly as it stands.

    Plotly reads a subset of HTML in every label (`<b>`, `<br>`, `<a href>`), `%{...}` as a template
    and `$...$` as TeX; token text, lane names and prompts are nobody's markup. `most` shortens
    first, counting a wide (CJK) character as two.
    """
    return (shortened(text, most) if most else text).translate(_ESCAPES)


def shortened(text: str, most: int) -> str:
    width, kept = 0, []
    for character in text:
        width += 2 if ord(character) >= 0x1100 and character not in "␣↵⇥␍⟨⟩◌…" else 1
        if width > most:
            return "".join(kept[:-1]) + "…"
        kept.append(character)
    return text


def token_label(names: Mapping[int, TokenName], token: int, most: int | None = None) -> str:
    """A token as a label, safe and visible."""
    return literal(display_name(names.get(token)), most)


def lane_style(look: Look, lane: int) -> tuple[str, str, str, str]:
    """Colour, dash, marker and glyph of a lane: the same in every figure."""
    colours = look.colours.lanes
    return (
        colours[lane % len(colours)],
        LANE_DASHES[lane % len(LANE_DASHES)],
        LANE_MARKERS[lane % len(LANE_MARKERS)],
        LANE_GLYPHS[lane % len(LANE_GLYPHS)],
    )


def lane_name(trace: Trace, lane: int, most: int = 28) -> str:
    return literal(trace.about.lanes[lane].name, most)


def rounded(value: float | None, digits: int = 4) -> float | None:
    """Few significant digits: a picture needs no more, and the JSON stays small."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.{digits}g}")


def probability(p: float) -> str:
    """0.31, 0.045, 0.0012, <0.001: plain text, to be made `literal` in a label."""
    if p >= 0.0995:
        return f"{p:.2f}"
    if p >= 0.00095:
        return f"{p:.3f}" if p >= 0.00995 else f"{p:.4f}"
    return "<0.001" if p > 0 else "0"


def spanned(bounds: tuple[float, float], show: Callable[[float], str]) -> str:
    """A number that is known within bounds: as one where both look the same, else as a range, "0.16–0.18"."""
    low, high = show(bounds[0]), show(bounds[1])
    return low if low == high else f"{low}–{high}"


def seconds(value: float | None) -> str:
    """41.3 ms, 1.25 s; unknown is a dash."""
    if value is None:
        return "–"
    return f"{value:.2f} s" if value >= 0.9995 else f"{value * 1e3:.1f} ms" if value >= 1e-3 else f"{value * 1e6:.0f} µs"


def size(value: int | float | None) -> str:
    """1.23 MB, in powers of ten; unknown is a dash."""
    if value is None:
        return "–"
    for unit, step in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= step:
            return f"{value / step:.2f} {unit}"
    return f"{value:.0f} B"


def layout(look: Look, **more: Any) -> Spec:
    """The layout that every figure starts from: transparent, no template, the theme's own colours."""
    colours = look.colours
    return {
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": FONT, "size": FONT_SIZE, "color": colours.text},
        "hoverlabel": {
            "bgcolor": colours.surface,
            "bordercolor": colours.line,
            "font": {"family": FONT, "size": SMALL, "color": colours.text},
            "align": "left",
        },
        "dragmode": False,
        "showlegend": False,
        **more,
    }


def axis(look: Look, **more: Any) -> Spec:
    """An axis with quiet lines."""
    colours = look.colours
    return {
        "gridcolor": colours.line, "zerolinecolor": colours.line, "linecolor": colours.line,
        "tickfont": {"size": SMALL, "color": colours.muted}, "fixedrange": True, **more,
    }  # fmt: skip


def note(look: Look, text: str, **place: Any) -> Spec:
    """A line of text in a figure, without an arrow; `text` is markup, so names in it must be `literal`."""
    return {
        "text": text,
        "showarrow": False,
        "xref": "paper",
        "yref": "paper",
        "align": "left",
        "font": {"size": SMALL, "color": look.colours.muted},
        **place,
    }


LEGEND_ROW = 19


def legend(trace: Trace, lanes: Sequence[int], look: Look, extra: Mapping[int, str] | None = None, lift: int = 4) -> tuple[list[Spec], int]:
    """The lanes' markers and names over a figure, `extra` behind each name: the notes, and the pixels they take.

    Plotly's own legend wraps as it likes and then covers what is near; this one's height is known.
    """
    per_row = 1 if look.narrow else 3 if extra else 4
    words = []
    for lane in lanes:
        colour, _, _, glyph = lane_style(look, lane)
        behind = f" <span style='color:{look.colours.muted}'>{extra[lane]}</span>" if extra and lane in extra else ""
        words.append(f"<span style='color:{colour}'>{glyph}</span> {lane_name(trace, lane, 18 if look.narrow and extra else 26)}{behind}")
    rows = [words[first : first + per_row] for first in range(0, len(words), per_row)]
    font = {"size": SMALL, "color": look.colours.text}
    notes = [
        note(
            look,
            " &nbsp; &nbsp; ".join(row),
            x=0,
            xanchor="left",
            y=1,
            yanchor="bottom",
            yshift=lift + LEGEND_ROW * (len(rows) - 1 - number),
            font=font,
        )
        for number, row in enumerate(rows)
    ]
    return notes, LEGEND_ROW * len(rows)


def keys(look: Look, words: Sequence[tuple[str, str, Text]], per_row: int = 3) -> tuple[list[Spec], int]:
    """Glyphs in their colours and what they stand for, over a figure, one to a row on a phone: the notes, and the pixels they take."""
    told = [f"<span style='color:{colour}'>{glyph}</span> {look.say(text)}" for colour, glyph, text in words]
    per_row = 1 if look.narrow else per_row
    rows = [told[first : first + per_row] for first in range(0, len(told), per_row)]
    font = {"size": SMALL, "color": look.colours.text}
    notes = [
        note(look, " &nbsp; &nbsp; ".join(row), x=0, xanchor="left", y=1, yanchor="bottom", yshift=6 + LEGEND_ROW * (len(rows) - 1 - n), font=font)
        for n, row in enumerate(rows)
    ]
    return notes, LEGEND_ROW * len(rows) + 14


def nothing(look: Look, why: Text) -> Spec:
    """What stands where there is nothing to draw: the reason, in one sentence."""
    words = note(look, look.say(why), x=0.5, y=0.5, xanchor="center", yanchor="middle")
    hidden = {"visible": False, "fixedrange": True}
    return {
        "data": [],
        "layout": layout(look, height=120, margin={"l": 10, "r": 10, "t": 10, "b": 10}, xaxis=hidden, yaxis=hidden, annotations=[words]),
    }


def origin(trace: Trace, look: Look) -> str:
    """Where the times of a trace come from: recorded or live, machine, date, cold or warm."""
    parts = [look.say(Text("RECORDED", "录制"))] if look.recorded else []
    parts += [literal(trace.about.machine, 60), literal(trace.about.created[:10], 12)]
    parts.append(look.say(Text("warm", "热启动") if trace.about.warm else Text("cold: first run after loading", "冷启动：加载后的首次运行")))
    return " · ".join(part for part in parts if part)
