"""From the model's scores to the token: what each stage did to the candidates, and where the die fell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from playground.errors import Text
from playground.figures import Figure, Look, Row, Spec
from playground.figures.layout import FONT_SIZE, MONO, SMALL, axis, layout, literal, note, nothing, probability, shortened, spanned, token_label
from playground.measures.distribution import Distribution, EstimatedStepView, Segment, cumulative_bar, distributions
from playground.measures.text import display_name
from playground.trace import BeamsAdvanced, StageAbout, StepView, TokenChosen, TokenName, TokensNamed, Trace

ROWS, ROWS_NARROW = 12, 4
#: Columns beside the model's own: where a lane has more stages, those that did least are only named.
MOST_STAGES = 5

CLEAR = "rgba(0,0,0,0)"
ROW = 23
GUTTER, GUTTER_NARROW = 158, 112
HEADER, HEADER_NARROW = 78, 60
BAR_AREA = 142

NO_VIEW = Text("This step has no recorded distribution.", "这一步没有记录分布。")
_MODEL = Text("model", "模型")
_MOST_LIKELY = Text("which token is the most likely", "哪个词元最可能")
_ARGMAX = Text("argmax", "取最大值")
_BEAM = Text("beam", "束")
_FORCED = Text("forced", "指定")


@dataclass(frozen=True)
class _Column:
    """One point of the way that is drawn: its title in full and cut to size, the distribution there and the one before."""

    title: str
    short: str
    subtitle: tuple[str, str]
    now: Distribution
    before: Distribution | None


@dataclass(frozen=True)
class _Step:
    """Everything that the picture of one step needs."""

    chosen: TokenChosen
    view: StepView
    names: Mapping[int, TokenName]
    stages: Mapping[str, StageAbout]
    way: tuple[Distribution, ...]
    lane: int
    beams: bool = False  # whether a beam search took the token: for the sum, not for this step alone

    @property
    def index(self) -> int:
        """The chosen token among the candidates."""
        return self.view.ids.index(self.chosen.token)

    @property
    def decided(self) -> bool:
        """Whether it is known which token is chosen."""
        return not isinstance(self.view, EstimatedStepView) or self.view.decided

    def chose(self, index: int) -> bool:
        """Whether a candidate is known to be the chosen token."""
        return self.decided and index == self.index

    def rows(self, most: int) -> list[int]:
        """The candidates to draw, by raw score: those that were likely anywhere on the way, the chosen one among them."""
        peak = [max(step.range(index)[1] for step in self.way) for index in range(len(self.view.ids))]
        best = sorted(range(len(peak)), key=lambda index: (index != self.index, -peak[index], index))[:most]
        return sorted(best)


def find_step(trace: Trace, lane: int | None, position: int | None) -> tuple[int, TokenChosen | None]:
    """The token that stands at a position of a lane (the last one if None), with its lane."""
    lane = lane or 0
    return lane, next((event for event in reversed(trace.output(lane)) if position is None or event.position == position), None)


def _step(trace: Trace, lane: int | None, position: int | None) -> _Step | None:
    lane, chosen = find_step(trace, lane, position)
    if chosen is None or chosen.view is None or chosen.token not in chosen.view.ids:
        return None
    about = trace.about.lanes[lane]
    wanted = set(chosen.view.ids)
    names: dict[int, TokenName] = {}
    for _, event in trace.events:
        if isinstance(event, TokensNamed) and event.vocabulary == about.model:
            names.update((name.id, name) for name in event.names if name.id in wanted)
    stages = {stage.stage: stage for stage in about.stages if not stage.idle}
    return _Step(chosen, chosen.view, names, stages, distributions(chosen.view), lane, next(trace.of(lane, BeamsAdvanced), None) is not None)


# --- words ----------------------------------------------------------------------------------------


def stage_title(stage: str, about: StageAbout | None, look: Look, most: int | None = None) -> str:
    """A stage with the values of its knobs: "temperature 0.8", "mirostat 3, 0.1".

    If that is longer than `most`, words among the values go first, then the end of the name: never a number.
    """
    label = look.stage_labels.get(stage)
    name = look.say(label) if label is not None else stage.replace("_", "-")
    knobs = list(about.knobs.values()) if about is not None else []
    values = ", ".join(map(_knob, knobs))
    if most is not None and shortened(f"{name} {values}", most) != f"{name} {values}":
        values = ", ".join(_knob(value) for value in knobs if not isinstance(value, str))
        name = shortened(name, max(most - len(values) - 1, 4))
    return f"{name} {values}".rstrip()


def _knob(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, (list, tuple)):
        return f"[{len(value)}]"
    return str(value)


#: Why a server's log-probabilities can't be believed, for where they would be drawn.
DOUBTS = {
    "sum_above_one": Text("Not to be trusted: these probabilities add up to more than 1.", "不可信：这些概率之和大于 1。"),
    "above_zero": Text("Not to be trusted: a log-probability lies above 0.", "不可信：有对数概率大于 0。"),
    "certain_without_rival": Text(
        "Not to be trusted: the server calls this token certain (log-probability 0.0) and names no other.",
        "不可信：服务器称该词元是必然的（对数概率 0.0），且没有给出其他候选。",
    ),
}


def _subtitle(step: Distribution, before: Distribution | None, look: Look) -> tuple[str, str]:
    if step.alive is None or step.entropy is None:
        count = len(step.probabilities)
        return look.say(Text("the {n} likeliest; the rest unknown", "前 {n} 个；其余未知").filled(n=count)), ""
    if before is None:
        alive = look.say(Text("alive {n}", "存活 {n}").filled(n=_alive(step)))
        return alive, look.say(Text("entropy H {h} nats", "熵 H {h} nats").filled(h=_entropy(step)))
    if not step.changed:
        return look.say(Text("no change here", "此步无变化")), f"H {_entropy(step)}"
    entropy = f"H {_entropy(before)} → {_entropy(step)}"
    if _removed(step)[1] == 0 and _alive(step) == _alive(before):
        return look.say(Text("none removed", "未移除")), entropy
    alive = look.say(Text("alive {a} → {b}", "存活 {a} → {b}").filled(a=_alive(before), b=_alive(step)))
    return alive, f"{_mass(step)} · {entropy}"


def _alive(step: Distribution) -> str:
    """How many tokens are alive; a range where that isn't certain."""
    count = step.alive or 0
    return spanned(step.bounds.alive if step.bounds else (count, count), lambda value: f"{round(value):,}")


def _entropy(step: Distribution) -> str:
    entropy = step.entropy or 0.0
    return spanned(step.bounds.entropy if step.bounds else (entropy, entropy), lambda value: f"{value:.2f}")


def _removed(step: Distribution) -> tuple[float, float]:
    """The probability that a stage removed, within its bounds."""
    return step.bounds.removed_mass if step.bounds else (step.removed_mass, step.removed_mass)


def _mass(step: Distribution) -> str:
    """Removed probability as a column's head has it; of a range both ends."""
    low, high = _removed(step)
    if mass(low) == mass(high):
        return mass(low)
    return f"−{low * 100:.1f}–{high * 100:.1f} %"


def _share(removed: tuple[float, float]) -> str:
    return spanned(removed, lambda value: f"{value:.1%}")


def mass(removed: float) -> str:
    """Removed probability: −12.3 %, or what it isn't."""
    return f"−{removed * 100:.1f} %" if removed >= 0.0005 else "−&lt;0.1 %" if removed > 0 else "−0 %"


def _columns(step: _Step, look: Look) -> tuple[list[_Column], list[str]]:
    """What is drawn, in order, and the titles of stages that are only named."""
    indices = list(range(1, len(step.way)))
    hidden: list[int] = []
    if len(indices) > MOST_STAGES:
        effect = {i: _effect(step.way[i - 1], step.way[i]) for i in indices}
        kept = set(sorted(indices, key=lambda i: -effect[i])[:MOST_STAGES])
        hidden = [i for i in indices if i not in kept]
        indices = [i for i in indices if i in kept]
    room = 17 if look.narrow else 1100 // (len(indices) + 1) // 9 - 1
    titles = {i: stage_title(step.way[i].stage or "", step.stages.get(step.way[i].stage or ""), look) for i in (*indices, *hidden)}
    shorts = {i: stage_title(step.way[i].stage or "", step.stages.get(step.way[i].stage or ""), look, room) for i in indices}
    model = look.say(_model_title(step.view))
    first = _Column(model, shortened(model, room), _subtitle(step.way[0], None, look), step.way[0], None)
    stages = [_Column(titles[i], shorts[i], _subtitle(step.way[i], step.way[i - 1], look), step.way[i], step.way[i - 1]) for i in indices]
    return [first, *stages], [titles[i] for i in hidden]


def _effect(before: Distribution, after: Distribution) -> float:
    """How much a stage did: the total variation over the candidates, and any removal counts."""
    moved = sum(abs(a - b) for a, b in zip(before.probabilities, after.probabilities, strict=True))
    return moved + after.removed_mass + (after.alive != before.alive) * 1e-6


def _model_title(view: StepView) -> Text:
    if view.scale == "raw_log_probability" and view.alive is not None:
        return Text("model, softmax", "模型，softmax")  # the scores are its logarithms, the bars are probabilities
    if view.scale == "raw_log_probability":
        return Text("model, by the server (raw: before temperature)", "模型（服务器给出的原始值：温度之前）")
    if view.scale == "processed_log_probability":
        return Text("by the server (processed: after temperature and filters)", "服务器给出（已处理：温度与过滤之后）")
    return _MODEL


def _removers(step: _Step) -> dict[int, int]:
    """Which point of the way removed a candidate: candidate index → index in `way`."""
    return {index: at for at, after in enumerate(step.way) for index in after.masked}


# --- the picture ----------------------------------------------------------------------------------


def spec(trace: Trace, lane: int | None, position: int | None, look: Look) -> Spec:
    """The pipeline of one step as Plotly JSON: a column per stage, then the cumulative bar across."""
    step = _step(trace, lane, position)
    if step is None:
        return nothing(look, NO_VIEW)
    columns, hidden = _columns(step, look)
    drawn = [columns[0], columns[-1]] if look.narrow and len(columns) > 1 else columns
    rows = step.rows(ROWS_NARROW if look.narrow else ROWS)
    lines = _stage_lines(columns, look) if look.narrow else _named_only(hidden, look)
    header = HEADER_NARROW if look.narrow else HEADER
    body = ROW * (len(rows) + 1)
    below = (8 + 19 * len(lines)) if lines else 0
    height = header + body + below + BAR_AREA
    inner = height - header - 8
    bars_low = 1 - body / inner  # the y domain of the columns ends here, counted from below
    cumulative = (26 / inner, 76 / inner)
    data: list[Spec] = []
    notes: list[Spec] = []
    axes: Spec = {}
    scale = max(p for column in drawn for p in (_longest(column, rows))) or 1.0
    gap = 0.02
    width = (1 - gap * (len(drawn) - 1)) / len(drawn)
    for number, column in enumerate(drawn):
        left = number * (width + gap)
        key = "x" if number == 0 else f"x{number + 1}"
        axes[key.replace("x", "xaxis")] = axis(
            look,
            domain=[left, left + width],
            range=[0, scale * 1.42],
            showticklabels=False,
            showgrid=False,
            showline=False,
            zeroline=True,
            anchor="y",
            fixedrange=True,
        )
        data += _bars(step, column, rows, key, scale, look, final=number == len(drawn) - 1)
        notes += _heading(column, left, number > 0, look)
    if not look.narrow and len(drawn) > 1:
        key_words = look.say(Text("│ before the stage<br>✕ removed by it", "│ 阶段之前<br>✕ 被该阶段移除"))
        notes.append(note(look, key_words, x=0, xshift=-8, xanchor="right", y=1, yanchor="bottom", yshift=4, align="right"))
    for number, words in enumerate(lines):
        notes.append(note(look, words, x=0, xshift=-_gutter(look) + 8, xanchor="left", y=bars_low, yanchor="top", yshift=-8 - 19 * number))
    data.append(_cumulative(step, look))
    bar, bar_notes = _die(step, look, cumulative[1])
    data += bar
    notes += bar_notes
    shapes = [
        # the chosen token's row, through all columns
        {
            "type": "rect", "xref": "paper", "x0": 0, "x1": 1, "yref": "y", "y0": rows.index(step.index) - 0.5, "y1": rows.index(step.index) + 0.5,
            "fillcolor": look.colours.chosen_tint if step.decided else CLEAR, "line": {"width": 0}, "layer": "below",
        },
        {
            "type": "line", "xref": "paper", "x0": 0, "x1": 1, "yref": "y", "y0": len(rows) - 0.5, "y1": len(rows) - 0.5,
            "line": {"color": look.colours.line, "width": 1, "dash": "dot"}, "layer": "below",
        },
    ]  # fmt: skip
    cumulative_axis = axis(
        look, domain=[0, 1], range=[0, 1], anchor="y2", fixedrange=True, showgrid=False, zeroline=False, ticks="outside", ticklen=4,
        tickcolor=look.colours.muted, tickvals=[0, 0.25, 0.5, 0.75, 1], ticktext=["0", "0.25", "0.5", "0.75", "1"],
    )  # fmt: skip
    return {
        "data": data,
        "layout": layout(
            look,
            height=height,
            margin={"l": _gutter(look), "r": 14, "t": header, "b": 8, "pad": 0},
            barmode="overlay",
            bargap=0.22,
            annotations=notes,
            shapes=shapes,
            hovermode="closest",
            yaxis=axis(look, domain=[bars_low, 1], range=[len(rows) + 0.5, -0.5], anchor="x", fixedrange=True, **_row_labels(step, rows, look)),
            yaxis2=axis(look, domain=list(cumulative), range=[-0.5, 1.0], visible=False, anchor="x20", fixedrange=True),
            xaxis20=cumulative_axis,
            **axes,
        ),
    }


def _gutter(look: Look) -> int:
    return GUTTER_NARROW if look.narrow else GUTTER


def _longest(column: _Column, rows: list[int]) -> list[float]:
    before = column.before if column.before is not None else column.now
    return [max(column.now.range(index)[1], before.range(index)[1] if index in column.now.masked else 0.0) for index in rows]


def _bars(step: _Step, column: _Column, rows: list[int], key: str, scale: float, look: Look, final: bool) -> list[Spec]:
    """One column: a bar per candidate, hollow with ✕ where this stage removed it, and a tick at the length before."""
    colours = look.colours
    lengths, fills, edges, words, inks, hovers, places = [], [], [], [], [], [], []
    open_ends: list[tuple[int, float, float]] = []  # where a bar may end: its row, the least and the most
    ticks: list[tuple[float, int]] = []
    for row, index in enumerate(rows):
        p = column.now.probabilities[index]
        before = column.before.probabilities[index] if column.before is not None else p
        removed_here = index in column.now.masked or (look.narrow and final and p == 0.0 < before)
        chosen = step.chose(index)
        low, high = column.now.range(index)
        length, fill, edge, ink = p, CLEAR, CLEAR, colours.muted
        if removed_here:
            length, edge, word = before, colours.removed, f"<b>✕</b> {_remover_name(step, index, look)}" if look.narrow else "<b>✕</b>"
        elif p == 0.0:
            ink, word = colours.removed, "·"
        else:
            fill = edge = colours.chosen if chosen else colours.bar
            value = spanned((low, high), probability)
            ink, word = colours.text, f"<b>{value}</b>" if chosen else literal(value)
            if high - low > scale * 0.006:
                open_ends.append((row, low, high))
                length, edge = low, CLEAR
            if abs(before - p) > scale * 0.012:
                ticks.append((round(before, 6), row))
        lengths.append(round(length, 6))
        places.append(round(max(length, high if p > 0 else 0.0, before if p > 0 else 0.0), 6))
        fills.append(fill)
        edges.append(edge)
        words.append(f" {word}")
        inks.append(ink)
        hovers.append(_hover(step, column, index, look))
    rest = _others(column, rows, look)
    data: list[Spec] = [
        {
            "type": "bar", "orientation": "h", "x": lengths, "y": list(range(len(rows))), "xaxis": key, "yaxis": "y",
            "marker": {"color": fills, "line": {"color": edges, "width": 1.5}}, "hovertext": hovers, "hoverinfo": "text",
        },
        {
            "type": "scatter", "mode": "text", "x": [*places, 0], "y": list(range(len(rows) + 1)), "xaxis": key, "yaxis": "y", "text": [*words, rest],
            "textposition": "middle right", "textfont": {"size": SMALL, "color": [*inks, colours.muted]}, "hoverinfo": "skip", "cliponaxis": False,
        },
    ]  # fmt: skip
    if open_ends:
        data.append(
            {
                "type": "bar", "orientation": "h", "base": [round(low, 6) for _, low, _ in open_ends], "y": [row for row, _, _ in open_ends],
                "x": [round(high - low, 6) for _, low, high in open_ends], "xaxis": key, "yaxis": "y", "hoverinfo": "skip",
                "marker": {
                    "color": CLEAR, "line": {"color": colours.bar, "width": 1},
                    "pattern": {"shape": "/", "bgcolor": CLEAR, "fgcolor": colours.bar, "size": 5, "solidity": 0.35},
                },
            }
        )  # fmt: skip
    if ticks and not look.narrow:
        tick = {"symbol": "line-ns-open", "size": 17, "color": colours.muted, "line": {"width": 2, "color": colours.muted}}
        data.append(
            {
                "type": "scatter", "mode": "markers", "x": [p for p, _ in ticks], "y": [row for _, row in ticks], "xaxis": key, "yaxis": "y",
                "marker": tick, "hoverinfo": "skip", "cliponaxis": False,
            }
        )  # fmt: skip
    return data


def _others(column: _Column, rows: list[int], look: Look) -> str:
    """What all other tokens hold together: a number without a bar, so that it doesn't set the scale."""
    now = column.now
    least, most = (max(0.0, 1.0 - sum(now.range(index)[end] for index in rows)) for end in (1, 0))
    if now.alive is None:
        return f" {literal(probability(most))}"
    shown = sum(1 for index in rows if now.probabilities[index] > 0)
    unsure = len(set(now.bounds.unsure).intersection(rows)) if now.bounds else 0
    few, many = now.bounds.alive if now.bounds else (now.alive, now.alive)
    alive = max(few - shown, 0), many - shown + unsure
    if alive[1] <= 0:
        return " ·"
    # what is alive holds something, even where rounding leaves nothing
    rest = literal(spanned((max(least, 1e-9 if alive[0] > 0 else 0.0), max(most, 1e-9)), probability))
    return f" {rest}" if look.narrow else f" {rest} ({spanned(alive, lambda value: f'{round(value):,}')})"


def _remover_name(step: _Step, index: int, look: Look) -> str:
    """The stage that removed a candidate, for the one column in which a phone shows all removals."""
    stage = next((after.stage or "" for after in reversed(step.way) if index in after.masked), "")
    return literal(look.say(look.stage_labels[stage]) if stage in look.stage_labels else stage.replace("_", "-"), 14)


def _hover(step: _Step, column: _Column, index: int, look: Look) -> str:
    token = step.view.ids[index]
    words = [f"<b>{token_label(step.names, token, 40)}</b>  #{token}", f"{literal(column.title)}: {_precisely(column.now, index)}"]
    if column.before is not None:
        words.append(look.say(Text("before: {p}", "之前：{p}").filled(p=_precisely(column.before, index))))
    words.append(look.say(Text("rank by raw score: {r}", "原始分数排名：{r}").filled(r=index + 1)))
    return "<br>".join(words)


def _precisely(step: Distribution, index: int) -> str:
    """A candidate's probability with six digits, or between which values it lies."""
    return spanned(step.range(index), lambda p: f"{p:.4f}") if step.ranges else f"{step.probabilities[index]:.6f}"


def _heading(column: _Column, left: float, arrow: bool, look: Look) -> list[Spec]:
    colours = look.colours
    title = f"{'→ ' if arrow else ''}<b>{literal(column.short)}</b>"
    first, second = column.subtitle
    words = f"{title}<br><span style='font-size:{SMALL}px;color:{colours.muted}'>{first}<br>{second}</span>" if not look.narrow else title
    if look.narrow:
        words += f"<br><span style='font-size:{SMALL}px;color:{colours.muted}'>{first.split(' · ')[0]}</span>"
    return [note(look, words, x=left, xanchor="left", y=1, yanchor="bottom", yshift=4, font={"size": FONT_SIZE, "color": colours.text})]


def _row_labels(step: _Step, rows: list[int], look: Look) -> Spec:
    """The token axis: the chosen token with ▶ and in bold, the others plain; special tokens in italics.

    Tick labels, because a note for each would double the time that a redraw takes while a slider moves.
    """
    colours = look.colours
    most = 15 if not look.narrow else 9
    labels = []
    for index in rows:
        token = step.view.ids[index]
        name = token_label(step.names, token, most)
        if token in step.names and step.names[token].special:
            name = f"<i>{name}</i>"
        labels.append(f"<span style='color:{colours.chosen}'>▶ <b>{name}</b></span>" if step.chose(index) else name)
    labels.append(f"<span style='color:{colours.muted}'>{look.say(Text('all others', '其余词元'))}</span>")
    return {
        "tickvals": list(range(len(labels))), "ticktext": labels, "tickfont": {"family": MONO, "size": FONT_SIZE, "color": colours.text},
        "ticks": "outside", "ticklen": 8, "tickcolor": CLEAR, "showgrid": False, "showline": False, "zeroline": False,
    }  # fmt: skip


def _stage_lines(columns: list[_Column], look: Look) -> list[str]:
    """On a phone only the first and the last distribution are drawn: what happened between, a line each."""
    return [
        f"→ <b>{literal(column.short)}</b>  {column.subtitle[0].replace('alive ', '')} · {column.subtitle[1].split(' · ')[-1]}"
        for column in columns[1:]
    ]


def _named_only(hidden: list[str], look: Look) -> list[str]:
    if not hidden:
        return []
    shown = " · ".join(literal(title, 30) for title in hidden)
    return [look.say(Text("Stages that did least here, not drawn: ", "此处作用最小、未画出的阶段：")) + shown]


# --- the cumulative bar ---------------------------------------------------------------------------


def _segments(step: _Step) -> tuple[list[tuple[Segment | None, float, float]], float]:
    """Segments of the bar from 0 to 1: tokens, and None for stretches whose tokens aren't drawn; the end of what is sure."""
    sure = list(cumulative_bar(step.view))
    bar: list[tuple[Segment | None, float, float]] = [(segment, segment.low, segment.high) for segment in sure]
    end = sure[-1].high if sure else 0.0
    interval = step.chosen.interval
    if step.decided and interval is not None and all(segment.index != step.index for segment in sure):
        low, high = interval
        if low > end:
            bar.append((None, end, low))
        bar.append((Segment(step.index, low, high), low, high))
        end = high
    if end < 1.0 - 1e-4:
        bar.append((None, end, 1.0))
    return bar, end


def _cumulative(step: _Step, look: Look) -> Spec:
    colours = look.colours
    pixels = 250 if look.narrow else 900  # a label is written where the narrowest expected screen has room for it
    bar, _ = _segments(step)
    lows, widths, fills, inks, texts, hovers, patterns = [], [], [], [], [], [], []
    for number, (segment, low, high) in enumerate(bar):
        lows.append(round(low, 6))
        widths.append(round(high - low, 6))
        if segment is None:
            fills.append(colours.rest)
            inks.append(colours.text)
            patterns.append("/")
            texts.append("")
            hovers.append(look.say(Text("all others: {p:.4f}", "其余词元：{p:.4f}").filled(p=high - low)))
            continue
        chosen = step.chose(segment.index)
        token = step.view.ids[segment.index]
        low_p, high_p = step.way[-1].range(segment.index)
        label = display_name(step.names.get(token))
        room = int((high - low) * pixels / 8.6) - 1
        fills.append(colours.chosen if chosen else (colours.bar, colours.bar_other)[number % 2])
        inks.append(colours.on_chosen if chosen else colours.on_bar)
        open_end = high_p - low_p > 0.005
        patterns.append("/" if open_end else "")
        texts.append(literal(label, room) if room >= min(len(label), 5) else "")
        place = look.say(Text("about here", "大约在此")) if open_end else f"[{low:.6f}, {high:.6f})"
        hovers.append(f"<b>{literal(label, 40)}</b>  #{token}<br>{_precisely(step.way[-1], segment.index)}<br>{place}")
    hatching = {"bgcolor": colours.rest, "fgcolor": colours.removed, "size": 7, "solidity": 0.15}
    return {
        "type": "bar", "orientation": "h", "base": lows, "x": widths, "y": [0] * len(bar), "width": 0.96, "xaxis": "x20", "yaxis": "y2",
        "marker": {"color": fills, "line": {"color": colours.surface, "width": 1}, "pattern": {"shape": patterns, **hatching}},
        "text": texts, "textposition": "inside", "insidetextanchor": "middle", "textangle": 0,
        "textfont": {"family": MONO, "size": SMALL, "color": inks},
        "hovertext": hovers, "hoverinfo": "text",
    }  # fmt: skip


def _told_probability(step: _Step) -> str:
    """The chosen token's probability, as exactly as it is known."""
    if isinstance(step.view, EstimatedStepView) and step.view.probability is not None:
        return spanned(step.view.probability, probability)
    return spanned(step.way[-1].range(step.index), probability)


def _edges(step: _Step) -> tuple[str, str]:
    """Where the chosen token begins and ends on the cumulative bar, as exactly as it is known."""
    if isinstance(step.view, EstimatedStepView) and step.view.interval is not None:
        left, right = (spanned(edge, lambda value: f"{value:.4f}") for edge in step.view.interval)
        return left, right
    low, high = step.chosen.interval or (0.0, 0.0)
    return f"{low:.4f}", f"{high:.4f}"


def _die(step: _Step, look: Look, top: float) -> tuple[list[Spec], list[Spec]]:
    """The marker ▼ over the bar, and the sentence that says what was hit."""
    colours = look.colours
    u, interval = step.chosen.u, step.chosen.interval
    name = f"<b>{token_label(step.names, step.chosen.token, 20)}</b>"
    p = _told_probability(step)
    if u is None:
        first = next((segment for segment in cumulative_bar(step.view) if segment.index == step.index), None)
        at = (first.low + first.high) / 2 if first is not None else 0.0
        mark = look.say(_ARGMAX)
        words = Text("No die: greedy takes the most likely token, {name} ({p}).", "不掷骰子：贪心取最可能的词元 {name}（{p}）。")
        if look.narrow:
            words = Text("No die: the most likely is {name}.", "不掷骰子：最可能的是 {name}。")
        if step.beams:
            mark = look.say(_BEAM)
            words = Text(
                "The best beam goes on with {name} ({p}): its sum decides, not this step.", "最好的束以 {name}（{p}）继续：由总和决定，而非这一步。"
            )
            if look.narrow:
                words = Text("The best beam goes on with {name}.", "最好的束以 {name} 继续。")
        if step.chosen.origin == "forced":
            mark = look.say(_FORCED)
            words = Text("No die: the branch was given {name} ({p}).", "不掷骰子：分支被指定了 {name}（{p}）。")
            if first is None:
                words = Text(
                    "No die: the branch was given {name}, which the stages had removed.", "不掷骰子：分支被指定了 {name}，而它已被各阶段移除。"
                )
            if look.narrow:
                words = Text("Forced by the branch: {name}.", "由分支指定：{name}。")
    else:
        at = u
        mark = f"u = {u:.4f}"
        words = Text(
            "Cumulative bar: the die u = {u:.4f} falls on {name}, which holds {low} to {high}.",
            "累积条：骰子 u = {u:.4f} 落在 {name} 上，它占 {low} 到 {high}。",
        )
        if look.narrow:
            words = Text("The die {u:.4f} hits {name}.", "骰子 {u:.4f} 命中 {name}。")
    if not step.decided and u is None:
        mark = "?"
        words = Text("No die: which token is the most likely can't be told.", "不掷骰子：无法确定最可能的词元。")
    if u is not None and interval is None:
        words = Text("Cumulative bar: which token the die u = {u:.4f} falls on can't be told.", "累积条：无法确定骰子 u = {u:.4f} 落在哪个词元上。")
    low, high = _edges(step)
    # a name may hold braces: it is put in after the numbers are formatted
    sentence = look.say(words.filled(name="\0", p=literal(p), u=u or 0.0, low=low, high=high)).replace("\0", name)
    side = "left" if at < 0.12 else "right" if at > 0.88 else "center"
    marker: Spec = {
        "type": "scatter", "mode": "markers", "x": [round(at, 6)], "y": [0.72], "xaxis": "x20", "yaxis": "y2", "cliponaxis": False,
        "marker": {"symbol": "triangle-down", "size": 16, "color": colours.chosen, "line": {"color": colours.surface, "width": 1}},
        "hovertext": [mark], "hoverinfo": "text",
    }  # fmt: skip
    shift = {"left": 10, "center": 0, "right": -10}[side]
    if u is None and first is None:  # a forced token that stands nowhere on the bar
        marker["visible"] = False
        mark = ""
    return [marker], [
        note(look, f"<b>{mark}</b>", x=at, xref="x20", xanchor=side, xshift=shift if side != "center" else 0, y=top, yanchor="bottom", yshift=2,
             font={"size": SMALL, "color": colours.chosen}),
        note(look, sentence, x=0, xanchor="left", xshift=-_gutter(look) + 8 if look.narrow else 0, y=top, yanchor="bottom", yshift=22,
             font={"size": FONT_SIZE, "color": colours.text}),
    ]  # fmt: skip


# --- in words and in rows -------------------------------------------------------------------------


def describe(trace: Trace, lane: int | None, position: int | None, look: Look) -> Text:
    """The step in words: where the distribution began, what each stage did, which token it became."""
    step = _step(trace, lane, position)
    if step is None:
        return NO_VIEW
    return Text(
        _sentences(trace, step, Look(language="en", stage_labels=look.stage_labels)),
        _sentences(trace, step, Look(language="zh", stage_labels=look.stage_labels)),
    )


def _sentences(trace: Trace, step: _Step, look: Look) -> str:
    def name(index: int) -> str:
        return display_name(step.names.get(step.view.ids[index]))

    raw = step.way[0]
    top = ", ".join(f"{name(index)} {probability(raw.probabilities[index])}" for index in range(min(3, len(step.view.ids))))
    lane = trace.about.lanes[step.lane].name
    told = [look.say(Text(f"Lane {lane}, token {step.chosen.position + 1}.", f"通道 {lane}，第 {step.chosen.position + 1} 个词元。"))]
    entropy = f"{raw.entropy:.2f} nats" if raw.entropy is not None else look.say(Text("unknown", "未知"))
    told.append(look.say(Text(f"The model's most likely: {top}; entropy {entropy}.", f"模型认为最可能：{top}；熵 {entropy}。")))
    if step.view.doubt is not None:
        told.append(look.say(DOUBTS[step.view.doubt]))
    for before, after in zip(step.way, step.way[1:], strict=False):
        title = stage_title(after.stage or "", step.stages.get(after.stage or ""), look)
        removed, entropies = _share(_removed(after)), (_entropy(before), _entropy(after))
        alive = tuple(_alive(one).replace(",", "") for one in (before, after))
        en = "{}: {} to {} tokens alive, {} of the mass removed, entropy {} to {}.".format(title, *alive, removed, *entropies)
        zh = "{}：存活 {} 到 {}，移除 {} 的概率，熵 {} 到 {}。".format(title, *alive, removed, *entropies)
        told.append(look.say(Text(en, zh)))
    token, p, u = name(step.index), _told_probability(step), step.chosen.u
    if not step.decided:
        die = Text("which token the die {u:.4f} falls on", "骰子 {u:.4f} 落在哪个词元上").filled(u=u) if u is not None else _MOST_LIKELY
        told.append(look.say(Text(f"It can't be told {die.en}; recorded was {token}.", f"无法确定{die.zh}；记录为 {token}。")))
    elif step.chosen.origin == "forced":
        told.append(look.say(Text(f"The branch was given {token} ({p}).", f"分支被指定了 {token}（{p}）。")))
    elif u is None and step.beams:
        told.append(look.say(Text(f"The beam goes on with {token} ({p}); its sum decides.", f"该束以 {token}（{p}）继续；由总和决定。")))
    elif u is None:
        told.append(look.say(Text(f"No die was rolled; the argmax is {token} ({p}).", f"没有掷骰子；最大值是 {token}（{p}）。")))
    else:
        told.append(look.say(Text(f"The die {u:.4f} fell on {token} ({p}).", f"骰子 {u:.4f} 落在 {token}（{p}）上。")))
    return " ".join(told) if look.language == "en" else "".join(told)


def table(trace: Trace, lane: int | None, position: int | None, look: Look) -> list[Row]:
    """All recorded candidates: token, id, probability raw and after each stage; ✕ from where it was removed."""
    step = _step(trace, lane, position)
    if step is None:
        return []
    titles = [stage_title(after.stage or "", step.stages.get(after.stage or ""), look) for after in step.way[1:]]
    rows: list[Row] = [(look.say(Text("token", "词元")), "id", look.say(_model_title(step.view)), *titles)]
    removers = _removers(step)
    for index, token in enumerate(step.view.ids):
        mark = "▶ " if step.chose(index) else ""
        cells = [
            "✕" if after.probabilities[index] == 0.0 and removers.get(index, at + 1) <= at else _precisely(after, index)
            for at, after in enumerate(step.way)
        ]
        rows.append((mark + display_name(step.names.get(token)), str(token), *cells))
    return rows


FIGURE = Figure(
    name="pipeline",
    label=Text("Pipeline", "流水线"),
    summary=Text(
        "The candidates' probability as the model gave it and after each stage in order, and the die on the cumulative bar.",
        "候选词元的概率：模型原始值、每个阶段之后的值，以及累积条上的骰子。",
    ),
    needs=frozenset({TokenChosen}),
    scope="step",
    spec=spec,
    describe=describe,
    table=table,
)
