"""Beam search read off its record: trees by hand, penalties against a fine grid, pools against the search that made them."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from itertools import pairwise

import pytest

from playground.errors import BadValue
from playground.measures.beams import (
    EVERYWHERE,
    BeamTree,
    Ended,
    beam_cache,
    beam_tree,
    corrections,
    cost,
    crossings,
    difference,
    first_interval,
    first_repeat,
    not_beaten,
    obituary,
    ranked_score,
    repeated_share,
    searched,
    variety,
    winners,
)  # fmt: skip
from playground.trace import BeamCandidate, BeamsAdvanced, BeamsRanked, Hypothesis, StepTimed, TokenChosen, Trace
from playground.ui import beams as asked
from tests.toy_beams import END, PER_TOKEN, PROMPT, beam_trace

# --- a search of three steps, by hand ---------------------------------------------------------------


def one(beam: int, token: int, log: float, score: float, fate: str, n: int, **more: object) -> BeamCandidate:
    return BeamCandidate(beam, token, log, score, score / n, fate, **more)  # type: ignore[arg-type]


#: Two beams, penalty 1. Step 1: tokens 1 and 2 live, 3 is beaten. Step 2: both heirs come from 1; the end of 2 finishes.
#: Step 3: an end that ranks below the pool, an end that wins, and a beam that the search ends in.
BY_HAND = (
    BeamsAdvanced(
        0,
        (
            one(0, 1, -0.5, -0.5, "kept", 1), one(0, 2, -1.0, -1.0, "kept", 1),
            one(0, 3, -3.0, -3.0, "dropped", 1, reason="beaten", by=1, gap=2.0),
        ),
        (0, 1),
    ),
    BeamsAdvanced(
        1,
        (
            one(0, 4, -0.5, -1.0, "kept", 2), one(1, END, -0.4, -1.4, "finished", 2, ended="eos"), one(0, 5, -1.5, -2.0, "kept", 2),
            one(1, 4, -1.5, -2.5, "dropped", 2, reason="beaten", by=2, gap=0.5),
        ),
        (0, 2), pool=((1, 1),),
    ),
    BeamsAdvanced(
        2,
        (
            one(0, END, -0.2, -1.2, "finished", 3, ended="eos"), one(0, 6, -1.0, -2.0, "kept", 3), one(1, 6, -0.5, -2.5, "kept", 3),
            one(1, END, -2.0, -4.0, "dropped", 3, reason="ended_too_low", ended="eos"),
        ),
        (1, 2), pool=((2, 0), (1, 1)),
    ),
)  # fmt: skip


def by_hand(**more: object) -> BeamTree:
    return BeamTree(BY_HAND, None, prompt=5, forced=0, max_new_tokens=9, knobs={"num_beams": 2, "length_penalty": 1.0, **more})


def test_paths_go_through_the_slots_of_the_step_before() -> None:
    tree = by_hand()
    assert tree.path((2, 2)) == [(0, 0), (1, 2), (2, 2)] and tree.tokens((2, 2)) == [1, 5, 6]
    assert tree.tokens((1, 1)) == [2, END]
    assert tree.parent((0, 0)) is None and tree.living == ((2, 1), (2, 2))


def test_hypotheses_are_the_ends_that_a_penalty_could_choose() -> None:
    assert [(hypothesis.key, hypothesis.length) for hypothesis in by_hand().hypotheses] == [((2, 0), 3), ((1, 1), 2)]  # not the end that was too low


def test_obituaries_say_who_pushed_whom_out_and_by_how_much() -> None:
    tree = by_hand()
    beaten = obituary(tree, (0, 2))
    assert (beaten.how, beaten.by, beaten.gap) == ("beaten", (0, 1), 2.0)
    line = obituary(tree, (0, 1))  # token 2 was kept; what is left of its line finished, and is outranked
    assert (line.how, line.death, line.by) == ("outranked", (1, 1), (2, 0)) and line.gap == pytest.approx(0.7 - 0.4)
    assert obituary(tree, (2, 3)).how == "ended_too_low"
    assert obituary(tree, (1, 2)).how == "alive" and obituary(tree, (2, 0)).how == "alive"  # the search is not over
    ended = replace(
        tree, ranked=BeamsRanked((Hypothesis(2, 0, (1, 4, END), -1.2, -0.4, "eos"), Hypothesis(1, 1, (2, END), -1.4, -0.7, "eos")), 1, "length")
    )
    assert obituary(ended, (2, 0)).how == "won" and obituary(ended, (0, 0)).how == "won" and obituary(ended, (2, 2)).how == "unfinished"


def test_a_finished_text_that_a_better_one_pushes_out_is_told_so() -> None:
    third = replace(BY_HAND[2], pool=((2, 0),))
    tree = BeamTree((*BY_HAND[:2], third), None, 5, 0, 9, {"num_beams": 1, "length_penalty": 1.0})
    told = obituary(tree, (1, 1))
    assert (told.how, told.by) == ("displaced", (2, 0)) and told.gap == pytest.approx(0.3)


def test_the_penalty_that_would_have_saved_a_text() -> None:
    tree = by_hand()
    # (2, 0): s −1.2, n 3; (1, 1): s −1.4, n 2. They cross where 1.2 / 3^p = 1.4 / 2^p.
    at = math.log(1.4 / 1.2) / math.log(2 / 3)
    assert obituary(tree, (1, 1)).interval == (-math.inf, pytest.approx(at))
    assert obituary(tree, (2, 0)).interval == (pytest.approx(at), math.inf)
    # Dropped at n = 1 with s = −3: longer texts with better sums beat it, except where dividing by more hurts enough.
    low, high = obituary(tree, (0, 2)).interval
    assert low == -math.inf and high == pytest.approx(min(math.log(3 / 1.2) / math.log(1 / 3), math.log(3 / 1.4) / math.log(1 / 2)))


# --- penalties against a fine grid ------------------------------------------------------------------


def test_not_beaten_case_by_case() -> None:
    assert not_beaten(-2.0, 4, -2.0, 4) == EVERYWHERE and not_beaten(-2.1, 4, -2.0, 4) is None
    assert not_beaten(0.0, 3, -1.0, 9) == EVERYWHERE and not_beaten(-1.0, 9, 0.0, 3) is None
    assert not_beaten(1.0, 3, -1.0, 9) == EVERYWHERE
    assert not_beaten(-4.0, 4, -2.0, 2) == (pytest.approx(1.0), math.inf)  # as good per token: equal at 1, better above
    assert not_beaten(4.0, 4, 2.0, 2) == (-math.inf, pytest.approx(1.0))  # positive sums lose by length


@pytest.mark.parametrize("seed", range(12))
def test_intervals_and_winners_agree_with_trying_every_penalty(seed: int) -> None:
    dice = random.Random(seed)
    sign = 1 if seed == 11 else -1
    hypotheses = [Ended((n, 0), sign * round(dice.uniform(0.5, 30), 3), dice.randint(1, 40), "eos") for n in range(8)]
    grid = [-4 + 8 * n / 4000 for n in range(4001)]
    stretches = winners(hypotheses, -4, 4)
    assert stretches[0][0] == -4 and stretches[-1][1] == 4
    assert all(before[1] == pytest.approx(after[0]) for before, after in pairwise(stretches))
    for index, own in enumerate(hypotheses):
        others = [(other.score, other.length) for other in hypotheses if other.key != own.key]
        part = first_interval(own.score, own.length, others)
        for penalty in grid:
            best = max(range(len(hypotheses)), key=lambda n: ranked_score(hypotheses[n].score, hypotheses[n].length, penalty))
            inside = part is not None and part[0] + 1e-6 < penalty < part[1] - 1e-6
            outside = part is None or penalty < part[0] - 1e-6 or penalty > part[1] + 1e-6
            assert not (inside and best != index) and not (outside and best == index)


def test_crossings_are_where_two_count_the_same() -> None:
    hypotheses = beam_tree(beam_trace(beams=4, steps=30, end=0.1), 0).hypotheses
    found = crossings(hypotheses, -2, 3)
    assert len(found) >= 4
    for crossing in found:
        one_, other = hypotheses[crossing.one], hypotheses[crossing.other]
        values = [ranked_score(text.score, text.length, crossing.penalty) for text in (one_, other)]
        assert values[0] == pytest.approx(values[1])


# --- other scores -----------------------------------------------------------------------------------


def test_every_correction_by_its_formula() -> None:
    told = {one_.name: one_ for one_ in corrections(by_hand(), 2.0)}
    assert told["sum"].values == (-1.2, -1.4) and told["mean"].values == pytest.approx((-0.4, -0.7))
    assert told["transformers"].values == pytest.approx((-1.2 / 9, -1.4 / 4))
    assert told["gnmt"].values == pytest.approx((-1.2 / (8 / 6) ** 2, -1.4 / (7 / 6) ** 2))
    assert told["vllm"].values == pytest.approx((-1.2 / 7**2, -1.4 / 6**2))  # 5 tokens of prompt; the end token isn't counted
    assert all(one_.order == (0, 1) for one_ in told.values())
    assert corrections(by_hand(), -2.0)[2].order == (1, 0)  # −1.2 · 9 < −1.4 · 4


# --- the search under another penalty ---------------------------------------------------------------


@pytest.mark.parametrize("rule", ["false", "true", "never"])
@pytest.mark.parametrize("penalty", [-1.0, 0.0, 1.0, 2.0])
@pytest.mark.parametrize("seed", [0, 3])
def test_pools_and_stops_under_another_penalty_are_those_of_a_re_run(rule: str, penalty: float, seed: int) -> None:
    ran = beam_tree(beam_trace(beams=3, steps=24, seed=seed, end=0.12, penalty=1.0, early="false"), 0)
    again = beam_tree(beam_trace(beams=3, steps=24, seed=seed, end=0.12, penalty=penalty, early=rule), 0)
    told = searched(ran, penalty, rule)
    both = min(len(told.pools), len(again.steps))
    assert [set(pool) for pool in told.pools[:both]] == [set(step.pool) for step in again.steps[:both]]
    stopped = again.ranked is not None and again.ranked.ending != "length"
    if told.stop is not None:
        assert stopped and told.stop == len(again.steps) - 1
    elif stopped:
        assert len(again.steps) >= len(ran.steps)


def test_the_difference_names_the_first_step_and_its_own_penalty_changes_nothing() -> None:
    tree = beam_tree(beam_trace(beams=4, steps=30, end=0.1, penalty=0.0, early="never"), 0)
    assert difference(tree, 0.0) == type(difference(tree, 0.0))(None, None, False)
    shorter, longer = difference(tree, -1.0), difference(tree, 2.0)
    assert shorter is not None and shorter.stop == 17
    assert longer is not None and longer.longer and longer.pool == 17
    strange = replace(tree, knobs={**tree.knobs, "length_penalty": 3.0})  # a record that doesn't follow from its own knobs
    assert difference(strange, 1.0) is None


# --- cost and variety -------------------------------------------------------------------------------


def test_costs_are_ratios_to_the_greedy_lane_of_the_same_race() -> None:
    trace = beam_trace(beams=4, steps=12)
    step, rows, kv = cost(trace, 0)
    assert step.ratio is not None and step.ratio.value == pytest.approx(0.05 / 0.03)
    assert rows.beams.value == 4 and kv.ratio is not None and kv.ratio.value == pytest.approx(4.0)
    alone = Trace(replace(trace.about, lanes=trace.about.lanes[:1]), [(lane, event) for lane, event in trace.events if lane != 1])
    assert all(row.ratio is None and row.greedy is None for row in cost(alone, 0))


def test_blocks_are_shared_as_far_as_the_beams_are_the_same() -> None:
    trace = beam_trace(beams=4, steps=30)
    tree, points = beam_tree(trace, 0), beam_cache(trace, 0)
    timed = list(trace.of(0, StepTimed))
    for number, point in enumerate(points):
        held = timed[number].cache_length - PROMPT
        texts = [[0] * PROMPT + tree.tokens((held - 1, index))[:held] for index in tree.steps[held - 1].living] if held else [[0] * PROMPT]
        distinct = {(at, tuple(text[: at + 16])) for text in texts for at in range(0, PROMPT + held, 16)}
        assert point.blocks == len(distinct) and point.paged == len(distinct) * 16 * PER_TOKEN
    assert points[0].forks == 3 and points[-1].nbytes == 4 * PER_TOKEN * (PROMPT + 29)


def test_variety_counts_tokens_shared_beginnings_and_follows_greedy() -> None:
    trace = beam_trace(beams=4, steps=20)
    tree, points = beam_tree(trace, 0), variety(trace, 0)
    greedy = [event.token for event in trace.output(1)]
    for point in points:
        texts = [tree.tokens((point.step, index)) for index in tree.steps[point.step].living]
        shared = 0
        while shared <= point.step and len({text[shared] for text in texts}) == 1:
            shared += 1
        assert (point.distinct, point.shared) == (len({text[-1] for text in texts}), shared)
        alive = any(text == greedy[: point.step + 1] for text in texts)
        assert point.greedy_alive == alive or not alive  # once gone it stays gone
    assert points[0].greedy_alive and not points[-1].greedy_alive


def test_repetition_counts_what_stood_there_before() -> None:
    assert repeated_share([1, 2, 3, 1, 2, 3, 1], n=3) == pytest.approx(2 / 5)
    assert repeated_share([1, 2], n=3) is None and repeated_share([1, 2, 3, 4], n=2) == 0
    assert first_repeat([1, 2, 3, 1, 2, 3, 1], n=3) == 5 and first_repeat([1, 2, 3], n=2) is None


# --- what the page gets -----------------------------------------------------------------------------


def test_tables_rank_under_the_penalty_that_is_asked_for() -> None:
    trace = beam_trace(beams=4, steps=30, end=0.1)
    told = asked.beams(trace, 0, None)
    assert told["penalty"] == told["own"] == 1.0 and told["hypotheses"][0]["ranks"][2] == 0
    short = asked.beams(trace, 0, 0)
    assert short["hypotheses"][0]["length"] == 1 and short["hypotheses"][0]["ranks"][0] == 0
    for bad in ("1", True, 11, float("nan")):
        with pytest.raises(BadValue):
            asked.beams(trace, 0, bad)
    with pytest.raises(BadValue, match="no beams"):
        asked.beams(trace, 1, None)


def test_every_candidate_of_a_search_can_be_looked_at() -> None:
    trace = beam_trace(beams=3, steps=16, end=0.1)
    tree = beam_tree(trace, 0)
    seen = set()
    for step in tree.steps:
        for index, candidate in enumerate(step.candidates):
            told = asked.beam(trace, 0, step.step, index)
            seen.add(candidate.reason or candidate.fate)
            assert told["obituary"]["en"] and told["obituary"]["zh"] and told["interval"]["zh"] and told["length"] == step.step + 1
    assert {"kept", "finished", "beaten", "ended_too_low"} <= seen
    for bad in ((99, 0), (0, 99), (True, 0), ("0", 0), (-1, 0)):
        with pytest.raises(BadValue):
            asked.beam(trace, 0, *bad)


def test_a_recorded_view_is_found_for_whatever_was_once_the_best() -> None:
    trace = beam_trace(beams=4, steps=20)
    tree = beam_tree(trace, 0)
    prefixes = set()
    standing: list[int] = []
    for event in trace.of(0, TokenChosen):
        del standing[event.position :]
        prefixes.add(tuple(standing))
        standing.append(event.token)
    for step in tree.steps:
        for index in range(len(step.candidates)):
            key = (step.step, index)
            found = asked.recorded_view(trace, 0, tree, key)
            assert (found is not None) == (tuple(tree.tokens(key)[:-1]) in prefixes)
    drawn = asked.pipeline(trace, 0, (3, 5), tree, asked.recorded_view(trace, 0, tree, (3, 5)) or next(trace.of(0, TokenChosen)), {}, {}, False)
    assert "its sum decides" in drawn["text"]["en"]
