"""A recorded trace, played again like a live run: no model is needed."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from playground.trace import About, Finished, LaneEvent, StepTimed, Trace

#: Whoever waits for a step that isn't due yet is let go this often: Stop and Pause are answered in between.
LOOK_UP = 0.1


@dataclass(frozen=True)
class Batch:
    """The events of one step of a lane, and the second of the race when it ended."""

    lane: int | None
    at: float
    events: list[LaneEvent]


def batches(trace: Trace) -> Iterator[Batch]:
    """A trace step by step: what comes before a step (names, the prompt) travels with it."""
    begun, at = 0, 0.0
    for count, (lane, event) in enumerate(trace.events, 1):
        if isinstance(event, StepTimed | Finished):
            at = event.at
            ends_too = count < len(trace.events) and trace.events[count][0] == lane and isinstance(trace.events[count][1], Finished)
            if not ends_too:
                yield Batch(lane, at, trace.events[begun:count])
                begun = count
    if begun < len(trace.events):
        yield Batch(None, at, trace.events[begun:])


class Replay:
    """A trace as a comparison: iterate to play it, one list of events per step, each when it came.

    `speed` 2 plays twice as fast, infinity without waiting; times in the events stay as recorded. An
    empty list of events says that the next step isn't due yet.
    """

    def __init__(self, trace: Trace, speed: float = 1.0) -> None:
        if not speed > 0:
            raise ValueError(f"speed must be above 0, got {speed}")
        self.about: About | None = trace.about
        self._speed = speed
        self._stopped = threading.Event()
        self._owing: set[int | None] = set()
        self._queues: dict[int | None, deque[Batch]] = {}
        for batch in batches(trace):
            self._queues.setdefault(batch.lane, deque()).append(batch)

    def __iter__(self) -> Iterator[list[LaneEvent]]:
        played, since = 0.0, time.monotonic()  # second of the recording, and when it was played
        while left := [queue for queue in self._queues.values() if queue]:
            if self._stopped.is_set():
                yield [(queue[0].lane, Finished("cancelled", "stopped", played)) for queue in left]
                return
            owed = [queue for queue in left if queue[0].lane in self._owing]
            queue = min(owed or left, key=lambda queue: queue[0].at)
            due = 0.0 if owed or math.isinf(self._speed) else (queue[0].at - played) / self._speed - (time.monotonic() - since)
            if due > 0:
                self._stopped.wait(min(due, LOOK_UP))
                yield []
                continue
            batch = queue.popleft()
            self._owing.discard(batch.lane)
            played, since = max(played, batch.at), time.monotonic()
            yield batch.events

    def stop(self) -> None:
        self._stopped.set()

    def one_round(self) -> None:
        self._owing |= {lane for lane, queue in self._queues.items() if queue and lane is not None}

    @property
    def owed(self) -> int:
        return len(self._owing)
