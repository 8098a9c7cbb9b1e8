"""Looks at the scores on their way through the stages: the one place where views are recorded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from playground.trace import REST_BIN, REST_BINS, StageView, StepView

#: What the scores before the first stage are: most strategies give the stages logits, beam search log-probabilities.
Scale = Literal["logit", "raw_log_probability"]

#: Candidates of a step: the most likely before the stages, and the most likely after them.
RAW_TOP = 50
FINAL_TOP = 20


@dataclass(frozen=True)
class StepRecord:
    """One row's scores before the stages and after each: `[V]` tensors, kept until the token is chosen."""

    raw: Tensor
    stages: tuple[tuple[str, Tensor], ...]
    scale: Scale = "logit"

    @property
    def final(self) -> Tensor:
        return self.stages[-1][1] if self.stages else self.raw


class Packed:
    """Numbers computed on the device, fetched together: one synchronisation for all of them."""

    def __init__(self) -> None:
        self._tensors: list[Tensor] = []

    def put(self, tensor: Tensor) -> int:
        """Take a tensor along; the returned index gives its numbers after `fetch`."""
        self._tensors.append(tensor.reshape(-1).to(torch.float64))
        return len(self._tensors) - 1

    def fetch(self) -> list[list[float]]:
        numbers = torch.cat(self._tensors).tolist()
        rows, at = [], 0
        for tensor in self._tensors:
            rows.append(numbers[at : at + tensor.numel()])
            at += tensor.numel()
        return rows


def distribution_numbers(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Of `[V]` scores: `[log-normaliser, entropy in nats, number alive]`, and their probabilities `[V]`."""
    log_normaliser = scores.logsumexp(0)
    probabilities = (scores - log_normaliser).exp()
    entropy = torch.special.entr(probabilities).sum(dtype=torch.float64)
    alive = (scores > float("-inf")).sum()
    return torch.stack([log_normaliser.double(), entropy, alive.double()]), probabilities


@dataclass(frozen=True)
class PendingView:
    """A view whose numbers are still on the device; `finish` turns them into a `StepView`."""

    names: tuple[str, ...]
    ids: int
    raw_numbers: int
    raw_scores: int
    rest: int
    stages: tuple[tuple[int, int, int], ...]
    scale: Scale

    def finish(self, numbers: list[list[float]]) -> StepView:
        # The three lists of candidates overlap: keep the first of each id, order by raw score.
        ids = [int(number) for number in numbers[self.ids]]
        raw = numbers[self.raw_scores]
        order = sorted({token: slot for slot, token in reversed(list(enumerate(ids)))}.items(), key=lambda item: (-raw[item[1]], item[0]))
        slots = [slot for _, slot in order]
        log_normaliser, entropy, alive = numbers[self.raw_numbers]
        before = [raw[slot] for slot in slots]
        views = []
        for name, (stage_numbers, removed, scores) in zip(self.names, self.stages, strict=True):
            after = [numbers[scores][slot] for slot in slots]
            masked = tuple(i for i, (old, new) in enumerate(zip(before, after, strict=True)) if new == -float("inf") < old)
            changed = any(new != old for old, new in zip(before, after, strict=True) if new != -float("inf"))
            views.append(
                StageView(
                    stage=name,
                    alive=int(numbers[stage_numbers][2]),
                    entropy=numbers[stage_numbers][1],
                    log_normaliser=numbers[stage_numbers][0],
                    removed_mass=numbers[removed][0],
                    masked=masked,
                    scores=tuple(map(_score, after)) if changed else None,
                )
            )
            before = after
        rest_top, *counts = numbers[self.rest]
        rest = [int(count) for count in counts]
        # Candidates were counted with the rest: take them out again.
        for slot in slots:
            if raw[slot] > -float("inf"):
                below = np.float32(rest_top) - np.float32(
                    raw[slot]
                )  # in float32, as they were counted: a token at a bin's edge must not change sides
                rest[min(int(below / REST_BIN), REST_BINS - 1)] -= 1
        return StepView(
            ids=tuple(ids[slot] for slot in slots),
            raw=tuple(_score(raw[slot]) for slot in slots),
            log_sum_exp=log_normaliser,
            entropy=entropy,
            alive=int(alive),
            rest_top=rest_top,
            rest=tuple(rest),
            stages=tuple(views),
            scale=self.scale,
        )


def _score(score: float) -> float | None:
    """A float32 score with the nine digits that bring it back exactly: half its float64 expansion in a file."""
    return None if score == -float("inf") else float(f"{score:.9g}")


def pend_view(record: StepRecord, token: Tensor, packed: Packed) -> PendingView:
    """Compute a step's view on the device; nothing here waits for it."""
    size = record.raw.numel()
    candidates = torch.cat([record.raw.topk(min(RAW_TOP, size)).indices, record.final.topk(min(FINAL_TOP, size)).indices, token.reshape(1)])
    numbers, probabilities = distribution_numbers(record.raw)
    top = record.raw.max()
    # -inf falls into the last bin, and so does what isn't a number (which is reported elsewhere).
    bins = ((top - record.raw) / REST_BIN).nan_to_num(nan=REST_BINS - 1).clamp(0, REST_BINS - 1).to(torch.int64)
    counts = torch.zeros(REST_BINS, dtype=torch.int64, device=bins.device).scatter_add_(0, bins, (record.raw > float("-inf")).long())
    slots = (
        packed.put(candidates),
        packed.put(numbers),
        packed.put(record.raw[candidates]),
        packed.put(torch.cat([top.double().reshape(1), counts.double()])),
    )
    stages = []
    before = record.raw
    for _, after in record.stages:
        numbers, next_probabilities = distribution_numbers(after)
        removed = torch.where((after == float("-inf")) & (before > float("-inf")), probabilities, 0.0).sum(dtype=torch.float64)
        stages.append((packed.put(numbers), packed.put(removed), packed.put(after[candidates])))
        before, probabilities = after, next_probabilities
    return PendingView(tuple(name for name, _ in record.stages), *slots, stages=tuple(stages), scale=record.scale)
