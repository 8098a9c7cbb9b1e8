"""The time between tokens: every lane's ITL on one axis, with median, p95 and TTFT."""

from __future__ import annotations

from collections.abc import Iterator

from playground.errors import Text
from playground.figures import Figure, Look, Row, Spec
from playground.figures.layout import LEGEND_ROW, axis, lane_name, lane_style, layout, legend, note, nothing, origin, rounded, seconds
from playground.measures.formula import plain
from playground.measures.latency import LaneMeter, RaceMeter, race_meter
from playground.trace import StepTimed, Trace

NO_TIMES = Text("No token has been timed yet.", "还没有计时的词元。")
_ITL = Text("time per token (ms)", "每词元时间（毫秒）")
_POSITION = Text("output token", "输出词元")
_P50_P95 = Text("median – p95", "中位数 – p95")
_RACE = Text("race (prompt read once)", "全场（提示词只读一次）")


def _ttfts(race: RaceMeter, trace: Trace, look: Look) -> Iterator[tuple[str, float | None]]:
    """Every TTFT there is: of the race where a prompt was shared, of the lanes that read it themselves."""
    for reading in race.shared:
        names = look.say(_RACE)
        if len(race.shared) > 1:
            names = " + ".join(lane_name(trace, lane, 16) for lane in reading.lanes)
        value = reading.ttft.value
        yield names, value if isinstance(value, float) else None
    for lane, meter in sorted(race.lanes.items()):
        if meter.reads_itself:
            yield f"{lane_style(look, lane)[3]} {lane_name(trace, lane, 20)}", meter.ttft_seconds


def _first_with_itl(meter: LaneMeter) -> int:
    """The position of the first token that has an ITL: all tokens of the first step have none."""
    return meter.timed_tokens - len(meter.itl)


def spec(trace: Trace, lane: int | None, position: int | None, look: Look) -> Spec:
    """ITL per token of all lanes, and beside it median and p95 of each on the same axis."""
    race = race_meter(trace.events)
    timed = [(number, meter) for number, meter in sorted(race.lanes.items()) if meter.itl]
    if not timed:
        return nothing(look, NO_TIMES)
    colours = look.colours
    split = 0.0 if look.narrow else 0.26
    data: list[Spec] = []
    for row, (number, meter) in enumerate(timed):
        colour, dash, marker, _ = lane_style(look, number)
        first = _first_with_itl(meter)
        data.append(
            {
                "type": "scatter", "mode": "lines+markers", "name": lane_name(trace, number), "x": list(range(first + 1, first + 1 + len(meter.itl))),
                "y": [rounded(value * 1e3) for value in meter.itl], "line": {"color": colour, "width": 1.5, "dash": dash},
                "marker": {"symbol": marker, "size": 6, "color": colour},
                "hovertemplate": "%{x}: %{y} ms",
            }
        )  # fmt: skip
        median, high = meter.itl_percentile(50), meter.itl_percentile(95)
        if look.narrow or median is None or high is None:
            continue
        data.append(
            {
                "type": "scatter", "mode": "lines+markers+text", "x": [row, row], "y": [rounded(median * 1e3), rounded(high * 1e3)],
                "xaxis": "x2", "yaxis": "y",
                "line": {"color": colour, "width": 3}, "marker": {"symbol": [marker, f"{marker}-open"], "size": 10, "color": colour},
                "text": [f"{median * 1e3:.1f}", f"{high * 1e3:.1f}"], "textposition": ["bottom center", "top center"],
                "textfont": {"size": 13, "color": colours.text}, "hoverinfo": "skip", "cliponaxis": False,
            }
        )  # fmt: skip
    top = max(value for _, meter in timed for value in meter.itl) * 1e3
    extra = {number: f"p50 {seconds(meter.itl_percentile(50))} · p95 {seconds(meter.itl_percentile(95))}" for number, meter in timed}
    notes, legend_height = legend(trace, [number for number, _ in timed], look, extra if look.narrow else None)
    if not look.narrow:
        notes.append(note(look, look.say(_P50_P95), x=1 - split / 2 + 0.02, xanchor="center", y=1, yanchor="bottom", yshift=4))
    ttft = [f"{name} {seconds(value)}" for name, value in _ttfts(race, trace, look)]
    above = [origin(trace, look)]
    if ttft:
        above += [f"<b>TTFT</b> {line}" for line in ttft] if look.narrow else [f"<b>TTFT</b> {' · '.join(ttft)}"]
    for row, words in enumerate(above):
        notes.append(note(look, words, x=0, xanchor="left", y=1, yanchor="bottom", yshift=8 + legend_height + LEGEND_ROW * row))
    header = legend_height + LEGEND_ROW * len(above) + 16
    side: Spec = {}
    if not look.narrow:
        domain = [1 - split + 0.04, 1]
        hidden = {"showticklabels": False, "showgrid": False, "zeroline": False}
        side["xaxis2"] = axis(look, domain=domain, range=[-0.6, len(timed) - 0.4], anchor="y", **hidden)
    return {
        "data": data,
        "layout": layout(
            look,
            height=header + 300,
            margin={"l": 58, "r": 16, "t": header, "b": 46},
            annotations=notes,
            hovermode="closest",
            xaxis=axis(look, domain=[0, 1 - split], title={"text": look.say(_POSITION), "font": {"size": 13}, "standoff": 6}, zeroline=False),
            yaxis=axis(look, range=[0, rounded(top * 1.12)], title={"text": look.say(_ITL), "font": {"size": 13}, "standoff": 8}, zeroline=True),
            **side,
        ),
    }


def describe(trace: Trace, lane: int | None, position: int | None, look: Look) -> Text:
    """Median and p95 of every lane, in words."""
    rows = table(trace, lane, position, look)[1:]
    if not rows:
        return NO_TIMES
    en = "; ".join(f"{name}: median {median}, p95 {high} over {count} tokens" for name, _, _, median, high, _, count in rows)
    zh = "；".join(f"{name}：中位数 {median}，p95 {high}，共 {count} 个词元" for name, _, _, median, high, _, count in rows)
    return Text(f"Time per token. {en}.", f"每词元时间。{zh}。")


def table(trace: Trace, lane: int | None, position: int | None, look: Look) -> list[Row]:
    """One row per lane: TTFT (a dash where the race read the prompt), decode time, ITL median and p95, tokens/s, tokens."""
    texts = (
        Text("lane", "通道"), Text("TTFT", "TTFT"), Text("decode time", "解码时间"), Text("ITL median", "ITL 中位数"), Text("ITL p95", "ITL p95"),
        Text("(tokens − 1) / decode time", "(词元数 − 1) / 解码时间"), Text("tokens", "词元数"),
    )  # fmt: skip
    rows: list[Row] = [tuple(look.say(text) for text in texts)]
    for number, meter in sorted(race_meter(trace.events).lanes.items()):
        if meter.timed_tokens:
            itl = (seconds(meter.itl_percentile(50)), seconds(meter.itl_percentile(95)))
            decode = meter.decode_seconds
            speed = "–" if not decode else f"{(meter.timed_tokens - 1) / decode:.1f}/s"
            shown = "–" if decode is None else f"{plain(decode, 4)} s"
            rows.append((trace.about.lanes[number].name, seconds(meter.ttft_seconds), shown, *itl, speed, str(meter.timed_tokens)))
    return rows if len(rows) > 1 else []


FIGURE = Figure(
    name="latency",
    label=Text("Latency", "延迟"),
    summary=Text(
        "The time of every token of all lanes on one axis, with median and p95; TTFT.",
        "所有通道每个词元的时间，画在同一坐标轴上，附中位数、p95 与首词元时间。",
    ),
    needs=frozenset({StepTimed}),
    scope="race",
    spec=spec,
    describe=describe,
    table=table,
)
