"""How often guesses are accepted by their position in the draft: of all drafts, and of those that were judged there."""

from __future__ import annotations

from playground.errors import Text
from playground.figures import Figure, Look, Row, Spec
from playground.figures.layout import SMALL, axis, keys, layout, nothing, rounded
from playground.measures.ledger import ledger
from playground.trace import DraftJudged, Trace

EMPTY = Text("Nothing has been guessed yet.", "还没有任何猜测。")
_ALL = Text("of all drafts", "占全部草稿")
_JUDGED = Text("of those judged there", "占在此处被判定者")
_POSITION = Text("position in the draft", "在草稿中的位置")
_SHARE = Text("accepted", "接受率")


def spec(trace: Trace, lane: int | None, position: int | None, look: Look) -> Spec:
    """Two bars per position, each with its counts."""
    positions = ledger(trace, lane or 0).positions
    if not positions:
        return nothing(look, EMPTY)
    colours = look.colours
    x = [str(one.position + 1) for one in positions]
    data: list[Spec] = []
    for values, counts, colour, pattern, name in (
        ([one.unconditional for one in positions], [(one.accepted, one.drafts) for one in positions], colours.bar, "", _ALL),
        ([one.conditional for one in positions], [(one.accepted, one.judged) for one in positions], colours.chosen, "/", _JUDGED),
    ):
        marks = [f"{accepted}/{of}" if of else "–" for accepted, of in counts]
        data.append(
            {
                "type": "bar", "x": x, "y": [rounded(value) for value in values], "name": look.say(name), "text": marks,
                "textposition": "outside", "textfont": {"size": 11 if look.narrow else SMALL, "color": colours.text}, "cliponaxis": False,
                "constraintext": "none", "textangle": -90 if look.narrow or len(x) > 8 else 0,
                "marker": {"color": colour, "pattern": {"shape": pattern, "fgcolor": colours.surface, "bgcolor": colour, "size": 7}},
                "hovertemplate": "%{x}: %{y} (%{text})",
            }
        )  # fmt: skip
    notes, header = keys(look, [(colours.bar, "■", _ALL), (colours.chosen, "▨", _JUDGED)])
    return {
        "data": data,
        "layout": layout(
            look,
            height=header + 300,
            margin={"l": 52, "r": 12, "t": header + 18, "b": 46},
            annotations=notes,
            barmode="group",
            bargap=0.25,
            hovermode="closest",
            xaxis=axis(look, type="category", title={"text": look.say(_POSITION), "font": {"size": SMALL}, "standoff": 4}, showgrid=False),
            yaxis=axis(look, range=[0, 1.18], tickvals=[0, 0.25, 0.5, 0.75, 1], title={"text": look.say(_SHARE), "font": {"size": SMALL}}),
        ),
    }


def describe(trace: Trace, lane: int | None, position: int | None, look: Look) -> Text:
    """First and last position, in words."""
    positions = ledger(trace, lane or 0).positions
    if not positions:
        return EMPTY
    first, last = positions[0], positions[-1]
    drafts = "1 draft" if first.drafts == 1 else f"{first.drafts} drafts"
    return Text(
        f"Guess 1 was accepted in {first.accepted} of {drafts}, guess {last.position + 1} in {last.accepted}. "
        f"Guess {last.position + 1} was judged at all in {last.judged}: only where all before it had been accepted.",
        f"第 1 个猜测在 {first.drafts} 份草稿中被接受 {first.accepted} 次，第 {last.position + 1} 个被接受 {last.accepted} 次。"
        f"第 {last.position + 1} 个猜测只在 {last.judged} 份草稿中被判定：此前的都已被接受。",
    )


def table(trace: Trace, lane: int | None, position: int | None, look: Look) -> list[Row]:
    """One row per position."""
    positions = ledger(trace, lane or 0).positions
    if not positions:
        return []
    texts = (_POSITION, Text("accepted", "接受"), Text("drafts", "草稿"), _ALL, Text("judged", "判定"), _JUDGED)
    rows = (
        (
            str(one.position + 1), str(one.accepted), str(one.drafts), _rate(one.unconditional), str(one.judged), _rate(one.conditional),
        )
        for one in positions
    )  # fmt: skip
    return [tuple(look.say(text) for text in texts), *rows]


def _rate(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


FIGURE = Figure(
    name="draft_positions",
    label=Text("Acceptance by position", "按位置的接受率"),
    summary=Text(
        "How often guesses are accepted by their position in the draft, of all drafts and of those judged, with counts.",
        "按在草稿中的位置统计猜测被接受的频率：占全部草稿与占被判定者，附计数。",
    ),
    needs=frozenset({DraftJudged}),
    scope="lane",
    spec=spec,
    describe=describe,
    table=table,
)
