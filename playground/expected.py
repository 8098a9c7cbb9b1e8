"""How long a run will take here: a range, from runs that this process has measured, or nothing."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from playground.engine.knobs import values_of
from playground.trace import LaneEvent, PromptRead, StepTimed

if TYPE_CHECKING:
    from playground.request import Lane, Request

#: Seconds from and to.
Range = tuple[float, float]

#: How many lanes of a kind are remembered, and into how many parts the steps of one are cut: the fastest and the slowest part are its range.
REMEMBERED, PARTS = 8, 5
#: A lane tells of another one whose prompt is at most so many times as long; below so many tokens length hardly matters.
ALIKE, SHORT = 2.0, 64


@dataclass(frozen=True)
class Measured:
    """One lane of a run: tokens of its prompt, and seconds per written token from its fastest and slowest part."""

    prompt: int
    low: float
    high: float


class Expected:
    """Learns from every ended run and tells of the next. Lanes are alike in model, settings, and what decides the rows of a forward."""

    def __init__(self) -> None:
        self._lanes: dict[tuple[Any, ...], deque[Measured]] = defaultdict(lambda: deque(maxlen=REMEMBERED))
        self._prompts: dict[tuple[Any, ...], deque[tuple[int, float]]] = defaultdict(lambda: deque(maxlen=REMEMBERED))

    def learn(self, request: Request, settings: tuple[str, ...], events: Sequence[LaneEvent]) -> None:
        """Take in what a run's events measured: its steps, recording included, and its prompts."""
        shared = [event for lane, event in events if lane is None and isinstance(event, PromptRead)]
        for index, lane in enumerate(request.lanes):
            if lane.server is not None:
                continue
            own = [event for at, event in events if at == index]
            reads = [event for event in own if isinstance(event, PromptRead)]
            steps = [event for event in own if isinstance(event, StepTimed) and event.tokens]
            total = max((event.total for event in (*reads, *shared)), default=0)
            if not total or not steps:
                continue
            self._lanes[_alike(request, settings, lane)].append(Measured(total, *_pace(steps)))
        by_model = {_model(request, settings, lane) for lane in request.lanes if lane.server is None}
        alone = by_model.pop() if len(by_model) == 1 else None
        if alone is None:
            return  # of several models nobody could say whose a shared prompt's seconds are
        for one in (shared, *([e for at, e in events if at == i and isinstance(e, PromptRead)] for i in range(len(request.lanes)))):
            read = [event for event in one if not event.reused]
            if read and read[-1].tokens == read[-1].total:
                self._prompts[alone].append((read[-1].total, sum(event.seconds for event in read) / read[-1].total))

    def seconds(self, request: Request, settings: tuple[str, ...], prompts: Sequence[int] | None) -> Range | None:
        """From and to, if every lane writes as much as it may; None where a lane like one of these wasn't measured here.

        `prompts` holds the tokens of every lane's prompt; None: unknown.
        """
        if prompts is None or any(lane.server is not None for lane in request.lanes):
            return None
        low = high = 0.0
        for lane, size in zip(request.lanes, prompts, strict=True):
            known = [one for one in self._lanes.get(_alike(request, settings, lane), ()) if _similar(one.prompt, size)]
            if not known:
                return None
            low += lane.max_new_tokens * min(one.low for one in known)
            high += lane.max_new_tokens * max(one.high for one in known)
        models = [_model(request, settings, lane) for lane in request.lanes]
        for model, size in set(zip(models, prompts, strict=True)):
            rates = [rate for length, rate in self._prompts.get(model, ()) if _similar(length, size)]
            if not rates:
                return None
            times = 1 if request.share_prompt else sum(one == (model, size) for one in zip(models, prompts, strict=True))
            low += times * size * min(rates)
            high += times * size * max(rates)
        return low, high


def time_used(events: Iterable[LaneEvent]) -> float:
    """Seconds of the device in these events: steps, recording included, and prompts that were read."""
    timed = [event for _, event in events]
    steps = sum(event.seconds + event.recording for event in timed if isinstance(event, StepTimed))
    return steps + sum(event.seconds for event in timed if isinstance(event, PromptRead) and not event.reused)


def _model(request: Request, settings: tuple[str, ...], lane: Lane) -> tuple[Any, ...]:
    return lane.model or request.model or "", settings


def _alike(request: Request, settings: tuple[str, ...], lane: Lane) -> tuple[Any, ...]:
    one_row = lane.strategy.name in ("greedy", "sample")
    shape = None if one_row else repr((lane.strategy.name, sorted(values_of(lane.strategy).items())))
    return *_model(request, settings, lane), shape


def _similar(one: int, other: int) -> bool:
    short, long = sorted((max(one, SHORT), max(other, SHORT)))
    return long <= ALIKE * short


def _pace(steps: Sequence[StepTimed]) -> Range:
    """Seconds per token in the fastest and in the slowest part of a lane."""
    count = min(PARTS, len(steps))
    cuts = [len(steps) * part // count for part in range(count + 1)]
    parts = [steps[begin:end] for begin, end in pairwise(cuts)]
    paces = [sum(step.seconds + step.recording for step in part) / sum(step.tokens for step in part) for part in parts]
    return min(paces), max(paces)
