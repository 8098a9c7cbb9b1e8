"""Where a step's time goes: the one place that measures it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch

Part = Literal["forward", "processors", "warpers", "select", "cache", "draft", "recording"]


class Clock:
    """Adds up the seconds of each part since the last lap.

    On CUDA a part is bracketed by two events on the stream, which are read in `lap`, after the one
    synchronisation that the token needs anyway; elsewhere work is done when the call returns.
    """

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._mps = device.type == "mps"
        self._inside = False
        self._seconds: dict[Part, float] = {}
        self._pending: list[tuple[Part, torch.cuda.Event, torch.cuda.Event]] = []

    @contextmanager
    def part(self, name: Part) -> Iterator[None]:
        """Count what runs inside as time of this part; a part within a part is time of the outer one."""
        if self._inside:
            yield
            return
        self._inside = True
        try:
            with self._counted(name):
                yield
        finally:
            self._inside = False

    @contextmanager
    def _counted(self, name: Part) -> Iterator[None]:
        if self._cuda:
            first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            first.record()
            try:
                yield
            finally:
                last.record()
                self._pending.append((name, first, last))
            return
        started = time.perf_counter()
        try:
            yield
            if self._mps:
                torch.mps.synchronize()
        finally:
            self.add(name, time.perf_counter() - started)

    @contextmanager
    def host_part(self, name: Part) -> Iterator[None]:
        """Count work of the host alone, done while the device has nothing to do."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.add(name, time.perf_counter() - started)

    def add(self, name: Part, seconds: float) -> None:
        self._seconds[name] = self._seconds.get(name, 0.0) + seconds

    def lap(self) -> dict[Part, float]:
        """Seconds of each part since the last lap; starts the next one."""
        for name, first, last in self._pending:
            if not last.query():
                last.synchronize()
            self.add(name, first.elapsed_time(last) / 1e3)
        seconds, self._seconds, self._pending = self._seconds, {}, []
        return seconds
