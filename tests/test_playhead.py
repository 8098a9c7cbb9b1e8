"""A recording that is cut at its playhead: every figure and table tells of what has played, and of nothing after it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from playground.figures import figures
from playground.records import recordings
from playground.records.recordings import RECORDINGS, Recording
from playground.ui.recordings import Recordings

every_recording = pytest.mark.parametrize("recording", RECORDINGS, ids=lambda one: one.name)

PAGES = Recordings()


def answers(run: str, lanes: int) -> dict[str, Any]:
    """All that a page can ask of a run, by what is asked: every figure and table of every lane."""
    found: dict[str, Any] = {"record": PAGES.record(run)}
    for lane in range(lanes):
        found |= {f"figure {name} {lane}": PAGES.figure(run, name, lane, None, {}) for name in figures()}
        found |= {f"beams {lane}": PAGES.beams(run, lane, None), f"speculation {lane}": PAGES.speculation(run, lane)}
        found[f"which k {lane}"] = PAGES.which_k(run, lane, {}, {})
    return found


def played(packets: list[dict[str, Any]], lane: int) -> list[int]:
    """The tokens that a page shows of a lane after these packets."""
    tokens: list[int] = []
    for owner, kind, event in (event for packet in packets for event in packet["events"]):
        if owner == lane and kind == "token":
            tokens[event["p"] :] = [event["t"]]
    return tokens


@every_recording
def test_at_every_moment_the_trace_holds_the_tokens_that_the_lanes_show(recording: Recording) -> None:
    answer = PAGES.recording(recording.name)
    for moment in range(len(answer["packets"]) + 1):
        trace = recordings.load(f"{recording.name}@{moment}")
        for lane in range(len(trace.about.lanes)):
            assert [one.token for one in trace.output(lane)] == played(answer["packets"][:moment], lane)


@every_recording
def test_the_numbers_of_a_moment_are_those_that_the_lanes_show(recording: Recording) -> None:
    answer = PAGES.recording(recording.name)
    numbers: dict[str, dict[str, Any]] = {}
    for moment, packet in enumerate(answer["packets"], 1):
        for lane, told in packet["numbers"].items():
            for name, value in told.items():
                numbers.setdefault(lane, {})[name] = value["value"] if isinstance(value, dict) else value
        if moment % 40:
            continue
        table = PAGES.figure(f"{answer['run']}@{moment}", "kv", None, None, {})["table"]
        for lane, about in enumerate(answer["about"]["lanes"]):
            last = next(row for row in reversed(table) if row[0] == about["name"])
            value, unit = last[table[0].index("measured")].split()
            assert float(value) * {"kB": 1e3, "MB": 1e6}[unit] == pytest.approx(numbers[str(lane)]["kv_bytes"], rel=5e-3)
        rows = [line.split(" | ") for line in PAGES.record(f"{answer['run']}@{moment}")["markdown"].split("\n") if line.startswith("|")][2:]
        assert [int(row[3]) for row in rows] == [len(played(answer["packets"][:moment], lane)) for lane in range(len(answer["about"]["lanes"]))]
        assert "So far" in PAGES.record(f"{answer['run']}@{moment}")["markdown"] or moment == len(answer["packets"])


@every_recording
def test_everything_answers_at_any_moment_and_at_the_end_as_for_the_whole(recording: Recording) -> None:
    answer = PAGES.recording(recording.name)
    lanes, last = len(answer["about"]["lanes"]), len(answer["packets"])
    for moment in (1, 2, 5, last // 3, last - 1):
        for asked, told in answers(f"{answer['run']}@{moment}", lanes).items():
            assert told.get("error", {}).get("code") in (None, "no_beams", "no_drafts"), asked
    whole = answers(answer["run"], lanes)
    assert answers(f"{answer['run']}@{last}", lanes) == whole
    assert answers(f"{answer['run']}@{last // 3}", lanes) != whole


def test_an_opened_trace_is_cut_like_a_recording() -> None:
    shipped = PAGES.recording("summary")
    opened = PAGES.open_trace(recordings.load("summary").to_json())
    for asked in (PAGES.record, lambda run: PAGES.figure(run, "latency", 0, None, {}), lambda run: PAGES.beams(run, 1, None)):
        assert json.dumps(asked(f"{opened['run']}@60")) == json.dumps(asked(f"{shipped['run']}@60"))


@pytest.mark.parametrize("moment", ["", "x", "-1", "1.5", "100000", "1" * 40, "²"])
def test_a_moment_that_is_not_there_is_refused(moment: str) -> None:
    assert PAGES.record(f"recording:classic@{moment}")["error"]["code"] == "playhead"
