"""The recordings, for a page that has no model yet: nothing here waits for one, and nothing imports one.

A recording goes to the page whole, as the packets that a live run would have sent, each with the
second at which it came: every viewer plays them at a pace of their own and costs the server nothing.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import playground
from playground import presets
from playground.errors import PlaygroundError, Text
from playground.figures.palette import PALETTES
from playground.records import recordings
from playground.records.opened import OPENED, PREFIX
from playground.records.table import markdown
from playground.trace import Trace
from playground.ui import beams, packets, server_ledger, speculation, views
from playground.ui.views import Answer, answers

TITLE = Text("Opened from a file", "从文件打开")
LINE = Text("A trace that was saved here or elsewhere: every view shows what was recorded.", "保存过的解码记录：各视图展示的都是当时记录的内容。")


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
        if isinstance(name, str) and name.startswith(PREFIX):
            shown = {"name": name, "run": f"{recordings.PREFIX}{name}", "title": TITLE.to_json(), "line": LINE.to_json(), "opened": True}
            return {**shown, **_packed(OPENED.load(name))}
        one = recordings.get(name)
        return {"name": one.name, "run": one.run, "title": one.title.to_json(), "line": one.line.to_json(), **_played(one.name)}

    @answers
    def open_trace(self, text: Any) -> Answer:
        """Take a visitor's own trace, and show it like a recording; only who has its name can ask for it again."""
        name = OPENED.open(text)
        try:
            return self.recording(name)
        except (ArithmeticError, AssertionError, LookupError, TypeError, ValueError) as error:
            # Its form is right and its values are not: what the page would be told can't be made of it.
            OPENED.drop(name)
            raise PlaygroundError("trace_broken", Text("This trace is broken: it can't be shown.", "记录已损坏：无法显示。")) from error

    @answers
    def figure(self, run: Any, name: Any, lane: Any, position: Any, look: Any) -> Answer:
        labels = {stage["name"]: Text(**stage["label"]) for stage in recordings.declarations()["stages"]}
        return views.figure(_trace(run), name, lane, position, look, labels, recorded=True)

    @answers
    def step(self, run: Any, lane: Any, position: Any) -> Answer:
        return views.step(_trace(run), lane, position)

    @answers
    def beams(self, run: Any, lane: Any, penalty: Any) -> Answer:
        return beams.beams(_trace(run), lane, penalty)

    @answers
    def beam(self, run: Any, lane: Any, step: Any, candidate: Any) -> Answer:
        return beams.beam(_trace(run), lane, step, candidate)

    @answers
    def speculation(self, run: Any, lane: Any) -> Answer:
        return speculation.speculation(_trace(run), lane)

    @answers
    def server_speculation(self, run: Any, lane: Any) -> Answer:
        return server_ledger.lane_speculation(_trace(run), lane)

    @answers
    def which_k(self, run: Any, lane: Any, factors: Any, look: Any) -> Answer:
        return speculation.which_k(_trace(run), lane, factors, look)

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
    return _packed(recordings.load(name))


def _packed(trace: Trace) -> Answer:
    return {"about": packets.about_json(trace.about, recorded=True), "packets": packets.replayed(trace)}
