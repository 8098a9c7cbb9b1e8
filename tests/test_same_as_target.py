"""The test of distributions: its statistic by hand, what it finds of the real thing, and that it finds a planted fault."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest

from playground.cli import main
from playground.engine.strategies import speculative
from playground.errors import BadValue, PlaygroundError
from playground.experiments.same_as_target import SameTest, check, chi_squared, compare, pooled, same_as_target
from playground.request import Limits, Request
from playground.ui.same_test import SameTests
from playground.ui.service import Service
from tests.test_service import collect, packets, started
from tests.tiny_folder import tiny_folder, tiny_loaded


def asked(strategy: str = "speculative_sample", **knobs: Any) -> Request:
    lane = {"strategy": strategy, "knobs": knobs}
    return Request.from_json({"prompt": {"text": "Hello Hello", "chat": False}, "lanes": [lane], "seed": 5})


def test_the_statistic_and_its_p_value() -> None:
    statistic, p = chi_squared([(10, 20), (20, 10)])
    assert statistic == pytest.approx(4 * 25 / 15) and p == pytest.approx(math.erfc(math.sqrt(statistic / 2)))  # one degree of freedom
    statistic, p = chi_squared([(10, 20), (20, 10), (30, 30)])
    assert p == pytest.approx(math.exp(-statistic / 2))  # two
    assert chi_squared([(5, 5), (7, 7)]) == (0.0, 1.0)


def test_rare_pairs_share_a_cell() -> None:
    a, b, c, d = (0, 1), (0, 2), (0, 3), (0, 4)
    assert pooled([a] * 8 + [b, c], [a] * 6 + [b, c, d, d]) == [(14 - 6 + 2, 6 + 4)]  # six of the rest are too few for a cell of their own
    assert pooled([a] * 10 + [b] * 6 + [c] * 4, [a] * 10 + [b] * 4 + [c] * 3 + [d] * 3) == [(10, 10), (6, 4), (4, 6)]
    assert pooled([(n,) for n in range(3)], [(n,) for n in range(3)]) == [(3, 3)]


def test_the_verdict_never_claims_a_proof() -> None:
    alike = compare([(1, 2)] * 50, [(1, 2)] * 50, [])
    assert alike.p_value is None and "Nothing was guessed" in alike.verdict.en
    assert compare([(1, 2), (3, 4)] * 4, [(1, 2), (5, 6)] * 4, []).pairs == 3
    assert "All draws are alike" in SameTest(50, 1, None, 0, None, 9, 5, 4).verdict.en
    assert SameTest(50, 3, 1.0, 2, 0.6, 9, 5, 4).verdict.en.startswith("Not rejected")
    assert SameTest(50, 3, 20.0, 2, 0.00005, 9, 5, 4).verdict.en.startswith("Rejected")


KNOBS = {"drafter": "early_exit", "exit_layer": 1, "drafting": "probabilistic", "k": 2, "schedule": "fixed", "temperature": 0.6, "top_k": 4}


@pytest.mark.slow
def test_speculation_writes_the_target_s_distribution() -> None:
    told: list[int] = []
    found = same_as_target(asked(**KNOBS), asked(**KNOBS).lanes[0], lambda _: tiny_loaded(), 150, told.append)
    assert told == list(range(151))
    assert found.draws == 150 and found.cells >= 4
    assert min(found.drafted, found.accepted, found.rejected) > 20
    assert not found.significant, found.verdict.en


def test_a_planted_fault_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speculative, "accepts", lambda p, q, u: True)
    found = same_as_target(asked(**KNOBS), asked(**KNOBS).lanes[0], lambda _: tiny_loaded(), 150)
    assert found.rejected == 0 and found.significant, found.verdict.en


def test_only_a_lane_that_speculates_is_tested() -> None:
    with pytest.raises(BadValue, match="got sample"):
        check(asked("sample").lanes[0])


# --- on the page ------------------------------------------------------------------------------------


def wait(tests: SameTests, key: tuple[str, int], state: str) -> dict[str, Any]:
    for _ in range(300):
        if (found := tests.state(key))["state"] == state:
            return found
        time.sleep(0.02)
    raise AssertionError(f"never {state}: {found}")


def test_one_test_at_a_time_and_runs_go_first() -> None:
    busy = [True]
    tests = SameTests(lambda: busy[0])
    done = SameTest(200, 3, 1.0, 2, 0.6, 9, 5, 4)

    def work(told: Any) -> SameTest:
        told(7)
        return done

    assert tests.state(("run", 0))["state"] == "idle"
    tests.start(("run", 0), work)
    assert wait(tests, ("run", 0), "running")["state"] == "running"
    with pytest.raises(BadValue, match="Another test is on"):
        tests.start(("run", 1), work)
    busy[0] = False
    found = wait(tests, ("run", 0), "done")
    assert found["done"] == 7 and found["rejected"] is False and found["verdict"]["en"] == done.verdict.en


def test_a_test_that_fails_says_why_and_one_that_is_left_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    tests = SameTests(lambda: False)

    def failing(told: Any) -> SameTest:
        raise PlaygroundError("planted", done_text)

    done_text = SameTest(200, 1, None, 0, None, 1, 0, 0).verdict
    tests.start(("run", 0), failing)
    assert wait(tests, ("run", 0), "failed")["error"]["code"] == "planted"
    monkeypatch.setattr("playground.ui.same_test.FORGOTTEN", -1.0)

    def endless(told: Any) -> SameTest:
        while True:
            told(0)

    tests.start(("run", 1), endless)
    for _ in range(300):
        if not any(not one.ended for one in tests._known.values()):
            break
        time.sleep(0.02)
    monkeypatch.undo()
    assert tests.state(("run", 1))["state"] == "idle"


def test_the_service_tests_a_lane_of_a_run() -> None:
    service = Service(Limits(max_new_tokens=40))
    service.load(str(tiny_folder()))
    lane = {"strategy": "speculative_sample", "knobs": {**KNOBS}, "max_new_tokens": 6}
    run = started(
        service,
        {"prompt": {"text": "Hello Hello", "chat": False}, "lanes": [{"strategy": "greedy", "max_new_tokens": 6}, lane], "model": str(tiny_folder())},
    )
    collect(packets(service, run))
    assert service.same_test(run, 1, False)["state"] == "idle"
    assert "got greedy" in service.same_test(run, 0, True)["error"]["text"]["en"]
    assert service.same_test(run, 1, True)["state"] == "running"
    for _ in range(1200):
        if (found := service.same_test(run, 1, None))["state"] != "running":
            break
        time.sleep(0.1)
    assert found["state"] == "done" and found["done"] == found["draws"] and found["rejected"] is False


def test_the_command_says_the_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    words = "speculative_sample drafter=early_exit exit_layer=1 drafting=probabilistic k=2"
    code = main(["same", "--prompt", "Hello Hello", "--raw", "--model", str(tiny_folder()), "--draws", "20", "--lane", words, "--device", "cpu"])
    said = capsys.readouterr()
    assert code == 0 and said.out.startswith("Too few draws")
