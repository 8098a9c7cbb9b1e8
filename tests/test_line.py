"""The first-come line: who runs, who waits, who is watched."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from playground import line as line_module
from playground.engine.race import Race, Runner
from playground.engine.strategies import strategies
from playground.errors import PlaygroundError, Text
from playground.line import Line, Run
from playground.request import Request
from playground.trace import About, Finished, LaneEvent, PromptRead, StepTimed, TokenChosen
from tests.toy_model import ToyModel, toy_task

ABOUT = About({}, (), (), {}, "a test", "2026-01-01", True)


class ToyComparison:
    """A race of toy lanes with a chosen time per step."""

    about = ABOUT

    def __init__(self, lanes: int, tokens: int, pause: float) -> None:
        sample = strategies.get("sample")()
        self.race = Race([Runner(lane, toy_task(ToyModel(), seed=lane, max_new_tokens=tokens), sample) for lane in range(lanes)])
        self.pause = pause

    def __iter__(self) -> Iterator[list[LaneEvent]]:
        for events in self.race:
            time.sleep(self.pause)
            yield events

    def stop(self) -> None:
        self.race.stop()

    def one_round(self) -> None:
        self.race.one_round()

    @property
    def owed(self) -> int:
        return self.race.owed


def request(tokens: int = 20, lanes: int = 2) -> Request:
    return Request.from_json({"prompt": "x", "lanes": [{"strategy": "sample", "max_new_tokens": tokens}] * lanes})


def toy_line(pause: float = 0.0) -> Line:
    return Line(lambda asked, tell: ToyComparison(len(asked.lanes), asked.lanes[0].max_new_tokens, pause))


def wait_for(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends, "waited in vain"
        time.sleep(0.005)


def steps_of(run: Run) -> list[int]:
    return [sum(isinstance(event, StepTimed) and lane == index for lane, event in run.events) for index in range(len(run.request.lanes))]


def test_a_watched_run_goes_to_its_end() -> None:
    line = toy_line()
    run = line.start(request(), "visitor-1")
    with line.watch(run):
        wait_for(lambda: run.ended)
    assert run.phase == "done" and steps_of(run) == [20, 20]
    assert run.trace.about is ABOUT and run.comparison is None


def test_two_visitors_are_served_in_order_and_apart() -> None:
    line = toy_line(pause=0.005)
    first, second = line.start(request(), "visitor-1"), line.start(request(), "visitor-2")
    with line.watch(first), line.watch(second):
        wait_for(lambda: first.phase == "running")
        assert second.phase == "queued" and line.place(second) == 1
        wait_for(lambda: second.ended)
    assert first.ended and first.id != second.id
    assert len(first.events) == len(second.events)


def test_losing_the_last_viewer_frees_the_worker_at_once() -> None:
    line = toy_line(pause=0.01)
    run, other = line.start(request(tokens=500), "visitor-1"), line.start(request(tokens=3), "visitor-2")
    with line.watch(other):
        with line.watch(run):
            wait_for(lambda: len(run.events) > 10)
        left = time.monotonic()
        wait_for(lambda: run.phase == "paused")
        assert time.monotonic() - left < 0.5
        wait_for(lambda: other.ended)
    assert not run.ended


def test_back_in_time_goes_on_where_it_was() -> None:
    line = toy_line(pause=0.002)
    run = line.start(request(tokens=60), "visitor-1")
    with line.watch(run):
        wait_for(lambda: len(run.events) > 10)
    wait_for(lambda: run.phase == "paused")
    with line.watch(run):
        wait_for(lambda: run.ended)
    positions = [event.position for lane, event in run.events if lane == 0 and isinstance(event, TokenChosen)]
    assert positions == list(range(60))


def test_nobody_back_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_module, "VIEWER_GRACE", 0.2)
    line = toy_line(pause=0.002)
    run = line.start(request(tokens=500), "visitor-1")
    with line.watch(run):
        wait_for(lambda: len(run.events) > 10)
    wait_for(lambda: run.ended)
    assert [event.reason for _, event in run.events if isinstance(event, Finished)] == ["cancelled", "cancelled"]


def test_pause_frees_the_worker_step_makes_one_round_resume_goes_on() -> None:
    line = toy_line(pause=0.002)
    run, other = line.start(request(tokens=200), "visitor-1"), line.start(request(tokens=3), "visitor-2")
    with line.watch(run), line.watch(other):
        wait_for(lambda: len(run.events) > 20)
        line.pause(run)
        wait_for(lambda: run.phase == "paused")
        wait_for(lambda: other.ended)
        before = steps_of(run)
        line.step(run)
        wait_for(lambda: steps_of(run) == [count + 1 for count in before])
        wait_for(lambda: run.phase == "paused")
        time.sleep(0.05)
        assert steps_of(run) == [count + 1 for count in before]
        line.resume(run)
        wait_for(lambda: run.ended)
    assert steps_of(run) == [200, 200]


def test_stop_on_a_paused_run_does_not_wait_for_anybody_elses() -> None:
    line = toy_line(pause=0.01)
    run, other = line.start(request(tokens=400), "visitor-1"), line.start(request(tokens=400), "visitor-2")
    with line.watch(run), line.watch(other):
        wait_for(lambda: len(run.events) > 10)
        line.pause(run)
        wait_for(lambda: other.phase == "running")
        line.stop(run)
        assert run.ended and run.comparison is None and not other.ended
        line.stop(other)


@pytest.mark.parametrize("press", ["stop", "come back"])
def test_what_is_asked_while_the_worker_lets_go_is_not_lost(press: str, monkeypatch: pytest.MonkeyPatch) -> None:
    line = toy_line(pause=0.002)
    run = line.start(request(tokens=60), "visitor-1")
    letting_go, go_on = threading.Event(), threading.Event()
    tell = Run.tell

    def slow(self: Run, phase: Any = None, *more: Any) -> None:
        tell(self, phase, *more)
        if phase == "paused":
            letting_go.set()
            go_on.wait(5)

    monkeypatch.setattr(Run, "tell", slow)
    with line.watch(run):
        wait_for(lambda: len(run.events) > 10)
        if press == "stop":
            line.pause(run)
            assert letting_go.wait(5)
            line.stop(run)
            go_on.set()
            wait_for(lambda: run.ended)
    if press == "come back":
        assert letting_go.wait(5)
        with line.watch(run):
            go_on.set()
            wait_for(lambda: run.ended)
        assert steps_of(run) == [60, 60]


def test_paused_runs_are_reaped_while_the_line_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_module, "VIEWER_GRACE", 0.2)
    line = toy_line(pause=0.01)
    left, other = line.start(request(tokens=400), "visitor-1"), line.start(request(tokens=400), "visitor-2")
    with line.watch(other):
        with line.watch(left):
            wait_for(lambda: len(left.events) > 5)
        wait_for(lambda: other.phase == "running")
        wait_for(lambda: left.ended)
        assert not other.ended
        line.stop(other)


def test_a_pause_that_lasts_too_long_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_module, "LONGEST_PAUSE", 0.2)
    line = toy_line(pause=0.002)
    run = line.start(request(tokens=400), "visitor-1")
    with line.watch(run):
        wait_for(lambda: len(run.events) > 5)
        line.pause(run)
        wait_for(lambda: run.ended)
    assert run.text is not None and "paused" in run.text.en


def test_a_load_that_nobody_wants_any_more_is_given_up() -> None:
    loading = threading.Event()

    def prepare(asked: Request, tell: Any) -> ToyComparison:
        for step in range(500):
            tell(Text("loading", "加载"), step / 500)
            loading.set()
            time.sleep(0.01)
        raise AssertionError("nobody stopped the load")

    line = Line(prepare)
    run = line.start(request(), "visitor-1")
    with line.watch(run):
        assert loading.wait(5)
        line.stop(run)
        wait_for(lambda: run.ended, 0.5)
    assert run.phase == "done"


def test_an_error_while_a_run_is_ended_does_not_end_the_worker(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(line_module, "VIEWER_GRACE", 0.1)
    line = toy_line(pause=0.002)
    run = line.start(request(tokens=400), "visitor-1")
    with line.watch(run):
        wait_for(lambda: len(run.events) > 5)
        monkeypatch.setattr(run.comparison, "stop", lambda: 1 / 0)
    wait_for(lambda: run.ended)
    assert run.phase == "failed" and "ZeroDivisionError" in caplog.text
    after = line.start(request(tokens=3), "visitor-2")
    with line.watch(after):
        wait_for(lambda: after.phase == "done")


def test_runs_that_nobody_looks_at_do_not_fill_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    line = toy_line(pause=0.01)
    first = line.start(request(tokens=400), "visitor-0")
    with line.watch(first):
        wait_for(lambda: first.phase == "running")
        ghosts = [line.start(request(), f"ghost-{number}") for number in range(100)]
        assert not ghosts[-1].ended and sum(not ghost.ended for ghost in ghosts) <= line_module.LONGEST_LINE
        monkeypatch.setattr(line_module, "ARRIVING", 0.0)
        ghosts.append(line.start(request(), "ghost-100"))
        assert not ghosts[-1].ended and sum(not ghost.ended for ghost in ghosts) <= line_module.UNSEEN
        line.stop(first)


def test_a_whole_class_may_press_run_at_the_same_moment() -> None:
    line = toy_line(pause=0.002)
    runs = [line.start(request(tokens=3), f"visitor-{number}") for number in range(30)]
    with contextlib.ExitStack() as pages:
        for run in runs:  # each page needs a moment to ask for its stream
            pages.enter_context(line.watch(run))
        wait_for(lambda: all(run.ended for run in runs))
    assert all(run.phase == "done" and run.whole for run in runs)


@pytest.mark.parametrize("when", ["running", "paused", "queued"])
def test_stop_ends_a_run_in_every_phase(when: str) -> None:
    line = toy_line(pause=0.005)
    ahead = line.start(request(tokens=400), "visitor-0") if when == "queued" else None
    run = line.start(request(tokens=400), "visitor-1")
    with line.watch(run):
        if ahead is not None:
            with line.watch(ahead):
                wait_for(lambda: ahead.phase == "running")
                line.stop(run)
                wait_for(lambda: run.ended)
                assert not run.events
            return
        wait_for(lambda: len(run.events) > 10)
        if when == "paused":
            line.pause(run)
            wait_for(lambda: run.phase == "paused")
        line.stop(run)
        wait_for(lambda: run.ended, 0.5)
    assert run.phase == "done"
    assert [event.reason for _, event in run.events if isinstance(event, Finished)] == ["cancelled", "cancelled"]


def test_one_unfinished_run_per_visitor() -> None:
    line = toy_line(pause=0.005)
    run = line.start(request(tokens=300), "visitor-1")
    with line.watch(run):
        wait_for(lambda: run.phase == "running")
        with pytest.raises(PlaygroundError) as error:
            line.start(request(), "visitor-1")
        assert error.value.code == "run_already"
    second = line.start(request(), "visitor-1")  # the first has no viewer any more: it makes room
    wait_for(lambda: run.ended)
    with line.watch(second):
        wait_for(lambda: second.ended)


def test_the_line_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_module, "LONGEST_LINE", 2)
    line = toy_line(pause=0.01)
    first = line.start(request(tokens=300), "visitor-0")
    with line.watch(first):
        wait_for(lambda: first.phase == "running")
        waiting = [line.start(request(), f"visitor-{number}") for number in (1, 2)]
        with line.watch(waiting[0]), line.watch(waiting[1]), pytest.raises(PlaygroundError) as error:
            line.start(request(), "visitor-3")
        line.stop(first)
    assert error.value.code == "line_full"


def test_a_bug_ends_its_run_loudly_and_only_its_run(caplog: pytest.LogCaptureFixture) -> None:
    def prepare(asked: Request, tell: Any) -> ToyComparison:
        if asked.seed == 13:
            raise ZeroDivisionError
        return ToyComparison(1, 3, 0)

    line = Line(prepare)
    bad = line.start(Request.from_json({"prompt": "x", "lanes": [{}], "seed": 13}), "visitor-1")
    good = line.start(Request.from_json({"prompt": "x", "lanes": [{}]}), "visitor-2")
    with line.watch(bad), line.watch(good):
        wait_for(lambda: bad.ended and good.ended)
    assert (bad.phase, good.phase) == ("failed", "done")
    assert bad.error is not None and bad.error.code == "bug" and "ZeroDivisionError" in caplog.text


def test_a_visitors_error_is_told_and_is_no_bug() -> None:
    def prepare(asked: Request, tell: Any) -> ToyComparison:
        raise PlaygroundError("model_unknown", Text("No such model.", "没有这个模型。"))

    line = Line(prepare)
    run = line.start(request(), "visitor-1")
    with line.watch(run):
        wait_for(lambda: run.ended)
    assert run.error is not None and run.error.code == "model_unknown"


def test_an_unknown_run_is_refused() -> None:
    for hostile in ("nope", None, 3, ["x"], {"a": 1}):
        with pytest.raises(PlaygroundError):
            toy_line().get(hostile)


def ended(line: Line, asked: Request, prompts: tuple[int, ...] | None = None) -> Run:
    run = line.start(asked, "visitor-1", prompts=prompts)
    with line.watch(run):
        wait_for(lambda: run.ended)
    return run


def test_expected_seconds_are_a_range_around_what_was_measured_and_nothing_before() -> None:
    line = toy_line(pause=0.0)
    assert line.expected_seconds(request(tokens=30), prompts=(3, 3)) is None
    run = ended(line, request(tokens=30))
    size = next(event.total for _, event in run.events if isinstance(event, PromptRead))
    found = line.expected_seconds(request(tokens=30), prompts=(size, size))
    assert found is not None and found[0] <= run.spent <= found[1]
    assert line.expected_seconds(request(tokens=30), prompts=None) is None
    assert line.expected_seconds(request(tokens=30), settings=("cuda", "float16"), prompts=(size, size)) is None


def test_a_long_prompt_and_rows_that_were_not_measured_get_no_seconds() -> None:
    line = toy_line(pause=0.0)
    ended(line, request(tokens=20))
    assert line.expected_seconds(request(tokens=20), prompts=(20, 20)) is not None
    assert line.expected_seconds(request(tokens=20), prompts=(2000, 2000)) is None
    beams = Request.from_json({"prompt": "x", "lanes": [{"strategy": "beam", "knobs": {"num_beams": 4}, "max_new_tokens": 20}]})
    assert line.expected_seconds(beams, prompts=(20,)) is None


def test_the_line_tells_when_a_run_begins_as_a_range_or_not_at_all() -> None:
    line = toy_line(pause=0.002)
    ended(line, request(tokens=20))
    first = line.start(request(tokens=200), "visitor-1", prompts=(20, 20))
    second = line.start(request(tokens=20), "visitor-2", prompts=None)
    third = line.start(request(tokens=20), "visitor-3", prompts=(20, 20))
    with line.watch(first), line.watch(second), line.watch(third):
        wait_for(lambda: first.tokens > 0)
        until = line.seconds_until(second)
        assert until is not None and 0 <= until[0] <= until[1]
        assert line.seconds_until(third) is None  # nobody knows how long the prompt before it is
        for run in (first, second, third):
            line.stop(run)


def test_many_visitors_at_once_are_all_served() -> None:
    line = toy_line()
    runs: list[Run] = []

    def visit(number: int) -> None:
        run = line.start(request(tokens=5), f"visitor-{number}")
        runs.append(run)
        with line.watch(run):
            wait_for(lambda: run.ended, 20)

    visitors = [threading.Thread(target=visit, args=(number,)) for number in range(30)]
    for visitor in visitors:
        visitor.start()
    for visitor in visitors:
        visitor.join()
    assert [run.phase for run in runs] == ["done"] * 30 and all(steps_of(run) == [5, 5] for run in runs)
