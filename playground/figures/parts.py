"""Where the time of a lane's steps goes: a stack of the parts per step."""

from __future__ import annotations

from playground.errors import Text
from playground.figures import Figure, Look, Row, Spec
from playground.figures.layout import axis, lane_name, layout, note, nothing, origin, rounded, seconds
from playground.figures.palette import PART_PATTERNS
from playground.measures.parts import PART_LABELS, PARTS, Part, lane_parts
from playground.trace import StepTimed, Trace

NO_STEPS = Text("This lane has not made a step yet.", "这条通道还没有走出一步。")
_RECORDING = Text("recording (ours, not in the step)", "记录（本应用所用，不计入步骤）")


def _share(part: Part) -> str:
    value = part.share.value
    return f"{value:.1%}" if isinstance(value, float) else "–"


def _pattern(shape: str, colour: str, strokes: str) -> Spec:
    return {"shape": shape, "size": 6, "solidity": 0.2, "bgcolor": colour, "fgcolor": strokes, "fgopacity": 1} if shape else {"shape": ""}


def spec(trace: Trace, lane: int | None, position: int | None, look: Look) -> Spec:
    """Milliseconds of forward, processors, warpers, select, cache and other per step; recording apart, as a line."""
    lane = lane or 0
    steps = list(trace.of(lane, StepTimed))
    if not steps:
        return nothing(look, NO_STEPS)
    colours = look.colours
    numbers = [step.step + 1 for step in steps]
    shares = {part.name: _share(part) for part in lane_parts(trace, lane)}
    data: list[Spec] = []
    for name, colour, pattern in zip(PARTS, colours.parts, PART_PATTERNS, strict=True):
        if name not in shares:
            continue
        data.append(
            {
                "type": "bar", "name": f"{look.say(PART_LABELS[name])} {shares[name]}", "x": numbers,
                "y": [rounded(step.parts.get(name, 0.0) * 1e3) for step in steps], "hovertemplate": "%{x}: %{y} ms",
                "marker": {"color": colour, "line": {"width": 0}, "pattern": _pattern(pattern, colour, colours.surface)},
            }
        )  # fmt: skip
    data.append(
        {
            "type": "scatter", "mode": "lines", "name": look.say(_RECORDING), "x": numbers, "y": [rounded(step.recording * 1e3) for step in steps],
            "line": {"color": colours.text, "width": 1.5, "dash": "dot"}, "hovertemplate": "%{x}: %{y} ms",
        }
    )  # fmt: skip
    head = f"<b>{lane_name(trace, lane)}</b> · {origin(trace, look)}"
    return {
        "data": data,
        "layout": layout(
            look,
            height=360,
            margin={"l": 58, "r": 16, "t": 30, "b": 100 if not look.narrow else 170},
            barmode="stack",
            bargap=0.1,
            annotations=[note(look, head, x=0, xanchor="left", y=1, yanchor="bottom", yshift=6)],
            showlegend=True,
            legend={"orientation": "h", "x": 0, "y": -0.2, "yanchor": "top", "font": {"size": 13}, "traceorder": "normal"},
            hovermode="closest",
            xaxis=axis(look, title={"text": look.say(Text("step", "步")), "font": {"size": 13}, "standoff": 4}, zeroline=False, showgrid=False),
            yaxis=axis(look, title={"text": look.say(Text("time of the step (ms)", "步骤时间（毫秒）")), "font": {"size": 13}}, rangemode="tozero"),
        ),
    }


def describe(trace: Trace, lane: int | None, position: int | None, look: Look) -> Text:
    """Shares of the parts, in words."""
    lane = lane or 0
    if next(trace.of(lane, StepTimed), None) is None:
        return NO_STEPS
    parts = lane_parts(trace, lane)
    name = trace.about.lanes[lane].name
    en = ", ".join(f"{part.name} {_share(part)}" for part in parts[:-1])
    zh = "，".join(f"{PART_LABELS[part.name].zh} {_share(part)}" for part in parts[:-1])
    return Text(f"Where the time of {name} went: {en}.", f"{name} 的时间去向：{zh}。")


def table(trace: Trace, lane: int | None, position: int | None, look: Look) -> list[Row]:
    """One row per part: median per step, sum and share."""
    lane = lane or 0
    if next(trace.of(lane, StepTimed), None) is None:
        return []
    head = tuple(look.say(text) for text in (Text("part", "部分"), Text("median per step", "每步中位数"), Text("sum", "总和"), Text("share", "占比")))
    rows: list[Row] = [head]
    for part in lane_parts(trace, lane):
        assert isinstance(part.median.value, float) and isinstance(part.total.value, float)
        rows.append((look.say(PART_LABELS[part.name]), seconds(part.median.value), seconds(part.total.value), _share(part)))
    return rows


FIGURE = Figure(
    name="parts",
    label=Text("Parts of a step", "步骤分解"),
    summary=Text(
        "Per step of one lane: forward, processors, warpers, select, cache and other, stacked.",
        "一条通道每一步的前向计算、处理器、整形器、选择、缓存与其他，堆叠显示。",
    ),
    needs=frozenset({StepTimed}),
    scope="lane",
    spec=spec,
    describe=describe,
    table=table,
)
