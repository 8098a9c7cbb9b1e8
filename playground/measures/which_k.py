"""How many tokens to guess: what a round of k guesses brings and costs, from three factors, with or without a model.

The factors: how likely a guess is accepted, what a guess costs, and what verifying costs; costs are in
plain steps, one forward of one position. k trades them: more guesses bring more tokens, each less surely.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from playground.errors import Text
from playground.measures.formula import Formula, worked

#: The largest k that is looked at.
MOST_K = 12


@dataclass(frozen=True)
class Factors:
    """What decides whether guessing pays.

    `acceptance[i]` is the probability that guess i is accepted if it is judged, for the positions where it is known; behind
    them `beyond` holds. `draft` is the cost of one guess, `verify` pairs positions in one forward with its cost, both in plain
    steps and `verify` from (1, 1.0) on. `hit` is the share of rounds in which the drafter has a guess at all.
    """

    acceptance: tuple[float, ...]
    beyond: float
    draft: float
    verify: tuple[tuple[int, float], ...]
    hit: float = 1.0

    def accept(self, position: int) -> float:
        return self.acceptance[position] if position < len(self.acceptance) else self.beyond

    def verifying(self, positions: int) -> float:
        """The cost of a forward of so many positions: linear between measured ones, and beyond them as between the last two."""
        return interpolated(self.verify, positions)


@dataclass(frozen=True)
class Point:
    """What k guesses per round are expected to give; `estimated` says that k lies beyond what was measured."""

    k: int
    tokens: float
    cost: float
    estimated: bool

    @property
    def speed_up(self) -> float:
        """How many times as fast as plain decoding: a plain step brings one token at cost 1."""
        return self.tokens / self.cost


def interpolated(points: Sequence[tuple[int, float]], x: float) -> float:
    """Piecewise linear through points sorted by their first value; 1 without any, constant with one."""
    if len(points) < 2:
        return points[0][1] if points else 1.0
    after = next((index for index in range(1, len(points)) if points[index][0] >= x), len(points) - 1)
    (x0, y0), (x1, y1) = points[after - 1], points[after]
    return y0 + (y1 - y0) * (x - x0) / (x1 - x0)


def expected_tokens(alpha: float, k: float) -> float:
    """Tokens per round of k guesses, each accepted with probability alpha: (1 − α^(k+1)) / (1 − α) (Leviathan et al. 2023, eq. 1)."""
    return k + 1.0 if alpha >= 1 else (1 - alpha ** (k + 1)) / (1 - alpha)


def predicted(alpha: float, k: float, draft: float, verify: float = 1.0) -> float:
    """The speed-up of k guesses: tokens per round / (k·c + cost of verifying); with `verify` 1 their Theorem 3.8."""
    return expected_tokens(alpha, k) / (k * draft + verify)


def accepted_length(accept: Callable[[int], float], k: int) -> float:
    """Tokens per round where every position has an acceptance of its own: 1 + a₁ + a₁a₂ + … + a₁…a_k."""
    tokens, reached = 1.0, 1.0
    for position in range(k):
        reached *= accept(position)
        tokens += reached
    return tokens


def curve(factors: Factors, most: int = MOST_K) -> tuple[Point, ...]:
    """The expected speed-up for k = 0 … `most`: rounds without a draft bring one token at the cost of a plain step."""
    known = max((positions for positions, _ in factors.verify), default=1)
    points = []
    for k in range(most + 1):
        hit = factors.hit if k else 0.0
        tokens = hit * accepted_length(factors.accept, k) + 1 - hit
        cost = hit * (k * factors.draft + factors.verifying(k + 1)) + 1 - hit
        points.append(Point(k, tokens, cost, estimated=k > len(factors.acceptance) or k + 1 > known))
    return tuple(points)


def speed_formula(factors: Factors, k: int) -> Formula:
    """The speed-up of k guesses with all that it is made of: `curve` worked out with the numbers as they are shown."""
    arithmetic = "{tokens} / ({k} × {draft} + {verify})"
    if factors.hit < 1:
        arithmetic = "({hit} × {tokens} + 1 − {hit}) / ({hit} × ({k} × {draft} + {verify}) + 1 − {hit})"
    operands = {"tokens": accepted_length(factors.accept, k), "k": k, "draft": factors.draft, "verify": factors.verifying(k + 1)}
    if factors.hit < 1:
        operands["hit"] = factors.hit
    words = Text(f"k = {k}: speed-up", f"k = {k}：加速")
    return worked(words, arithmetic, lambda speed: f"{speed:.2f}", Text("{result}×", "{result} 倍"), **operands)


def best(points: Sequence[Point]) -> Point:
    """The k with the highest speed-up; of equals the smallest: k = 0 is plain decoding."""
    return max(points, key=lambda point: (point.speed_up, -point.k))


def break_even(points: Sequence[Point]) -> int | None:
    """The first k behind the best one that is slower than plain decoding; None if there is none, or if no k pays."""
    top = best(points)
    return next((point.k for point in points if point.k > top.k and point.speed_up < 1), None) if top.k else None
