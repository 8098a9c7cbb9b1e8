"""Measurements that end: as many turns as the time allows, and a part of the bench in a process that can be ended.

A turn takes 10 s on one machine and a minute on another. `Budget` takes as many as fit and the figures say how many those
were; whatever still doesn't end is stopped from outside and named.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

#: Seconds for a part of the bench: for its turns, and for all of it.
TURNS, PART = 180.0, 300.0


@dataclass
class Budget:
    """Seconds for the turns of a measurement, from now on."""

    seconds: float = TURNS
    clock: Callable[[], float] = time.monotonic
    ends: float = field(init=False)

    def __post_init__(self) -> None:
        self.ends = self.clock() + self.seconds

    def share(self, among: int) -> Budget:
        """An equal share of what is left, for the first of so many measurements."""
        return Budget(max(self.ends - self.clock(), 0.0) / among, self.clock)

    def turns(self, most: int) -> Iterator[int]:
        """0, 1, …: so many turns, or fewer where one as long as the longest so far would not fit any more; at least one."""
        longest = 0.0
        for turn in range(most):
            began = self.clock()
            if turn and began + longest > self.ends:
                return
            yield turn
            longest = max(longest, self.clock() - began)


class PartFailed(RuntimeError):
    """A part of the bench came to nothing; the text says how."""


def bounded(measure: Callable[..., Any], *arguments: Any, seconds: float = PART) -> Any:
    """What `measure` gives, from a process of its own; raises `PartFailed` where it doesn't end in time, or ends in an error."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_carry_out, args=(there, measure, arguments))
    process.start()
    there.close()  # so that it shows here when the process ends
    try:
        if not here.poll(seconds):
            raise PartFailed(f"it did not end within {seconds:g} s")
        failed, found = here.recv()
    except EOFError:
        process.join()
        raise PartFailed(f"its process ended with status {process.exitcode}") from None
    finally:
        _end(process)
    if failed:
        raise PartFailed(found)
    return found


def _carry_out(pipe: Connection, measure: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    if hasattr(os, "setsid"):  # a group of its own, with the processes that it starts
        os.setsid()
    try:
        pipe.send((False, measure(*arguments)))
    except Exception as error:
        traceback.print_exc(file=sys.stderr)
        pipe.send((True, f"{type(error).__name__}: {error}"))


def _end(process: Any) -> None:
    """End a process, and whatever it has left behind."""
    if hasattr(os, "killpg"):
        with suppress(ProcessLookupError, PermissionError):  # nothing of its group is left
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.join()
