"""A trace as it stood at a moment of its playing: what a page that plays it is shown of it."""

from __future__ import annotations

from collections.abc import Iterator

from playground.trace import ChunkArrived, Finished, StepTimed, Trace


def moments(trace: Trace) -> Iterator[tuple[float, int]]:
    """Where a trace can stand while it plays: after every step, chunk and end; its second, and how many events have come by then."""
    begun = 0
    arrived = 0.0
    for count, (_, event) in enumerate(trace.events, 1):
        at = event.at if isinstance(event, StepTimed | Finished | ChunkArrived) else None
        if isinstance(event, ChunkArrived):
            # A chunk's tokens follow it: what came with the one before is whole now.
            at, arrived, count = arrived, event.at, count - 1
        if at is None or count == begun:
            continue
        yield at, count
        begun = count


def upto(trace: Trace, played: int) -> Trace | None:
    """A trace up to its `played`-th moment, 0 being before the first; None where it has no such moment."""
    ends = [0, *(count for _, count in moments(trace))]
    return Trace(trace.about, trace.events[: ends[played]]) if 0 <= played < len(ends) else None
