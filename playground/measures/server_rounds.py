"""Rounds of speculative decoding on a server, as far as its per-step lists and the chunks of its stream tell them together.

A server tells how many tokens every step drafted and accepted, not which tokens those were. A step writes what it accepted
and one more, and a stream that sends one chunk per step shows where in the text that was: a chunk of several tokens is a step
that accepted some. Where the two don't fit together a round has no place in the text.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from playground.measures.server_speculation import SpeculationRecord


@dataclass(frozen=True)
class ServerRound:
    """One step that had a draft: how many tokens were drafted (None: not told) and accepted; `start` to `stop` are its output positions."""

    drafted: int | None
    accepted: int
    start: int | None = None
    stop: int | None = None


def rounds(record: SpeculationRecord, chunk_tokens: Sequence[int | None]) -> tuple[ServerRound, ...]:
    """The rounds of one request; empty where the server gives no per-step lists."""
    accepted = record.per_step_accepted
    if accepted is None:
        return ()
    drafted = record.per_step_drafted if record.per_step_drafted is not None and len(record.per_step_drafted) == len(accepted) else None
    found = [ServerRound(drafted[i] if drafted is not None else None, count) for i, count in enumerate(accepted)]
    counts = [count for count in chunk_tokens if count is not None and count > 0]
    if len(counts) < sum(count != 0 for count in chunk_tokens):
        return tuple(found)  # chunks that nobody counted
    return tuple(_placed(found, counts))


def _placed(found: list[ServerRound], counts: list[int]) -> list[ServerRound]:
    """The rounds with their places, if every chunk of several tokens is a step that accepted as many less one."""
    starts = [sum(counts[:index]) for index in range(len(counts))]
    several = [index for index, count in enumerate(counts) if count > 1 and index > 0]  # the first chunk is the prompt's own
    winning = [index for index, one in enumerate(found) if one.accepted > 0]
    if len(several) == len(winning) - 1 and counts and winning[-1] == len(found) - 1:
        several.append(len(counts) - 1)  # the text ended right inside the last draft
    if len(several) != len(winning) or not all(
        counts[chunk] == found[step].accepted + 1 or (chunk == len(counts) - 1 and counts[chunk] <= found[step].accepted)
        for chunk, step in zip(several, winning, strict=True)
    ):
        return found
    placed = list(found)
    edges = [(0, -1), *zip(several, winning, strict=True), (len(counts), len(found))]
    for chunk, step in edges[1:-1]:
        placed[step] = replace(found[step], start=starts[chunk], stop=starts[chunk] + counts[chunk])
    for (chunk, step), (next_chunk, next_step) in itertools.pairwise(edges):
        losing = range(step + 1, next_step)
        if len(losing) == next_chunk - chunk - 1:  # as many single tokens as steps that accepted nothing: none was without a draft
            for offset, one in enumerate(losing, chunk + 1):
                placed[one] = replace(found[one], start=starts[offset], stop=starts[offset] + counts[offset])
    return placed
