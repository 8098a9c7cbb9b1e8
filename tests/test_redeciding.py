"""What the page asks of a record: where lanes part, and what a lane would do under other knobs. On recordings and on a run of a tiny model."""

from __future__ import annotations

import statistics
import time
from typing import Any

import pytest

from playground.measures.divergence import first_divergence
from playground.measures.what_if import what_if
from playground.records import recordings
from playground.trace import TokenChosen
from playground.ui.redeciding import MOVING
from playground.ui.service import Service
from tests.test_service import asked, collect, packets, started

CLASSIC = "recording:classic"
#: The lane of the classic recording that these tests turn the knobs of.
TOP_P = 2


@pytest.fixture(scope="module")
def service() -> Service:
    return Service()


# --- where lanes part --------------------------------------------------------------------


@pytest.mark.parametrize("name", [recording.name for recording in recordings.RECORDINGS])
def test_the_parting_of_two_recorded_lanes_is_told_with_its_cause(service: Service, name: str) -> None:
    trace = recordings.load(name)
    answer = service.parting(f"recording:{name}", 0, 1)
    divergence = first_divergence(trace, 0, 1)
    if trace.about.lanes[1].strategy == "speculative_greedy":  # its text is the plain lane's
        assert divergence is None and answer == {"position": None, "same": len(trace.output(0))}
        return
    assert divergence is not None
    assert answer["position"] == divergence.position and answer["cause"]["kind"] == divergence.cause.kind
    assert f"Token {divergence.position + 1}" in answer["sentence"]["en"] and answer["reason"]["zh"]
    for side, of in zip(answer["sides"], (divergence.a, divergence.b), strict=True):
        assert side["u"] == of.u and side["margin"] == (of.margin and pytest.approx(of.margin, rel=1e-2))


def test_a_lane_does_not_part_from_itself(service: Service) -> None:
    assert service.parting(CLASSIC, TOP_P, TOP_P) == {"position": None, "same": 80}


def test_a_lane_that_is_run_twice_reproduces_itself(service: Service) -> None:
    lane = {"strategy": "sample", "knobs": {"temperature": 1.2}, "max_new_tokens": 30}
    run = started(service, asked(lane, lane))
    tokens, _ = collect(packets(service, run))
    assert [payload["t"] for payload in tokens[0]] == [payload["t"] for payload in tokens[1]]
    assert service.parting(run, 0, 1) == {"position": None, "same": len(tokens[0])}


# --- what if -----------------------------------------------------------------------------


def test_what_if_answers_as_the_measure_does(service: Service) -> None:
    trace = recordings.load("classic")
    answer = service.what_if(CLASSIC, TOP_P, 5, {"temperature": 0.5}, {})
    truth = what_if(trace, TOP_P, {"temperature": 0.5}).first_flip
    assert truth is not None and truth.position == 5
    assert answer["flip"]["verdict"] == answer["step"]["verdict"] == "flips" and answer["flip"]["position"] == 5
    assert answer["step"]["token"] == "␣crucial" and answer["step"]["recorded"] == "␣an"
    assert answer["figure"]["data"] and "crucial" in answer["text"]["en"] and answer["table"]
    assert [stage["stage"] for stage in answer["stages"]] == ["temperature", "top_k", "top_p"]


def test_the_fiftieth_of_fifty_recorded_candidates_may_have_no_equal() -> None:
    """Only 50 raw scores are recorded: a 51st that equals the last of them is possible, not certain."""
    selected = what_if(recordings.load("classic"), TOP_P, {"temperature": 0.5}, position=5).selected
    assert selected is not None and selected.view.bounds[1].alive == (50.0, 51.0)


def test_nothing_changed_is_the_record_itself(service: Service) -> None:
    answer = service.what_if(CLASSIC, TOP_P, 5, {}, {"theme": "dark", "language": "zh"})
    drawn = service.figure(CLASSIC, "pipeline", TOP_P, 5, {"theme": "dark", "language": "zh"})
    assert (answer["flip"], answer["undecided"], answer["seen"], answer["cut"]) == (None, None, 80, False)
    assert answer["figure"] == drawn["figure"] and answer["text"] == drawn["text"] and answer["table"] == drawn["table"]


def test_a_step_behind_the_first_flip_is_drawn_with_the_text_as_it_was(service: Service) -> None:
    answer = service.what_if(CLASSIC, TOP_P, 40, {"temperature": 0.5}, {})
    assert answer["flip"]["position"] == 5 and answer["step"]["position"] == 40 and answer["figure"]["data"]


def test_temperature_does_nothing_to_a_greedy_lane_until_it_rolls_the_die(service: Service) -> None:
    cold = service.what_if(CLASSIC, 0, 5, {"temperature": 2.0}, {})
    assert cold["strategy"] == "greedy" and cold["flip"] is None and cold["stages"][0]["idle"]
    drawn = service.what_if(CLASSIC, 0, 5, {"temperature": 2.0, "strategy": "sample"}, {})
    assert drawn["strategy"] == "sample" and drawn["flip"] is not None and drawn["step"]["u"] is not None


def test_what_the_record_can_not_decide_needs_the_model(service: Service) -> None:
    answer = service.what_if(CLASSIC, TOP_P, 5, {"mirostat_tau": 3.0}, {})
    assert answer["step"]["verdict"] == answer["undecided"]["verdict"] == "needs_model"
    assert answer["figure"] is None and "model" in answer["step"]["reason"]["en"]


def test_a_long_lane_is_looked_at_to_its_end_only_when_the_knob_rests(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("playground.ui.redeciding.MOVING", 0.0)
    moving = service.what_if(CLASSIC, 0, 79, {"repetition_penalty": 1.001}, {"moving": True})
    resting = service.what_if(CLASSIC, 0, 79, {"repetition_penalty": 1.001}, {})
    assert (moving["seen"], moving["cut"], moving["step"]["position"]) == (1, True, 79)
    assert (resting["seen"], resting["cut"]) == (80, False)


def test_what_if_works_on_a_run_that_was_made_here(service: Service) -> None:
    run = started(service, asked({"strategy": "sample", "knobs": {"temperature": 1.3, "top_k": 30}, "max_new_tokens": 12}))
    collect(packets(service, run))
    chosen = list(service.line.get(run).trace.of(0, TokenChosen))
    answer = service.what_if(run, 0, None, {"top_k": 1}, {})
    first = next(event for event in chosen if event.token != event.view.ids[0])
    assert answer["flip"]["position"] == first.position and answer["step"]["position"] == len(chosen) - 1
    kept = service.what_if(run, 0, 0, {"top_k": 29}, {})
    assert kept["flip"] is None or kept["flip"]["position"] >= 0


def test_a_moving_slider_is_answered_in_time(service: Service) -> None:
    seconds: list[float] = []
    for move in range(30):
        changes: dict[str, Any] = {"temperature": 0.3 + 0.05 * move} if move % 2 else {"repetition_penalty": 1.0 + 0.001 * move}
        began = time.perf_counter()
        answer = service.what_if(CLASSIC, move % 3, 40, changes, {"moving": True})
        seconds.append(time.perf_counter() - began)
        assert "error" not in answer
    print(
        f"a slider's move: median {statistics.median(seconds) * 1000:.0f} ms, worst {max(seconds) * 1000:.0f} ms, "
        f"of which at most {MOVING * 1000:.0f} ms for the lane's steps"
    )
    assert statistics.median(seconds) < 0.1


@pytest.mark.parametrize(
    "hostile", [None, 0, -1, "x", [], {}, {"top_p": 7}, {"nope": 1}, {"seed": 1}, {"temperature": []}, {"strategy": "beam"}, {"x": "y" * 30_000}]
)
def test_hostile_values_get_an_error_and_break_nothing(service: Service, hostile: Any) -> None:
    answers = [
        service.what_if(hostile, 0, 0, {}, {}), service.what_if(CLASSIC, 0, 0, hostile, {}), service.what_if(CLASSIC, hostile, 0, {}, {}),
        service.what_if(CLASSIC, 0, hostile, {}, {}), service.what_if(CLASSIC, 0, 0, {}, hostile), service.parting(hostile, 0, 1),
        service.parting(CLASSIC, hostile, 1), service.parting(CLASSIC, 0, hostile),
    ]  # fmt: skip
    assert all(isinstance(answer, dict) for answer in answers)
    assert "error" in answers[0] and "error" in answers[5]
    assert "error" in answers[1] or hostile == {}
