"""How alike the living beams are, step by step, and the greedy text beside them."""

from __future__ import annotations

from playground.errors import Text
from playground.figures import Figure, Look, Row, Spec
from playground.figures.layout import LEGEND_ROW, SMALL, axis, layout, note, nothing, rounded
from playground.measures.beams import Variety, variety
from playground.trace import BeamsAdvanced, Trace

EMPTY = Text("No beam lives yet.", "还没有存活的束。")
_DISTINCT = Text("different newest tokens", "不同的最新词元")
_SHARED = Text("tokens that all share", "共有的词元数")
_SUM = Text("sum", "和")
_BEST = Text("best beam", "最好的束")
_GREEDY = Text("greedy lane", "贪心通道")
_LOST = Text("the greedy text leaves the beams", "贪心文本离开束")


def _lost(points: tuple[Variety, ...]) -> int | None:
    """The step at which the greedy text left the beams."""
    return next((point.step for point in points if point.greedy_alive is False), None)


def spec(trace: Trace, lane: int | None, position: int | None, look: Look) -> Spec:
    """Three rows over one axis of steps: different newest tokens, length of the shared beginning, sums of the best beam and of greedy."""
    points = variety(trace, lane or 0)
    if not points:
        return nothing(look, EMPTY)
    colours = look.colours
    steps = [point.step + 1 for point in points]
    plain = {"type": "scatter", "mode": "lines+markers", "x": steps, "hovertemplate": "%{x}: %{y}"}
    blue = {"line": {"color": colours.bar, "width": 2}, "marker": {"symbol": "circle", "size": 6, "color": colours.bar, "maxdisplayed": 40}}
    data: list[Spec] = [
        {**plain, **blue, "y": [point.distinct for point in points], "name": look.say(_DISTINCT)},
        {**plain, **blue, "y": [point.shared for point in points], "yaxis": "y2", "name": look.say(_SHARED)},
        {**plain, **blue, "y": [rounded(point.best) for point in points], "yaxis": "y3", "name": look.say(_BEST)},
    ]
    words = [f"<span style='color:{colours.bar}'>●</span> {look.say(_BEST)}"]
    known = [point for point in points if point.greedy is not None]
    shapes = []
    if known:
        orange = {"line": {"color": colours.chosen, "width": 2, "dash": "dash"}, "marker": {"symbol": "square", "size": 6, "color": colours.chosen}}
        sums = [rounded(point.greedy) for point in known]
        data.append({**plain, **orange, "x": [point.step + 1 for point in known], "y": sums, "yaxis": "y3", "name": look.say(_GREEDY)})
        words.append(f"<span style='color:{colours.chosen}'>■</span> {look.say(_GREEDY)}")
        lost = _lost(points)
        if lost is not None:
            line = {"color": colours.chosen, "width": 2, "dash": "dot"}
            shapes.append({"type": "line", "x0": lost + 1, "x1": lost + 1, "xref": "x", "y0": 0, "y1": 1, "yref": "paper", "line": line})
            words.append(f"<span style='color:{colours.chosen}'>┊</span> {look.say(_LOST)}")
    words.append(look.say(Text("different newest tokens, tokens that all share, sum s", "不同的最新词元数、共有的词元数、和 s")))
    lines = words if look.narrow else [" &nbsp; &nbsp; ".join(words)]
    font = {"size": SMALL, "color": colours.text}
    notes = [
        note(look, text, x=0, xanchor="left", y=1, yanchor="bottom", yshift=6 + LEGEND_ROW * (len(lines) - 1 - row), font=font)
        for row, text in enumerate(lines)
    ]
    small = {"size": SMALL}
    header = LEGEND_ROW * len(lines) + 14
    return {
        "data": data,
        "layout": layout(
            look,
            height=header + 400,
            margin={"l": 64, "r": 16, "t": header, "b": 46},
            annotations=notes,
            shapes=shapes,
            hovermode="closest",
            xaxis=axis(look, title={"text": look.say(Text("step", "步")), "font": small, "standoff": 4}, zeroline=False, anchor="y3"),
            yaxis=axis(look, domain=[0.72, 1], rangemode="tozero", title={"text": look.say(Text("different", "不同")), "font": small}, nticks=4),
            yaxis2=axis(look, domain=[0.38, 0.64], rangemode="tozero", title={"text": look.say(Text("shared", "共有")), "font": small}, nticks=4),
            yaxis3=axis(look, domain=[0, 0.3], title={"text": look.say(_SUM), "font": small}, nticks=4),
        ),
    }


def describe(trace: Trace, lane: int | None, position: int | None, look: Look) -> Text:
    """Middle number of different tokens, the shared beginning at the end, and what became of the greedy text, in words."""
    points = variety(trace, lane or 0)
    if not points:
        return EMPTY
    last = points[-1]
    mean = sum(point.distinct for point in points) / len(points)
    told = Text(
        f"Over {len(points)} steps the beams hold {mean:.1f} different newest tokens on average; "
        f"after step {last.step + 1} they share {last.shared}.",
        f"{len(points)} 步中，各束平均有 {mean:.1f} 种不同的最新词元；第 {last.step + 1} 步之后共享 {last.shared} 个。",
    )
    lost = _lost(points)
    if lost is None:
        return told
    return Text(f"{told.en} The greedy text left the beams at step {lost + 1}.", f"{told.zh}贪心文本在第 {lost + 1} 步离开了束。")


def table(trace: Trace, lane: int | None, position: int | None, look: Look) -> list[Row]:
    """One row per step."""
    points = variety(trace, lane or 0)
    if not points:
        return []
    head = tuple(look.say(text) for text in (Text("step", "步"), _DISTINCT, _SHARED, _BEST, _GREEDY))
    rows = (
        (str(point.step + 1), str(point.distinct), str(point.shared), f"{point.best:.3f}", "–" if point.greedy is None else f"{point.greedy:.3f}")
        for point in points
    )
    return [head, *rows]


FIGURE = Figure(
    name="beam_variety",
    label=Text("How alike the beams are", "各束有多相似"),
    summary=Text(
        "Different newest tokens of the living beams, the beginning that they share, and the sum of the best one beside greedy's.",
        "存活各束的不同最新词元数、共有的开头，以及最好的束与贪心的和。",
    ),
    needs=frozenset({BeamsAdvanced}),
    scope="lane",
    spec=spec,
    describe=describe,
    table=table,
)
