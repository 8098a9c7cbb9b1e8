"""The command line, run as a user runs it."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from playground.backends import catalog
from playground.cli import main
from playground.records import recordings
from playground.trace import Trace
from tests.tiny_folder import tiny_folder, tiny_loaded

ROOT = Path(__file__).resolve().parents[1]


def run(*arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """A command in this process: importing torch anew for each would take longer than all of them."""
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.dict(os.environ, HF_HUB_OFFLINE="1"),
        mock.patch.object(sys, "stdin", io.StringIO(stdin or "")),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            status = main(arguments)
        except SystemExit as end:  # argparse's own
            status = int(end.code or 0)
    return subprocess.CompletedProcess(list(arguments), status, out.getvalue(), err.getvalue())


def run_apart(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A command as a user types it, in a process of its own."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "playground", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240)


def test_compare_prints_the_record_and_writes_the_trace(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    lanes = ["--lane", "greedy", "--lane", "sample temperature=0.8 top_p=0.95 name='my | lane'", "--lane", "greedy max_new_tokens=3"]
    done = run("compare", "--prompt", "Hello", "--model", str(tiny_folder()), *lanes, "--max-new-tokens", "5", "--seed", "4", "--json", str(file))
    assert done.returncode == 0, done.stderr
    table = [line for line in done.stdout.splitlines() if line.startswith("|")]
    for column in (
        "lane",
        "configuration",
        "output",
        "tokens",
        "TTFT s",
        "decode s",
        "E2E s",
        "ITL p50 ms",
        "ITL p95 ms",
        "tokens/s",
        "KV MB",
        "stopped by",
        "run",
    ):
        assert f" {column} |" in table[0]
    assert len(table) == 5 and "my \\| lane" in table[3] and "| 5 |" in table[2] and "| 3 |" in table[4] and "cold" in table[2]
    trace = Trace.from_json(file.read_text())
    assert [lane.max_new_tokens for lane in trace.about.lanes] == [5, 5, 3] and trace.about.request["seed"] == 4
    assert "\r" not in done.stderr  # no progress bar in a pipe


def test_the_same_seed_prints_the_same_output_and_raw_differs_from_chat() -> None:
    def outputs(*more: str) -> list[str]:
        done = run("compare", "--prompt", "-", "--model", str(tiny_folder()), "--lane", "sample", "--max-new-tokens", "8", *more, stdin="Hello")
        assert done.returncode == 0, done.stderr
        return [line.split(" | ")[2] for line in done.stdout.splitlines() if line.startswith("| sample")]

    assert outputs("--seed", "1", "--chat") == outputs("--seed", "1")
    assert outputs("--seed", "1", "--raw") != outputs("--seed", "1")


@pytest.mark.parametrize(("arguments", "words"), [
    (("--lane", "sample top_p=7"), ("top_p", "(0, 1]", "7")),
    (("--lane", "dance"), ("dance", "greedy")),
    (("--max-new-tokens", "0"), ("max_new_tokens", "0")),
    (("--seed", "x"), ("seed", "x")),
    (("--json", "/nowhere/at/all.json"), ("/nowhere/at/all.json",)),
    (("--model", "/no/such/folder"), ("/no/such/folder",)),
])  # fmt: skip
def test_a_mistake_is_one_line_and_exit_code_2(arguments: tuple[str, ...], words: tuple[str, ...]) -> None:
    done = run("compare", "--prompt", "x", "--model", str(tiny_folder()), *arguments)
    assert done.returncode == 2 and done.stdout == ""
    message = done.stderr.strip().splitlines()[-1]
    assert message.startswith("error: ") and all(word in message for word in words), done.stderr
    assert "Traceback" not in done.stderr


def test_models_lists_the_catalog() -> None:
    done = run("models")
    assert done.returncode == 0
    for name in ("smollm2-135m", "gpt2", "Qwen3-0.6B", "llama-160m"):
        assert name in done.stdout


def test_a_lanes_notes_stand_in_its_record(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["compare", "--model", str(tiny_folder()), "--max-new-tokens", "2", "--prompt", "Hello"]
    assert main([*words, "--raw", "--system", "Be brief.", "--lane", "sample temperature=0 name=cold", "--lane", "greedy"]) == 0
    said = capsys.readouterr().out
    (cold,) = [line for line in said.splitlines() if line.startswith("cold: ")]
    (plain,) = [line for line in said.splitlines() if line.startswith("greedy: ")]
    assert "greedy" in cold and all("system text" in line for line in (cold, plain))
    assert main([*words, "--lane", "greedy"]) == 0 and "greedy: " not in capsys.readouterr().out


def test_stages_that_contradict_each_other_are_both_named_and_the_status_is_1(capsys: pytest.CaptureFixture[str]) -> None:
    contradiction = "forced_eos=true suppress_tokens='#256' max_new_tokens=3"
    shared = ["--model", str(tiny_folder()), "--prompt", "Hello"]
    assert main(["compare", *shared, "--lane", f"greedy {contradiction}", "--lane", "greedy max_new_tokens=3"]) == 1
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("| greedy"))
    assert "forced_eos" in row.split(" | ")[-2] and "suppress" in row.split(" | ")[-2]
    assert main(["same", *shared, "--draws", "20", "--lane", f"speculative_sample drafter=ngram {contradiction}"]) == 1
    assert "No token is left" in capsys.readouterr().err


def test_a_recording_that_failed_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    loaded = tiny_loaded()
    monkeypatch.setattr(catalog.Catalog, "get", lambda *_, **__: loaded)
    for name, value in (("FOLDER", tmp_path), ("DECLARED", tmp_path / "declared.json")):
        monkeypatch.setattr(recordings, name, value)
    knobs = {"forced_eos": True, "suppress_tokens": ["#256"]}
    lanes = {"good": {"strategy": "greedy"}, "bad": {"strategy": "greedy", "knobs": knobs}}
    made = [
        replace(recordings.RECORDINGS[0], name=name, request={"prompt": "Hello", "lanes": [{**lane, "max_new_tokens": 2}]})
        for name, lane in lanes.items()
    ]
    monkeypatch.setattr(recordings, "RECORDINGS", tuple(made))
    assert main(["record"]) == 1
    assert made[0].path.is_file() and not made[1].path.exists()
    assert "bad" in (said := capsys.readouterr().err) and "No token is left" in said
    assert main(["record", "good"]) == 0


@pytest.mark.slow
def test_compare_runs_the_classic_experiment_on_the_default_model(tmp_path: Path, default_model_folder: Path) -> None:
    file = tmp_path / "trace.json"
    done = run_apart("compare", "--prompt", "The capital of France is", "--raw", "--max-new-tokens", "12", "--json", str(file))
    assert done.returncode == 0, done.stderr
    trace = json.loads(file.read_text())
    assert [lane["name"] for lane in trace["about"]["lanes"]] == ["greedy", "beam 4", "top-p", "top-k"]
    assert "Paris" in done.stdout
