"""What a forward of several positions costs here, measured before a lane that speculates begins."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from playground.engine.drafters import Drafting
from playground.engine.task import Row, Task
from playground.trace import VerifyCalibrated

#: Forwards of so many positions are measured, as far as the lane's k reaches; each so often.
POSITIONS = (1, 2, 3, 5, 9, 13)
REPEATS = 3


def calibrated(task: Task, drafting: Drafting, row: Row, k: int) -> VerifyCalibrated:
    """Measure 1 to k + 1 positions of the target and one token of the drafter, in turn, on a copy of the cache."""
    model = task.model.fork()
    length, last = model.length, row.ids[-1].item()
    model.reserve(k + 1)
    counts = [count for count in POSITIONS if count < k + 1] + [k + 1]

    def verify(count: int) -> Callable[[], None]:
        def forward() -> None:
            model.forward(torch.full((1, count), last, dtype=torch.long, device=model.device), count)

        return forward

    seconds: dict[int, list[float]] = {count: [] for count in counts}
    drafts: list[float] = []
    for _ in range(REPEATS + 1):  # the first round is a warm-up
        for count in counts:
            seconds[count].append(_timed(verify(count), model.device))
            model.truncate(length)
        if drafting.forwards:
            drafts.append(_timed(lambda: drafting.guess(row, 1, 0), model.device))
    task.model.reserve(k + 1)  # the copy took the room behind the cache: the lane's first step mustn't pay for a new one
    return VerifyCalibrated(
        verify=tuple((count, statistics.median(times[1:])) for count, times in seconds.items()),
        draft=statistics.median(drafts[1:]) if drafts else None,
        length=length,
        repeats=REPEATS,
    )


def _timed(work: Callable[[], object], device: torch.device) -> float:
    started = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - started
