"""How many cores a forward should use: those that no other process is busy on.

Threads of one product wait for each other. Where another program (a browser that watches, say)
holds one of the cores, every product waits for that core's next time slice: with two threads on two
cores a step took four to nine times as long as with one.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from functools import cache

import psutil
import torch

#: Seconds between two looks at who is busy; and how much of a core others may use without being in the way.
LOOK = 0.25
IN_THE_WAY = 0.3


def system_busy_seconds() -> float:
    """CPU seconds that all processes together have used since boot."""
    times = psutil.cpu_times()
    return times.user + times.system + getattr(times, "nice", 0.0)


def own_busy_seconds() -> float:
    """CPU seconds that this process has used."""
    times = os.times()
    return times.user + times.system


class FreeCores:
    """Counts the cores that other processes leave free, at most four times a second."""

    def __init__(
        self,
        cores: int,
        clock: Callable[[], float] = time.monotonic,
        everyone: Callable[[], float] = system_busy_seconds,
        own: Callable[[], float] = own_busy_seconds,
        machine: int | None = None,
    ) -> None:
        self._cores, self._clock, self._everyone, self._own = cores, clock, everyone, own
        #: Cores of the machine that are not ours (a container's neighbours): others may be busy there.
        self._elsewhere = max(0, (machine or psutil.cpu_count() or cores) - cores)
        self._free = cores
        self._last = (clock(), everyone(), own())

    def count(self) -> int:
        """At least one, at most all."""
        now = self._clock()
        elapsed = now - self._last[0]
        if elapsed >= LOOK:
            everyone, own = self._everyone(), self._own()
            others = max(0.0, (everyone - self._last[1]) - (own - self._last[2])) / elapsed
            self._free = max(1, self._cores - math.ceil(max(0.0, others - self._elsewhere - IN_THE_WAY)))
            self._last = (now, everyone, own)
        return self._free


class Threads:
    """Sets torch's threads to the free cores before every forward on a CPU."""

    def __init__(self) -> None:
        self.most = torch.get_num_threads()
        self._cores = FreeCores(self.most)

    def adapt(self) -> int:
        """Use as many threads as there are free cores; returns how many."""
        threads = self._cores.count()
        if threads != torch.get_num_threads():
            torch.set_num_threads(threads)
        return threads

    def use_all(self) -> None:
        """Back to all threads, for what is none of our forwards."""
        torch.set_num_threads(self.most)


@cache
def threads() -> Threads:
    """The one count of this process, made before the first forward lowers torch's own."""
    return Threads()
