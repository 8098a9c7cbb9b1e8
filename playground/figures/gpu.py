"""The GPU during the race: how busy and how full it was, along the race's wall clock."""

from __future__ import annotations

from collections.abc import Callable

from playground.errors import Text
from playground.figures import Figure, Look, Row, Spec
from playground.figures.layout import LEGEND_ROW, axis, layout, literal, note, nothing, origin, rounded, size
from playground.measures.latency import percentile
from playground.trace import DeviceSampled, Trace

NO_GPU = Text("No GPU here: nothing was sampled.", "这里没有 GPU：没有采样。")
NO_SAMPLE = Text("The GPU was not sampled: too short a run, or its driver can't be read.", "未对 GPU 采样：运行太短，或无法读取其驱动。")
_WHOLE = Text("the whole device, as its driver tells it (NVML)", "整块设备，数据来自其驱动（NVML）")
_TIME = Text("time since the race began (s)", "比赛开始后的时间（秒）")
_BUSY = Text("utilisation (%)", "利用率（%）")
_MEMORY = Text("memory (GB)", "显存（GB）")

#: A longer silence than this, in seconds, is a pause of the race: no line is drawn across it.
GAP = 1.5


def _samples(trace: Trace) -> list[DeviceSampled]:
    return list(trace.of(None, DeviceSampled))


def _empty(trace: Trace) -> Text:
    return NO_SAMPLE if any(model.device.startswith("cuda") for model in trace.about.models) else NO_GPU


def _line(samples: list[DeviceSampled], value: Callable[[DeviceSampled], float | None]) -> tuple[list[float | None], list[float | None]]:
    """Times and values, broken where the race was paused."""
    times: list[float | None] = []
    values: list[float | None] = []
    before = samples[0].at
    for sample in samples:
        if sample.at - before > GAP:
            times.append(rounded((sample.at + before) / 2))
            values.append(None)
        before = sample.at
        times.append(rounded(sample.at))
        values.append(rounded(value(sample)))
    return times, values


def _percent(sample: DeviceSampled) -> float | None:
    return None if sample.utilisation is None else 100 * sample.utilisation


def _gigabytes(sample: DeviceSampled) -> float | None:
    return None if sample.memory_bytes is None else sample.memory_bytes / 1e9


def spec(trace: Trace, lane: int | None, position: int | None, look: Look) -> Spec:
    """Utilisation above, memory in use below, on one axis of time."""
    samples = _samples(trace)
    if not samples:
        return nothing(look, _empty(trace))
    colours = look.colours
    data: list[Spec] = []
    for number, value, name, unit, colour, dash, marker in (
        ("", _percent, _BUSY, " %", colours.bar, "solid", "circle"),
        ("2", _gigabytes, _MEMORY, " GB", colours.chosen, "dash", "square"),
    ):
        times, values = _line(samples, value)
        data.append(
            {
                "type": "scatter", "mode": "lines+markers", "name": look.say(name), "x": times, "y": values, "xaxis": "x", "yaxis": f"y{number}",
                "line": {"color": colour, "width": 2, "dash": dash}, "marker": {"symbol": marker, "size": 6, "color": colour},
                "connectgaps": False, "hovertemplate": f"%{{x}} s: %{{y}}{unit}",
            }
        )  # fmt: skip
    fullest = max((value for sample in samples if (value := _gigabytes(sample)) is not None), default=1.0)
    above = [origin(trace, look), f"<b>{literal(samples[-1].device, 40)}</b>", look.say(_WHOLE)]
    lines = above if look.narrow else [above[0], " · ".join(above[1:])]
    notes = [
        note(look, words, x=0, xanchor="left", y=1, yanchor="bottom", yshift=8 + LEGEND_ROW * (len(lines) - 1 - row))
        for row, words in enumerate(lines)
    ]
    header = LEGEND_ROW * len(lines) + 16
    font = {"size": 13}
    return {
        "data": data,
        "layout": layout(
            look,
            height=header + 340,
            margin={"l": 64, "r": 16, "t": header, "b": 46},
            annotations=notes,
            hovermode="closest",
            xaxis=axis(look, title={"text": look.say(_TIME), "font": font, "standoff": 4}, rangemode="tozero", zeroline=False, anchor="y2"),
            yaxis=axis(look, domain=[0.55, 1], range=[0, 105], title={"text": look.say(_BUSY), "font": font}),
            yaxis2=axis(look, domain=[0, 0.45], range=[0, rounded(1.15 * fullest)], title={"text": look.say(_MEMORY), "font": font}),
        ),
    }


def _share(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.0f} %"


def _summary(trace: Trace) -> list[tuple[str, str, str, str, str, str]]:
    """Per device: samples, utilisation in the middle and at most, memory at most and in all."""
    rows = []
    for device in dict.fromkeys(sample.device for sample in _samples(trace)):
        samples = [sample for sample in _samples(trace) if sample.device == device]
        busy = sorted(sample.utilisation for sample in samples if sample.utilisation is not None)
        used = max((sample.memory_bytes for sample in samples if sample.memory_bytes is not None), default=None)
        median, most = percentile(busy, 50), percentile(busy, 100)
        rows.append((device, str(len(samples)), _share(median), _share(most), size(used), size(samples[-1].memory_total)))
    return rows


def describe(trace: Trace, lane: int | None, position: int | None, look: Look) -> Text:
    """Median and highest utilisation and the most memory in use, in words."""
    rows = _summary(trace)
    if not rows:
        return _empty(trace)
    en = "; ".join(f"{name}: median {median} busy, at most {most}; at most {used} of {total} in use" for name, _, median, most, used, total in rows)
    zh = "；".join(f"{name}：利用率中位数 {median}，最高 {most}；显存最多占用 {used}，共 {total}" for name, _, median, most, used, total in rows)
    return Text(f"The GPU during the race. {en}.", f"比赛期间的 GPU。{zh}。")


def table(trace: Trace, lane: int | None, position: int | None, look: Look) -> list[Row]:
    """One row per device."""
    rows = _summary(trace)
    if not rows:
        return []
    head = (
        Text("device", "设备"), Text("samples", "采样数"), Text("utilisation, median", "利用率中位数"), Text("at most", "最高"),
        Text("memory in use, at most", "显存占用，最高"), Text("memory in all", "显存总量"),
    )  # fmt: skip
    return [tuple(look.say(text) for text in head), *rows]


FIGURE = Figure(
    name="gpu",
    label=Text("GPU", "GPU"),
    summary=Text(
        "Utilisation and memory of the GPU along the race, sampled four times a second.",
        "比赛过程中 GPU 的利用率与显存，每秒采样四次。",
    ),
    needs=frozenset({DeviceSampled}),
    scope="race",
    spec=spec,
    describe=describe,
    table=table,
)
