"""Traces as pictures: pure functions from a trace to a Plotly figure, one file per figure.

A file here that defines `FIGURE` is a figure; nothing else has to know of it. A figure is drawn as
a plain dict of Plotly's own JSON, which costs a fraction of a validated `go.Figure`: the page takes
`figure_json`, a notebook or an export takes `draw`.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import plotly.graph_objects as go

from playground.errors import BadValue, Text
from playground.figures.palette import PALETTES, Palette, Theme
from playground.trace import Trace

Scope = Literal["step", "lane", "race"]
Spec = dict[str, Any]
Row = tuple[str, ...]


@dataclass(frozen=True)
class Look:
    """How a figure shall look: theme, language, and whether it must fit a phone (390 px).

    `stage_labels` gives stages the names that the page uses; `recorded` marks times that were not
    measured just now.
    """

    theme: Theme = "light"
    language: Literal["en", "zh"] = "en"
    narrow: bool = False
    recorded: bool = False
    stage_labels: Mapping[str, Text] = field(default_factory=dict)

    @property
    def colours(self) -> Palette:
        return PALETTES[self.theme]

    def say(self, text: Text) -> str:
        """A text in the language of the page."""
        return text.zh if self.language == "zh" else text.en


@dataclass(frozen=True)
class Figure:
    """A kind of figure. `scope` says what it needs to know: a step (lane and position), a lane, or only the race.

    `spec` returns Plotly's `{"data", "layout"}`; `describe` says the same in words, for screen
    readers; `table` in rows, the first one holding the column names. A lane or position that isn't
    given means lane 0 and the newest step.
    """

    name: str
    label: Text
    summary: Text
    needs: frozenset[type]
    scope: Scope
    spec: Callable[[Trace, int | None, int | None, Look], Spec]
    describe: Callable[[Trace, int | None, int | None, Look], Text]
    table: Callable[[Trace, int | None, int | None, Look], list[Row]]

    def draw(self, trace: Trace, lane: int | None = None, position: int | None = None, look: Look = Look()) -> go.Figure:
        """The figure as a validated Plotly object."""
        spec = self.spec(trace, lane, position, look)
        # Without this, Plotly puts 60 kB of its default template into every figure.
        return go.Figure(data=spec["data"], layout={**spec["layout"], "template": None})

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "label": self.label.to_json(), "summary": self.summary.to_json(), "scope": self.scope}


def figures() -> dict[str, Figure]:
    """Every figure by name, sorted by name."""
    modules = [importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
    found: list[Figure] = [module.FIGURE for module in modules if hasattr(module, "FIGURE")]
    return {figure.name: figure for figure in sorted(found, key=lambda figure: figure.name)}


def get_figure(name: str) -> Figure:
    """The figure of that name, or a `BadValue` that lists those there are."""
    known = figures()
    if name not in known:
        raise BadValue(
            "figure_unknown",
            Text("There is no figure called {name}; there are {names}.", "没有名为 {name} 的图；可用的有 {names}。"),
            name=repr(name)[:60], names=", ".join(known),
        )  # fmt: skip
    return known[name]


def figure_json(name: str, trace: Trace, lane: int | None = None, position: int | None = None, look: Look = Look()) -> str:
    """Plotly's JSON of a figure, for `Plotly.react`; strict JSON, no NaN."""
    return json.dumps(get_figure(name).spec(trace, lane, position, look), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
