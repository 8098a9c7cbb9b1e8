"""A beam lane as the page hears it: tokens that replace others, steps of the search, and packets that don't grow."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from playground.errors import PlaygroundError
from playground.measures.latency import lane_numbers
from playground.measures.text import TextJoiner, output_text
from playground.records import opened
from playground.trace import BeamsAdvanced, TokenChosen, TokenName, TokensNamed, Trace
from playground.ui import beams as asked
from playground.ui.packets import Payloads, replayed
from playground.ui.views import chosen_at
from tests.test_figures import trace as hostile
from tests.toy_beams import beam_trace


def heard(trace: Trace, kind: str, lane: int = 0) -> list[dict]:
    payloads = Payloads(trace)
    payloads.upto(len(trace.events))
    events = [json.loads(encoded) for encoded in payloads.encoded if encoded]
    return [payload for owner, of, payload in events if owner == lane and of == kind]


def test_a_joiner_goes_back_into_the_middle_of_a_character() -> None:
    names = {1: TokenName(1, "你".encode()[:2]), 2: TokenName(2, "你".encode()[2:]), 3: TokenName(3, b"a")}
    joiner = TextJoiner(names)
    assert [joiner.add(token).text for token in (3, 1, 2, 3)] == ["a", "", "你", "a"]
    joiner.back_to(2)
    assert joiner.add(2).text == "你" and bytes(joiner.output) == "a你".encode()
    joiner.back_to(1)
    assert joiner.add(3).text == "a" and bytes(joiner.output) == b"aa"
    joiner.back_to(7)  # nothing stands there: nothing is taken back
    assert bytes(joiner.output) == b"aa"


def test_bytes_of_replacing_tokens_count_from_where_they_stand() -> None:
    trace = beam_trace(beams=4, steps=30, end=0.1)
    names = trace.names("toy")
    standing: list[dict] = []
    replaced = 0
    for token in heard(trace, "token"):
        replaced += token["p"] < len(standing)
        del standing[token["p"] :]
        start = standing[-1]["b"][1] if standing else 0
        assert token["b"] == [start, start + (0 if names[token["t"]].special else len(names[token["t"]].piece))]
        standing.append(token)
    assert replaced > 3 and "".join(token["x"] for token in standing) == output_text(trace, 0)
    assert [token["t"] for token in standing] == [event.token for event in trace.output(0)]


def test_numbers_and_steps_are_of_what_stands() -> None:
    trace = beam_trace(beams=4, steps=30, end=0.1)
    assert lane_numbers(trace, 0)["tokens"].value == len(trace.output(0)) < len(list(trace.of(0, TokenChosen)))
    for position, event in enumerate(trace.output(0)):
        assert chosen_at(trace, 0, position) is event


def test_every_candidate_travels_once_with_everything_the_tree_shows() -> None:
    trace = beam_trace(beams=3, steps=12, end=0.1)
    steps = heard(trace, "beams")
    for event, told in zip(trace.of(0, BeamsAdvanced), steps, strict=True):
        assert (told["s"], told["l"], told["o"], told["b"]) == (event.step, list(event.living), [list(key) for key in event.pool], event.best)
        for candidate, row in zip(event.candidates, told["c"], strict=True):
            row = [*row, *[None] * (13 - len(row))]
            assert (row[0], row[1], row[6], row[7], row[8], row[10]) == (
                candidate.beam, candidate.token, candidate.fate[0], candidate.reason, candidate.by, candidate.ended,
            )  # fmt: skip
            assert abs(row[4] - candidate.score) < 1e-3 * abs(candidate.score)
    (ranked,) = heard(trace, "ranked")
    assert len(ranked["h"]) == 3 and ranked["r"] == 1 and ranked["e"] == "length"


def test_the_packet_of_step_80_is_as_small_as_that_of_step_10() -> None:
    sizes = [len(json.dumps(step)) for step in heard(beam_trace(beams=8, steps=80), "beams")]
    assert max(sizes[:-1]) < 1.15 * sizes[9]
    assert sizes[-1] < 2000  # the last step also names the whole pool, once


def test_a_recording_plays_the_same_steps() -> None:
    trace = beam_trace(beams=4, steps=12)
    events = [event for packet in replayed(trace) for event in packet["events"]]
    assert [payload for lane, kind, payload in events if kind == "beams"] == heard(trace, "beams")
    assert [payload for lane, kind, payload in events if kind == "token" and lane == 0] == heard(trace, "token")


def test_hostile_tokens_travel_as_text() -> None:
    of = hostile()
    named = next(event for _, event in of.events if isinstance(event, TokensNamed))
    rows = [row for step in heard(of, "beams", lane=1) for row in step["c"]]
    assert any("<" in row[2] for row in rows) and len(named.names) > 4


# --- traces that somebody opens ---------------------------------------------------------------------


def test_a_beam_search_of_one_s_own_is_opened_if_it_fits_together() -> None:
    opened.check(beam_trace(beams=4, steps=12))


@pytest.mark.parametrize(
    "change",
    [
        {"step": 5},
        {"living": (0, 99)},
        {"living": (0, 0)},
        {"best": 7},
        {"pool": ((3, 0),)},
        {"pool": ((-1, 0),)},
        {"candidates": ()},
        {"beam": 4},
        {"beam": -1},
        {"by": 99},
        {"score": float("inf")},
        {"score": float("nan")},
        {"fate": "dropped"},
    ],
    ids=str,
)
def test_a_search_that_does_not_fit_together_is_refused(change: dict) -> None:
    trace = beam_trace(beams=4, steps=12)
    at = next(number for number, (_, event) in enumerate(trace.events) if isinstance(event, BeamsAdvanced) and event.step == 2)
    lane, event = trace.events[at]
    (name, value), *_ = change.items()
    if name in ("beam", "by", "score", "fate"):
        event = replace(event, candidates=(replace(event.candidates[0], **{name: value}), *event.candidates[1:]))
    else:
        event = replace(event, **change)
    trace.events[at] = (lane, event)
    with pytest.raises(PlaygroundError, match="beam search"):
        opened.check(trace)


def test_strange_knobs_of_an_opened_trace_break_nothing() -> None:
    trace = beam_trace(beams=3, steps=8, end=0.1)
    strange = {"num_beams": "many", "length_penalty": 1e9, "early_stopping": [], "num_beam_groups": "x"}
    lanes = (replace(trace.about.lanes[0], knobs=strange, prompt_ids=(), max_new_tokens=10**400), trace.about.lanes[1])
    of = Trace(replace(trace.about, lanes=lanes), trace.events)
    assert asked.beams(of, 0, None)["own"] == 1.0
    for step in of.of(0, BeamsAdvanced):
        for index in range(len(step.candidates)):
            asked.beam(of, 0, step.step, index)
