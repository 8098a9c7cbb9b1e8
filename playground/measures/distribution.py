"""A step's distribution from its record: probabilities before and after every stage, and the series along a text.

Probabilities are exact for the candidates that were recorded; what lies outside them is known as
one sum, the tail.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from playground.trace import StepView, TokenChosen, Trace

NATS_PER_BIT = math.log(2.0)

Interval = tuple[float, float]


@dataclass(frozen=True)
class StageBounds:
    """Between which values a stage's numbers lie; `unsure` are candidates, by index, that may or may not be alive after it."""

    alive: Interval
    entropy: Interval
    log_normaliser: Interval
    removed_mass: Interval
    unsure: tuple[int, ...] = ()


@dataclass(frozen=True)
class EstimatedStepView(StepView):
    """A step that was decided again from its record: what spans the whole vocabulary is known within bounds, a stage's numbers are their middle.

    `bounds` has an entry per stage, None where the stage ran as recorded. `decided` says whether it is sure which token is chosen;
    `probability` and the two edges of `interval` bound that token's.
    """

    bounds: tuple[StageBounds | None, ...] = ()
    decided: bool = True
    probability: Interval | None = None
    interval: tuple[Interval, Interval] | None = None


@dataclass(frozen=True)
class Distribution:
    """The candidates' probabilities at one point of the way, and what is known of the whole vocabulary.

    `stage` is None for the model's own distribution. `removed_mass` is the probability, just before
    the stage, of what it removed; `masked` the candidates among it, by index. Entropy is in nats.
    Of a server's distribution only the candidates are known: `alive` and `entropy` are None.
    """

    stage: str | None
    probabilities: tuple[float, ...]
    alive: int | None
    entropy: float | None
    removed_mass: float = 0.0
    masked: frozenset[int] = frozenset()
    changed: bool = True
    #: Where the numbers are only known within bounds: those of the stage, and of each candidate's probability.
    bounds: StageBounds | None = None
    ranges: tuple[Interval, ...] = ()

    def range(self, index: int) -> Interval:
        """Between which values a candidate's probability lies: one value where it is known."""
        return self.ranges[index] if self.ranges else (self.probabilities[index], self.probabilities[index])

    @property
    def tail(self) -> float:
        """Probability of every token that is no candidate."""
        return max(0.0, 1.0 - math.fsum(self.probabilities))


def distributions(view: StepView) -> tuple[Distribution, ...]:
    """The way of one step: the raw distribution, then the one after each stage.

    Raw: exp(score - log_sum_exp) on the logit scale; on a log-probability scale exp(score) is the
    same with a log_sum_exp of 0. After a stage: exp(score - log_normaliser); a masked token has 0.
    Where a stage changed no surviving score, the scores before it carry over.
    """
    scores: list[float | None] = list(view.raw)
    taken = [Distribution(None, _probabilities(scores, view.log_sum_exp), view.alive, view.entropy)]
    known = view.bounds if isinstance(view, EstimatedStepView) else (None,) * len(view.stages)
    for stage, bounds in zip(view.stages, known, strict=True):
        if stage.scores is not None:
            scores = list(stage.scores)
        for index in stage.masked:
            scores[index] = None
        taken.append(
            Distribution(
                stage=stage.stage,
                probabilities=_probabilities(scores, stage.log_normaliser),
                alive=stage.alive,
                entropy=stage.entropy,
                removed_mass=stage.removed_mass,
                masked=frozenset(stage.masked),
                changed=stage.scores is not None or stage.alive != taken[-1].alive,
                bounds=bounds,
                ranges=() if bounds is None else _ranges(scores, bounds),
            )
        )
    return tuple(taken)


def _ranges(scores: list[float | None], bounds: StageBounds) -> tuple[Interval, ...]:
    """Every candidate's probability within bounds: exp(score - log_normaliser), and 0 where it may be gone."""
    low, high = bounds.log_normaliser
    unsure = set(bounds.unsure)
    return tuple(
        (0.0, 0.0) if score is None else (0.0 if index in unsure else min(math.exp(score - high), 1.0), min(math.exp(min(score - low, 0.0)), 1.0))
        for index, score in enumerate(scores)
    )


def _probabilities(scores: list[float | None], log_normaliser: float) -> tuple[float, ...]:
    return tuple(0.0 if score is None else math.exp(score - log_normaliser) for score in scores)


@dataclass(frozen=True)
class Segment:
    """A token's part of the cumulative bar: `index` among the candidates, `low` to `high` in [0, 1]."""

    index: int
    low: float
    high: float


#: After the stages a record holds at least this many of the most likely tokens, without a gap.
GAPLESS = 20


def cumulative_bar(view: StepView) -> tuple[Segment, ...]:
    """The tokens as they stand end to end when the die is rolled: by probability descending, id ascending.

    Only the first `GAPLESS` are sure to stand where they are drawn; the rest of the bar, up to 1,
    belongs to tokens that may or may not have been recorded.
    """
    final = distributions(view)[-1].probabilities
    order = sorted((index for index, p in enumerate(final) if p > 0.0), key=lambda index: (-final[index], view.ids[index]))
    segments = []
    low = 0.0
    for index in order[:GAPLESS]:
        high = low + final[index]
        segments.append(Segment(index, low, min(high, 1.0)))
        low = high
    return tuple(segments)


@dataclass(frozen=True)
class TextPoint:
    """One output token seen as news: surprise -log p in nats, before and after the stages.

    `entropy` and `final_entropy` (nats) and `alive` (how many tokens could still be drawn) are of
    the distribution that the token came from. Whatever wasn't recorded is None.
    """

    position: int
    token: int
    raw_surprise: float | None
    surprise: float | None
    entropy: float | None
    final_entropy: float | None
    alive: int | None


def text_point(chosen: TokenChosen) -> TextPoint:
    """The numbers of one chosen token."""
    view = chosen.view
    last = view.stages[-1] if view is not None and view.stages else view
    return TextPoint(
        position=chosen.position,
        token=chosen.token,
        raw_surprise=_surprise(chosen.raw_log_probability),
        surprise=_surprise(chosen.log_probability),
        entropy=view.entropy if view is not None else None,
        final_entropy=last.entropy if last is not None else None,
        alive=last.alive if last is not None else None,
    )


def text_series(trace: Trace, lane: int) -> tuple[TextPoint, ...]:
    """Surprise, entropy and number alive along the text of one lane."""
    return tuple(text_point(chosen) for chosen in trace.output(lane))


def bits(nats: float | None) -> float | None:
    """Nats as bits: a surprise of 1 bit is a coin toss."""
    return None if nats is None else nats / NATS_PER_BIT


def _surprise(log_probability: float | None) -> float | None:
    return None if log_probability is None else -log_probability + 0.0  # + 0.0: no negative zero
