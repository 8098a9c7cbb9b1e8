"""Milliseconds won and lost round by round against the plain lane of the same race, and their running sum."""

from __future__ import annotations

from playground.errors import Text
from playground.figures import Figure, Look, Row, Spec
from playground.figures.layout import LEGEND_ROW, SMALL, axis, keys, layout, note, nothing, origin, rounded
from playground.measures.ledger import ledger
from playground.trace import DraftJudged, Trace

EMPTY = Text(
    "Needs a plain lane with the same settings in the same race: nothing else tells what a round has won.",
    "需要同场一条相同设置的普通通道：否则无从得知一轮赢得了多少。",
)
_WON = Text("won by the round", "该轮赢得")
_LOST = Text("lost by the round", "该轮损失")
_SUM = Text("sum of all so far", "迄今之和")
_POSITION = Text("position in the text", "在文本中的位置")


def spec(trace: Trace, lane: int | None, position: int | None, look: Look) -> Spec:
    """A bar per round, up for won and down (hatched) for lost; the running sum as a line."""
    gains = ledger(trace, lane or 0).gains
    if not gains:
        return nothing(look, EMPTY)
    colours = look.colours
    x = [gain.position + 1 for gain in gains]
    widths = [max(gain.tokens, 1) * 0.9 for gain in gains]
    data: list[Spec] = []
    for name, colour, pattern, sign in ((_WON, colours.bar, "", 1), (_LOST, colours.chosen, "/", -1)):
        data.append(
            {
                "type": "bar", "x": x, "y": [rounded(gain.won * 1e3) if gain.won * sign > 0 else None for gain in gains], "name": look.say(name),
                "width": widths, "offset": 0, "hovertemplate": "%{x}: %{y} ms",
                "marker": {"color": colour, "pattern": {"shape": pattern, "fgcolor": colours.surface, "bgcolor": colour, "size": 6}},
            }
        )  # fmt: skip
    data.append(
        {
            "type": "scatter", "mode": "lines+markers", "x": x, "y": [rounded(gain.total * 1e3) for gain in gains], "yaxis": "y2",
            "name": look.say(_SUM), "line": {"color": colours.text, "width": 2.5},
            "marker": {"symbol": "diamond", "size": 7, "color": colours.text, "maxdisplayed": 24}, "hovertemplate": "%{x}: %{y} ms",
        }
    )  # fmt: skip
    notes, header = keys(look, [(colours.bar, "■", _WON), (colours.chosen, "▨", _LOST), (colours.text, "◆", _SUM)])
    told = origin(trace, look).split(" · ")
    above = [" · ".join(told[-2:]), " · ".join(told[:-2])] if look.narrow else [" · ".join(told)]  # a phone has no room for it on one line
    for row, words in enumerate(above):
        notes.append(note(look, words, x=0, xanchor="left", y=1, yanchor="bottom", yshift=header - 8 + LEGEND_ROW * row))
    header += LEGEND_ROW * len(above)
    return {
        "data": data,
        "layout": layout(
            look,
            height=header + 350,
            margin={"l": 64, "r": 12, "t": header, "b": 46},
            annotations=notes,
            barmode="overlay",
            hovermode="closest",
            xaxis=axis(look, title={"text": look.say(_POSITION), "font": {"size": SMALL}, "standoff": 4}, zeroline=False, anchor="y2"),
            yaxis=axis(look, domain=[0.56, 1], nticks=5, title={"text": look.say(Text("ms by round", "每轮毫秒")), "font": {"size": SMALL}}),
            yaxis2=axis(look, domain=[0, 0.44], nticks=5, title={"text": look.say(Text("ms, summed", "累计毫秒")), "font": {"size": SMALL}}),
        ),
    }


def describe(trace: Trace, lane: int | None, position: int | None, look: Look) -> Text:
    """What all rounds won and lost, in words."""
    gains = ledger(trace, lane or 0).gains
    if not gains:
        return EMPTY
    won, lost = sum(gain.won for gain in gains if gain.won > 0) * 1e3, -sum(gain.won for gain in gains if gain.won < 0) * 1e3
    return Text(
        f"Against the plain lane's median step the rounds won {won:.0f} ms and lost {lost:.0f} ms: together {gains[-1].total * 1e3:+.0f} ms.",
        f"相对普通通道一步的中位数，各轮共赢得 {won:.0f} 毫秒、损失 {lost:.0f} 毫秒：合计 {gains[-1].total * 1e3:+.0f} 毫秒。",
    )


def table(trace: Trace, lane: int | None, position: int | None, look: Look) -> list[Row]:
    """One row per round."""
    gains = ledger(trace, lane or 0).gains
    if not gains:
        return []
    head = tuple(look.say(text) for text in (_POSITION, Text("tokens", "词元"), Text("won, ms", "赢得，毫秒"), Text("sum, ms", "累计，毫秒")))
    return [head, *((str(gain.position + 1), str(gain.tokens), f"{gain.won * 1e3:.1f}", f"{gain.total * 1e3:.1f}") for gain in gains)]


FIGURE = Figure(
    name="draft_gain",
    label=Text("Won and lost", "赢得与损失"),
    summary=Text(
        "Milliseconds that every round won or lost against the plain lane of the same race, and their running sum.",
        "每一轮相对同场普通通道赢得或损失的毫秒数，以及累计值。",
    ),
    needs=frozenset({DraftJudged}),
    scope="lane",
    spec=spec,
    describe=describe,
    table=table,
)
