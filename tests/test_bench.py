"""The bench comes to an end: its pairs fit into a part's time, and a part that can't be measured is named."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from playground.cli import main
from playground.experiments import bench, server_bench
from playground.ui import load_bench


def test_pairs_stop_where_the_next_would_not_fit_into_the_time() -> None:
    seconds = iter([0.0, 40.0, 80.0, 120.0, 160.0])
    assert list(bench.pairs_within(10, 120.0, clock=lambda: next(seconds))) == [0, 1, 2]
    assert list(bench.pairs_within(3, 120.0, clock=lambda: 0.0)) == [0, 1, 2]
    late = iter([0.0, 1000.0])
    assert list(bench.pairs_within(10, 120.0, clock=lambda: next(late))) == [0]  # one always
    assert list(bench.pairs_within(10, -1.0, 2, lambda: 0.0)) == [0, 1]  # where the first is a warm-up


def test_a_part_that_cannot_be_measured_is_named_and_the_exit_status_tells(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: Any) -> dict[str, Any]:
        raise TimeoutError("the viewers did not arrive")

    monkeypatch.setattr(load_bench, "viewers", broken)
    assert main(["bench", "--only", "viewers"]) == 1
    assert "viewers FAILED: the viewers did not arrive" in capsys.readouterr().err


def test_a_part_that_does_not_end_is_given_up_by_name(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(bench, "PART_SECONDS", 0.1, raising=False)
    monkeypatch.setattr(server_bench, "run", lambda *_: {"ended": threading.Event().wait(5)})
    assert main(["bench", "--only", "servers"]) == 1
    assert "servers FAILED: not measured within" in capsys.readouterr().err


def test_a_run_whose_viewers_all_left_is_not_waited_for() -> None:
    class Abandoned:
        """A run that its viewers leave as it is resumed; it would wait for them for ever, here for a few looks."""

        id, phase, viewers, looks, events = "run", "paused", 1, 0, ()
        changed = threading.Condition()

        @property
        def ended(self) -> bool:
            self.looks += 1
            return self.looks > 3

    run = Abandoned()
    line = SimpleNamespace(start=lambda *_: run, pause=lambda _: None, resume=lambda run: setattr(run, "viewers", 0))
    clients = SimpleNamespace(send=lambda _: None, recv=lambda: {"viewers": []})
    with pytest.raises(RuntimeError, match="every viewer left"):
        load_bench.watched(SimpleNamespace(line=line), clients, 1, 4)  # type: ignore[arg-type]
