"""The KV cache of a beam search: bytes by beam, forks and reorders, and what sharing equal prefixes would hold instead."""

from __future__ import annotations

from playground.errors import Text
from playground.figures import Figure, Look, Row, Spec
from playground.figures.layout import LEGEND_ROW, SMALL, axis, layout, note, nothing, rounded, size
from playground.measures.beams import BLOCK, beam_cache, greedy_beside
from playground.measures.formula import worked
from playground.measures.kv import cache_series, model_of
from playground.trace import BeamsAdvanced, Trace

EMPTY = Text("No beam has filled its KV cache yet.", "还没有束写入 KV 缓存。")
_MEASURED = Text("by beam, measured", "各束，实测")
_GREEDY = Text("greedy lane, measured", "贪心通道，实测")
_PAGED = Text("blocks of {block} tokens shared by equal prefixes, derived", "相同前缀共享 {block} 词元的块，推导").filled(block=BLOCK)
_FORKS = Text("forks", "分叉")
_REORDERED = Text("beams overtook each other", "束的名次互换")


def spec(trace: Trace, lane: int | None, position: int | None, look: Look) -> Spec:
    """Above: bytes, a layer per beam, beside what the greedy lane holds and what a paged cache would; below: forks per step."""
    lane = lane or 0
    points = beam_cache(trace, lane)
    if not points:
        return nothing(look, EMPTY)
    colours = look.colours
    steps = [point.step + 1 for point in points]
    data: list[Spec] = []
    for row in range(max(point.rows for point in points)):
        layer = [rounded(point.nbytes / point.rows / 1e6, 5) if row < point.rows else None for point in points]
        data.append(
            {
                "type": "bar", "x": steps, "y": layer, "name": str(row + 1), "hovertemplate": f"%{{x}}: {row + 1} · %{{y}} MB",
                "marker": {"color": colours.bar if row % 2 == 0 else colours.bar_other}, "yaxis": "y",
            }
        )  # fmt: skip
    words = [f"<span style='color:{colours.bar}'>■</span> {look.say(_MEASURED)}"]
    other = greedy_beside(trace, lane)
    if other is not None:
        series = cache_series(trace, other)[: len(steps)]
        greedy = [rounded(point.nbytes / 1e6, 5) for point in series]
        data.append(_line([point.step + 1 for point in series], greedy, colours.chosen, "dash", "square", "%{x}: %{y} MB"))
        words.append(f"<span style='color:{colours.chosen}'>■</span> {look.say(_GREEDY)}")
    if any(point.paged is not None for point in points):
        paged = [None if point.paged is None else rounded(point.paged / 1e6, 5) for point in points]
        data.append(_line(steps, paged, colours.text, "dot", "diamond", "%{x}: %{y} MB"))
        words.append(f"<span style='color:{colours.text}'>◆</span> {look.say(_PAGED)}")
    forks = {"type": "bar", "x": steps, "y": [point.forks for point in points], "yaxis": "y2", "marker": {"color": colours.bar}}
    data.append({**forks, "name": look.say(_FORKS), "hovertemplate": "%{x}: %{y}"})
    crossed = [point.step + 1 for point in points if point.reordered]
    marker = {"symbol": "x", "size": 7, "color": colours.chosen}
    data.append({"type": "scatter", "mode": "markers", "x": crossed, "y": [0] * len(crossed), "yaxis": "y2", "marker": marker, "hoverinfo": "x"})
    words.append(f"<span style='color:{colours.chosen}'>✖</span> {look.say(_REORDERED)}")
    lines = words if look.narrow else [" &nbsp; &nbsp; ".join(words[:2]), " &nbsp; &nbsp; ".join(words[2:])]
    font = {"size": SMALL, "color": colours.text}
    notes = [
        note(look, text, x=0, xanchor="left", y=1, yanchor="bottom", yshift=4 + LEGEND_ROW * (len(lines) - 1 - row), font=font)
        for row, text in enumerate(lines)
    ]
    header = LEGEND_ROW * len(lines) + 14
    return {
        "data": data,
        "layout": layout(
            look,
            height=header + 330,
            margin={"l": 64, "r": 16, "t": header, "b": 46},
            annotations=notes,
            barmode="stack",
            bargap=0.12,
            hovermode="closest",
            xaxis=axis(look, title={"text": look.say(Text("step", "步")), "font": {"size": SMALL}, "standoff": 4}, zeroline=False, anchor="y2"),
            yaxis=axis(look, domain=[0.4, 1], rangemode="tozero", title={"text": "MB", "font": {"size": SMALL}}),
            yaxis2=axis(look, domain=[0, 0.26], rangemode="tozero", title={"text": look.say(_FORKS), "font": {"size": SMALL}}, nticks=4),
        ),
    }


def _line(x: list[int], y: list[float | None], colour: str, dash: str, symbol: str, hover: str) -> Spec:
    return {
        "type": "scatter", "mode": "lines+markers", "x": x, "y": y, "line": {"color": colour, "width": 2.5, "dash": dash},
        "marker": {"symbol": symbol, "size": 7, "color": colour, "maxdisplayed": 8}, "hovertemplate": hover,
    }  # fmt: skip


def describe(trace: Trace, lane: int | None, position: int | None, look: Look) -> Text:
    """Bytes after the last step, measured and with shared prefixes, and how many forks there were, in words."""
    points = beam_cache(trace, lane or 0)
    if not points:
        return EMPTY
    last = points[-1]
    forks, crossed = sum(point.forks for point in points), sum(point.reordered for point in points)
    model = model_of(trace, lane or 0)
    paged = worked(
        Text(f"blocks × {BLOCK} × bytes per token", f"块数 × {BLOCK} × 每词元字节数"), "{blocks} × {block} × {per} B", size,
        blocks=last.blocks, block=BLOCK, per=model.cache_bytes_per_token if model else None,
    )  # fmt: skip
    blocks = "–" if last.blocks is None else f"{last.blocks:,}"
    return Text(
        f"After step {last.step + 1}: {last.rows} rows hold {size(last.nbytes)} (measured). {blocks} blocks of {BLOCK} tokens, shared where all "
        f"tokens up to a block's end are equal, would take {size(last.paged)} (derived: {paged.text.en}). "
        f"{forks} forks (a row copied because its beam went on in two ways), {crossed} steps in which beams overtook each other.",
        f"第 {last.step + 1} 步之后：{last.rows} 行占 {size(last.nbytes)}（实测）。若前缀相同则共享，"
        f"{blocks} 个 {BLOCK} 词元的块需要 {size(last.paged)}（推导：{paged.text.zh}）。"
        f"{forks} 次分叉（一个束以多种方式继续，其行被复制），{crossed} 步中束的名次互换。",
    )


def table(trace: Trace, lane: int | None, position: int | None, look: Look) -> list[Row]:
    """One row per step."""
    points = beam_cache(trace, lane or 0)
    if not points:
        return []
    texts = (Text("step", "步"), Text("rows", "行"), Text("measured", "实测"), _FORKS, Text("blocks", "块"), Text("shared, derived", "共享，推导"))
    rows = (
        (
            str(point.step + 1), str(point.rows), size(point.nbytes), str(point.forks),
            "–" if point.blocks is None else str(point.blocks), size(point.paged),
        )
        for point in points
    )  # fmt: skip
    return [tuple(look.say(text) for text in texts), *rows]


FIGURE = Figure(
    name="beam_kv",
    label=Text("KV cache by beam", "各束的 KV 缓存"),
    summary=Text(
        "Bytes of the KV cache by beam and step with forks and reorders, and what sharing equal prefixes in blocks would hold.",
        "各束每一步 KV 缓存的字节数，附分叉与重排，以及按块共享相同前缀时的字节数。",
    ),
    needs=frozenset({BeamsAdvanced}),
    scope="lane",
    spec=spec,
    describe=describe,
    table=table,
)
