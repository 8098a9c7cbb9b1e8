"""The recordings, for a page that has no model yet: nothing here waits for one, and nothing imports one.

A recording goes to the page whole, as the packets that a live run would have sent, each with the
second at which it came: every viewer plays them at a pace of their own and costs the server nothing.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import playground
from playground import presets
from playground.errors import Text
from playground.figures.palette import PALETTES
from playground.records import recordings
from playground.records.table import markdown
from playground.trace import Trace
from playground.ui import packets, views
from playground.ui.views import Answer, answers


class Recordings:
    """What a page may ask of recordings; runs are named "recording:classic" here."""

    @answers
    def recordings(self) -> Answer:
        """Which recordings there are, and the declarations that showing them takes."""
        known = recordings.declarations()
        return {
            "entries": [
                {"name": one.name, "run": one.run, "title": one.title.to_json(), "line": one.line.to_json()}
                for one in recordings.RECORDINGS
                if one.path.is_file()
            ],
            "declarations": {
                **known,
                "orders": {"transformers": [stage["name"] for stage in known["stages"]]},
                "limits": {"lanes": 6},
                "presets": [],
                "classic": presets.classic(),
                "figures": views.declared_figures(),
                "palette": {theme: palette.lanes for theme, palette in PALETTES.items()},
                "version": playground.__version__,
            },
        }

    @answers
    def recording(self, name: Any) -> Answer:
        """A whole recording: what was asked, and its packets with their seconds."""
        one = recordings.get(name)
        return {"name": one.name, "run": one.run, "title": one.title.to_json(), "line": one.line.to_json(), **_played(one.name)}

    @answers
    def figure(self, run: Any, name: Any, lane: Any, position: Any, look: Any) -> Answer:
        labels = {stage["name"]: Text(**stage["label"]) for stage in recordings.declarations()["stages"]}
        return views.figure(_trace(run), name, lane, position, look, labels, recorded=True)

    @answers
    def step(self, run: Any, lane: Any, position: Any) -> Answer:
        return views.step(_trace(run), lane, position)

    @answers
    def record(self, run: Any) -> Answer:
        return {"markdown": markdown(_trace(run))}

    @answers
    def trace(self, run: Any) -> Answer:
        return {"json": _trace(run).to_json()}


def _trace(run: Any) -> Trace:
    return recordings.load(recordings.name_of(run))


@cache
def _played(name: str) -> Answer:
    trace = recordings.load(name)
    return {"about": packets.about_json(trace.about, recorded=True), "packets": packets.replayed(trace)}
