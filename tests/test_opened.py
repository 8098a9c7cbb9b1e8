"""Traces that visitors open from a file: what is shown, what is refused, and what is forgotten."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from playground import cli
from playground.backends.replay import Replay
from playground.errors import BadValue, PlaygroundError
from playground.records import opened, recordings
from playground.records.opened import Opened
from playground.records.recordings import RECORDINGS
from playground.trace import StepTimed, Trace
from playground.ui.recordings import Recordings


@pytest.fixture(scope="module")
def text() -> str:
    """A saved trace: the first steps of the classic recording."""
    whole = recordings.load("classic")
    end = [index for index, (_, event) in enumerate(whole.events) if isinstance(event, StepTimed)][8] + 1
    return Trace(whole.about, whole.events[:end]).to_json()


def refused(change: Callable[[dict[str, Any]], object], text: str) -> str:
    raw = json.loads(text)
    change(raw)
    with pytest.raises(PlaygroundError) as error:
        Opened().open(json.dumps(raw))
    assert error.value.text.zh != error.value.text.en
    return error.value.code


def first(raw: dict[str, Any], kind: str) -> dict[str, Any]:
    return next(event for _, event in raw["events"] if event["kind"] == kind)


@pytest.mark.parametrize("recording", RECORDINGS, ids=lambda one: one.name)
def test_what_the_page_saves_it_can_open(recording: recordings.Recording) -> None:
    answer = Recordings().open_trace(recordings.load(recording.name).to_json())
    shipped = Recordings().recording(recording.name)
    assert answer["packets"] == shipped["packets"] and answer["about"] == shipped["about"]
    assert answer["run"].startswith("recording:opened-") and answer["opened"] is True


def test_every_view_of_an_opened_trace_answers(text: str) -> None:
    pages = Recordings()
    answer = pages.open_trace(text)
    run = answer["run"]
    assert pages.recording(answer["name"])["packets"] == answer["packets"]
    assert pages.step(run, 1, 1)["candidates"]
    assert "RECORDED" in json.dumps(pages.figure(run, "latency", 0, None, {})["figure"])
    assert "top-p" in pages.record(run)["markdown"]
    assert pages.trace(run)["json"] == text


@pytest.mark.parametrize("given", [None, 7, "", "{", "[]", '{"about": {"version": 99}}', "[" * 100_000, "x" * (opened.MOST_BYTES + 1)])
def test_what_is_no_trace_is_refused(given: Any) -> None:
    answer = Recordings().open_trace(given)
    assert answer["error"]["code"] in ("trace_broken", "trace_version", "trace_large")


def token_of_lane_9(raw: dict[str, Any]) -> None:
    raw["events"][-1][0] = 9


BROKEN: dict[str, Callable[[dict[str, Any]], object]] = {
    "no event": lambda raw: raw["events"].clear(),
    "a lane that isn't there": token_of_lane_9,
    "no lane": lambda raw: raw["about"].update(lanes=[]),
    "a hundred lanes": lambda raw: raw["about"].update(lanes=raw["about"]["lanes"] * 40),
    "a model that isn't there": lambda raw: raw["about"]["lanes"][0].update(model="other"),
    "a token far ahead": lambda raw: first(raw, "token_chosen").update(position=10**9),
    "candidates without scores": lambda raw: first(raw, "token_chosen")["view"].update(raw=[1.0]),
    "a removed candidate that isn't there": lambda raw: first(raw, "token_chosen")["view"].update(
        stages=[{"stage": "top_k", "alive": 1, "entropy": 0.0, "log_normaliser": 0.0, "removed_mass": 0.0, "masked": [999]}]
    ),
    "a score that overflows": lambda raw: first(raw, "token_chosen")["view"]["raw"].__setitem__(0, 1e300),
    "time that runs backwards": lambda raw: first(raw, "step_timed").update(at=1e5),
    "a name without end": lambda raw: raw["about"].update(machine="x" * 1000),
    "a prompt that is a number": lambda raw: raw["about"]["request"].update(prompt=7),
    "lanes that are a text": lambda raw: raw["about"]["request"].update(lanes="abc"),
    "knobs that are a list": lambda raw: raw["about"]["request"]["lanes"][0].update(knobs=[1]),
    "an order that is a number": lambda raw: raw["about"]["request"]["lanes"][0].update(order=3),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_trace_that_does_not_fit_together_is_refused(name: str, text: str) -> None:
    assert refused(BROKEN[name], text) in ("trace_broken", "trace_empty")


def test_the_newest_traces_are_kept_and_the_old_ones_forgotten(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    kept = Opened(clock=lambda: now)
    monkeypatch.setattr(opened, "MOST_TRACES", 3)
    names = [kept.open(text) for _ in range(5)]
    assert len(set(names)) == 5
    assert kept.load(names[-1]).to_json() == text
    with pytest.raises(BadValue, match="no longer here"):
        kept.load(names[0])
    now = opened.MOST_SECONDS + 1
    with pytest.raises(BadValue, match="no longer here"):
        kept.load(names[-1])


def test_the_bytes_of_all_kept_traces_are_bounded(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Opened()
    names = [kept.open(text)]
    monkeypatch.setattr(opened, "MOST_PACKED", len(kept._kept[names[0]][1]) * 2 + 1)
    names += [kept.open(text) for _ in range(3)]
    assert [name in kept._kept for name in names] == [False, False, True, True]


def test_the_command_line_plays_a_saved_trace(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    speeds: list[float] = []

    class Watched(Replay):
        def __init__(self, trace: Trace, speed: float) -> None:
            speeds.append(speed)
            super().__init__(trace, speed)

    monkeypatch.setattr("playground.backends.replay.Replay", Watched)
    file = tmp_path / "trace.json"
    file.write_text(text, encoding="utf-8")
    assert cli.main(["replay", str(file), "--speed", "50"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("recorded · ") and "CPU cores" in printed.splitlines()[0]
    assert "| top-p |" in printed and speeds == [50.0]


@pytest.mark.parametrize("content", [b"", b"{}", b"\x1f\x8b"])
def test_the_command_line_refuses_a_file_that_is_no_trace(content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("trace.json", "trace.json.xz"):
        file = tmp_path / name
        file.write_bytes(content)
        assert cli.main(["replay", str(file)]) == 2
        assert capsys.readouterr().err.startswith("error: ")


@pytest.mark.parametrize("speed", ["0", "-1", "nan", "fast"])
def test_the_command_line_needs_a_speed(speed: str) -> None:
    with pytest.raises(SystemExit):
        cli.main(["replay", "trace.json", "--speed", speed])
