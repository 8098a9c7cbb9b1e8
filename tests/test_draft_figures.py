"""What the figures of speculation draw of a race whose every number is known, what the page hears of it, and what is refused of an opened one."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from playground.errors import PlaygroundError
from playground.figures import Look, figure_json, get_figure
from playground.records import opened
from playground.trace import DraftJudged, Guess, Trace, VerifyCalibrated
from playground.ui import speculation as asked
from playground.ui.packets import Payloads, replayed
from tests.test_figures import trace as hostile
from tests.toy_drafts import NEVER, REJECTED, draft_events, draft_trace


def drawn(name: str, trace: Trace | None = None, lane: int = 1) -> dict[str, Any]:
    return json.loads(figure_json(name, trace or draft_trace(), lane))


def test_acceptance_by_position_with_its_counts() -> None:
    of_all, of_judged = drawn("draft_positions")["data"]
    assert of_all["y"] == [0.8, 0.6, 0.4] and of_all["text"] == ["4/5", "3/5", "2/5"]
    assert of_judged["y"] == [0.8, 0.75, 1.0] and of_judged["text"] == ["4/5", "3/4", "2/2"]
    never = drawn("draft_positions", draft_trace(draft_events((((REJECTED, NEVER), "resampled", None),))))["data"][1]
    assert never["y"] == [0.0, None] and never["text"] == ["0/1", "–"]  # nothing was judged there: unknown, not 0


def test_the_histogram_has_the_rounds_without_a_guess_apart() -> None:
    (bars,) = drawn("draft_histogram")["data"]
    assert bars["x"] == ["no<br>guess", "0", "1", "2", "3"] and bars["y"] == [2, 1, 1, 1, 2]


def test_the_rate_runs_along_the_text() -> None:
    running, so_far, tokens = drawn("draft_rate")["data"]
    assert running["x"] == [2, 6, 8, 9, 10, 11, 14] and tokens["y"] == [4, 2, 1, 1, 1, 3, 2]
    assert so_far["y"] == [1.0, 0.6667, 0.6667, 0.4444, 0.4444, 0.5455, 0.6429]
    nothing = draft_trace(draft_events((((), "plain", "no_match"),) * 3))
    assert drawn("draft_rate", nothing)["data"][1]["y"] == [None] * 3


def test_what_was_won_and_lost_adds_up() -> None:
    won, lost, total = drawn("draft_gain")["data"]
    assert won["y"] == [90, 10, None, None, None, 50, 10] and lost["y"] == [None, None, -5, -30, -5, None, None]
    assert total["y"] == [90, 100, 95, 65, 60, 110, 120]
    assert drawn("draft_gain", draft_trace(plain=False), 0)["data"] == []
    assert "together +120 ms" in get_figure("draft_gain").describe(draft_trace(), 1, None, Look()).en


def test_which_k_marks_the_best_and_what_was_run() -> None:
    figure = drawn("draft_which_k")
    known, beyond, best, ran = figure["data"]
    assert known["x"] == [0, 1, 2] and beyond["x"] == list(range(2, 13))  # the third position was judged too seldom
    assert known["y"][0] == 1.0 and best["x"] == [4]
    assert ran["x"] == [2.8] and ran["y"] == [1.273]
    losing = draft_trace(draft_events((((REJECTED, NEVER, NEVER), "resampled", None),) * 4))
    assert get_figure("draft_which_k").describe(losing, 1, None, Look()).en.startswith("No k pays here")


# --- what the page hears and asks -------------------------------------------------------------------


def heard(trace: Trace, lane: int) -> list[dict[str, Any]]:
    payloads = Payloads(trace)
    payloads.upto(len(trace.events))
    events = [json.loads(encoded) for encoded in payloads.encoded if encoded]
    return [payload for owner, kind, payload in events if owner == lane and kind == "draft"]


def test_a_round_travels_once_with_every_guess() -> None:
    rounds = heard(draft_trace(), 1)
    assert [one["r"] for one in rounds] == list(range(7)) and heard(draft_trace(), 0) == []
    assert [guess[2] for guess in rounds[1]["g"]] == ["a", "r", "n"]
    assert rounds[1]["g"][1][3:] == [1.0, 0.5, 0.5, 0.25] and len(rounds[1]["g"][2]) == 4  # never judged: no p, no die
    assert rounds[1]["o"] == "resampled" and rounds[6]["e"] is None and rounds[2]["l"] == "no_match"
    assert rounds[0]["s"] == [0.003, 0.06, 0.004, 0.002]
    played = [event for packet in replayed(draft_trace()) for event in packet["events"] if event[1] == "draft"]
    assert [payload for _, _, payload in played] == rounds


def test_a_late_round_is_as_small_as_an_early_one() -> None:
    many = draft_trace(draft_events((((REJECTED, NEVER, NEVER), "resampled", None),) * 200))
    sizes = [len(json.dumps(one)) for one in heard(many, 1)]
    assert sizes[190] <= sizes[10] + 8


def test_hostile_tokens_travel_as_text_and_break_no_answer() -> None:
    assert any("<img" in guess[1] for one in heard(hostile(), 1) for guess in one["g"])
    assert asked.speculation(hostile(), 1)["verdict"]["en"]


@pytest.mark.parametrize(
    "factors", [{"alpha": -0.1}, {"alpha": 1.5}, {"draft": "much"}, {"verify": float("inf")}, {"verify": True}, {"alpha": [0.5]}], ids=str
)
def test_factors_out_of_range_are_refused_by_name(factors: dict[str, Any]) -> None:
    with pytest.raises(PlaygroundError, match=f"{next(iter(factors))} must be in"):
        asked.which_k(draft_trace(), 1, factors, {})


def test_a_moved_factor_is_estimated_and_the_others_stay_measured() -> None:
    measured = asked.which_k(draft_trace(), 1, {}, {})
    moved = asked.which_k(draft_trace(), 1, {"alpha": 0.5, "nonsense": 3}, {})
    assert measured["estimated"] == [] and moved["estimated"] == ["alpha"]
    assert "1.75 " in moved["sums"][2]["text"]["en"]  # 1 + 0.5 + 0.25
    brackets = [one["sums"][2]["text"]["en"].rpartition("(")[2] for one in (measured, moved)]
    assert brackets[0].partition(")")[0] == brackets[1].partition(")")[0]  # k × draft + verify
    # Nothing measured at all: the sliders work from what they show.
    bare = draft_trace([event for event in draft_events() if not isinstance(event, VerifyCalibrated)])
    assert asked.speculation(bare, 1)["factors"] is None
    assert asked.which_k(bare, 1, {}, {})["estimated"] == ["alpha", "draft", "verify"]


def test_the_words_on_the_plain_lane() -> None:
    assert "15 of 15 compared are equal (float32)" in asked.speculation(draft_trace(), 1)["same"]["en"]
    other = draft_trace()
    events = [(n, replace(e, token=5) if n == 0 and e.kind == "token_chosen" and e.position == 3 else e) for n, e in other.events]
    assert "Equal up to token 4" in asked.speculation(Trace(other.about, events), 1)["same"]["en"]
    lanes = tuple(replace(lane, knobs={**lane.knobs, "drafter": "early_exit", "drafting": "probabilistic"}) for lane in other.about.lanes)
    drew = Trace(
        replace(draft_trace(strategy="speculative_sample").about, lanes=(lanes[0], replace(lanes[1], strategy="speculative_sample"))), events
    )
    assert "dice of their own" in asked.speculation(drew, 1)["same"]["en"]


# --- a trace from a file ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"round": 4},
        {"guesses": (Guess(1, 1.5, "accepted", 0.5, 0.5, 0.5),)},
        {"guesses": (Guess(1, 0.5, "accepted", -0.5, 0.5, 0.5),)},
        {"seconds": {"draft": -1.0}},
        {"extra": 3, "extra_origin": None},
        {"position": -1},
    ],
    ids=str,
)
def test_rounds_that_do_not_fit_together_are_refused(change: dict[str, Any]) -> None:
    trace = draft_trace()
    opened.check(trace)
    at = next(n for n, (_, event) in enumerate(trace.events) if isinstance(event, DraftJudged))
    events = list(trace.events)
    events[at] = (1, replace(events[at][1], **change))
    with pytest.raises(PlaygroundError, match=r"round .* of its guesses"):
        opened.check(Trace(trace.about, events))


@pytest.mark.parametrize("verify", [(), ((1, 0.0),), ((2, 0.1), (1, 0.1)), ((0, 0.1),), ((1, 0.1), (1, 0.2))], ids=str)
def test_a_calibration_that_is_none_is_refused(verify: tuple[Any, ...]) -> None:
    trace = draft_trace()
    events = [(n, replace(e, verify=verify) if isinstance(e, VerifyCalibrated) else e) for n, e in trace.events]
    with pytest.raises(PlaygroundError, match="calibration"):
        opened.check(Trace(trace.about, events))
