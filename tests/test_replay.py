"""The recordings that ship with the app, and the backend that plays a trace again."""

from __future__ import annotations

import itertools
import json
import lzma
import math
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from playground import presets
from playground.backends.replay import Replay
from playground.engine.stages import stages
from playground.engine.strategies import strategies
from playground.errors import BadValue
from playground.figures import Look, figures
from playground.line import Line
from playground.records import recordings
from playground.records.recordings import RECORDINGS, Recording
from playground.request import Request
from playground.trace import Finished, StepTimed, TokenChosen, TokensNamed, Trace
from playground.ui.recordings import Recordings
from playground.ui.views import declared

ROOT = Path(__file__).parents[1]

every_recording = pytest.mark.parametrize("recording", RECORDINGS, ids=lambda one: one.name)


@every_recording
def test_a_recording_is_small_and_whole(recording: Recording) -> None:
    assert recording.path.stat().st_size < 300_000
    trace = recordings.load(recording.name)
    assert len(trace.about.lanes) == len(recording.request["lanes"])
    for lane in range(len(trace.about.lanes)):
        standing, grown = [event.position for event in trace.output(lane)], sum(step.tokens for step in trace.of(lane, StepTimed))
        assert standing == list(range(len(standing)))
        # A beam search may return a text that ended before its last step.
        assert len(standing) == grown or (trace.about.lanes[lane].strategy == "beam" and 0 < len(standing) < grown)
        assert [event.reason for event in trace.of(lane, Finished)] in (["stop"], ["length"])
    assert trace.about.warm and "CPU cores" in trace.about.machine


@every_recording
def test_a_recording_answers_what_is_asked_in_it(recording: Recording) -> None:
    assert recordings.load(recording.name).about.request == Request.from_json(recording.request).to_json()


def test_the_classic_recording_is_the_classic_experiment() -> None:
    assert recordings.get("classic").request == presets.classic()


@every_recording
def test_a_recording_survives_its_file_bit_by_bit(recording: Recording) -> None:
    trace = recordings.load(recording.name)
    assert Trace.from_json(trace.to_json()) == trace
    assert recordings.packed(trace) == recording.path.read_bytes()


@every_recording
def test_every_figure_draws_on_it(recording: Recording) -> None:
    trace = recordings.load(recording.name)
    for figure, lane in itertools.product(figures().values(), range(len(trace.about.lanes))):
        drawn = figure.draw(trace, lane, 3, Look(recorded=True))
        assert figure.describe(trace, lane, 3, Look()).en
        if figure.name == "latency":
            assert "RECORDED" in drawn.to_json()


@every_recording
def test_the_page_gets_every_token_and_the_last_numbers(recording: Recording) -> None:
    answer = Recordings().recording(recording.name)
    trace = recordings.load(recording.name)
    seconds = [packet["at"] for packet in answer["packets"]]
    assert seconds == sorted(seconds)
    for lane in range(len(trace.about.lanes)):
        tokens = [payload["t"] for packet in answer["packets"] for owner, kind, payload in packet["events"] if owner == lane and kind == "token"]
        assert tokens == [event.token for event in trace.of(lane, TokenChosen)]
        standing = len(trace.output(lane))
        counts = [packet["numbers"][str(lane)]["tokens"] for packet in answer["packets"] if "tokens" in packet["numbers"].get(str(lane), {})]
        assert counts[-1] == standing
    assert answer["about"]["recorded"] is True
    assert len(json.dumps(answer, ensure_ascii=False).encode()) < 400_000  # as it travels


def test_the_declarations_that_ship_know_whatever_the_recordings_use() -> None:
    shipped = recordings.declarations()
    known = declared(strategies.all().values(), stages.all().values())
    for kind in ("strategies", "stages"):
        labels = {entry["name"]: entry["label"] for entry in known[kind]}
        assert all(labels[entry["name"]] == entry["label"] for entry in shipped[kind])
    names = {entry["name"] for kind in ("strategies", "stages") for entry in shipped[kind]}
    lanes = [lane for recording in RECORDINGS for lane in recordings.load(recording.name).about.lanes]
    assert names == {name for lane in lanes for name in (lane.strategy, *(stage.stage for stage in lane.stages))}


def test_recordings_are_shown_without_torch() -> None:
    script = (
        "import sys; from playground.ui.recordings import Recordings; pages = Recordings(); assert 'error' not in pages.recordings(); "
        "assert pages.recording('classic')['packets']; assert 'error' not in pages.figure('recording:classic', 'pipeline', 1, 4, {}); "
        "assert pages.step('recording:classic', 1, 4)['candidates']; assert pages.record('recording:classic')['markdown']; "
        "assert not {'torch', 'transformers', 'gradio'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True, timeout=60)


@pytest.mark.parametrize("name", ["nope", "../classic", None, 7, ""])
def test_an_unknown_recording_is_refused(name: Any) -> None:
    with pytest.raises(BadValue, match="classic"):
        recordings.get(name)
    assert Recordings().recording(name)["error"]["code"] == "recording_unknown"
    assert Recordings().step(f"recording:{name}x", 0, 0)["error"]["code"] == "recording_unknown"


# --- playing a trace again ---------------------------------------------------------------


@pytest.fixture(scope="module")
def trace() -> Trace:
    """A part of a recording: the first five steps of every lane, which then end."""
    whole = recordings.load("classic")
    steps: dict[int | None, int] = {}
    kept = []
    for lane, event in whole.events:
        if steps.get(lane, 0) < 5:
            kept.append((lane, event))
        if isinstance(event, StepTimed):
            steps[lane] = steps.get(lane, 0) + 1
            if steps[lane] == 5:
                kept.append((lane, Finished("length", "max_new_tokens", event.at)))
    while isinstance(kept[-1][1], TokensNamed):  # of later steps
        kept.pop()
    return Trace(whole.about, kept)


def played(replay: Replay) -> list[Any]:
    return [event for events in replay for event in events]


def test_a_replay_gives_every_event_in_order(trace: Trace) -> None:
    assert played(Replay(trace, math.inf)) == trace.events


def test_a_replay_keeps_the_recorded_pace_or_a_multiple_of_it(trace: Trace) -> None:
    last = max(event.at for _, event in trace.events if isinstance(event, StepTimed | Finished))
    began = time.monotonic()
    assert played(Replay(trace, 4.0)) == trace.events
    assert 0.9 * last / 4 <= time.monotonic() - began <= last / 4 + 1.0


def test_a_stopped_replay_ends_every_lane(trace: Trace) -> None:
    replay = Replay(trace, math.inf)
    events = []
    for batch in replay:
        events += batch
        if sum(isinstance(event, StepTimed) for _, event in events) == 2:
            replay.stop()
    ends = [(lane, event.reason) for lane, event in events if isinstance(event, Finished)]
    assert ends == [(lane, "cancelled") for lane in range(len(trace.about.lanes))]


def test_one_round_owes_every_lane_one_step_at_once(trace: Trace) -> None:
    replay = Replay(trace, 1e-3)
    steps = iter(replay)
    replay.one_round()
    lanes = range(len(trace.about.lanes))
    assert replay.owed == len(lanes)
    events = [event for _ in lanes for event in next(steps)]
    assert replay.owed == 0
    assert sorted(lane for lane, event in events if isinstance(event, StepTimed)) == list(lanes)
    assert next(steps) == []


@pytest.mark.parametrize("speed", [0, -1, math.nan])
def test_a_replay_needs_a_speed(trace: Trace, speed: float) -> None:
    with pytest.raises(ValueError, match="above 0"):
        Replay(trace, speed)


def test_a_line_runs_a_replay_like_any_comparison(trace: Trace) -> None:
    line = Line(lambda request, tell: Replay(trace, math.inf))
    run = line.start(Request.from_json(presets.classic()), "visitor")
    with line.watch(run):
        deadline = time.monotonic() + 20
        while not run.ended:
            assert time.monotonic() < deadline
            line.wait(run, len(run.events), run.version, 0.5)
    assert run.phase == "done" and run.trace == trace
    line.close()


def test_a_recording_is_packed_the_same_on_every_day(trace: Trace) -> None:
    packed = recordings.packed(trace)
    assert packed == recordings.packed(Trace.from_json(trace.to_json()))
    assert json.loads(lzma.decompress(packed))["about"]["version"] == trace.about.version
