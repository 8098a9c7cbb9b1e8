"""How open the next token was, along the text: entropy, surprise and number alive, all lanes."""

from __future__ import annotations

from playground.errors import Text
from playground.figures import Figure, Look, Row, Spec
from playground.figures.layout import SMALL, axis, lane_name, lane_style, layout, legend, nothing, rounded, token_label
from playground.measures.distribution import bits, text_series
from playground.measures.text import display_name
from playground.trace import TokenChosen, TokenName, Trace

EMPTY = Text("No token has been chosen yet.", "还没有选出词元。")
_ENTROPY = Text("entropy (nats)", "熵（nats）")
_SURPRISE = Text("surprise (nats)", "惊异度（nats）")
_ALIVE = Text("alive", "存活数")
TICKS = (1, 10, 100, 1000, 10_000, 100_000)
TICK_TEXTS = ("1", "10", "100", "1k", "10k", "100k")


def spec(trace: Trace, lane: int | None, position: int | None, look: Look) -> Spec:
    """Three rows over one axis of positions: the model's entropy, the token's surprise under the model, tokens alive."""
    lanes = [(number, series) for number in range(len(trace.about.lanes)) if (series := text_series(trace, number))]
    if not lanes:
        return nothing(look, EMPTY)
    data: list[Spec] = []
    surprise_hover = "%{x}: <b>%{text}</b><br>%{y} nats = %{customdata} bits"
    named: dict[str, dict[int, TokenName]] = {}
    for order, (number, series) in enumerate(lanes):
        colour, dash, marker, _ = lane_style(look, number)
        model = trace.about.lanes[number].model
        if model not in named:
            named[model] = trace.names(model)
        positions = [point.position + 1 for point in series]  # people count tokens from 1
        tokens = [token_label(named[model], point.token, 24) for point in series]
        in_bits = [rounded(bits(point.raw_surprise), 3) for point in series]
        news = {"text": tokens, "customdata": in_bits, "hovertemplate": surprise_hover}
        rows = (
            ("y", [rounded(point.entropy) for point in series]),
            ("y2", [rounded(point.raw_surprise) for point in series]),
            ("y3", [point.alive for point in series]),
        )
        for axis_name, values in rows:
            if all(value is None for value in values):
                continue
            width = 1.8 if axis_name != "y3" else 1.8 + 0.9 * (len(lanes) - 1 - order)
            data.append(
                {
                    "type": "scatter", "mode": "lines+markers", "name": lane_name(trace, number),
                    "x": positions, "y": values, "xaxis": "x", "yaxis": axis_name, "line": {"color": colour, "width": width, "dash": dash},
                    "marker": {"symbol": marker, "size": 5, "color": colour},
                    # The token is told once, in the row that speaks of it: the JSON grows with the run.
                    **(news if axis_name == "y2" else {"hovertemplate": "%{x}: %{y}"}),
                }
            )  # fmt: skip
    small = {"size": SMALL}
    notes, legend_height = legend(trace, [number for number, _ in lanes], look)
    return {
        "data": data,
        "layout": layout(
            look,
            height=legend_height + 436,
            margin={"l": 64, "r": 16, "t": legend_height + 10, "b": 46},
            annotations=notes,
            hovermode="closest",
            xaxis=axis(look, title={"text": look.say(Text("output token", "输出词元")), "font": small, "standoff": 4}, zeroline=False, anchor="y3"),
            yaxis=axis(look, domain=[0.7, 1], rangemode="tozero", title={"text": look.say(_ENTROPY), "font": small}, nticks=4),
            yaxis2=axis(look, domain=[0.35, 0.65], rangemode="tozero", title={"text": look.say(_SURPRISE), "font": small}, nticks=4),
            yaxis3=axis(look, domain=[0, 0.3], type="log", title={"text": look.say(_ALIVE), "font": small}, tickvals=TICKS, ticktext=TICK_TEXTS),
        ),
    }


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def describe(trace: Trace, lane: int | None, position: int | None, look: Look) -> Text:
    """Mean entropy and mean surprise of every lane, and its most surprising token, in words."""
    en, zh = [], []
    for number, about in enumerate(trace.about.lanes):
        series = text_series(trace, number)
        entropy, surprise = _mean([point.entropy for point in series]), _mean([point.raw_surprise for point in series])
        if entropy is None or surprise is None:
            continue
        peak = max(series, key=lambda point: point.raw_surprise or 0.0)
        token = display_name(trace.names(about.model).get(peak.token))
        numbers = f"{entropy:.2f}", f"{surprise:.2f}", token, peak.position + 1
        en.append("{}: mean entropy {}, mean surprise {} nats, most surprising {} (token {})".format(about.name, *numbers))
        zh.append("{}：平均熵 {}，平均惊异度 {} nats，最出人意料的是 {}（第 {} 个词元）".format(about.name, *numbers))
    return Text("; ".join(en) + ".", "；".join(zh) + "。") if en else EMPTY


def table(trace: Trace, lane: int | None, position: int | None, look: Look) -> list[Row]:
    """One row per token of every lane: entropy, surprise before and after the stages, alive."""
    head = tuple(
        look.say(text)
        for text in (
            Text("lane", "通道"), Text("position", "位置"), Text("token", "词元"), _ENTROPY, _SURPRISE,
            Text("surprise after the stages (nats)", "阶段之后的惊异度（nats）"), _ALIVE,
        )
    )  # fmt: skip
    rows: list[Row] = [head]
    for number, about in enumerate(trace.about.lanes):
        names = trace.names(about.model)
        for point in text_series(trace, number):
            values = (point.entropy, point.raw_surprise, point.surprise)
            cells = ("–" if value is None else f"{value:.4f}" for value in values)
            rows.append(
                (about.name, str(point.position + 1), display_name(names.get(point.token)), *cells, "–" if point.alive is None else str(point.alive))
            )
    return rows if len(rows) > 1 else []


FIGURE = Figure(
    name="entropy",
    label=Text("Entropy", "熵"),
    summary=Text(
        "Along the text, all lanes: the entropy of the next token, the surprise of the one that came, and how many could still be drawn.",
        "沿文本、所有通道：下一个词元的熵、实际词元的惊异度，以及仍可抽取的词元数。",
    ),
    needs=frozenset({TokenChosen}),
    scope="race",
    spec=spec,
    describe=describe,
    table=table,
)
