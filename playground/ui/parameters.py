"""The page "Parameters": every knob of every stage and strategy, with what a newcomer asks about it, made from the declarations."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from playground.engine import example
from playground.engine.knobs import Knob, knobs_of
from playground.engine.parameters import PARAMETERS, Parameter
from playground.engine.stages import ORDERS, Stage, stages
from playground.engine.strategies import Strategy, strategies
from playground.errors import Text
from playground.ui.packets import rounded
from playground.ui.views import Answer

#: The libraries whose names every knob is compared with, whether they have it or not.
LIBRARIES = ("transformers", "vllm", "openai")

Owner = type[Stage] | type[Strategy]


@cache
def parameters() -> Answer:
    """Every knob's entry, processors, warpers, then strategies; and the example they are drawn on."""
    owners: list[Owner] = [*stages.all().values(), *strategies.all().values()]
    entries: dict[tuple[str, Knob], Answer] = {}
    for owner in owners:
        for name, declared in knobs_of(owner).items():
            entry = entries.setdefault((name, declared), _entry(owner, name, declared))  # strategies may share a knob
            entry["owners"].append({"name": owner.name, "label": owner.label.to_json(), "summary": owner.summary.to_json()})
    return {
        "entries": list(entries.values()),
        "orders": ORDERS,
        "libraries": LIBRARIES,
        "example": {
            "words": [word.strip() for word in example.WORDS], "prompt": example.words(example.PROMPT).strip(),
            "output": example.words(example.OUTPUT).strip(), "before": _drawing("", example.drawing(example.scores())),
        },
    }  # fmt: skip


def _entry(owner: Owner, name: str, declared: Knob) -> Answer:
    more = PARAMETERS.get(name)
    stage = owner if issubclass(owner, Stage) else None
    names = dict(declared.names)
    return {
        "name": name, "group": stage.kind if stage else "strategy", "acts_on": stage.acts_on if stage else "choice", "owners": [],
        "knob": declared.to_json(),
        "more": _more(more) if more else None,
        "libraries": [_library(library, names.get(library), more) for library in dict.fromkeys((*LIBRARIES, *names))],
        "drawings": [_drawing(_title(knobs, stage), example.drawn(stage, knobs, more.at_start)) for knobs in more.examples] if stage and more else [],
    }  # fmt: skip


def _more(more: Parameter) -> Answer:
    texts = {name: getattr(more, name).to_json() for name in ("larger", "why", "cost", "mistake")}
    return {**texts, "alive": more.alive, "at_start": more.at_start}


def _library(library: str, name: str | None, more: Parameter | None) -> Answer:
    difference = more.differences.get(library) if more else None
    return {"library": library, "name": name, "difference": difference.to_json() if difference else None}


def _drawing(title: Text | str, drawn: example.Drawing) -> Answer:
    return {
        "title": title.to_json() if isinstance(title, Text) else title,
        "p": [rounded(probability) for probability in drawn.probabilities], "alive": drawn.alive, "entropy": rounded(drawn.entropy),
    }  # fmt: skip


def _title(knobs: Mapping[str, Any], stage: type[Stage]) -> Text:
    """Settings as the head of a drawing: "temperature 0.3"."""
    declared = knobs_of(stage)
    shown = {name: _value(value, declared[name]) for name, value in knobs.items()}
    return Text(
        ", ".join(f"{declared[name].label.en} {value}" for name, value in shown.items()),
        "，".join(f"{declared[name].label.zh} {value}" for name, value in shown.items()),
    )


def _value(value: Any, declared: Knob) -> str:
    """A knob's value in words: ids of the example as its words."""
    if declared.kind == "bool":
        return "✓" if value else "✗"
    if declared.kind == "tokens":
        return " · ".join(f"“{example.words(entry).strip()}”" for entry in value)
    if declared.kind == "biases":
        return " · ".join(f"“{example.words(entry).strip()}” {number:+g}" for entry, number in value)
    return value if isinstance(value, str) else f"{value:g}"
