"""The bench ends: turns within a budget, parts that are stopped by name, and no waiting for what has ended already."""

from __future__ import annotations

import json
import operator
import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from playground import cli
from playground.errors import PlaygroundError, Text
from playground.experiments import bench, bounded, speculation_bench
from playground.experiments.bounded import Budget
from playground.line import Run
from playground.request import Request
from playground.ui import load_bench, stream_bench
from tests.tiny_folder import tiny_loaded

Parts = dict[str, tuple[Any, ...]]


class Clock:
    """Time that passes only when somebody says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def took(budget: Budget, most: int, clock: Clock, *seconds: float) -> int:
    turns = 0
    for turn in budget.turns(most):
        assert turn == turns
        clock.now += seconds[min(turn, len(seconds) - 1)]
        turns += 1
    return turns


def test_as_many_turns_are_made_as_fit_and_at_least_one() -> None:
    clock = Clock()
    assert took(Budget(100.0, clock), 10, clock, 9.0) == 10
    assert took(Budget(100.0, clock), 10, clock, 25.0) == 4
    assert took(Budget(100.0, clock), 10, clock, 60.0, 1.0) == 1  # another one might take as long as the longest
    assert took(Budget(100.0, clock), 10, clock, 500.0) == 1
    budget = Budget(90.0, clock)
    shares = [took(budget.share(3 - number), 10, clock, 10.0) for number in range(3)]
    assert shares == [3, 3, 3] and clock.now <= budget.ends
    spent = Budget(10.0, clock)
    clock.now += 50.0
    assert took(spent.share(2), 10, clock, 1.0) == 1


def test_a_part_that_fails_is_named_and_the_others_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "figures.json"
    parts: Parts = {"endless": (time.sleep, 3600.0), "broken": (int, "no such thing"), "gone": (os._exit, 7), "well": (divmod, 7, 2)}
    monkeypatch.setattr(cli, "_bench_parts", lambda pairs, tokens: parts)
    within = bounded.bounded
    monkeypatch.setattr(bounded, "bounded", lambda measure, *given: within(measure, *given, seconds=1.0 if measure is time.sleep else 300.0))
    assert cli.main(["bench", "--json", str(file)]) == 1
    said = capfd.readouterr().err
    assert "error: endless: it did not end within 1 s" in said and "error: broken: ValueError: " in said and "no such thing" in said
    assert "error: gone: its process ended with status 7" in said
    assert json.loads(file.read_text()) == {"well": [3, 1]}


def impatient(monkeypatch: pytest.MonkeyPatch, *modules: Any) -> None:
    """Let no second turn fit, on a tiny model."""
    loaded = tiny_loaded()
    monkeypatch.setattr(bench.catalog.Catalog, "get", lambda *_: loaded)
    for module in modules:
        monkeypatch.setattr(module, "Budget", lambda: Budget(0.0))


def test_a_slow_machine_makes_fewer_pairs_and_prints_its_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    impatient(monkeypatch, bench, speculation_bench)
    said: list[str] = []
    figures = bench.run(1000, 4, said.append)
    assert [figures[name]["pairs"] for name in bench.SETTINGS] == [1, 1, 1] and sum("1 pairs" in line for line in said) == 3
    figures = speculation_bench.run(1000, 12, said.append)
    assert {found["rounds"] for name, found in figures.items() if name in speculation_bench.presets.PAIRS} == {1}


def test_viewers_of_a_slow_machine_see_a_run_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    impatient(monkeypatch, load_bench, stream_bench)
    for name in ("stop_latency", "packet_sizes"):  # they need the default model's long context
        figure = {"prompt_tokens": 0, "seconds": bench.spread([0.0]), "ratio": 1.0, "early": 1.0, "late": 1.0}
        monkeypatch.setattr(stream_bench, name, lambda service, figure=figure: figure)
    said: list[str] = []
    found = load_bench.viewers(1000, 4, said.append, people=2)
    assert found["pairs"] == 1 and found["missing_tokens"] == 0 and "2 viewers of one run" in said[0]
    figures = stream_bench.run(1000, 4, said.append)
    assert figures["viewer"]["pairs"] == 1 and figures["viewer"]["missing_tokens"] == 0 and figures["viewer"]["tokens"] == 16


def test_a_run_that_failed_before_its_first_event_is_not_waited_for() -> None:
    run = Run(Request.from_json({"prompt": "Hello", "lanes": [{}]}), "nobody", phase="failed")
    run.error = PlaygroundError("no_memory", Text("There is no memory.", "没有内存。"))
    raised: list[BaseException] = []

    def wait() -> None:
        try:
            stream_bench.seconds_running(run)
        except Exception as error:
            raised.append(error)

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    waiting.join(timeout=20)
    assert not waiting.is_alive() and "There is no memory" in str(raised[0])


def test_a_reading_client_that_died_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_bench, "read_runs", operator.is_)  # a process that ends before it answers
    monkeypatch.setattr(stream_bench, "seconds_running", lambda run: 1.0)
    service = SimpleNamespace(line=SimpleNamespace(start=lambda request, visitor: SimpleNamespace(id="x", events=[])))
    raised: list[BaseException] = []

    def measure() -> None:
        try:
            stream_bench.viewer_cost(service, "http://127.0.0.1:1", 1, 4, Budget())  # type: ignore[arg-type]
        except (EOFError, OSError) as error:
            raised.append(error)

    waiting = threading.Thread(target=measure, daemon=True)
    waiting.start()
    waiting.join(timeout=120)
    assert not waiting.is_alive() and raised
