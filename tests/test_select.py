"""The dice, and what stands under them on the cumulative bar."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from playground.engine.dice import Dice, Purpose
from playground.engine.select import HEAD, argmax, draw


def by_hand(probabilities: list[float], u: float) -> tuple[int, float, float]:
    """The definition, slowly: probability descending, id ascending, first right edge above u."""
    order = sorted(range(len(probabilities)), key=lambda token: (-probabilities[token], token))
    total = float(np.sum(np.array(probabilities, dtype=np.float64)))
    edge = 0.0
    last = order[0], 0.0, 0.0
    for token in order:
        if probabilities[token] == 0:
            break
        low, edge = edge, edge + float(probabilities[token]) / total
        last = token, low, edge
        if u < edge:
            break
    return last


def drawn(probabilities: torch.Tensor, u: float) -> tuple[int, float, float]:
    found = draw(probabilities, u)
    return int(found.token), float(found.low), float(found.high)


def test_draw_follows_the_cumulative_bar() -> None:
    p = torch.tensor([0.1, 0.5, 0.1, 0.3])
    assert [drawn(p, u)[0] for u in (0.0, 0.49, 0.51, 0.79, 0.81, 0.89, 0.91, 0.999)] == [1, 1, 3, 3, 0, 0, 2, 2]
    token, low, high = drawn(p, 0.6)
    assert (token, round(low, 6), round(high, 6)) == (3, 0.5, 0.8)


def test_a_token_of_probability_zero_is_never_hit() -> None:
    p = torch.tensor([0.0, 0.7, 0.0, 0.3])
    assert {drawn(p, u)[0] for u in (0.0, 0.5, 0.7, 0.9999999, 1 - 2**-53)} == {1, 3}


@given(st.integers(2, 900), st.integers(0, 2**32), st.floats(0, 1, exclude_max=True), st.booleans())
@settings(max_examples=150, deadline=None)
def test_draw_equals_the_definition(size: int, seed: int, u: float, ties: bool) -> None:
    scores = torch.randn(size, generator=torch.Generator().manual_seed(seed)) * 3
    if ties:
        scores = scores.round()  # many equal probabilities, also around the 256th
    p = scores.softmax(-1)
    token, low, high = drawn(p, u)
    expected = by_hand(p.tolist(), u)
    assert low == pytest.approx(expected[1], abs=1e-12) and high == pytest.approx(expected[2], abs=1e-12)
    if min(abs(u - low), abs(high - u)) > 1e-12:
        assert token == expected[0]


def test_the_head_and_the_full_sort_agree_beyond_the_head() -> None:
    p = torch.full((4 * HEAD,), 1.0 / (4 * HEAD))  # all equal: the head can't be trusted at all
    assert drawn(p, 0.6)[0] == int(0.6 * 4 * HEAD)


def test_argmax_takes_the_smallest_id_of_equals() -> None:
    assert int(argmax(torch.tensor([0.0, 2.0, 2.0]))) == 1


def test_dice_are_a_pure_function_of_seed_and_place() -> None:
    assert Dice(7).u(3) == Dice(7).u(3)
    purposes: tuple[Purpose, ...] = ("accept", "draft", "residual", "beam")
    everywhere = itertools.product((0, 1), (0, 1), purposes, (0, 1), (0, 1))
    places = [Dice(seed).u(position, purpose, index, round) for seed, position, purpose, index, round in everywhere]
    assert len(set(places)) == len(places)
    assert all(0 <= u < 1 for u in places)


def test_choose_does_not_depend_on_the_round() -> None:
    assert Dice(5).u(9, "choose", round=0) == Dice(5).u(9, "choose", round=4)
    assert Dice(5).u(9, "accept", round=0) != Dice(5).u(9, "accept", round=4)


def test_dice_stay_what_they_were() -> None:
    """Recordings and links are re-decided with these numbers: they may never change between versions."""
    assert [round(Dice(7).u(position), 12) for position in range(3)] == [0.87207345482, 0.082842687027, 0.014107696329]


def test_dice_are_uniform() -> None:
    rolled = np.array([Dice(1).u(position) for position in range(20_000)])
    counts, _ = np.histogram(rolled, bins=20, range=(0, 1))
    chi_square = float(((counts - 1000) ** 2 / 1000).sum())
    assert chi_square < 43.8  # 19 degrees of freedom, p = 0.001
    assert abs(np.corrcoef(rolled[:-1], rolled[1:])[0, 1]) < 0.025
