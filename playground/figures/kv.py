"""The KV cache as it grows: tokens and bytes per step, all lanes."""

from __future__ import annotations

from playground.errors import Text
from playground.figures import Figure, Look, Row, Spec
from playground.figures.layout import axis, lane_name, lane_style, layout, legend, literal, note, nothing, rounded, size
from playground.measures.formula import Formula, worked
from playground.measures.kv import CachePoint, cache_series, model_of
from playground.trace import StepTimed, Trace

NO_CACHE = Text("no KV cache (every forward reads the whole text)", "没有 KV 缓存（每次前向都重读全文）")
EMPTY = Text("No lane has filled its KV cache yet.", "还没有通道写入 KV 缓存。")


def spec(trace: Trace, lane: int | None, position: int | None, look: Look) -> Spec:
    """Tokens per row above, bytes of the whole cache below; the formula beside them."""
    lanes = [(number, series) for number in range(len(trace.about.lanes)) if (series := cache_series(trace, number))]
    if not lanes:
        return nothing(look, EMPTY)
    data: list[Spec] = []
    for order, (number, series) in enumerate(lanes):
        colour, dash, marker, _ = lane_style(look, number)
        # Lanes of one model grow alike and lie on each other: broad below, thin on top, all can be seen.
        width = 2 + 1.8 * (len(lanes) - 1 - order)
        steps = [point.step + 1 for point in series]
        for axis_number, values, unit in (
            ("", [point.tokens for point in series], ""),
            ("2", [rounded(point.nbytes / 1e6, 6) for point in series], " MB"),
        ):
            data.append(
                {
                    "type": "scatter", "mode": "lines+markers", "name": lane_name(trace, number),
                    "x": steps, "y": values, "xaxis": "x", "yaxis": f"y{axis_number}", "line": {"color": colour, "width": width, "dash": dash},
                    "marker": {"symbol": marker, "size": 9, "color": colour, "maxdisplayed": 9}, "hovertemplate": f"%{{x}}: %{{y}}{unit}",
                }
            )  # fmt: skip
    notes, legend_height = legend(trace, [number for number, _ in lanes], look)
    formulas = _formulas(trace, dict(lanes), look)
    notes += [note(look, words, x=0, xshift=-54, xanchor="left", y=0, yanchor="top", yshift=-44 - 19 * row) for row, words in enumerate(formulas)]
    header, below = legend_height + 10, 48 + 19 * len(formulas)
    return {
        "data": data,
        "layout": layout(
            look,
            height=header + below + 310,
            margin={"l": 64, "r": 16, "t": header, "b": below},
            annotations=notes,
            hovermode="closest",
            xaxis=axis(look, title={"text": look.say(Text("step", "步")), "font": {"size": 13}, "standoff": 4}, zeroline=False, anchor="y2"),
            yaxis=axis(look, domain=[0.55, 1], rangemode="tozero", title={"text": look.say(Text("tokens", "词元")), "font": {"size": 13}}),
            yaxis2=axis(look, domain=[0, 0.45], rangemode="tozero", title={"text": "MB", "font": {"size": 13}}),
        ),
    }


def _formulas(trace: Trace, lanes: dict[int, tuple[CachePoint, ...]], look: Look) -> list[str]:
    """Per model: bytes per token as the formula has it, and whether the tensors agree."""
    told = []
    for model in trace.about.models:
        agrees = [point.agrees for number, series in lanes.items() if trace.about.lanes[number].model == model.key for point in series]
        if model.cache_bytes_per_token is None or not agrees:
            continue
        verdict = (
            Text("✓ the tensors hold exactly this", "✓ 与实际张量一致") if all(agrees) else Text("✗ the tensors differ from it", "✗ 与实际张量不同")
        )
        formula = literal(model.cache_formula or "", 60)
        result = f"= {model.cache_bytes_per_token:,} {look.say(Text('B per token and row', 'B/词元/行'))} · {look.say(verdict)}"
        # A phone has no room for it on one line, and notes don't wrap.
        told += [literal(model.name, 40), formula, result] if look.narrow else [f"{literal(model.name, 26)} · {formula} {result}"]
    for number, series in lanes.items():
        if not series[-1].tokens:
            told.append(f"{lane_name(trace, number)}: {look.say(NO_CACHE)}")
    return told


_PRODUCT = Text("tokens × rows × bytes per token", "词元数 × 行数 × 每词元字节数")


def _last(trace: Trace) -> list[tuple[str, CachePoint, Formula]]:
    """Every lane's cache after its last step, and how its bytes follow from tokens and rows; a beam search has a row per beam."""
    rows = []
    for number, about in enumerate(trace.about.lanes):
        series, model = cache_series(trace, number), model_of(trace, number)
        if series:
            last, per_token = series[-1], model.cache_bytes_per_token if model else None
            result = Text("{result}", "{result}")
            product = worked(_PRODUCT, "{tokens} × {rows} × {per} B", size, result, tokens=last.tokens, rows=last.rows, per=per_token)
            rows.append((about.name, last, product))
    return rows


def describe(trace: Trace, lane: int | None, position: int | None, look: Look) -> Text:
    """Tokens and bytes of every lane's cache after its last step, in words."""
    rows = _last(trace)
    if not rows:
        return EMPTY
    english, chinese = [], []
    for name, last, product in rows:
        if not last.tokens:
            english.append(f"{name}: {NO_CACHE.en}")
            chinese.append(f"{name}：{NO_CACHE.zh}")
        elif last.agrees and product.gives is not None:
            english.append(f"{name}: {product.arithmetic} = {product.gives.en}")
            chinese.append(f"{name}：{product.arithmetic} = {product.gives.zh}")
        else:
            english.append(f"{name}: {last.tokens} tokens × {last.rows} rows, {size(last.nbytes)}")
            chinese.append(f"{name}：{last.tokens} 个词元 × {last.rows} 行，{size(last.nbytes)}")
    return Text(
        f"KV cache after the last step, {_PRODUCT.en}. {'; '.join(english)}.",
        f"最后一步之后的 KV 缓存，{_PRODUCT.zh}。{'；'.join(chinese)}。",
    )


def table(trace: Trace, lane: int | None, position: int | None, look: Look) -> list[Row]:
    """One row per lane: tokens, rows, bytes measured, bytes by formula."""
    rows = _last(trace)
    if not rows:
        return []
    texts = (Text("lane", "通道"), Text("tokens", "词元"), Text("rows", "行数"), Text("measured", "实测"), Text("by formula", "按公式"))
    told = ((name, str(last.tokens), str(last.rows), size(last.nbytes), _by_formula(last, product)) for name, last, product in rows)
    return [tuple(look.say(text) for text in texts), *told]


def _by_formula(last: CachePoint, product: Formula) -> str:
    return f"{product.arithmetic} = {size(last.by_formula)}" if product.arithmetic else size(last.by_formula)


FIGURE = Figure(
    name="kv",
    label=Text("KV cache", "KV 缓存"),
    summary=Text(
        "Tokens and bytes of the KV cache per step of every lane, measured, with the formula.",
        "每条通道每一步 KV 缓存的词元数与字节数（实测），并附公式。",
    ),
    needs=frozenset({StepTimed}),
    scope="race",
    spec=spec,
    describe=describe,
    table=table,
)
