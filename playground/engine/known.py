"""What a record still knows of one step's distribution: exact scores of the candidates, bounds for the rest.

Deciding a step again without the model is arithmetic with intervals. A bound is never too tight: what can't be told stays open. Scores of
the candidates are float32 as the engine computes them; everything else is float64 with a margin for what float32 loses.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from playground.engine.record import FINAL_TOP, RAW_TOP
from playground.trace import REST_BIN, StageView, StepView, TokenChosen

Floats = NDArray[np.float64]
Interval = tuple[float, float]
UNKNOWN: Interval = (0.0, math.inf)

#: Relative margin on sums of probabilities: what softmax, logsumexp and cumsum lose in float32, several times over.
MARGIN = 1e-5
#: How many tokens of the rest may equal a threshold or a candidate by coincidence, where scores are full float32 numbers.
COINCIDENCES = 1
_DIGITS = 2.0**-22  # two units in the last place of a float32


@dataclass(frozen=True)
class Decision:
    """Where the die falls. `token` is None if it is not sure which one, or if it was not recorded; `possible` are the candidates it may be.

    `probability` and `interval` bound the token's own: the lower bound of each edge, then the upper.
    """

    token: int | None
    possible: frozenset[int]
    rest_possible: bool
    probability: Interval | None = None
    interval: tuple[Interval, Interval] | None = None


@dataclass(frozen=True)
class Moment:
    """What the bins from `first` to before `last` sum up to: between `low` and `high`, in exp(exponent · (raw - top))."""

    exponent: float
    first: int
    last: int
    low: float
    high: float


@dataclass(frozen=True)
class Known:
    """One row's distribution at one point of its way, as far as a record tells it.

    Candidates: `ids`, `raw` and current `scores` `[n]`, and whether they are still alive: `sure` and `possible`. The rest: `counts` of tokens
    in bins of the raw score, `lows` to `highs` `[m]`, highest first; multiplied by `exponent` they are current scores. Up to `gone` of the
    rest were removed or changed one by one: those changed are `moved`, ids whose score is at most `moved_highs`. A threshold leaves the
    rest that lies between `floor` and `ceiling`, each known as an interval. `total` bounds the sum of exp(score - ref) over all
    tokens alive, `entropy` (nats) is a bound if it was recorded, `rest_alive` bounds how many of the rest are left. The first `split` bins
    lie above the candidate `chosen`, the others below it. `moments` are sums over parts of the rest, as it was before any stage.
    `before_chosen` bounds the sum over all tokens that stand before the chosen one, where its recorded place on the bar tells it.
    """

    ids: NDArray[np.int64]
    raw: Floats
    scores: Floats
    sure: NDArray[np.bool_]
    possible: NDArray[np.bool_]
    counts: Floats
    lows: Floats
    highs: Floats
    top: float
    moments: tuple[Moment, ...]
    ties: float
    chosen: int = -1
    split: int = 0
    exponent: float = 1.0
    gone: int = 0
    moved: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    moved_highs: Floats = field(default_factory=lambda: np.zeros(0))
    floor: Interval = (-math.inf, -math.inf)
    ceiling: Interval = (math.inf, math.inf)
    total: Interval = UNKNOWN
    rest_alive: Interval = UNKNOWN
    entropy: Interval | None = None
    before_chosen: Interval | None = None

    @staticmethod
    def of(view: StepView, chosen: TokenChosen, temperature: float | None = None, final_exponent: float | None = None) -> Known:
        """What is known before any stage, from the step's view and from the place of the token that was chosen.

        `temperature` is that of the first recorded stage, if that is one: its log-normaliser tells more. `final_exponent` is 1 over the
        temperature of a lane whose stages keep the order of tokens, whose cumulative bar therefore tells what lay above the chosen one.
        """
        raw = np.array([-np.inf if score is None else score for score in view.raw], np.float32)
        scores = raw.astype(np.float64)
        finite = np.where(raw > -np.inf, scores, scores.min(initial=0.0, where=raw > -np.inf))  # what is dead needs a place, too
        counts = np.array(view.rest, np.float64)
        if (counts < 0).any():  # a record at odds with itself: nothing but the number can be believed
            counts = np.array([max(counts.sum(), 0.0)])
        cap = float(scores[RAW_TOP - 1]) if len(scores) >= RAW_TOP else view.rest_top
        slack = abs(view.rest_top) * _DIGITS + 1e-6
        highs = view.rest_top - REST_BIN * np.arange(len(counts))
        lows = np.append(highs[1:], -np.inf) - slack
        highs = np.minimum(highs + slack, cap)
        index = view.ids.index(chosen.token)
        counts, lows, highs, split = _split(counts, lows, highs, scores, index, chosen.raw_rank)
        known = Known(
            ids=np.array(view.ids, np.int64), raw=scores, scores=finite, sure=scores > -np.inf, possible=scores > -np.inf,
            counts=counts, lows=lows, highs=highs, top=view.rest_top, moments=(), ties=np.inf if _coarse(raw) else COINCIDENCES,
            chosen=index, split=split,
        )  # fmt: skip
        whole = {1.0: known._moment(1.0, view.log_sum_exp)}
        if temperature is not None and view.stages:
            whole[1.0 / temperature] = known._moment(1.0 / temperature, view.stages[0].log_normaliser)
        parts = list(whole.values())
        if final_exponent is not None and chosen.interval is not None and split:
            parts += known._parts(final_exponent, chosen.interval[0], view, whole.get(final_exponent))
        return known._with(
            moments=tuple(parts), total=known._sum(view.log_sum_exp), entropy=_around(view.entropy), rest_alive=(counts.sum(), counts.sum())
        )

    def _moment(self, exponent: float, log_sum: float) -> Moment:
        whole = math.exp(log_sum - self.top * exponent)
        rest = whole - float(np.exp((self.raw - self.top) * exponent).sum())
        error = whole * (MARGIN + abs(log_sum) * _DIGITS)
        return Moment(exponent, 0, len(self.counts), max(rest - error, 0.0), max(rest + error, 0.0))

    def _parts(self, exponent: float, edge: float, view: StepView, whole: Moment | None) -> list[Moment]:
        """What the rest sums up to above the chosen token and below it, from where that token began on the cumulative bar."""
        log_sum = view.stages[-1].log_normaliser if view.stages else view.log_sum_exp
        everything = math.exp(log_sum - self.top * exponent)
        weights = np.exp((self.raw - self.top) * exponent)
        own = float(weights[self.chosen])
        over = edge * everything - float(weights[self.raw > self.raw[self.chosen]].sum())
        error = everything * (MARGIN + abs(log_sum) * _DIGITS) + min(self.ties, self.counts.sum()) * own
        above = Moment(exponent, 0, self.split, max(over - error, 0.0), max(over + error, 0.0))
        if whole is None:
            return [above]
        return [above, Moment(exponent, self.split, len(self.counts), max(whole.low - above.high, 0.0), max(whole.high - above.low, 0.0))]

    def _sum(self, log_sum: float) -> Interval:
        """A recorded log-normaliser as bounds of `total`."""
        error = MARGIN + abs(log_sum) * _DIGITS
        return math.exp(log_sum - self.ref) * (1 - error), math.exp(log_sum - self.ref) * (1 + error)

    # --- what follows from it -----------------------------------------------------------------

    @cached_property
    def ref(self) -> float:
        """The score that weighs 1: the highest."""
        highest = float(self.scores.max(initial=-np.inf, where=self.possible))
        return max(highest, self.rest_high) if math.isfinite(max(highest, self.rest_high)) else 0.0

    @cached_property
    def rest_high(self) -> float:
        """No token without a recorded score scores higher."""
        unmoved = float(self._highs[0]) if len(self.counts) else -math.inf
        return min(max(unmoved, float(self.moved_highs.max(initial=-np.inf))), self.ceiling[1])

    @cached_property
    def margin(self) -> float:
        """Scores that are nearer than this may change places in float32."""
        return MARGIN / 2 + _DIGITS * max(
            abs(self.ref), abs(float(self.scores.min(initial=self.ref, where=self.possible & (self.scores > self.ref - 20))))
        )

    @cached_property
    def weights(self) -> Floats:
        """exp(score - ref) of every candidate that may be alive, [n]."""
        with np.errstate(invalid="ignore"):
            return np.where(self.possible, np.exp(np.minimum(self.scores - self.ref, 0.0)), 0.0)

    @cached_property
    def _lows(self) -> Floats:
        return self.lows * self.exponent

    @cached_property
    def _highs(self) -> Floats:
        return self.highs * self.exponent

    @cached_property
    def candidates(self) -> Interval:
        """The sum of the candidates' weights."""
        return float(self.weights[self.sure].sum()) * (1 - self.margin), float(self.weights.sum()) * (1 + self.margin)

    @cached_property
    def _inside(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Which bins surely, and which possibly, hold tokens that are alive."""
        sure = (self._lows >= self.floor[1]) & (self._highs <= self.ceiling[0])
        return sure, (self._highs >= self.floor[0]) & (self._lows <= self.ceiling[1])

    @cached_property
    def _bins(self) -> tuple[Floats, Floats]:
        """The least and the greatest weight of one token in each bin, as far as it is alive, [m]."""
        low = np.exp(np.clip(np.maximum(self._lows, self.floor[0]) - self.ref, None, 700.0))
        high = np.exp(np.clip(np.minimum(self._highs, self.ceiling[1]) - self.ref, None, 700.0))
        return low * (1 - self.margin), high * (1 + self.margin)

    def _whole(self, first: int, last: int) -> Interval:
        """The sum over some bins as they were recorded, at the present exponent; the moments of just these bins tighten it."""
        lows, highs = self.lows[first:last] - self.top, self.highs[first:last] - self.top
        scale = math.exp(min(self.top * self.exponent - self.ref, 700.0))
        low, high = 0.0, math.inf
        for moment in self.moments:
            if (moment.first, moment.last) == (first, last):
                sums = _power_sums(self.counts[first:last], lows, highs, moment.exponent, (moment.low, moment.high), self.exponent / moment.exponent)
                low, high = max(low, sums[0]), min(high, sums[1])
        return low * scale * (1 - self.margin), high * scale * (1 + self.margin)

    def _left(self, first: int, last: int) -> Interval:
        """The sum over what is alive in some bins, moved tokens left out."""
        if first >= last:
            return 0.0, 0.0
        sure, possible = (mask[first:last] for mask in self._inside)
        if not possible.any():
            return 0.0, 0.0
        counts = self.counts[first:last]
        low, high = (weights[first:last] for weights in self._bins)
        whole_low, whole_high = (np.exp(np.clip(edges[first:last] - self.ref, None, 700.0)) for edges in (self._lows, self._highs))
        known_low, known_high = self._whole(first, last)
        most = min(float((counts * high)[possible].sum()), known_high - float((counts * whole_low)[~possible].sum()) * (1 - self.margin))
        least = max(
            float((counts * low)[sure].sum()) - _highest(counts[sure], low[sure], self.gone),
            known_low - float((counts * whole_high)[~sure].sum()) * (1 + self.margin) - _highest(counts, whole_high, self.gone),
            0.0,
        )
        return min(least, max(most, 0.0)), max(most, 0.0)

    @cached_property
    def above_chosen(self) -> Interval:
        """The sum over what is alive of the bins above the chosen token."""
        return self._left(0, self.split)

    @cached_property
    def below_chosen(self) -> Interval:
        """The sum over what is alive of the bins below the chosen token."""
        return self._left(self.split, len(self.counts))

    @cached_property
    def unmoved(self) -> Interval:
        """The sum over what is alive of the rest, moved tokens left out."""
        least, most = self._left(0, len(self.counts))
        if self.split:
            # At most `gone` tokens are gone in both parts together: the sum of the parts' least counts them twice, and is no tighter for it.
            least = max(least, self.above_chosen[0] + self.below_chosen[0])
            most = min(most, self.above_chosen[1] + self.below_chosen[1])
        possible = self._inside[1]
        if self.ceiling[0] == math.inf and self.rest_alive[1] < math.inf and len(self.counts):
            few, many = self.rest_alive
            low, high = self._bins
            most = min(most, _highest(self.counts[possible], high[possible], many))
            reach = few - len(self.moved)
            if reach > 0:
                least = max(least, _highest(self.counts, low, self.gone + reach) - _highest(self.counts, low, self.gone))
        return min(least, max(most, 0.0)), max(most, 0.0)

    @cached_property
    def moved_sum(self) -> float:
        """The most that the moved tokens can weigh together."""
        alive = self.moved_highs >= self.floor[0]
        return float(np.exp(np.minimum(np.minimum(self.moved_highs[alive], self.ceiling[1]) - self.ref, 700.0)).sum()) * (1 + self.margin)

    @cached_property
    def rest(self) -> Interval:
        """The sum over every token without a recorded score."""
        low = max(self.unmoved[0], self.total[0] - self.candidates[1])
        high = min(self.unmoved[1] + self.moved_sum, self.total[1] - self.candidates[0])
        return min(low, max(high, 0.0)), max(high, 0.0)

    @cached_property
    def sum(self) -> Interval:
        """The sum of exp(score - ref) over all tokens alive."""
        low, high = max(self.candidates[0] + self.rest[0], self.total[0]), min(self.candidates[1] + self.rest[1], self.total[1])
        return min(low, high), max(low, high)

    @cached_property
    def log_normaliser(self) -> Interval:
        return _log(self.sum[0]) + self.ref, _log(self.sum[1]) + self.ref

    @cached_property
    def alive(self) -> Interval:
        """How many tokens can still be chosen."""
        sure, possible = self._inside
        few = max(self.rest_alive[0], float(self.counts[sure].sum()) - self.gone, 0.0)
        many = min(self.rest_alive[1], float(self.counts[possible].sum()) + int((self.moved_highs >= self.floor[0]).sum()))
        return float(self.sure.sum()) + min(few, many), float(self.possible.sum()) + many

    @cached_property
    def highest(self) -> Interval:
        """The highest score."""
        best = float(self.scores.max(initial=-np.inf, where=self.sure))
        return best, max(float(self.scores.max(initial=-np.inf, where=self.possible)), self.rest_high)

    @cached_property
    def mean_depth(self) -> Interval:
        """How far below `ref` the mean score lies: the mean of ref - score under the distribution."""
        depth = np.where(self.possible, self.ref - np.where(self.possible, self.scores, self.ref), 0.0)
        moments = self.weights * depth
        low, high = float(moments[self.sure].sum()), float(moments.sum())
        sure, possible = self._inside
        if possible.any() or len(self.moved):
            first, last = np.maximum(self.ref - self._highs, 0.0), self.ref - np.maximum(self._lows, self.floor[0])
            # x e^-x rises to its peak at 1 and falls from there.
            ends = np.stack([_depth(first), _depth(last)])
            peak = (first < 1.0) & (last > 1.0)
            most = np.where(peak, math.exp(-1), ends.max(0))
            per_bin_high = float((self.counts * most)[possible].sum())
            nearest = self.ref - min(self.rest_high, self.ref)
            moved = len(self.moved) * (math.exp(-1) if nearest < 1 else float(_depth(np.array(nearest))))
            high += (per_bin_high + moved) * (1 + self.margin)
            least = float((self.counts * ends.min(0))[sure].sum()) - _highest(self.counts[sure], most[sure], self.gone)
            low += max(least * (1 - self.margin), self.rest[0] * nearest, 0.0)
        return low / self.sum[1] if self.sum[1] else 0.0, high / self.sum[0] if self.sum[0] else math.inf

    @cached_property
    def entropy_bounds(self) -> Interval:
        """The entropy in nats."""
        if self.entropy is not None:
            return self.entropy
        low, high = _log(self.sum[0]) + self.mean_depth[0], _log(self.sum[1]) + self.mean_depth[1]
        return max(low, 0.0), max(min(high, _log(self.alive[1]) + MARGIN), 0.0)

    @cached_property
    def mean_score(self) -> Interval:
        """The mean score under the distribution: log-normaliser minus entropy."""
        direct = self.ref - self.mean_depth[1], self.ref - self.mean_depth[0]
        if self.entropy is None:
            return direct
        return max(direct[0], self.log_normaliser[0] - self.entropy[1]), min(direct[1], self.log_normaliser[1] - self.entropy[0])

    # --- what stages do to it -----------------------------------------------------------------

    def per_token(self, process: Callable[[Tensor], Tensor], vocabulary: int) -> Known:
        """After a processor that gives each token a new score by its own alone, higher for higher, or removes it.

        `process` is the stage itself: it sees a whole vocabulary `[1, V]` in which unrecorded tokens have the highest score that they can have.
        """
        # Not 0: forcing a token gives it the score 0, and that has to show as a change.
        fill = self.rest_high if math.isfinite(self.rest_high) and self.rest_high else 1e-30
        before = np.full((1, vocabulary), fill, np.float32)
        before[0, self.ids] = np.where(self.possible, self.scores, -np.inf)
        before[0, self.moved] = self.moved_highs
        after = process(torch.from_numpy(before)).numpy()
        scores = after[0, self.ids].astype(np.float64)
        different = (after != before)[0]
        different[self.ids] = False
        changed = np.flatnonzero(different)
        alive = scores > -np.inf
        if not len(changed) and np.array_equal(alive, self.possible) and np.array_equal(scores[alive], self.scores[alive]):
            return self
        forced = alive & ~self.possible  # a forced token comes back from the dead
        known = self._after(scores=np.where(alive, scores, self.scores), sure=(self.sure & alive) | forced, possible=(self.possible & alive) | forced)
        again = different[self.moved]
        moved = np.concatenate([self.moved[~again], changed])
        highs = np.concatenate([self.moved_highs[~again], after[0, changed].astype(np.float64) + self.margin])
        left = highs > -np.inf
        fresh = len(changed) - int(again.sum())
        if len(self.ids) + len(self.moved) + fresh >= vocabulary:  # not one token of the rest is as it was
            known = known.without_rest()._with(rest_alive=self.rest_alive, floor=(-math.inf, -math.inf), ceiling=(math.inf, math.inf))
        else:
            known = known._with(gone=self.gone + fresh)
        # A new score removes nothing: only what has none any more is gone, surely where all of the rest was alive.
        dead = int((after[0, changed] == -np.inf).sum())
        whole = self.rest_alive[0] >= vocabulary - len(self.ids)
        few, many = max(self.rest_alive[0] - dead, 0.0), self.rest_alive[1] - (dead if whole else 0)
        if not whole:  # a forced token comes back from the dead here, too
            before[0, different] = -np.inf
            many += float(np.isfinite(process(torch.from_numpy(before)).numpy()[0, different]).sum())
        return known._with(moved=moved[left], moved_highs=highs[left], rest_alive=(few, many))

    def scaled(self, temperature: float) -> Known:
        """After every score was divided by the temperature."""
        divisor = np.float32(temperature)
        return self._after(
            scores=(self.scores.astype(np.float32) / divisor).astype(np.float64),
            exponent=self.exponent / temperature,
            moved_highs=self.moved_highs / temperature,
            floor=(self.floor[0] / temperature, self.floor[1] / temperature),
            ceiling=(self.ceiling[0] / temperature, self.ceiling[1] / temperature),
        )

    def kept(
        self,
        sure: NDArray[np.bool_],
        possible: NDArray[np.bool_],
        floor: Interval,
        ceiling: Interval = (math.inf, math.inf),
        total: Interval = UNKNOWN,
        ordered: bool = True,
    ) -> Known:
        """After a threshold: only these candidates, and of the rest what lies between `floor` and `ceiling`, are left."""
        possible = possible & self.possible
        low, high = floor[0] - self.margin, floor[1] + self.margin
        after = self._after(
            sure=sure & self.sure & possible,
            possible=possible,
            floor=(max(self.floor[0], low), max(self.floor[1], high)),
            ceiling=(min(self.ceiling[0], ceiling[0] - self.margin), min(self.ceiling[1], ceiling[1] + self.margin)),
            rest_alive=(0.0, self.rest_alive[1]),
        )
        if not after._inside[1].any() and after.moved_highs.max(initial=-np.inf) < after.floor[0]:
            rescaled = math.exp(min(self.ref - after.ref, 700.0))
            return after.without_rest()._with(total=(total[0] * rescaled * (1 - MARGIN), total[1] * rescaled * (1 + MARGIN)))
        (was_sure, was_possible), (is_sure, is_possible) = self._inside, after._inside
        low_bins, high_bins = self._bins
        lost = (
            float(self.weights[self.possible & ~after.sure].sum()) + float((self.counts * high_bins)[was_possible & ~is_sure].sum()) + self.moved_sum
        )
        gone = float(self.weights[self.sure & ~after.possible].sum()) + max(
            float((self.counts * low_bins)[was_sure & ~is_possible].sum()) - _highest(self.counts, high_bins, self.gone), 0.0
        )
        least = max(total[0], self.sum[0] - lost * (1 + self.margin), 0.0)
        most = min(total[1], self.sum[1] - gone * (1 - self.margin))
        rescaled = math.exp(min(self.ref - after.ref, 700.0))
        before = None
        if self.before_chosen is not None and ordered:  # what stood before a token that is left is left too
            before = self.before_chosen[0] * rescaled, self.before_chosen[1] * rescaled
        return after._with(total=(least * rescaled * (1 - MARGIN), max(most, least) * rescaled * (1 + MARGIN)), before_chosen=before)

    def above(self, low: float, high: float, margin: float | None = None) -> Known:
        """After everything below a threshold, known to lie between `low` and `high`, was removed; the likeliest token always stays."""
        margin = self.margin if margin is None else margin
        highest = self._likeliest()
        sure, possible = self.scores > high + margin, self.scores >= low - margin
        if sure[self.possible].all() and low - margin > self.rest_high:
            return self if not self.rest[1] else self.kept(sure | highest[0], possible | highest[1], (low, high))
        return self.kept(sure | highest[0], possible | highest[1], (min(low, self.ref), min(high, self.ref)))

    def _likeliest(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Which candidates surely, and which possibly, are the one with the highest score."""
        best = float(self.scores.max(initial=-np.inf, where=self.sure))
        possible = self.possible & (self.scores >= best)
        alone = possible.sum() == 1 and self.rest_high < best
        return possible & self.sure & bool(alone), possible

    def likeliest(self) -> Known:
        """After everything but the highest score and its equals was removed."""
        best = float(self.scores.max(initial=-np.inf, where=self.sure))
        possible = self.possible & (self.scores >= best)
        certain = self.rest_high < best and self.sure[possible].all() and len(set(self.scores[possible])) == 1
        return self.kept(possible & bool(certain), possible, (best, best) if certain else (best, max(self.ref, best)))

    def top_k(self, k: int) -> Known:
        """After only the k highest scores, and what equals the k-th, were left."""
        sure_bins, possible_bins = self._inside
        low, high = self._threshold(k, sure_bins, possible_bins)
        if high == -math.inf:
            return self
        near = self.possible & ((np.abs(self.scores - low) <= self.margin) | (np.abs(self.scores - high) <= self.margin))
        swappable = near & bool(len({*zip(self.raw[near], self.scores[near], strict=True)}) > 1)
        possible = (self.scores >= low) | swappable
        sure = (self.scores >= high) & ~(swappable & (np.count_nonzero(self.possible & (self.scores >= low - self.margin)) > k))
        if self.rest_high <= low:  # the k-th is a candidate
            left = self._after(sure=sure & self.sure, possible=possible & self.possible).without_rest()
            if self.rest_high < low:
                return left
            # Of the rest only what equals it to the last digit, if anything does.
            ties = min(self.ties, float(self.counts.sum()) + len(self.moved))
            bin_of_ties = {"counts": np.array([ties]), "lows": np.array([-np.inf]), "highs": np.array([low / self.exponent])}
            return left._with(**bin_of_ties, gone=math.ceil(ties), rest_alive=(0.0, ties))
        kept = self.kept(sure, possible, (low, high))
        few, many = k - float(kept.possible.sum()), k - float(kept.sure.sum()) + self.ties
        return kept._with(rest_alive=(max(few, 0.0), max(min(many, self.rest_alive[1]), 0.0)))

    def _threshold(self, k: int, sure_bins: NDArray[np.bool_], possible_bins: NDArray[np.bool_]) -> Interval:
        """The k-th highest score: order statistics of all lower bounds, and of all upper bounds, are its bounds."""
        low, high = self._lows[sure_bins], self._highs[possible_bins]
        taken = _take(self.counts[sure_bins], self.gone)
        lower = _kth(np.append(self.scores[self.sure], low), np.append(np.ones(int(self.sure.sum())), self.counts[sure_bins] - taken), k)
        upper = _kth(
            np.concatenate([self.scores[self.possible], self.moved_highs, high]),
            np.concatenate([np.ones(int(self.possible.sum()) + len(self.moved)), self.counts[possible_bins]]),
            k,
        )
        return lower, upper

    def top_p(self, p: float) -> Known:
        """After only the likeliest tokens that together reach probability p were left."""
        error = MARGIN * self.sum[1]
        if (at := self._edge(p, error)) is not None:
            kept = self.possible & (self.scores >= at)
            return self._after(sure=kept, possible=kept).without_rest()
        edges, above_low, above_high = self._ranked()
        kept_edge, dead_edge = above_high + error < p * self.sum[0], above_low - error > p * self.sum[1]
        candidates = len(self.ids)
        highest_sure, highest_possible = self._likeliest()
        sure, possible = kept_edge[:candidates] | highest_sure, ~dead_edge[:candidates] | highest_possible
        floor = (
            float(edges[dead_edge].max(initial=-np.inf)),
            float(min(edges[kept_edge].min(initial=np.inf), self.ref)),
        )
        floor = min(floor), floor[1]
        boundary = math.exp(min(floor[1] - self.ref, 0.0))
        total = p * self.sum[0] - error, min(p * self.sum[1] + boundary + error, self.sum[1])
        return self.kept(sure, possible, floor, total=total)

    def _edge(self, p: float, error: float) -> float | None:
        """The score of the token that reaches probability p, if that is surely a candidate, with no other near it."""
        if np.count_nonzero(self.possible) != np.count_nonzero(self.sure):
            return None
        order = np.argsort(-self.scores, kind="stable")
        order = order[self.sure[order]]
        weights = self.weights[order]
        above = np.cumsum(weights)
        above -= weights
        count = int(np.searchsorted(above, p * self.sum[0] - error))  # so many are kept for sure
        if not 0 < count < len(order) or above[count] <= p * self.sum[1] + error:
            return None
        last, first_dead = float(self.scores[order[count - 1]]), float(self.scores[order[count]])
        return last if last - first_dead > self.margin and last > self.rest_high + self.margin else None

    def _ranked(self) -> tuple[Floats, Floats, Floats]:
        """Every score that is known (candidates, then the edges of the bins), and bounds of the sum above each; equals may lie above."""
        edges = np.concatenate([self.scores, self._highs, self._lows])
        sure_bins, possible_bins = self._inside
        low, high = self._bins
        order = np.argsort(-self.scores, kind="stable")
        ranked = -self.scores[order]  # ascending
        sure_sums = np.concatenate([[0.0], np.cumsum(np.where(self.sure, self.weights, 0.0)[order])])
        possible_sums = np.concatenate([[0.0], np.cumsum(self.weights[order])])
        above_low = sure_sums[np.searchsorted(ranked, -(edges + self.margin), side="left")] * (1 - self.margin)
        above_high = possible_sums[np.searchsorted(ranked, -(edges - self.margin), side="right")] * (1 + self.margin)
        own = np.zeros(len(edges))
        own[: len(self.ids)] = self.weights  # a token is not above itself
        above_high = np.maximum(above_high - own, 0.0)
        if len(self.counts):
            bins_low = np.concatenate([[0.0], np.cumsum(np.where(sure_bins, self.counts * low, 0.0))])
            bins_high = np.concatenate([[0.0], np.cumsum(np.where(possible_bins, self.counts * high, 0.0))])
            # Bins come highest first: those whose low lies above the edge count for sure, those whose high does, possibly.
            whole = bins_low[np.searchsorted(-self._lows, -(edges + self.margin), side="left")]
            above_low = above_low + np.maximum(whole - _highest(self.counts, high, self.gone), 0.0)
            reached = bins_high[np.searchsorted(-self._highs, -(edges - self.margin), side="right")]
            reached = np.where(edges >= self._highs[0], min(self.ties, self.counts[0]) * high[0] * (edges - self.margin <= self._highs[0]), reached)
            above_high = above_high + np.minimum(reached, self.rest[1])
        if len(self.moved):
            above_high = above_high + np.where(edges - self.margin <= self.moved_highs.max(), self.moved_sum, 0.0)
        if self.before_chosen is not None:
            above_low[self.chosen] = max(above_low[self.chosen], self.before_chosen[0])
            above_high[self.chosen] = min(above_high[self.chosen], self.before_chosen[1])
        return edges, above_low, above_high

    def typical(self, p: float) -> Known:
        """After only the tokens whose surprise is nearest to the entropy, together of probability p, were left."""
        centre = self.mean_score
        if not (math.isfinite(centre[0]) and math.isfinite(centre[1])):  # nothing is sure to be alive: no token is sure to stay, none to go
            return self.kept(np.zeros_like(self.sure), self.possible, (-math.inf, math.inf), (-math.inf, math.inf), ordered=False)
        wobble = 4 * self.margin + MARGIN * abs(self.ref - centre[0])
        near, far = self._distances(self.scores, self.scores, centre)
        bins_near, bins_far = self._distances(self._lows, self._highs, centre)
        low, high = self._bins
        sure_bins, possible_bins = self._inside
        keys_near, keys_far = np.concatenate([near, bins_near]), np.concatenate([far, bins_far])
        least = np.concatenate([np.where(self.sure, self.weights, 0.0), np.where(sure_bins, self.counts * low, 0.0)])
        most = np.concatenate([self.weights, np.where(possible_bins, self.counts * high, 0.0)])
        by_far, by_near = np.argsort(keys_far, kind="stable"), np.argsort(keys_near, kind="stable")
        sums_far, sums_near = np.append(0.0, np.cumsum(least[by_far])), np.append(0.0, np.cumsum(most[by_near]))
        error = MARGIN * self.sum[1]
        # Nearer for sure: at its farthest still nearer than this one; nearer perhaps: at its nearest not farther than this one can be.
        nearer_low = sums_far[np.searchsorted(keys_far[by_far], keys_near - wobble, side="left")] - _highest(self.counts, high, self.gone) - error
        nearer_high = sums_near[np.searchsorted(keys_near[by_near], keys_far + wobble, side="right")] + self.moved_sum + error
        own = np.concatenate([self.weights, np.zeros(len(self.counts))])
        kept, dead = nearer_high - own < p * self.sum[0], nearer_low > p * self.sum[1]
        short = nearer_high < p * self.sum[0]  # even with everything up to here p is not reached
        inner = max(float(keys_far[short].max(initial=0.0)), float(keys_near[kept].max(initial=0.0))) - wobble
        outer = float(keys_near[dead].min(initial=np.inf)) + wobble
        # The one token that reaches p weighs at most what the heaviest at that distance does.
        over = self.possible & (self.scores >= centre[0] + inner - wobble) & (self.scores <= centre[1] + outer + wobble)
        heaviest = float(self.scores.max(initial=centre[1] - inner, where=over))
        if self.rest_high >= centre[0] + inner - wobble:
            heaviest = max(heaviest, min(self.rest_high, centre[1] + outer))
        boundary = math.exp(min(heaviest + wobble - self.ref, 0.0)) * (1 + self.ties)  # all that is equally near is kept
        total = max(p * self.sum[0] - error, 0.0), min(p * self.sum[1] + boundary + error, self.sum[1])
        n = len(self.ids)
        return self.kept(kept[:n], ~dead[:n], (centre[0] - outer, centre[1] - inner), (centre[0] + inner, centre[1] + outer), total, ordered=False)

    @staticmethod
    def _distances(low: Floats, high: Floats, centre: Interval) -> tuple[Floats, Floats]:
        """The least and the greatest distance of scores in [low, high] from a centre in an interval."""
        near = np.maximum(np.maximum(low - centre[1], centre[0] - high), 0.0)
        return near, np.maximum(np.abs(high - centre[0]), np.abs(centre[1] - low))

    def _after(self, **changes: object) -> Known:
        """A copy whose sums are no longer known from the record."""
        return self._with(**{"total": UNKNOWN, "entropy": None, "before_chosen": None, **changes})

    def _with(self, **changes: object) -> Known:
        """`dataclasses.replace`, ten times as fast: a slider decides a whole lane again while it moves."""
        copy = object.__new__(Known)
        copy.__dict__.update({name: changes.get(name, self.__dict__[name]) for name in _FIELDS})
        return copy

    def recorded(self, stage: StageView, last: bool) -> Known:
        """What is known after a stage that ran as recorded: its own numbers, exactly."""
        after = self.scores if stage.scores is None else np.array([-np.inf if score is None else score for score in stage.scores], np.float32)
        scores = np.array(after, np.float64)
        alive = self.possible & (scores > -np.inf)
        alive[list(stage.masked)] = False
        rest = float(stage.alive - int(alive.sum()))
        known = self._with(
            scores=np.where(alive, scores, self.scores), sure=alive, possible=alive, rest_alive=(rest, rest), entropy=_around(stage.entropy)
        )
        if rest == 0:
            known = known.without_rest()
        elif last and int(alive.sum()) >= FINAL_TOP:
            # The record holds the top 20 after all stages: nothing that is not in it lies higher.
            cap = float(np.sort(known.scores[alive])[-FINAL_TOP])
            known = known._with(highs=np.minimum(known.highs, cap / known.exponent), moved_highs=np.minimum(known.moved_highs, cap))
        return known._with(total=known._sum(stage.log_normaliser))

    def placed(self, edge: float, log_sum: float) -> Known:
        """With the chosen token's recorded left edge on the cumulative bar, of a distribution with this log-normaliser.

        It says what stands before the token here if nothing between here and the draw multiplies scores or changes their order.
        """
        before = edge * math.exp(log_sum - self.ref)
        error = math.exp(log_sum - self.ref) * (MARGIN / 2 + abs(log_sum) * _DIGITS)
        return self._with(before_chosen=(max(before - error, 0.0), before + error))

    def without_rest(self) -> Known:
        """Nothing is left but candidates."""
        nothing = np.zeros(0)
        return self._with(
            counts=nothing,
            lows=nothing,
            highs=nothing,
            split=0,
            moments=(),
            moved=np.zeros(0, np.int64),
            moved_highs=nothing,
            gone=0,
            rest_alive=(0.0, 0.0),
        )

    def unfollowed(self, stage: StageView) -> Known:
        """What is known after a stage that can't be followed, before its own record is read: that no token outweighs the whole."""
        count = float(self.counts.sum()) + len(self.moved)
        return self.without_rest()._with(
            counts=np.array([count]), lows=np.array([-np.inf]), highs=np.array([stage.log_normaliser + MARGIN]),
            exponent=1.0, floor=(-math.inf, -math.inf), ceiling=(math.inf, math.inf), rest_alive=UNKNOWN,
        )  # fmt: skip

    # --- where the die falls ------------------------------------------------------------------

    def index_of(self, token: int) -> int | None:
        found = np.flatnonzero(self.ids == token)
        return int(found[0]) if len(found) else None

    def _before(self, index: int) -> Interval:
        """The sum over what stands before a candidate on the cumulative bar."""
        score, raw = self.scores[index], self.raw[index]
        equal = (self.scores == score) & (self.raw == raw)
        surely = (self.scores > score + self.margin) | (equal & (self.ids < self.ids[index]))
        perhaps = (self.scores >= score - self.margin) & ~equal | (equal & (self.ids < self.ids[index]))
        perhaps[index] = False
        low = float(self.weights[surely & self.sure].sum()) * (1 - self.margin)
        high = float(self.weights[perhaps].sum()) * (1 + self.margin)
        if len(self.counts) and score - self.margin <= self.rest_high:
            sure_bins, possible_bins = self._inside
            least, most = self._bins
            over = sure_bins & (self._lows > score + self.margin)
            fewer = max(float((self.counts * least)[over].sum()) - _highest(self.counts, most, self.gone), 0.0)
            reaching = possible_bins & (self._highs >= score - self.margin)
            if index == self.chosen and self.in_place:  # what lies above it is known apart; near ties may stand on either side
                ties = min(self.ties, float(self.counts.sum())) * float(self.weights[index]) * (1 + 2 * self.margin)
                fewer, more = max(fewer, self.above_chosen[0] - ties), self.above_chosen[1] + ties
            elif score >= self._highs[0]:  # only near ties
                more = min(self.ties, float(self.counts[0])) * float(most[0]) if reaching.any() else 0.0
            else:
                more = float((self.counts * most)[reaching].sum())
            low += max(fewer, 0.0)
            if len(self.moved):
                more += float(np.exp(np.minimum(self.moved_highs[self.moved_highs >= score - self.margin] - self.ref, 700.0)).sum())
            high += min(more, self.rest[1])
        elif len(self.moved) and score - self.margin <= float(self.moved_highs.max()):
            high += min(self.moved_sum, self.rest[1])
        if self.before_chosen is not None and index == self.chosen:
            low, high = max(low, self.before_chosen[0]), max(min(high, self.before_chosen[1]), 0.0)
        return min(low, high), high

    @cached_property
    def in_place(self) -> bool:
        """Whether the chosen token still stands where the rest was split: its score was only divided, as the rest's was."""
        return (
            self.split > 0
            and bool(self.possible[self.chosen])
            and abs(self.scores[self.chosen] - self.raw[self.chosen] * self.exponent) <= self.margin
        )

    def hit(self, index: int, u: float) -> Literal["yes", "no", "maybe"]:
        """Whether the die hits a candidate."""
        if not self.possible[index]:
            return "no"
        before = self._before(index)
        weight = self.weights[index]
        low, high = weight * (1 - self.margin), weight * (1 + self.margin)
        after = max(self.sum[0] - before[1] - high, 0.0), max(self.sum[1] - before[0] - low, 0.0)
        if index == self.chosen and self.in_place:
            lower = self.scores < self.scores[index] - self.margin
            behind = self.scores <= self.scores[index] + self.margin
            behind[index] = False
            ties = min(self.ties, float(self.counts.sum())) * high
            least = float(self.weights[lower & self.sure].sum()) * (1 - self.margin) + self.below_chosen[0] - ties
            most = float(self.weights[behind].sum()) * (1 + self.margin) + self.below_chosen[1] + ties + self.moved_sum
            after = max(after[0], least), max(min(after[1], most), 0.0)
        left, right = before[1] * (1 - u) <= u * (low + after[0]), (1 - u) * (before[0] + low) > u * after[1]
        left |= before[1] <= u * self.sum[0]
        right |= before[0] + low > u * self.sum[1]
        if self.sure[index] and left and right:
            return "yes"
        outside = before[0] * (1 - u) > u * (high + after[1]) or before[0] > u * self.sum[1]
        outside |= (1 - u) * (before[1] + high) <= u * after[0] or before[1] + high <= u * self.sum[0]
        return "no" if outside else "maybe"

    def is_most_likely(self, index: int) -> Literal["yes", "no", "maybe"]:
        """Whether a candidate has the highest score; of equal ones the smallest id has it."""
        if not self.possible[index]:
            return "no"
        score = self.scores[index]
        plain = (self.scores == self.raw) & bool(self.scores[index] == self.raw[index])  # untouched scores have no rounding to fear
        equal = (self.scores == score) & ((self.raw == self.raw[index]) | plain)
        margin = np.where(plain, 0.0, abs(score) * _DIGITS)
        higher = (self.scores > score + margin) | (equal & (self.ids < self.ids[index]))
        perhaps = (self.scores >= score - margin) & ~equal | (equal & (self.ids < self.ids[index]))
        perhaps[index] = False
        if (higher & self.sure).any():
            return "no"
        clear = not (perhaps & self.possible).any() and self.rest_high < score
        return "yes" if self.sure[index] and clear else "maybe"

    def decide(self, u: float | None) -> Decision:
        """The token that the die hits, or the most likely one where none is rolled."""
        if u is not None and (index := self._likely_hit(u)) is not None and self.hit(index, u) == "yes":
            return Decision(int(self.ids[index]), frozenset({int(self.ids[index])}), False, *self.place(index))
        answers = [self.is_most_likely(i) if u is None else self.hit(i, u) for i in range(len(self.ids))]
        certain = [i for i, answer in enumerate(answers) if answer == "yes"]
        if certain:
            index = certain[0]
            return Decision(int(self.ids[index]), frozenset({int(self.ids[index])}), False, *self.place(index))
        return Decision(None, frozenset(int(self.ids[i]) for i, answer in enumerate(answers) if answer == "maybe"), self._rest_hit(u))

    def _likely_hit(self, u: float) -> int | None:
        """The candidate that the die hits if no token of the rest stands before it: the one to ask first."""
        order = np.lexsort((self.ids, -self.scores))
        edges = np.cumsum(self.weights[order])
        at = int(np.searchsorted(edges, u * (self.sum[0] + self.sum[1]) / 2, side="right"))
        return int(order[at]) if at < len(order) else None

    def _rest_hit(self, u: float | None) -> bool:
        """Whether a token that was not recorded may be the one."""
        if u is None:
            return self.rest_high >= float(self.scores.max(initial=-np.inf, where=self.sure))
        return self.rest[1] > 0

    def place(self, index: int) -> tuple[Interval, tuple[Interval, Interval]]:
        """A candidate's probability, and its place on the cumulative bar."""
        before, weight = self._before(index), float(self.weights[index])
        if not self.sum[1] > 0:
            return (0.0, 1.0), ((0.0, 1.0), (0.0, 1.0))
        low, high = weight * (1 - self.margin), weight * (1 + self.margin)
        probability = min(low / self.sum[1], 1.0), min(high / self.sum[0], 1.0)
        left = before[0] / self.sum[1], min(before[1] / self.sum[0], 1.0)
        return probability, (left, (min((before[0] + low) / self.sum[1], 1.0), min((before[1] + high) / self.sum[0], 1.0)))


_FIELDS = tuple(declared.name for declared in fields(Known))


def _around(value: float) -> Interval:
    return max(value * (1 - MARGIN) - MARGIN, 0.0), value * (1 + MARGIN) + MARGIN


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf


def _depth(depths: Floats) -> Floats:
    """x · e^-x, and its limit 0 at infinity."""
    finite = np.minimum(depths, 800.0)
    return finite * np.exp(-finite)


def _coarse(raw: NDArray[np.float32]) -> bool:
    """Whether the scores are half-precision numbers: then many of them are equal, and the record can't tell how many."""
    finite = raw[np.isfinite(raw)]
    return bool(((finite.view(np.int32) & 0x1FFF) == 0).all())


def _take(counts: Floats, most: float) -> Floats:
    """How many are taken from each bin when the first `most` tokens are, [m]."""
    taken = np.minimum(np.cumsum(counts), most)
    taken[1:] -= taken[:-1].copy()
    return taken


def _highest(counts: Floats, weights: Floats, most: float) -> float:
    """The weight of the first `most` tokens, bins standing highest first."""
    if not most or not len(counts):
        return 0.0
    return float((_take(counts, most) * weights).sum())


def _kth(values: Floats, counts: Floats, k: int) -> float:
    """The k-th highest of values that stand there `counts` times, or -inf if there are fewer."""
    order = np.argsort(-values, kind="stable")
    reached = np.searchsorted(np.cumsum(counts[order]), k)
    return float(values[order[reached]]) if reached < len(order) else -math.inf


def _power_sums(counts: Floats, lows: Floats, highs: Floats, exponent: float, known: Interval, power: float) -> Interval:
    """Bounds of the sum of w^power over tokens in bins of w, when the sum of w is known; w = exp(exponent · score).

    w^power is convex or concave in w, so the extremes are: all tokens of the rest as equal as the bins allow, or as unequal.
    """
    low, high = np.exp(exponent * lows), np.exp(exponent * highs)
    low_power, high_power = counts * np.exp(exponent * power * lows), counts * np.exp(exponent * power * highs)
    low_sums, high_sums = np.cumsum(counts * low), np.cumsum(counts * high)
    low_powers, high_powers = np.cumsum(low_power), np.cumsum(high_power)
    least, most, last = float(low_sums[-1]), float(high_sums[-1]), len(counts) - 1
    # The sum up to which the level stands at or above the low edge of a bin, bins above it at their low edges and bins below at their high ones.
    turns = low_sums + (most - high_sums)
    room = high_sums - low_sums
    sums = []
    for total in known:
        total = min(max(total, least), most)
        # As unequal as possible: every token at the low edge of its bin, the highest bins lifted to their high edge one after another.
        at = min(int(np.searchsorted(room, total - least)), last)
        before = float(room[at - 1]) if at else 0.0
        share = min((total - least - before) / max(float(room[at]) - before, 1e-300), 1.0)
        lifted = (float(high_powers[at - 1] - low_powers[at - 1]) if at else 0.0) + share * float(high_power[at] - low_power[at])
        sums.append(float(low_powers[-1]) + lifted)
        # As equal as possible: every token as near to one level as its bin allows.
        at = min(int(np.searchsorted(-turns, -total)), last)
        over = float(low_sums[at - 1]) if at else 0.0
        level = (total - over - (most - float(high_sums[at]))) / float(counts[at])
        level = min(max(level, float(low[at])), float(high[at]))
        equal = (float(low_powers[at - 1]) if at else 0.0) + float(counts[at]) * level**power + float(high_powers[-1] - high_powers[at])
        sums.append(equal)
    return min(sums), max(sums)


def _split(counts: Floats, lows: Floats, highs: Floats, scores: Floats, index: int, raw_rank: int | None) -> tuple[Floats, Floats, Floats, int]:
    """The bins that hold any token, the one around the chosen token cut in two there, and how many of them lie above it.

    The raw rank counts every token above the chosen one; those that are no candidates lie in the bins.
    """
    score = scores[index]
    at = int(np.searchsorted(-lows, -score, side="right"))  # the first bin whose low lies under the score
    split = 0
    if raw_rank is not None and at < len(counts) and math.isfinite(score) and score < highs[0]:
        over = raw_rank - int((scores > score).sum()) - counts[:at].sum()
        if 0 <= over <= counts[at]:
            counts = np.concatenate([counts[:at], [over, counts[at] - over], counts[at + 1 :]])
            lows, highs = np.concatenate([lows[:at], [score], lows[at:]]), np.concatenate([highs[: at + 1], [score], highs[at + 1 :]])
            split = at + 1
    full = counts > 0
    return counts[full], lows[full], highs[full], int(full[:split].sum())
