"""Which k: the expected speed-up for every number of guesses, from acceptance, draft cost and verify cost."""

from __future__ import annotations

from playground.errors import Text
from playground.figures import Figure, Look, Row, Spec
from playground.figures.layout import SMALL, axis, keys, layout, note, nothing, rounded
from playground.measures.formula import worked
from playground.measures.ledger import ledger
from playground.measures.which_k import Factors, best, break_even, curve
from playground.trace import DraftJudged, Trace

EMPTY = Text(
    "Needs guesses that were judged, and the calibration: what a forward of several positions costs here.",
    "需要已判定的猜测，以及校准：此处多位置前向的代价。",
)
_MEASURED = Text("from what was measured", "由实测值推得")
_ESTIMATED = Text("beyond it: estimated", "超出实测：估计")
_PLAIN = Text("plain decoding", "普通解码")
_RUN = Text("this lane, measured", "此通道，实测")
_K = Text("guesses per round (k)", "每轮猜测数（k）")
_SPEED = Text("expected speed-up", "预期加速")


def spec(trace: Trace, lane: int | None, position: int | None, look: Look) -> Spec:
    """The curve of the factors as this lane measured them, with its own measured point."""
    books = ledger(trace, lane or 0)
    if books.factors is None:
        return nothing(look, EMPTY)
    measured = None if books.speed_up is None or books.mean_k is None else (books.mean_k, books.speed_up)
    return drawn(books.factors, look, measured=measured)


def drawn(factors: Factors, look: Look, measured: tuple[float, float] | None = None, estimated: bool = False) -> Spec:
    """The curve of any factors; `estimated` says that somebody chose them, `measured` is a (k, speed-up) that was run."""
    points = curve(factors)
    top, even = best(points), break_even(points)
    colours = look.colours
    known = [point for point in points if not (point.estimated or estimated)]
    guessed = [point for point in points if point.estimated or estimated]
    if known and guessed:
        guessed = [known[-1], *guessed]  # the two lines meet
    data: list[Spec] = []
    for part, colour, dash, symbol, name in (
        (known, colours.bar, "solid", "circle", _MEASURED), (guessed, colours.bar, "dot", "circle-open", _ESTIMATED),
    ):  # fmt: skip
        if part:
            data.append(
                {
                    "type": "scatter", "mode": "lines+markers", "x": [point.k for point in part], "y": [rounded(point.speed_up) for point in part],
                    "name": look.say(name), "line": {"color": colour, "width": 2.5, "dash": dash},
                    "marker": {"symbol": symbol, "size": 8, "color": colour}, "hovertemplate": "k = %{x}: %{y} ×",
                }
            )  # fmt: skip
    words = [(colours.bar, "●", _MEASURED)] if known else []
    words += [(colours.bar, "○", _ESTIMATED)] if guessed else []
    data.append(
        {
            "type": "scatter", "mode": "markers", "x": [top.k], "y": [rounded(top.speed_up)], "hoverinfo": "skip",
            "marker": {"symbol": "star", "size": 17, "color": colours.chosen, "line": {"color": colours.surface, "width": 1}},
        }
    )  # fmt: skip
    words.append((colours.chosen, "★", Text("best: k = {k}, {speed} ×", "最佳：k = {k}，{speed} ×").filled(k=top.k, speed=f"{top.speed_up:.2f}")))
    if measured is not None:
        marker = {"symbol": "diamond", "size": 12, "color": colours.text}
        x, y = rounded(measured[0]), rounded(measured[1])
        data.append({"type": "scatter", "mode": "markers", "x": [x], "y": [y], "marker": marker, "hovertemplate": "k = %{x}: %{y} ×"})
        words.append((colours.text, "◆", _RUN))
    line = {"color": colours.muted, "width": 1.5, "dash": "dash"}
    shapes = [{"type": "line", "x0": 0, "x1": 1, "xref": "paper", "y0": 1, "y1": 1, "yref": "y", "line": line}]
    notes, header = keys(look, words)
    small = {"size": SMALL, "color": colours.muted}
    notes.append(note(look, look.say(_PLAIN), xref="paper", x=1, xanchor="right", yref="y", y=1, yanchor="bottom", font=small))
    if even is not None:
        shapes.append(
            {"type": "line", "x0": even, "x1": even, "xref": "x", "y0": 0, "y1": 1, "yref": "paper", "line": {**line, "color": colours.chosen}}
        )
        told = look.say(Text("loses from k = {k} on", "从 k = {k} 起亏损").filled(k=even))
        side = "right" if even > 6 else "left"
        notes.append(note(look, told, xref="x", x=even, xanchor=side, y=0.98, yanchor="top", font={"size": SMALL, "color": colours.chosen}))
    return {
        "data": data,
        "layout": layout(
            look,
            height=header + 300,
            margin={"l": 52, "r": 14, "t": header + 6, "b": 46},
            annotations=notes,
            shapes=shapes,
            hovermode="closest",
            xaxis=axis(look, dtick=1, title={"text": look.say(_K), "font": {"size": SMALL}, "standoff": 4}, zeroline=False, range=[-0.4, 12.4]),
            yaxis=axis(look, rangemode="tozero", title={"text": f"{look.say(_SPEED)} (×)", "font": {"size": SMALL}}),
        ),
    }


def said(factors: Factors) -> Text:
    """The best k and the break-even, in words."""
    points = curve(factors)
    top, even = best(points), break_even(points)
    if top.k == 0:
        return Text(
            "No k pays here: plain decoding (k = 0) is fastest. k = 1 would run at {speed} ×.",
            "没有划算的 k：普通解码（k = 0）最快。k = 1 时为 {speed} ×。",
        ).filled(speed=f"{points[1].speed_up:.2f}")
    told = Text("Best is k = {k}: {speed} × plain decoding.", "最佳为 k = {k}：普通解码的 {speed} 倍。").filled(k=top.k, speed=f"{top.speed_up:.2f}")
    if top.estimated:
        told = Text(f"{told.en} That lies beyond what was measured: estimated.", f"{told.zh}这超出了实测范围：为估计值。")
    if top.k == points[-1].k:
        return Text(f"{told.en} More guesses might pay even more.", f"{told.zh}更多猜测也许更划算。")
    if even is None:
        return Text(
            f"{told.en} Every k up to {points[-1].k} behind it is still faster than plain.", f"{told.zh}此后直到 {points[-1].k} 的 k 仍快于普通解码。"
        )
    return Text(f"{told.en} From k = {even} on guessing costs more than it brings.", f"{told.zh}从 k = {even} 起，猜测的代价超过收益。")


def describe(trace: Trace, lane: int | None, position: int | None, look: Look) -> Text:
    """The best k and the break-even of what was measured."""
    factors = ledger(trace, lane or 0).factors
    return EMPTY if factors is None else said(factors)


def table(trace: Trace, lane: int | None, position: int | None, look: Look) -> list[Row]:
    """One row per k."""
    factors = ledger(trace, lane or 0).factors
    return [] if factors is None else table_of(factors, look)


def table_of(factors: Factors, look: Look) -> list[Row]:
    """Tokens, cost and speed-up of every k of any factors."""
    head = (
        "k",
        *(
            look.say(text)
            for text in (Text("tokens per round", "每轮词元"), Text("cost in plain steps", "代价（普通步）"), _SPEED, Text("how", "来源"))
        ),
    )
    how = (Text("derived", "推导"), Text("estimated", "估计"))
    rows = [head]
    for point in curve(factors):
        ratio = worked(_SPEED, "{tokens} / {cost}", lambda speed: f"{speed:.2f}", Text("{result}", "{result}"), tokens=point.tokens, cost=point.cost)
        speed = look.say(ratio.gives) if ratio.gives is not None else "–"
        rows.append((str(point.k), ratio.shown("tokens"), ratio.shown("cost"), speed, look.say(how[point.estimated])))
    return rows


FIGURE = Figure(
    name="draft_which_k",
    label=Text("Which k?", "该猜多少个？"),
    summary=Text(
        "Expected speed-up over the number of guesses, from measured acceptance, draft cost and verify cost; best k and break-even.",
        "由实测接受率、起草代价与验证代价得到的预期加速随猜测数的变化；最佳 k 与盈亏平衡点。",
    ),
    needs=frozenset({DraftJudged}),
    scope="lane",
    spec=spec,
    describe=describe,
    table=table,
)
