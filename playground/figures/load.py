"""A load experiment as pictures: times, throughput and speed-up against the load, and what the servers said over time.

Baseline and speculative have a colour, a dash and a marker each; a bar is the smallest and the largest of the repeats.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from playground.errors import Text
from playground.figures import Look, Row, Spec
from playground.figures.layout import SMALL, axis, keys, lane_style, layout, note, nothing, rounded
from playground.measures.server_load import SIDES, Cell, LevelSummary, LoadResult, Side, Spread, summary

EMPTY = Text("No load was measured to its end.", "没有任何负载测量完毕。")
NO_METRICS = Text(
    "The servers have no /metrics, and no GPU of theirs is on this host: nothing is known of their inside.",
    "服务器没有 /metrics，本机也没有它们的 GPU：内部情况未知。",
)
SIDE_NAMES: dict[Side, Text] = {"baseline": Text("baseline", "基线"), "speculative": Text("speculative", "推测")}
_LOAD = Text("load", "负载")
_EVEN = Text("break-even", "盈亏平衡")
_SPREAD = Text("bar: smallest to largest of the repeats", "竖线：各次重复的最小至最大")


#: The lanes' glyphs as they look where a marker is hollow, or hollow with a dot.
_GLYPHS = {("●", "-open"): "○", ("●", "-open-dot"): "◉", ("■", "-open"): "□", ("■", "-open-dot"): "▣"}


@dataclass(frozen=True)
class LoadFigure:
    """A picture of a whole experiment: Plotly's `{"data", "layout"}`, the same in words, and as rows."""

    spec: Callable[[LoadResult, Look], Spec]
    describe: Callable[[LoadResult, Look], Text]
    table: Callable[[LoadResult, Look], list[Row]]


@dataclass(frozen=True)
class Line:
    """One number of one server (or of both together) against the load: `factor` brings it into the axis' unit, `kind` is its marker's ending."""

    name: str
    label: Text
    factor: float = 1.0
    dash: str | None = None
    kind: str = "-open"


def _against_load(lines: Sequence[Line], title: Text, unit: str, compared: bool = False) -> LoadFigure:
    """A figure of numbers of each server against the load, or of how they compare."""

    def found(result: LoadResult) -> list[tuple[str, Line, list[tuple[LevelSummary, Spread]]]]:
        levels = summary(result)
        rows = []
        for side in ("compared",) if compared else SIDES:
            for line in lines:
                pairs = [(level, spread) for level in levels if (spread := _spread(level, side, line.name)) is not None and spread.value is not None]
                if pairs:
                    rows.append((side, line, pairs))
        return rows

    def spec(result: LoadResult, look: Look) -> Spec:
        rows = found(result)
        if not rows:
            return nothing(look, EMPTY)
        names = [look.say(level.level.text) for level in summary(result)]
        data: list[Spec] = []
        words: list[tuple[str, str, Text]] = []
        for number, (side, line, pairs) in enumerate(rows):
            colour, dash, marker, glyph = lane_style(look, number if compared else SIDES.index(side))  # type: ignore[arg-type]
            values = [(spread.value or 0.0) * line.factor for _, spread in pairs]
            bars = {
                "type": "data", "symmetric": False, "thickness": 1.5, "width": 4, "color": colour,
                "array": [rounded(((spread.high if spread.high is not None else value / line.factor) * line.factor) - value)
                          for (_, spread), value in zip(pairs, values, strict=True)],
                "arrayminus": [rounded(value - (spread.low if spread.low is not None else value / line.factor) * line.factor)
                               for (_, spread), value in zip(pairs, values, strict=True)],
            }  # fmt: skip
            label = line.label if compared else Text(f"{SIDE_NAMES[side].en}, {line.label.en}", f"{SIDE_NAMES[side].zh}，{line.label.zh}")  # type: ignore[index]
            data.append({
                "type": "scatter", "mode": "lines+markers", "name": look.say(label), "x": [look.say(level.level.text) for level, _ in pairs],
                "y": [rounded(value) for value in values], "error_y": bars, "line": {"color": colour, "width": 2.5, "dash": line.dash or dash},
                "marker": {"symbol": marker if line.dash is None else f"{marker}{line.kind}", "size": 9, "color": colour},
                "hovertemplate": f"%{{x}}: %{{y}} {unit}",
            })  # fmt: skip
            words.append((colour, glyph if line.dash is None else _GLYPHS[glyph, line.kind], label))
        notes, header = keys(look, words)
        shapes: list[Spec] = []
        if compared:
            line_style = {"color": look.colours.chosen, "width": 1.5, "dash": "dash"}
            shapes.append({"type": "line", "x0": 0, "x1": 1, "xref": "paper", "y0": 1, "y1": 1, "yref": "y", "line": line_style})
            small = {"size": SMALL, "color": look.colours.chosen}
            notes.append(note(look, look.say(_EVEN), x=0.02, xanchor="left", yref="y", y=1, yanchor="bottom", font=small))
        if any(spread.low is not None for _, _, pairs in rows for _, spread in pairs):
            notes.append(note(look, look.say(_SPREAD), x=1, xanchor="right", y=0, yanchor="top", yshift=-34))
        return {
            "data": data,
            "layout": layout(
                look,
                height=header + 290,
                margin={"l": 58, "r": 14, "t": header + 6, "b": 56},
                annotations=notes,
                shapes=shapes,
                hovermode="closest",
                xaxis=axis(look, type="category", categoryorder="array", categoryarray=names),
                yaxis=axis(look, rangemode="tozero", title={"text": f"{look.say(title)} ({unit})", "font": {"size": SMALL}}),
            ),
        }

    def table(result: LoadResult, look: Look) -> list[Row]:
        head = (look.say(_LOAD), look.say(Text("server", "服务器")), look.say(title), unit, look.say(Text("smallest–largest", "最小–最大")))
        rows: list[Row] = [head]
        for side, line, pairs in found(result):
            for level, spread in pairs:
                who = "–" if compared else look.say(SIDE_NAMES[side])  # type: ignore[index]
                rows.append((look.say(level.level.text), who, look.say(line.label), _shown(spread.value, line), _range(spread, line)))
        return rows if len(rows) > 1 else []

    def describe(result: LoadResult, look: Look) -> Text:
        rows = found(result)
        if not rows:
            return EMPTY
        told_en, told_zh = [], []
        for side, line, pairs in rows:
            if line.dash is not None:
                continue  # the first line of each says enough; the table has the rest
            name = line.label if compared else SIDE_NAMES[side]  # type: ignore[index]
            told_en.append(f"{name.en}: " + ", ".join(f"{_shown(spread.value, line)} {unit} at {level.level.text.en}" for level, spread in pairs))
            told_zh.append(f"{name.zh}：" + "，".join(f"{level.level.text.zh} {_shown(spread.value, line)} {unit}" for level, spread in pairs))
        return Text(f"{title.en}. {'; '.join(told_en)}.", f"{title.zh}。{'；'.join(told_zh)}。")

    return LoadFigure(spec, describe, table)


def _spread(level: LevelSummary, side: str, name: str) -> Spread | None:
    return getattr(level, name) if side == "compared" else getattr(level, side).get(name)


def _shown(value: float | None, line: Line) -> str:
    return "–" if value is None else f"{value * line.factor:.3g}"


def _range(spread: Spread, line: Line) -> str:
    return "–" if spread.low is None or spread.high is None else f"{spread.low * line.factor:.3g}–{spread.high * line.factor:.3g}"


# --- the servers' inside over time ------------------------------------------------------------------


@dataclass(frozen=True)
class Gauge:
    """What is looked at while a cell runs: `points` are (second of the cell, value), `factor` brings a value into the unit that is shown."""

    label: Text
    factor: float
    unit: str
    points: Callable[[Cell], list[tuple[float, float]]]


def _said(name: str) -> Callable[[Cell], list[tuple[float, float]]]:
    """What the server said of itself."""
    return lambda cell: [(sample.at, value) for sample in cell.samples if (value := getattr(sample, name)) is not None]


def _gpus(name: str, together: Callable[[list[float]], float]) -> Callable[[Cell], list[tuple[float, float]]]:
    """What this host's GPUs were seen at, all of them at one moment `together`."""

    def points(cell: Cell) -> list[tuple[float, float]]:
        moments: dict[float, list[float]] = {}
        for sample in cell.gpu:
            if (value := getattr(sample, name)) is not None:
                moments.setdefault(sample.at, []).append(value)
        return [(at, together(values)) for at, values in moments.items()]

    return points


_GAUGES = (
    Gauge(Text("running requests", "运行中请求"), 1.0, "", _said("running")),
    Gauge(Text("waiting requests", "等待中请求"), 1.0, "", _said("waiting")),
    Gauge(Text("KV cache used, %", "KV 缓存占用，%"), 100.0, " %", _said("kv_usage")),
    Gauge(Text("preemptions", "抢占次数"), 1.0, "", _said("preemptions")),
    Gauge(Text("prefix-cache hits, tokens", "前缀缓存命中词元"), 1.0, "", _said("prefix_hits")),
    Gauge(Text("GPU busy, %", "GPU 占用，%"), 100.0, " %", _gpus("utilisation", statistics.fmean)),
    Gauge(Text("GPU memory, GB", "显存，GB"), 1e-9, " GB", _gpus("memory_bytes", sum)),
)


def _over(result: LoadResult, gauge: Gauge) -> list[tuple[Side, float, float]]:
    """A gauge's points with their server and their second of the experiment: cells stand one after the other, as they ran."""
    began, found = 0.0, []
    for cell in sorted(result.cells, key=lambda cell: cell.order):
        found += [(cell.side, began + at, value * gauge.factor) for at, value in gauge.points(cell)]
        began += cell.seconds
    return found


def _over_time(result: LoadResult, look: Look) -> Spec:
    told = [(gauge, points) for gauge in _GAUGES if (points := _over(result, gauge))]
    if not told:
        return nothing(look, NO_METRICS)
    data: list[Spec] = []
    height, gap = 1 / len(told), 0.06
    axes: dict[str, Any] = {}
    notes, header = keys(look, [(lane_style(look, SIDES.index(side))[0], lane_style(look, SIDES.index(side))[3], SIDE_NAMES[side]) for side in SIDES])
    for row, (gauge, points) in enumerate(told):
        low = 1 - (row + 1) * height
        key = "" if row == 0 else str(row + 1)
        top = low + height - gap
        axes[f"yaxis{key}"] = axis(look, domain=[max(low, 0), top], rangemode="tozero", nticks=4)
        notes.append(note(look, look.say(gauge.label), x=0, xanchor="left", y=top, yanchor="bottom"))
        for side in SIDES:
            colour, _, marker, _ = lane_style(look, SIDES.index(side))
            own = [(at, value) for owner, at, value in points if owner == side]
            data.append({
                "type": "scatter", "mode": "markers", "x": [rounded(at) for at, _ in own], "y": [rounded(value) for _, value in own],
                "yaxis": f"y{key}", "name": look.say(SIDE_NAMES[side]), "marker": {"symbol": marker, "size": 6, "color": colour},
                "hovertemplate": "%{x} s: %{y}",
            })  # fmt: skip
    seconds = Text("seconds of measuring, cells one after the other", "测量秒数，各单元依次排列")
    return {
        "data": data,
        "layout": layout(
            look,
            height=header + 118 * len(told) + 50,
            margin={"l": 52, "r": 14, "t": header + 20, "b": 46},
            annotations=notes,
            hovermode="closest",
            xaxis=axis(look, title={"text": look.say(seconds), "font": {"size": SMALL}}, anchor=f"y{len(told) if len(told) > 1 else ''}"),
            **axes,
        ),
    }


def _over_time_said(result: LoadResult, look: Look) -> Text:
    told_en, told_zh = [], []
    for gauge in _GAUGES:
        if points := _over(result, gauge):
            most = f"{max(value for _, _, value in points):.4g}{gauge.unit}"
            told_en.append(f"{gauge.label.en} at most {most}")
            told_zh.append(f"{gauge.label.zh}最多 {most}")
    if not told_en:
        return NO_METRICS
    gpu = any(cell.gpu for cell in result.cells)
    source = Text("/metrics and this host's NVML", "/metrics 与本机 NVML") if gpu else Text("/metrics", "/metrics")
    return Text(f"By the servers' {source.en}: {', '.join(told_en)}.", f"按服务器的 {source.zh}：{'，'.join(told_zh)}。")


def _over_time_rows(result: LoadResult, look: Look) -> list[Row]:
    """One row per moment at which anything was looked at."""
    moments: dict[tuple[Side, float], list[str]] = {}
    for column, gauge in enumerate(_GAUGES):
        for side, at, value in _over(result, gauge):
            moments.setdefault((side, at), ["–"] * len(_GAUGES))[column] = f"{value:.4g}"
    head = (look.say(Text("server", "服务器")), "s", *(look.say(gauge.label) for gauge in _GAUGES))
    rows: list[Row] = [(look.say(SIDE_NAMES[side]), f"{at:.1f}", *moments[side, at]) for side, at in sorted(moments, key=lambda place: place[1])]
    return [head, *rows] if rows else []


_MEDIAN, _P95, _P99 = Text("median", "中位数"), Text("p95", "p95"), Text("p99", "p99")


def _times(name: str) -> tuple[Line, ...]:
    return (Line(f"{name}_p50", _MEDIAN, 1e3), Line(f"{name}_p95", _P95, 1e3, "dot"), Line(f"{name}_p99", _P99, 1e3, "dashdot", "-open-dot"))


FIGURES: dict[str, LoadFigure] = {
    "speed_up": _against_load(
        (Line("speed_up", Text("speed-up of one stream", "单路加速比")), Line("throughput_ratio", Text("throughput ratio", "吞吐比"), dash="dot")),
        Text("Speculative against baseline", "推测相对基线"), "×", compared=True,
    ),
    "itl": _against_load(_times("itl"), Text("ITL, amortised", "词元间隔（摊销）"), "ms"),
    "tpot": _against_load(_times("tpot"), Text("TPOT", "每词元时间"), "ms"),
    "throughput": _against_load(
        (Line("throughput", Text("output tokens/s", "输出词元/秒")),), Text("Throughput, all streams", "吞吐，全部并发"), "1/s"
    ),
    "goodput": _against_load((Line("goodput", Text("requests that met the SLO", "满足 SLO 的请求")),), Text("Goodput", "有效吞吐"), "1/s"),
    "acceptance": _against_load((Line("acceptance", Text("acceptance rate", "接受率"), 100.0),), Text("Acceptance", "接受率"), "%"),
    "over_time": LoadFigure(_over_time, _over_time_said, _over_time_rows),
}  # fmt: skip
