"""The KV cache as it grows: tokens and bytes read off the real tensors, and the formula beside them."""

from __future__ import annotations

from dataclasses import dataclass

from playground.trace import ModelAbout, StepTimed, Trace


@dataclass(frozen=True)
class CachePoint:
    """The cache at the end of one step: `tokens` per row, `rows`, `nbytes` of the tensors, bytes `by_formula`."""

    step: int
    tokens: int
    rows: int
    nbytes: int
    by_formula: int | None

    @property
    def agrees(self) -> bool | None:
        """Whether the tensors hold what the formula says; None where there is no formula."""
        return None if self.by_formula is None else self.nbytes == self.by_formula


def model_of(trace: Trace, lane: int) -> ModelAbout | None:
    """The model that a lane ran on."""
    key = trace.about.lanes[lane].model
    return next((model for model in trace.about.models if model.key == key), None)


def cache_series(trace: Trace, lane: int) -> tuple[CachePoint, ...]:
    """The cache after every step of a lane."""
    model = model_of(trace, lane)
    per_token = model.cache_bytes_per_token if model else None
    return tuple(
        CachePoint(
            step.step, step.cache_length, step.rows, step.cache_bytes, None if per_token is None else per_token * step.cache_length * step.rows
        )
        for step in trace.of(lane, StepTimed)
    )
