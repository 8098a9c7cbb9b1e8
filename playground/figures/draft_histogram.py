"""How many guesses of a round were accepted: how often none, one, two …"""

from __future__ import annotations

from playground.errors import Text
from playground.figures import Figure, Look, Row, Spec
from playground.figures.layout import SMALL, axis, layout, nothing
from playground.measures.ledger import ledger
from playground.trace import DraftJudged, Trace

EMPTY = Text("Nothing has been guessed yet.", "还没有任何猜测。")
_ACCEPTED = Text("accepted guesses in a round", "一轮中被接受的猜测数")
_ROUNDS = Text("rounds", "轮数")
_NO_DRAFT = Text("no<br>guess", "无<br>猜测")


def _bars(trace: Trace, lane: int, look: Look) -> list[tuple[str, int, bool]]:
    """What stands under a bar, how many rounds, and whether these had a draft."""
    books = ledger(trace, lane)
    if not books.rounds:
        return []
    without = len(books.rounds) - len(books.with_draft)
    return [(look.say(_NO_DRAFT), without, False), *((str(accepted), rounds, True) for accepted, rounds in enumerate(books.histogram))]


def spec(trace: Trace, lane: int | None, position: int | None, look: Look) -> Spec:
    """A bar per number of accepted guesses; rounds without any guess stand apart, hatched."""
    bars = _bars(trace, lane or 0, look)
    if not bars:
        return nothing(look, EMPTY)
    colours = look.colours
    marker = {
        "color": [colours.bar if drafted else colours.removed for _, _, drafted in bars],
        "pattern": {"shape": ["" if drafted else "/" for _, _, drafted in bars], "fgcolor": colours.surface, "size": 7},
    }
    title = {"text": look.say(_ACCEPTED), "font": {"size": SMALL}, "standoff": 4}
    return {
        "data": [
            {
                "type": "bar", "x": [name for name, _, _ in bars], "y": [rounds for _, rounds, _ in bars], "marker": marker,
                "text": [str(rounds) for _, rounds, _ in bars], "textposition": "outside", "cliponaxis": False,
                "textfont": {"size": SMALL, "color": colours.text}, "hovertemplate": "%{x}: %{y}", "name": look.say(_ROUNDS),
            }
        ],
        "layout": layout(
            look,
            height=290,
            margin={"l": 52, "r": 12, "t": 26, "b": 62},
            bargap=0.25,
            hovermode="closest",
            xaxis=axis(look, type="category", title=title, showgrid=False, tickangle=0),
            yaxis=axis(look, rangemode="tozero", nticks=5, title={"text": look.say(_ROUNDS), "font": {"size": SMALL}}),
        ),
    }  # fmt: skip


def describe(trace: Trace, lane: int | None, position: int | None, look: Look) -> Text:
    """The mean, and how often nothing was accepted, in words."""
    books = ledger(trace, lane or 0)
    if not books.rounds:
        return EMPTY
    drafts, nothing_accepted = len(books.with_draft), books.histogram[0] if books.histogram else 0
    mean = books.accepted / drafts if drafts else 0.0
    return Text(
        f"{drafts} of {len(books.rounds)} rounds had a draft; on average {mean:.2f} of its guesses were accepted, and in {nothing_accepted} none.",
        f"{len(books.rounds)} 轮中有 {drafts} 轮有草稿；平均接受 {mean:.2f} 个猜测，其中 {nothing_accepted} 轮一个也没接受。",
    )


def table(trace: Trace, lane: int | None, position: int | None, look: Look) -> list[Row]:
    """One row per bar."""
    bars = _bars(trace, lane or 0, look)
    return [(look.say(_ACCEPTED), look.say(_ROUNDS)), *((name.replace("<br>", " "), str(rounds)) for name, rounds, _ in bars)] if bars else []


FIGURE = Figure(
    name="draft_histogram",
    label=Text("Accepted per round", "每轮接受数"),
    summary=Text("How many rounds had none, one, two … guesses accepted.", "有多少轮接受了 0、1、2……个猜测。"),
    needs=frozenset({DraftJudged}),
    scope="lane",
    spec=spec,
    describe=describe,
    table=table,
)
