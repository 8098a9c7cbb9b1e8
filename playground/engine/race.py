"""Runs several lanes fairly: every lane's step is timed alone, and lanes never share time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from playground.engine.model import LanguageModel
from playground.engine.strategies import Steps, Strategy
from playground.engine.task import Task
from playground.errors import PlaygroundError, Text
from playground.trace import BeamsAdvanced, DraftJudged, Event, Finished, LaneEvent, PromptRead, StepTimed, TokenChosen, VerifyCalibrated

OUT_OF_MEMORY = Text(
    "The device ran out of memory: use fewer lanes, a shorter prompt or a smaller model.", "设备内存不足：请减少通道、缩短提示词或换用更小的模型。"
)


@dataclass
class Runner:
    """One lane in the race: its task, its generator of steps, and the time that it has used."""

    lane: int
    task: Task
    strategy: Strategy
    steps: Steps | None = None
    seconds: float = 0.0
    step: int = 0
    peak_memory: int | None = None
    done: bool = False


@dataclass
class Race:
    """Lanes that take turns on one device.

    The next step always goes to the lane that has used the least time of its own (recording left
    out), so progress on the screen is proportional to measured speed; with `align` it goes to the
    lane that has made the fewest steps. Iterating yields one list of events per step or prompt
    piece: whoever drives the race may stop between any two.
    """

    runners: list[Runner]
    share_prompt: bool = True
    align: bool = False
    memory: Callable[[], int | None] = lambda: None
    started: float = field(default_factory=time.perf_counter)
    #: Lanes that are still owed a step of the round that `one_round` began.
    _owed: list[int] = field(default_factory=list)
    _cancelled: bool = False

    def stop(self) -> None:
        """End every lane before its next step; what was generated stays."""
        self._cancelled = True

    def __iter__(self) -> Iterator[list[LaneEvent]]:
        if self.share_prompt:
            yield from self._read_shared_prompts()
        for runner in self.waiting():
            runner.steps = runner.strategy.run(runner.task)
        while waiting := self.waiting():
            if self._cancelled:
                yield [self._finish(runner, "cancelled", "stopped") for runner in waiting]
                return
            yield self._step(self._next(waiting))

    def waiting(self) -> list[Runner]:
        """The lanes that have not ended."""
        return [runner for runner in self.runners if not runner.done]

    def one_round(self) -> None:
        """Owe every lane that has not ended exactly one step (the visitor's "step")."""
        self._owed = [runner.lane for runner in self.waiting()]

    @property
    def owed(self) -> int:
        """How many lanes still have to make their step of the round."""
        return len(self._owed)

    def _next(self, waiting: list[Runner]) -> Runner:
        """Whoever is owed a step; else the lane that has used the least time, or made the fewest steps."""
        owed = [runner for runner in waiting if runner.lane in self._owed]
        return owed[0] if owed else min(waiting, key=lambda runner: (runner.step if self.align else runner.seconds, runner.lane))

    def _at(self) -> float:
        return time.perf_counter() - self.started

    def _read_shared_prompts(self) -> Iterator[list[LaneEvent]]:
        """Read each prompt once per model, and give every lane that asked it a copy of the cache; so for the models that draft."""
        groups: dict[tuple[Any, ...], list[Runner]] = {}
        for runner in self.runners:
            groups.setdefault((id(runner.task.model.weights), runner.task.prompt), []).append(runner)
        for group in groups.values():
            yield from self._read_for(group)
        drafts: dict[tuple[Any, ...], list[Runner]] = {}
        for runner in self.waiting():
            if runner.task.draft_model is not None:
                drafts.setdefault((id(runner.task.draft_model.weights), runner.task.prompt), []).append(runner)
        for group in drafts.values():
            yield from self._read_draft_for(group)

    def _read_for(self, group: list[Runner]) -> Iterator[list[LaneEvent]]:
        reader = replace(group[0].task, model=group[0].task.model.fork())
        reading = reader.read_prompt()
        while not self._cancelled:
            started = time.perf_counter()
            try:
                with torch.inference_mode():
                    (event,) = next(reading)
            except StopIteration as end:
                yield self._hand_out(group, reader.model, end.value)
                return
            except Exception as error:
                yield [self._failed(runner, error) for runner in group]
                return
            reader.clock.lap()  # on CUDA this is where the host waits for the piece to be done
            yield [(None, replace(event, seconds=time.perf_counter() - started, shared=True))]

    def _read_draft_for(self, group: list[Runner]) -> Iterator[list[LaneEvent]]:
        """Nothing is told of it: no lane has the drafter's prompt in its time."""
        first = group[0].task
        assert first.draft_model is not None
        reading = replace(first, model=first.draft_model.fork(), prompt_logits=None)
        pieces, more = reading.read_prompt(), True
        while more and not self._cancelled:
            try:
                with torch.inference_mode():
                    more = next(pieces, None) is not None
            except Exception as error:
                yield [self._failed(runner, error) for runner in group]
                return
            reading.clock.lap()
            yield []
        for runner in group:
            runner.task.draft_model = reading.model.fork()
            runner.task.draft_model.reserve(1)

    def _hand_out(self, group: list[Runner], model: LanguageModel, logits: Tensor) -> list[LaneEvent]:
        events: list[LaneEvent] = []
        for runner in group:
            started = time.perf_counter()
            runner.task.model, runner.task.prompt_logits = model.fork(), logits
            runner.task.model.reserve(1)  # copies now, so that the lane's first forward doesn't pay for it
            total = len(runner.task.prompt)
            copied = PromptRead(total, total, time.perf_counter() - started, runner.task.model.cache_bytes, reused=True)
            events.append((runner.lane, copied))
        return events

    def _step(self, runner: Runner) -> list[LaneEvent]:
        """One step of one lane: its events, how long it took, and its end if it ended."""
        task = runner.task
        started = time.perf_counter()
        try:
            with torch.inference_mode():  # entered per step: a generator must not hold it while it sleeps
                events = next(runner.steps, None)  # type: ignore[arg-type]
        except Exception as error:
            return [self._failed(runner, error)]
        assert events is not None, "a strategy ran out of steps without saying why"
        parts: dict[str, float] = dict(task.clock.lap())
        recording = parts.pop("recording", 0.0)
        seconds = max(time.perf_counter() - started - recording, 0.0)
        runner.seconds += seconds
        reads = [event for event in events if isinstance(event, PromptRead)]
        if reads:
            return [(runner.lane, replace(event, seconds=seconds)) for event in reads]
        if any(isinstance(event, VerifyCalibrated) for event in events):
            return [(runner.lane, event) for event in events]  # ours, and no step of the lane
        runner.peak_memory = max(filter(None, (runner.peak_memory, self.memory())), default=None)
        timed = StepTimed(
            step=runner.step,
            tokens=_growth(events),
            seconds=seconds,
            parts={**parts, "other": max(seconds - sum(parts.values()), 0.0)},
            recording=recording,
            at=self._at(),
            lane_seconds=runner.seconds,
            rows=task.model.rows,
            cache_length=task.model.cache_length,
            cache_bytes=task.model.cache_bytes,
            peak_memory=runner.peak_memory,
        )
        runner.step += 1
        self._owed = [lane for lane in self._owed if lane != runner.lane]
        told: list[LaneEvent] = [*((runner.lane, _with_seconds(event, parts)) for event in events), (runner.lane, timed)]
        if task.ending is not None:
            told.append(self._finish(runner, task.ending.reason, task.ending.detail, cut=task.ending.cut))
        return told

    def _failed(self, runner: Runner, error: Exception) -> LaneEvent:
        """End a lane by what a visitor can understand; anything else is a bug and is raised again."""
        if isinstance(error, PlaygroundError):
            return self._finish(runner, "error", error.code, message=error.text.to_json())
        if isinstance(error, (torch.cuda.OutOfMemoryError, MemoryError)) or "can't allocate memory" in str(error):
            return self._finish(runner, "error", "out_of_memory", message=OUT_OF_MEMORY.to_json())
        raise error

    def _finish(self, runner: Runner, reason: Any, detail: str, cut: int | None = None, message: dict[str, str] | None = None) -> LaneEvent:
        """The lane leaves the race and gives its cache back."""
        runner.done = True
        if runner.steps is not None:
            runner.steps.close()
        runner.steps = None
        runner.task = None  # type: ignore[assignment]  # with it go its KV cache and the prompt's logits
        self._owed = [lane for lane in self._owed if lane != runner.lane]
        return runner.lane, Finished(reason, detail, at=self._at(), cut=cut, message=message)


def _with_seconds(event: Event, parts: dict[str, float]) -> Event:
    """A verdict on a draft with the seconds of its parts, which only the clock knows."""
    if not isinstance(event, DraftJudged):
        return event
    select = sum(parts.get(name, 0.0) for name in ("processors", "warpers", "select"))
    seconds = {"draft": parts.get("draft", 0.0), "verify": parts.get("forward", 0.0), "select": select, "rollback": parts.get("cache", 0.0)}
    return replace(event, seconds=seconds)


def _growth(events: tuple[Event, ...]) -> int:
    """By how many positions a step lengthens the output: a beam that becomes the best one replaces tokens that were counted."""
    if any(isinstance(event, BeamsAdvanced) for event in events):
        return 1
    return sum(isinstance(event, TokenChosen) for event in events)
