"""The books of speculative decoding against numbers that were added up by hand, and the formulas against a published table's rule."""

from __future__ import annotations

from dataclasses import replace

import pytest

from playground.errors import Text
from playground.measures.ledger import Difference, Ledger, first_difference, identity, ledger, plain_lane, refusal, rows, verdict
from playground.measures.which_k import (
    Factors,
    accepted_length,
    best,
    break_even,
    curve,
    expected_tokens,
    interpolated,
    predicted,
)
from playground.trace import PromptRead, StageAbout, StepView, Trace
from tests.toy_drafts import ACCEPTED, NEVER, REJECTED, STAGE, draft_events, draft_trace

#: Best speed-up, and the smallest k that gives it to two digits, by draft cost c and acceptance α; "steep" verifies at half a step more per guess.
TABLE = {
    0.02: ((0.3, 1.34, 2), (0.5, 1.79, 4), (0.6, 2.17, 5), (0.7, 2.76, 7), (0.8, 3.82, 11), (0.9, 6.37, 19)),
    0.05: ((0.3, 1.26, 2), (0.5, 1.63, 3), (0.6, 1.92, 4), (0.7, 2.35, 5), (0.8, 3.09, 8), (0.9, 4.67, 13)),
    0.10: ((0.3, 1.18, 1), (0.5, 1.46, 2), (0.6, 1.67, 3), (0.7, 1.98, 4), (0.8, 2.47, 6), (0.9, 3.43, 9)),
    0.20: ((0.3, 1.08, 1), (0.5, 1.25, 1), (0.6, 1.40, 2), (0.7, 1.58, 3), (0.8, 1.87, 4), (0.9, 2.37, 6)),
    0.30: ((0.3, 1.00, 0), (0.5, 1.15, 1), (0.6, 1.23, 1), (0.7, 1.37, 2), (0.8, 1.55, 3), (0.9, 1.87, 5)),
}
STEEP = ((0.3, 1.00, 0), (0.5, 1.00, 0), (0.6, 1.03, 1), (0.7, 1.10, 1), (0.8, 1.16, 1), (0.9, 1.30, 3))


def first_best(factors: Factors) -> tuple[int, float]:
    """The smallest k whose speed-up is the best one, to two digits."""
    points = curve(factors, most=30)
    top = round(best(points).speed_up, 2)
    return next(point.k for point in points if round(point.speed_up, 2) == top), top


def flat(alpha: float, draft: float, slope: float = 0.0) -> Factors:
    return Factors((), alpha, draft, ((1, 1.0), (2, 1.0 + slope)))


@pytest.mark.parametrize(("draft", "alpha", "speed", "k"), [(c, *row) for c, cells in TABLE.items() for row in cells])
def test_the_best_k_and_its_speed_up(draft: float, alpha: float, speed: float, k: int) -> None:
    assert first_best(flat(alpha, draft)) == (k, speed)
    assert curve(flat(alpha, draft), most=30)[k].speed_up == pytest.approx(predicted(alpha, k, draft))


@pytest.mark.parametrize(("alpha", "speed", "k"), STEEP)
def test_a_costly_verification_leaves_little_to_win(alpha: float, speed: float, k: int) -> None:
    assert first_best(flat(alpha, 0.05, slope=0.5)) == (k, speed)


@pytest.mark.parametrize(("alpha", "tokens"), [(0.0, 1.0), (1.0, 6.0), (0.5, 1.96875)])
def test_no_guess_accepted_and_every_guess_accepted(alpha: float, tokens: float) -> None:
    assert expected_tokens(alpha, 5) == tokens == accepted_length(lambda _: alpha, 5)


def test_guessing_pays_from_the_first_guess_on_only_if_it_is_accepted_more_often_than_it_costs() -> None:
    assert best(curve(flat(0.21, 0.2))).k == 1 and best(curve(flat(0.19, 0.2))).k == 0
    assert predicted(0.5, 1, 0.2) == pytest.approx(1.5 / 1.2)


def test_acceptance_that_falls_behind_the_first_guess_moves_the_best_k() -> None:
    points = curve(Factors((0.9, 0.9, 0.05), 0.05, 0.05, ((1, 1.0), (13, 1.6))))
    assert best(points).k == 2
    assert [point.estimated for point in points] == [k > 3 for k in range(13)]
    assert points[3].tokens == pytest.approx(1 + 0.9 + 0.81 + 0.0405)
    assert points[3].cost == pytest.approx(3 * 0.05 + 1 + 0.6 * 3 / 12)
    assert points[0].speed_up == 1.0 and break_even(points) is None
    assert break_even(curve(Factors((0.5,), 0.0, 0.3, ((1, 1.0), (13, 1.0))))) == 2  # 1.5 / 1.3, then 1.5 / 1.6


def test_rounds_without_a_guess_hold_the_speed_up_back() -> None:
    half = curve(replace(flat(1.0, 0.0), hit=0.5))
    assert half[4].tokens == 3.0 and half[4].cost == 1.0


def test_costs_between_and_beyond_what_was_measured() -> None:
    points = ((1, 1.0), (3, 1.4), (5, 2.0))
    assert [interpolated(points, x) for x in (1, 2, 4, 7)] == pytest.approx([1.0, 1.2, 1.7, 2.6])
    assert interpolated((), 4) == 1.0 and interpolated(((1, 1.5),), 9) == 1.5


def test_a_disturbed_calibration_never_makes_more_positions_cheaper() -> None:
    events = draft_events()
    for verify, expected in (
        (((1, 0.040), (2, 0.080), (3, 0.060), (5, 0.090)), ((1, 1.0), (2, 1.5), (3, 1.5), (5, 2.25))),  # the slower one was disturbed
        (((1, 0.040), (2, 0.038), (3, 0.060)), ((1, 1.0), (2, 1.0), (3, 1.5))),  # so was the plain step itself
    ):
        events[0] = replace(events[0], verify=verify)
        factors = ledger(draft_trace(events), 1).factors
        assert factors is not None and factors.verify == expected


# --- the ledger -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def books() -> Ledger:
    return ledger(draft_trace(), 1)


def test_every_count(books: Ledger) -> None:
    found = {row.name: row.quantity.value for row in rows(books) if row.group == "counts"}
    assert found == {
        "forwards": 7, "prefills": 2, "with_draft": 5, "without_draft": 2, "hit_rate": pytest.approx(5 / 6), "drafted": 14, "accepted": 9,
        "emitted": 8, "cut": 1, "rejected": 2, "never_judged": 3, "behind_the_end": 1, "resampled": 2, "bonus": 2, "plain": 3, "rolled_back": 7,
    }  # fmt: skip
    # Every written token is counted once: those of the rounds, and the first.
    assert found["emitted"] + found["resampled"] + found["bonus"] + found["plain"] == len(books.trace.output(1)) == 15
    # Read into the cache: a token per round and every guess; what was not rolled back is there at the end, behind 5 of the prompt.
    assert 5 + 7 + found["drafted"] - found["rolled_back"] == books.rounds[-1].judged.target_length


def test_every_rate(books: Ledger) -> None:
    found = {row.name: row.quantity.value for row in rows(books) if row.group == "rates"}
    assert found["acceptance_rate"] == 9 / 14 and found["alpha"] == 9 / 11
    assert found["acceptance_length"] == 1 + 9 / 5 and found["tokens_per_forward"] == 14 / 7
    assert [found[f"position_{i}"] for i in (1, 2, 3)] == [4 / 5, 3 / 5, 2 / 5]
    assert [found[f"position_{i}_judged"] for i in (1, 2, 3)] == [4 / 5, 3 / 4, 1.0]
    assert books.histogram == (1, 1, 1, 2) == tuple(found[f"histogram_{n}"] for n in range(4))


def test_every_second(books: Ledger) -> None:
    found = {row.name: row.quantity.value for row in rows(books) if row.group == "time"}
    whole = 5 * 0.070 + 2 * 0.045
    assert found["time_draft"] == pytest.approx(0.014) and found["time_verify"] == pytest.approx(whole - 7 * 0.010)
    assert found["time_select"] == pytest.approx(7 * 0.004) and found["time_rollback"] == pytest.approx(7 * 0.002)
    assert sum(found[f"time_{part}"] for part in ("draft", "verify", "select", "rollback", "other")) == pytest.approx(whole)
    assert (found["verify_1"], found["verify_2"], found["verify_4"]) == (0.04, 0.044, 0.060)
    assert found["draft_cost"] == pytest.approx(0.001 / 0.04)


def test_the_speed_up_beside_its_predictions(books: Ledger) -> None:
    found = {row.name: row.quantity.value for row in rows(books) if row.group == "speed"}
    # 14 tokens behind the first: 14 × 40 ms in the plain lane, 440 ms here.
    assert found["speed_up"] == pytest.approx(14 * 0.040 / 0.440)
    alpha, k, c = 9 / 11, 14 / 5, 0.025
    tokens = (1 - alpha ** (k + 1)) / (1 - alpha)
    assert found["textbook"] == pytest.approx(tokens / (k * c + 1))
    verify = 1.1 + (1.5 - 1.1) * (k + 1 - 2) / 2  # between 2 and 4 positions
    assert found["with_verify"] == pytest.approx(tokens / (k * c + verify))
    assert found["with_pauses"] == pytest.approx((5 * tokens + 2) / (5 * (k * c + verify) + 2))
    won = [4 * 0.04 - 0.07, 2 * 0.04 - 0.07, 0.04 - 0.045, 0.04 - 0.07, 0.04 - 0.045, 3 * 0.04 - 0.07, 2 * 0.04 - 0.07]
    assert [gain.won for gain in books.gains] == pytest.approx(won)
    assert found["won"] == pytest.approx(0.09 + 0.01 + 0.05 + 0.01) and found["lost"] == pytest.approx(0.04)
    assert found["gain"] == pytest.approx(sum(won)) == books.gains[-1].total
    assert found["plain_step"] == 0.040


def test_every_derived_number_says_its_formula(books: Ledger) -> None:
    for row in rows(books):
        if row.quantity.how in ("derived", "estimated"):
            assert row.quantity.formula, row.name
        assert row.quantity.label.en and row.quantity.label.zh


def test_a_win_and_a_loss_are_said_alike(books: Ledger) -> None:
    said = verdict(books)
    assert said.en == (
        "It paid: 1.27 times as fast as the plain lane. 9 of 14 guesses accepted, 2.00 tokens per target forward, "
        "and a round took 1.57 times a plain step."
    )
    losing = ledger(draft_trace(draft_events((((REJECTED, NEVER, NEVER), "resampled", None),) * 4)), 1)
    assert verdict(losing).en.startswith("It lost: 0.57 times as fast as the plain lane. 0 of 12 guesses accepted")
    assert verdict(losing).zh.startswith("亏损")
    assert losing.alpha == 0.0 and losing.textbook == pytest.approx(1 / (3 * 0.025 + 1)) and losing.positions[1].conditional is None
    even = ledger(draft_trace(draft_events(((("accepted",), "bonus", None),) * 4, seconds=0.080)), 1)
    assert verdict(even).en.startswith("It made no difference (1.00×)")


def test_full_acceptance() -> None:
    books = ledger(draft_trace(draft_events((((ACCEPTED,) * 3, "bonus", None),) * 4)), 1)
    assert books.alpha == 1.0 and books.tokens_per_forward == 4.0 and books.rolled_back == 0
    assert books.textbook == pytest.approx(4 / (3 * 0.025 + 1))


def test_without_a_plain_lane_the_speed_up_is_unknown() -> None:
    books = ledger(draft_trace(plain=False), 0)
    found = {row.name: row.quantity.value for row in rows(books)}
    assert found["speed_up"] is None and found["gain"] is None and found["won"] is None and books.gains == ()
    assert "not measured" in verdict(books).en and "estimated" in verdict(books).en
    assert found["textbook"] is not None


def test_the_plain_lane_is_the_same_lane_without_guesses() -> None:
    trace = draft_trace(stages=(STAGE,), strategy="speculative_sample")
    assert plain_lane(trace, 1) == 0 and plain_lane(trace, 0) is None
    first, second = trace.about.lanes
    for change in (
        {"stages": (replace(STAGE, knobs={"temperature": 0.7}),)}, {"max_new_tokens": 9}, {"model": "other"}, {"strategy": "greedy"},
        {"prompt_ids": (1,)},
    ):  # fmt: skip
        other = Trace(replace(trace.about, lanes=(replace(first, **change), second)), trace.events)
        assert plain_lane(other, 1) is None, change


def test_what_a_server_would_refuse() -> None:
    assert "uses neither" in refusal(ledger(draft_trace(stages=(STAGE,)), 1)).en
    refused = ledger(draft_trace(stages=(StageAbout("min_p", "warper", {"min_p": 0.1}, "asked"),)), 1)
    assert refused.refused == ("min_p",) and "min_p can't be used" in refusal(refused).en
    idle = ledger(draft_trace(stages=(StageAbout("min_p", "warper", {"min_p": 0.1}, "asked", idle=True),)), 1)
    assert idle.refused == ()


def test_a_lookup_holds_nothing_of_its_own_and_a_draft_model_does(books: Ledger) -> None:
    found = {row.name: row.quantity.value for row in rows(books) if row.group == "resources"}
    assert found == {"extra_weights": 0, "extra_cache": 0}
    trace = draft_trace()
    draft = replace(trace.about.models[0], key="small", weight_bytes=123)
    about = replace(
        trace.about, models=(*trace.about.models, draft), lanes=(trace.about.lanes[0], replace(trace.about.lanes[1], draft_model="small"))
    )
    events = [(lane, replace(event, draft_bytes=77) if event.kind == "draft_judged" else event) for lane, event in trace.events]
    found = {row.name: row.quantity.value for row in rows(ledger(Trace(about, events), 1)) if row.group == "resources"}
    assert found == {"extra_weights": 123, "extra_cache": 77}
    assert dict((label.en, value) for label, value in identity(ledger(Trace(about, events), 1)))["draft model"] == Text(
        "toy · computed in float32 · cpu", "toy · 以 float32 计算 · cpu"
    )


def test_who_read_the_prompt() -> None:
    trace = draft_trace()
    own = [(1, PromptRead(5, 5, 0.1, 50)), *((lane, event) for lane, event in trace.events if not isinstance(event, PromptRead))]
    assert ledger(Trace(trace.about, own), 1).prefills == 1  # type: ignore[arg-type]


def test_a_lane_that_has_only_begun_has_empty_books() -> None:
    books = ledger(Trace(draft_trace().about, []), 1)
    assert verdict(books).en == "Nothing has been guessed yet."
    assert {row.quantity.value for row in rows(books) if row.group in ("rates", "speed")} == {None}
    assert books.factors is None and identity(books)


def test_where_the_lane_and_its_plain_one_part() -> None:
    assert first_difference(ledger(draft_trace(), 1)) is None and first_difference(ledger(draft_trace(plain=False), 0)) is None
    trace = draft_trace()
    view = StepView((3, 5), (2.5, 2.25), 3.0, 0.5, 30, 0.0, (0,) * 64)
    events = [(n, replace(e, token=5, view=view) if n == 0 and e.kind == "token_chosen" and e.position >= 3 else e) for n, e in trace.events]
    assert first_difference(ledger(Trace(trace.about, events), 1)) == Difference(position=3, plain=5, own=3, gap=0.25)
