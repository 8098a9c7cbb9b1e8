"""Which finished text wins under which length penalty: a line per hypothesis, with every crossing."""

from __future__ import annotations

import math

from playground.errors import Text
from playground.figures import Figure, Look, Row, Spec
from playground.figures.layout import SMALL, axis, layout, literal, note, nothing, rounded
from playground.figures.palette import LANE_DASHES, LANE_GLYPHS, LANE_MARKERS
from playground.measures.beams import BeamTree, Ended, beam_tree, crossings, winners
from playground.measures.text import TextJoiner
from playground.trace import BeamsAdvanced, Trace

EMPTY = Text("No text of a beam search has finished yet.", "束搜索还没有完成的文本。")
LOW, HIGH = -2.0, 3.0
#: So many lines can be told apart.
LINES = 6
_PENALTY = Text("length penalty p", "长度惩罚 p")
_BEHIND = Text("ln(best score ÷ own)", "ln(最好得分 ÷ 自身)")


def _drawn(tree: BeamTree) -> list[Ended]:
    """The hypotheses to draw: whoever wins anywhere, then the best under the lane's own penalty; sums of 0 or more have no logarithm."""
    known = [one for one in tree.hypotheses if one.score < 0]
    first = list(dict.fromkeys(index for _, _, index in winners(known, LOW, HIGH)))
    rest = [index for index in range(len(known)) if index not in first]
    return [known[index] for index in sorted([*first, *rest][: max(LINES, len(first))])]


def _height(one: Ended, penalty: float) -> float:
    """−ln(−s / n^p): the higher the better, a straight line over p."""
    return penalty * math.log(one.length) - math.log(-one.score)


def _signed(value: float, digits: int) -> str:
    """A number with a true minus sign."""
    return f"{value:.{digits}f}".replace("-", "−")


def _ending(trace: Trace, lane: int, tree: BeamTree, one: Ended) -> str:
    joiner = TextJoiner(trace.names(trace.about.lanes[lane].model))
    text = "".join(joiner.add(token).text for token in tree.tokens(one.key)).split()
    return " ".join(text[-4:])


def spec(trace: Trace, lane: int | None, position: int | None, look: Look) -> Spec:
    """Lines over the penalty from −2 to 3, relative to whoever wins there; where the winner changes, the penalty is written."""
    lane = lane or 0
    tree = beam_tree(trace, lane)
    drawn = _drawn(tree)
    if not drawn:
        return nothing(look, EMPTY)
    parts = winners(drawn, LOW, HIGH)
    changes = [part[0] for part in parts[1:]]
    marks = [LOW, *changes, HIGH]
    best = [max(_height(one, p) for one in drawn) for p in marks]
    colours = look.colours
    data: list[Spec] = []
    rows: list[str] = []
    tokens = look.say(Text("tokens", "个词元"))
    for number, one in enumerate(drawn):
        glyph, colour = LANE_GLYPHS[number % len(LANE_GLYPHS)], colours.lanes[number % len(colours.lanes)]
        words = f"s {_signed(one.score, 2)} · {one.length} {tokens} · …{_ending(trace, lane, tree, one)}"
        data.append(
            {
                "type": "scatter", "mode": "lines+markers", "name": literal(words, 60), "x": [rounded(p) for p in marks],
                "y": [rounded(_height(one, p) - first) for p, first in zip(marks, best, strict=True)],
                "line": {"color": colour, "width": 2.5, "dash": LANE_DASHES[number % len(LANE_DASHES)]},
                "marker": {"symbol": LANE_MARKERS[number % len(LANE_MARKERS)], "size": 8, "color": colour},
                "hovertemplate": f"{literal(words, 60)}<br>p %{{x}}: %{{y}}",
            }
        )  # fmt: skip
        rows.append(f"<span style='color:{colour}'>{glyph}</span> {literal(words, 44 if look.narrow else 90)}")
    crossed = crossings(drawn, LOW, HIGH)
    at = [max(_height(one, crossing.penalty) for one in drawn) for crossing in crossed]
    data.append(
        {
            "type": "scatter", "mode": "markers", "x": [rounded(one.penalty) for one in crossed],
            "y": [rounded(_height(drawn[one.one], one.penalty) - first) for one, first in zip(crossed, at, strict=True)],
            "marker": {"symbol": "circle-open", "size": 10, "color": colours.muted}, "hovertemplate": "p = %{x}",
        }
    )  # fmt: skip
    notes = [
        note(
            look,
            text,
            x=0,
            xanchor="left",
            y=1,
            yanchor="bottom",
            yshift=24 + 19 * (len(rows) - 1 - row),
            font={"size": SMALL, "color": colours.text},
        )
        for row, text in enumerate(rows)
    ]
    notes += [
        note(look, f"p = {p:.2f}", x=rounded(p), xref="x", xanchor="center", y=0, yref="y", yanchor="bottom", yshift=5, font={"size": SMALL})
        for p in changes
    ]
    depth = min(value for one in data[:-1] for value in one["y"])
    depth = min(depth, -0.01)
    top = 0.14 * min(2.5, -depth)
    own = {"type": "line", "x0": tree.penalty, "x1": tree.penalty, "xref": "x", "y0": 0, "y1": 1, "yref": "paper"}
    header = 19 * len(rows) + 34
    return {
        "data": data,
        "layout": layout(
            look,
            height=header + 300,
            margin={"l": 84, "r": 16, "t": header, "b": 46},
            annotations=notes,
            hovermode="closest",
            shapes=[{**own, "line": {"color": colours.chosen, "width": 2, "dash": "dot"}}] if LOW <= tree.penalty <= HIGH else [],
            xaxis=axis(look, title={"text": look.say(_PENALTY), "font": {"size": SMALL}, "standoff": 4}, range=[LOW, HIGH], dtick=1),
            yaxis=axis(look, title={"text": look.say(_BEHIND), "font": {"size": SMALL}, "standoff": 8}, range=[max(-2.5, 1.08 * depth), top]),
        ),
    }


def describe(trace: Trace, lane: int | None, position: int | None, look: Look) -> Text:
    """Who wins from which penalty to which, in words."""
    rows = table(trace, lane, position, Look())[1:]
    if not rows:
        return EMPTY
    en = "; ".join(f"from {low} to {high} the text of {length} tokens with sum {score}" for low, high, score, length, _ in rows)
    zh = "；".join(f"{low} 到 {high}：{length} 个词元、和为 {score} 的文本" for low, high, score, length, _ in rows)
    return Text(f"Who wins as the length penalty goes from −2 to 3: {en}.", f"长度惩罚从 −2 到 3 时的胜者：{zh}。")


def table(trace: Trace, lane: int | None, position: int | None, look: Look) -> list[Row]:
    """One row per stretch of penalties: from, to, and who comes first there."""
    lane = lane or 0
    tree = beam_tree(trace, lane)
    drawn = _drawn(tree)
    if not drawn:
        return []
    texts = (Text("from p", "从 p"), Text("to p", "到 p"), Text("sum s", "和 s"), Text("tokens n", "词元 n"), Text("ending in", "结尾"))
    head = tuple(look.say(text) for text in texts)
    parts = winners(drawn, LOW, HIGH)
    return [
        head,
        *(
            (_signed(low, 3), _signed(high, 3), _signed(drawn[n].score, 3), str(drawn[n].length), _ending(trace, lane, tree, drawn[n]))
            for low, high, n in parts
        ),
    ]


FIGURE = Figure(
    name="beam_scores",
    label=Text("Score corrections", "得分修正"),
    summary=Text(
        "Which finished text of a beam search wins under which length penalty, from −2 to 3, with the crossings.",
        "束搜索中哪个完成的文本在哪个长度惩罚（−2 到 3）下胜出，附交点。",
    ),
    needs=frozenset({BeamsAdvanced}),
    scope="lane",
    spec=spec,
    describe=describe,
    table=table,
)
