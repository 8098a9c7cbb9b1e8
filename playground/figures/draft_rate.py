"""The acceptance rate as it runs along the text, and the tokens that every round brought."""

from __future__ import annotations

from playground.errors import Text
from playground.figures import Figure, Look, Row, Spec
from playground.figures.layout import SMALL, axis, keys, layout, nothing, rounded
from playground.measures.ledger import ledger
from playground.trace import DraftJudged, Trace

EMPTY = Text("Nothing has been guessed yet.", "还没有任何猜测。")
#: The newest so many rounds make the running rate.
WINDOW = 8
_RUNNING = Text("acceptance rate, last {n} rounds", "接受率，最近 {n} 轮").filled(n=WINDOW)
_SO_FAR = Text("acceptance rate, all so far", "接受率，迄今全部")
_TOKENS = Text("tokens of the round", "该轮的词元数")
_POSITION = Text("position in the text", "在文本中的位置")
_RATE = Text("accepted", "接受率")

#: Where a round begins, its tokens, accepted / guessed so far, and of the newest rounds.
Entry = tuple[int, int, float | None, float | None]


def _series(trace: Trace, lane: int) -> list[Entry]:
    rounds = ledger(trace, lane).rounds
    found: list[Entry] = []
    counts = [(len(one.judged.guesses), one.accepted) for one in rounds]
    for number, one in enumerate(rounds):
        rates = []
        for part in (counts[: number + 1], counts[max(0, number + 1 - WINDOW) : number + 1]):
            guessed = sum(guesses for guesses, _ in part)
            rates.append(sum(accepted for _, accepted in part) / guessed if guessed else None)
        found.append((one.judged.position + 1, one.tokens, rates[0], rates[1]))
    return found


def spec(trace: Trace, lane: int | None, position: int | None, look: Look) -> Spec:
    """Above: the rate of the newest rounds and of all so far; below: tokens by round."""
    series = _series(trace, lane or 0)
    if not series:
        return nothing(look, EMPTY)
    colours = look.colours
    x = [start for start, *_ in series]
    line = {"type": "scatter", "mode": "lines+markers", "x": x, "hovertemplate": "%{x}: %{y}"}
    data: list[Spec] = [
        {
            **line, "y": [rounded(running) for *_, running in series], "name": look.say(_RUNNING), "line": {"color": colours.bar, "width": 2.5},
            "marker": {"symbol": "circle", "size": 7, "color": colours.bar, "maxdisplayed": 30},
        },
        {
            **line, "y": [rounded(so_far) for _, _, so_far, _ in series], "name": look.say(_SO_FAR),
            "line": {"color": colours.chosen, "width": 2, "dash": "dash"},
            "marker": {"symbol": "square", "size": 6, "color": colours.chosen, "maxdisplayed": 10},
        },
        {
            "type": "bar", "x": x, "y": [tokens for _, tokens, *_ in series], "yaxis": "y2", "name": look.say(_TOKENS),
            "width": [max(tokens, 1) * 0.9 for _, tokens, *_ in series], "offset": 0, "marker": {"color": colours.bar},
            "hovertemplate": "%{x}: %{y}",
        },
    ]  # fmt: skip
    notes, header = keys(look, [(colours.bar, "●", _RUNNING), (colours.chosen, "■", _SO_FAR), (colours.bar, "▮", _TOKENS)])
    return {
        "data": data,
        "layout": layout(
            look,
            height=header + 320,
            margin={"l": 56, "r": 12, "t": header, "b": 46},
            annotations=notes,
            hovermode="closest",
            xaxis=axis(look, title={"text": look.say(_POSITION), "font": {"size": SMALL}, "standoff": 4}, zeroline=False, anchor="y2"),
            yaxis=axis(look, domain=[0.42, 1], range=[0, 1.05], nticks=5, title={"text": look.say(_RATE), "font": {"size": SMALL}}),
            yaxis2=axis(
                look, domain=[0, 0.3], rangemode="tozero", nticks=4, title={"text": look.say(Text("tokens", "词元")), "font": {"size": SMALL}}
            ),
        ),
    }


def describe(trace: Trace, lane: int | None, position: int | None, look: Look) -> Text:
    """The rate over all, and of the newest rounds, in words."""
    series = _series(trace, lane or 0)
    if not series:
        return EMPTY
    _, _, so_far, running = series[-1]
    return Text(
        f"Accepted / guessed over all {len(series)} rounds: {_rate(so_far)}; over the last {min(WINDOW, len(series))}: {_rate(running)}.",
        f"全部 {len(series)} 轮的接受 / 猜测：{_rate(so_far)}；最近 {min(WINDOW, len(series))} 轮：{_rate(running)}。",
    )


def table(trace: Trace, lane: int | None, position: int | None, look: Look) -> list[Row]:
    """One row per round."""
    series = _series(trace, lane or 0)
    if not series:
        return []
    head = tuple(look.say(text) for text in (_POSITION, _TOKENS, _SO_FAR, _RUNNING))
    return [head, *((str(start), str(tokens), _rate(so_far), _rate(running)) for start, tokens, so_far, running in series)]


def _rate(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


FIGURE = Figure(
    name="draft_rate",
    label=Text("Acceptance along the text", "沿文本的接受率"),
    summary=Text("The running acceptance rate along the text, and the tokens of every round.", "沿文本的滑动接受率，以及每一轮的词元数。"),
    needs=frozenset({DraftJudged}),
    scope="lane",
    spec=spec,
    describe=describe,
    table=table,
)
