"""What the page asks of a record: where two lanes part and why, and what a lane would do under other knobs. No model runs for either."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from playground.engine.stages import Stage, stages
from playground.engine.strategies import strategies
from playground.engine.task import one_thread
from playground.errors import BadValue, Text
from playground.figures import get_figure
from playground.measures.divergence import Side, first_divergence, reason, sentence
from playground.measures.text import display_name
from playground.measures.what_if import CHOOSERS, OTHER_STRATEGY, Redecided, WhatIf, changed, redecide
from playground.trace import TokenChosen, TokenName, Trace
from playground.ui.packets import rounded
from playground.ui.views import Answer, chosen_at, lane_of, look_of

#: Seconds for the steps of a lane while a knob moves, and once it rests.
MOVING, RESTING = 0.012, 2.0
#: A page changes a handful of knobs, most of them numbers.
MOST_CHANGES, LONGEST_CHANGES = 40, 20_000


def labels() -> dict[str, Text]:
    return {name: stage.label for name, stage in stages.all().items()}


def followed() -> list[str]:
    """The stages that a record can be taken through again."""
    return [name for name, stage in stages.all().items() if stage.redecide is not Stage.redecide]


def parting(trace: Trace, a: Any, b: Any) -> Answer:
    """Where two lanes part, in numbers and words, and why; or for how many tokens they are the same."""
    lanes = lane_of(trace, a), lane_of(trace, b)
    names = [trace.names(trace.about.lanes[lane].model) for lane in lanes]
    divergence = first_divergence(trace, *lanes)
    if divergence is None:
        return {"position": None, "same": min(len(trace.output(lane)) for lane in lanes)}
    cause = divergence.cause
    return {
        "position": divergence.position, "sentence": sentence(divergence, *names).to_json(), "reason": reason(divergence, labels()).to_json(),
        "cause": {"kind": cause.kind, "stage": cause.stage, "more": cause.more, "certain": cause.certain},
        "sides": [_side(side, known) for side, known in zip((divergence.a, divergence.b), names, strict=True)],
    }  # fmt: skip


def _side(side: Side, names: Mapping[int, TokenName]) -> Answer:
    return {
        "lane": side.lane, "token": display_name(names.get(side.token)), "other": display_name(names.get(side.other)), "u": side.u,
        "raw": [rounded(p) for p in side.raw], "final": [rounded(p) for p in side.final], "margin": rounded(side.margin, 3),
        "removed_by": side.removed_by,
    }  # fmt: skip


def what_if(trace: Trace, lane: Any, position: Any, changes: Any, look: Any, recorded: bool) -> Answer:
    """A lane under other knobs, decided from its record: the pipeline of one step, and the first token that would flip.

    The picture takes the text before the step as it was recorded. `look.moving` asks for an answer within a slider's move, in which not
    every step of a long lane may be decided: `seen` says how many were.
    """
    lane = lane_of(trace, lane)
    chosen = chosen_at(trace, lane, position)
    settings = changed(trace, lane, _asked(changes))
    about = trace.about.lanes[lane]
    answer: Answer = {
        "position": chosen.position, "strategy": settings.strategy,
        "stages": [{"stage": s.stage, "kind": s.kind, "knobs": s.knobs, "origin": s.origin, "idle": s.idle} for s in settings.about],
    }  # fmt: skip
    if about.strategy not in CHOOSERS:
        label = strategies.get(about.strategy).label
        why = Text(OTHER_STRATEGY.en.format(strategy=label.en), OTHER_STRATEGY.zh.format(strategy=label.zh))
        return answer | {"why": why.to_json()}
    moving = isinstance(look, dict) and bool(look.get("moving"))
    with one_thread("cpu"):
        whole = redecide(trace, lane, settings, patience=MOVING if moving else RESTING)
        here = redecide(trace, lane, settings, only=chosen.position, position=chosen.position)
    names = trace.names(about.model)
    output = trace.output(lane)
    ended = whole.steps[-1].flips or whole.steps[-1].verdict == "needs_model"
    return answer | {
        "why": None,
        "seen": len(whole.steps), "count": len(output), "cut": not ended and len(whole.steps) < len(output),
        "step": _step(here.steps[0], chosen, names),
        "flip": None if whole.first_flip is None else _step(whole.first_flip, output[whole.first_flip.position], names),
        "undecided": None if whole.first_undecided is None else _step(whole.first_undecided, output[whole.first_undecided.position], names),
        **_picture(trace, here, look, recorded),
    }  # fmt: skip


def _asked(changes: Any) -> dict[str, Any]:
    """The changed knobs as a page may send them; their names and values are checked where they are declared."""
    try:
        fits = isinstance(changes, dict) and len(changes) <= MOST_CHANGES and len(json.dumps(changes)) <= LONGEST_CHANGES
    except (TypeError, ValueError, RecursionError):
        fits = False
    if not fits or "seed" in changes:
        raise BadValue("changes_broken", Text("changes is a handful of knobs with their values.", "changes 是若干参数及其取值。"))
    return {str(name): value for name, value in changes.items()}


def _step(step: Redecided, chosen: TokenChosen, names: Mapping[int, TokenName]) -> Answer:
    """A step decided again: the token that it would be, beside the one that was recorded."""
    own = None if chosen.log_probability is None else math.exp(chosen.log_probability)
    return {
        "position": step.position, "verdict": step.verdict, "u": step.u,
        "recorded": display_name(names.get(step.recorded)), "recorded_p": rounded(own),
        "token": None if step.token is None else display_name(names.get(step.token)),
        "p": None if step.probability is None else [rounded(p) for p in step.probability],
        "possible": [display_name(names.get(token)) for token in step.possible[:3]],
        "reason": None if step.reason is None else step.reason.to_json(),
    }  # fmt: skip


def _picture(trace: Trace, here: WhatIf, look: Any, recorded: bool) -> Answer:
    """The pipeline of the estimated step; where the record can't show one, nothing."""
    if here.selected is None:
        return {"figure": None, "text": None, "table": [], "estimated": False}
    drawn, pipeline = here.as_trace(trace), get_figure("pipeline")
    wanted, at = look_of(look, labels(), recorded), here.steps[0].position
    return {
        "figure": pipeline.spec(drawn, here.lane, at, wanted), "text": pipeline.describe(drawn, here.lane, at, wanted).to_json(),
        "table": pipeline.table(drawn, here.lane, at, wanted), "estimated": here.selected.estimated,
    }  # fmt: skip
