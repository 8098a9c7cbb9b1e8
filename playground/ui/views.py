"""What a page may see of a trace, wherever it comes from: figures, steps, declarations, everything that comes in checked.

Nothing here needs a model, and nothing imports one: a recording is shown before there is any.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from playground.engine.knobs import knobs_of
from playground.errors import BadValue, PlaygroundError, Text
from playground.figures import Look, figures, get_figure
from playground.measures.distribution import distributions
from playground.measures.text import display_name
from playground.trace import StepView, TokenChosen, Trace
from playground.ui import packets

Answer = dict[str, Any]


def answers(function: Callable[..., Answer]) -> Callable[..., Answer]:
    """What a visitor can mend comes back as {"error": …}; a bug is raised and lands in the log."""

    @functools.wraps(function)
    def answer(*arguments: Any) -> Answer:
        try:
            return function(*arguments)
        except PlaygroundError as error:
            return {"error": error.to_json()}

    return answer


def declared(strategies: Iterable[Any], stages: Iterable[Any]) -> Answer:
    """Strategies and stages as the page builds its controls from them."""
    return {
        "strategies": [
            {
                "name": strategy.name, "label": strategy.label.to_json(), "summary": strategy.summary.to_json(), "warps": strategy().warps,
                "knobs": {name: knob.to_json() for name, knob in knobs_of(strategy).items()}, "loop": strategy.loop,
            }
            for strategy in strategies
        ],
        "stages": [
            {
                "name": stage.name, "kind": stage.kind, "label": stage.label.to_json(), "summary": stage.summary.to_json(),
                "common": stage.common, "knobs": {name: knob.to_json() for name, knob in knobs_of(stage).items()},
            }
            for stage in stages
        ],
    }  # fmt: skip


def declared_figures() -> list[Answer]:
    """The figures that there are, and what each needs to know."""
    return [figure.to_json() for figure in figures().values()]


def figure(trace: Trace, name: Any, lane: Any, position: Any, look: Any, stage_labels: Mapping[str, Text], recorded: bool) -> Answer:
    """A figure as Plotly's JSON, in words and as a table; `recorded` marks its times as not measured just now."""
    wanted = look_of(look, stage_labels, recorded)
    lane = lane_of(trace, lane)
    if not isinstance(position, int) or isinstance(position, bool):
        position = None
    drawn = get_figure(name if isinstance(name, str) else "")
    spec, text = drawn.spec(trace, lane, position, wanted), drawn.describe(trace, lane, position, wanted)
    return {"figure": spec, "text": text.to_json(), "table": drawn.table(trace, lane, position, wanted)}


def step(trace: Trace, lane: Any, position: Any) -> Answer:
    """Everything recorded about one step, for the sheet under a token."""
    lane = lane_of(trace, lane)
    chosen = chosen_at(trace, lane, position)
    names = trace.names(trace.about.lanes[lane].model)
    answer: Answer = {
        "position": chosen.position, "token": chosen.token, "text": display_name(names.get(chosen.token)), "u": chosen.u,
        "interval": chosen.interval, "rank": chosen.rank, "raw_rank": chosen.raw_rank, "states": chosen.stage_states,
        "stages": [], "candidates": [],
    }  # fmt: skip
    view = chosen.view
    if view is None:
        return answer
    way = distributions(view)
    removed = removed_by(view)
    return answer | {
        "entropy": view.entropy,
        "alive": view.alive,
        "stages": [{"stage": s.stage, "alive": s.alive, "entropy": s.entropy, "removed_mass": s.removed_mass} for s in view.stages],
        "candidates": [
            {
                "id": token, "text": display_name(names.get(token)), "raw": packets.rounded(way[0].probabilities[index]),
                "final": packets.rounded(way[-1].probabilities[index]) if index not in removed else None, "removed_by": removed.get(index),
            }
            for index, token in enumerate(view.ids)
        ],
    }  # fmt: skip


def removed_by(view: StepView) -> dict[int, str]:
    """Of the candidates that are gone after the last stage, by index: which stage removed each (first)."""
    final = distributions(view)[-1].probabilities
    return {index: stage.stage for stage in reversed(view.stages) for index in stage.masked if final[index] == 0.0}


def look_of(look: Any, stage_labels: Mapping[str, Text], recorded: bool = False) -> Look:
    """How the page wants a figure, from what a page may send."""
    look = look if isinstance(look, dict) else {}
    return Look(
        theme="dark" if look.get("theme") == "dark" else "light",
        language="zh" if look.get("language") == "zh" else "en",
        narrow=bool(look.get("narrow")),
        recorded=recorded,
        stage_labels=stage_labels,
    )


def lane_of(trace: Trace, lane: Any) -> int:
    """A lane's index from what a page may send; the first where none is named."""
    if lane is None:
        return 0
    if not isinstance(lane, int) or isinstance(lane, bool) or not 0 <= lane < len(trace.about.lanes):
        raise BadValue("lane_unknown", Text("This run has no such lane.", "这个运行没有这条通道。"))
    return lane


def chosen_at(trace: Trace, lane: int, position: Any) -> TokenChosen:
    """The token at a position of a lane; the newest where none is named."""
    tokens = trace.output(lane)
    if not tokens:
        raise BadValue("no_step", Text("This lane has no token yet.", "这条通道还没有词元。"))
    if position is None:
        return tokens[-1]
    if not isinstance(position, int) or isinstance(position, bool) or not 0 <= position < len(tokens):
        raise BadValue("no_step", Text("This lane has no token there.", "这条通道在那里没有词元。"))
    return tokens[position]
