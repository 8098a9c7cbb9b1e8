"""Where a step's time goes: forward, processors, warpers, select, cache and what is left."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from playground.errors import Text
from playground.measures import Quantity
from playground.trace import StepTimed, Trace

#: The parts that add up to a step, in the order in which they run.
PARTS = ("draft", "forward", "processors", "warpers", "select", "cache", "other")

PART_LABELS = {
    "draft": Text("draft", "起草"),
    "forward": Text("forward", "前向计算"),
    "processors": Text("processors", "处理器"),
    "warpers": Text("warpers", "整形器"),
    "select": Text("select", "选择"),
    "cache": Text("cache", "缓存"),
    "other": Text("other", "其他"),
    "recording": Text("recording", "记录"),
}


@dataclass(frozen=True)
class Part:
    """One part of a lane's steps: median and sum in seconds, and its share of all steps' time.

    Recording is ours: it is no part of a step's seconds, and its share is its sum against them.
    """

    name: str
    median: Quantity
    total: Quantity
    share: Quantity


def lane_parts(trace: Trace, lane: int) -> tuple[Part, ...]:
    """The parts of a lane's steps in the order in which they run, then recording, apart."""
    steps = list(trace.of(lane, StepTimed))
    whole = sum(step.seconds for step in steps)
    parts = []
    for name in (*PARTS, "recording"):
        if name == "draft" and not any("draft" in step.parts for step in steps):
            continue  # a lane that doesn't guess has no such part
        seconds = [step.recording if name == "recording" else step.parts.get(name, 0.0) for step in steps]
        label = PART_LABELS[name]
        over = "Σ recording / Σ step seconds (not part of them)" if name == "recording" else f"Σ {name} / Σ step seconds"
        parts.append(
            Part(
                name,
                median=Quantity(median(seconds) if seconds else None, "s", "derived", label, f"median of {name} over {len(seconds)} steps"),
                total=Quantity(sum(seconds) if seconds else None, "s", "derived", label, f"Σ {name}"),
                share=Quantity(sum(seconds) / whole if whole > 0 else None, "1", "derived", label, over),
            )
        )
    return tuple(parts)
