"""Baseline against speculative under load: two stand-in servers of known timing, hostile files, and the command line."""

from __future__ import annotations

import contextlib
import io
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from playground.backends import servers
from playground.cli import main
from playground.errors import BadValue, PlaygroundError
from playground.experiments import load, prompts
from playground.experiments.load import CellBegan, CellEnded, LoadEnded, LoadExperiment, LoadOptions, RequestEnded, RestartWanted
from playground.figures import Look
from playground.figures.load import FIGURES
from playground.measures.server_k import which_k
from playground.measures.server_load import Cell, Level, LoadedRequest, LoadResult, ServerSample, Slo, cell_numbers, speed_up, summary
from playground.records.load_table import COMPARED, markdown
from playground.trace import DeviceSampled
from tests.paced_server import PacedServer
from tests.recorded_server import RecordedServer, serving

FEW = LoadOptions(levels=load.levels([2]), repeats=1, requests=3, max_new_tokens=13, warm_up=1, sample_every=0.05)
TWO = prompts.parse(b'{"prompt": "Say a"}\n{"prompt": "Say b"}\n', "two.jsonl")


@contextlib.contextmanager
def pair(baseline: PacedServer, speculative: PacedServer) -> Iterator[tuple[RecordedServer, RecordedServer]]:
    with serving(baseline) as one, serving(speculative) as other:
        yield one, other


def experiment(one: RecordedServer, other: RecordedServer, options: LoadOptions = FEW, chosen: prompts.PromptSet = TWO) -> LoadExperiment:
    return LoadExperiment(servers.entry("plain", one.url), servers.entry("spec", other.url), chosen, options)


def ran(running: LoadExperiment) -> tuple[list[Any], LoadResult]:
    steps = list(running)
    assert isinstance(steps[-1], LoadEnded)
    result = steps[-1].result
    assert LoadResult.from_json(result.to_json()) == result
    return steps, result


def value(cell: Cell, name: str, slo: Slo | None = None) -> Any:
    return cell_numbers(cell, slo or Slo())[name].value


# --- the experiment -------------------------------------------------------------------------------


def test_two_servers_take_turns_and_the_numbers_are_theirs() -> None:
    plain, fast = PacedServer(step=0.03), PacedServer(step=0.03, accepted=2)
    with pair(plain, fast) as (one, other):
        steps, result = ran(experiment(one, other, replace(FEW, repeats=2)))
    turns = [(step.side, step.repeat) for step in steps if isinstance(step, CellBegan)]
    assert turns == [("baseline", 0), ("speculative", 0), ("speculative", 1), ("baseline", 1)]
    assert [step.done for step in steps if isinstance(step, RequestEnded)] == list(range(1, 13))
    assert all(step.of == 12 for step in steps if isinstance(step, RequestEnded)) and result.complete and result.notes == ()
    base, spec = result.cells_of("baseline", 0)[0], result.cells_of("speculative", 0)[0]
    # 13 tokens: the first, then 12 plain steps, or 4 steps of three tokens; no step is faster than its pause.
    assert [len(request.gaps) for request in base.requests] == [12] * 3 and [len(request.gaps) for request in spec.requests] == [4] * 3
    assert spec.requests[0].chunk_tokens == (1, 3, 3, 3, 3) and spec.requests[0].tokens == 13 and spec.requests[0].counted == "reported"
    assert base.seconds_per_token >= 0.03 and spec.seconds_per_token >= 0.01  # type: ignore[operator]
    assert value(spec, "chunk_gap_p50") >= 0.029 and 0.0099 <= value(spec, "itl_p50") < value(spec, "chunk_gap_p50")
    assert value(spec, "tokens_per_chunk") == pytest.approx(13 / 5)
    # Four steps of four guesses with two accepted: 2 / 4, 1 + 2, and 13 tokens in the prompt's forward and four more.
    assert (value(spec, "acceptance"), value(spec, "acceptance_length"), value(spec, "tokens_per_forward")) == (0.5, 3.0, pytest.approx(13 / 5))
    assert value(base, "acceptance") is None and value(base, "gpu_memory") is None
    assert 1.5 < speed_up(result, 0).value < 4.5 and speed_up(result, 0).repeats == 2  # type: ignore[operator]
    assert max(plain.most_streams, fast.most_streams) == 2
    assert value(spec, "throughput") == pytest.approx(39 / spec.seconds) and value(spec, "requests") == 3 and value(spec, "failed") == 0


def test_prompts_are_unique_the_same_on_both_sides_and_warm_up_is_left_out() -> None:
    plain, fast = PacedServer(step=0.0), PacedServer(step=0.0, accepted=2)
    with pair(plain, fast) as (one, other):
        running = experiment(one, other)
        running.prober.capabilities(running.baseline)  # ask first, so that only the experiment's own prompts follow
        running.prober.capabilities(running.speculative)
        plain.prompts.clear()
        fast.prompts.clear()
        _, result = ran(running)
    assert sorted(plain.prompts) == sorted(fast.prompts) and len(plain.prompts) == 4  # three, and the warm-up
    assert len({prompt.splitlines()[0] for prompt in plain.prompts}) == 4
    assert {prompt.splitlines()[1] for prompt in plain.prompts} == {"Say a", "Say b"}
    assert all(len(cell.requests) == 3 for cell in result.cells)
    (cell,) = result.cells_of("baseline", 0)
    assert cell.moved is not None and cell.moved.tokens == 39 and cell.moved.requests == 3  # the counters' window leaves it out too


def test_acceptance_comes_from_counters_where_replies_dont_tell() -> None:
    with pair(PacedServer(step=0.0), PacedServer(step=0.02, accepted=2, tells=False)) as (one, other):
        _, result = ran(experiment(one, other))
    (cell,) = result.cells_of("speculative", 0)
    record = cell.speculation
    assert record.source == "counters" and (record.steps, record.drafted, record.accepted) == (12, 48, 24)
    assert record.by_position == (12, 12, 0, 0) and record.other_tokens == 0
    assert value(cell, "acceptance") == 0.5 and "whole server" in cell_numbers(cell)["acceptance"].formula_text.en  # type: ignore[union-attr]
    assert cell.samples and max(sample.running or 0 for sample in cell.samples) >= 1
    assert value(cell, "kv_usage") == 0.25 and value(cell, "prefix_hits") == 0.0


def test_without_metrics_and_without_figures_nothing_is_made_up() -> None:
    with pair(PacedServer(step=0.0, metrics=False), PacedServer(step=0.0, accepted=2, tells=False, metrics=False)) as (one, other):
        _, result = ran(experiment(one, other))
    (cell,) = result.cells_of("speculative", 0)
    unknown = ("acceptance", "acceptance_length", "tokens_per_forward", "running", "kv_usage", "preemptions", "prefix_hits", "gpu_utilisation")
    assert [value(cell, name) for name in unknown] == [None] * len(unknown)
    assert which_k(result) is None
    assert "| – |" in markdown(result, None).en and "Which k: unknown" in markdown(result, None).en


def test_an_open_loop_sends_at_the_dices_times() -> None:
    moments = load.arrivals(7, 0, 50.0, 2000)
    assert moments == load.arrivals(7, 0, 50.0, 2000) != load.arrivals(7, 1, 50.0, 2000)
    pauses = [b - a for a, b in zip([0.0, *moments], moments, strict=False)]
    mean = sum(pauses) / len(pauses)
    assert mean == pytest.approx(0.02, rel=0.1) and min(pauses) > 0
    # An exponential's standard deviation is its mean.
    assert (sum((pause - mean) ** 2 for pause in pauses) / len(pauses)) ** 0.5 == pytest.approx(mean, rel=0.1)
    with pair(PacedServer(step=0.005), PacedServer(step=0.005, accepted=2)) as (one, other):
        _, result = ran(experiment(one, other, replace(FEW, levels=load.levels((), [40.0]), requests=5)))
    for cell in result.cells:
        assert all(request.at >= due for request, due in zip(cell.requests, load.arrivals(0, 0, 40.0, 5), strict=True))
        assert len(cell.whole) == 5


def test_a_server_that_fails_is_counted_once_per_request_and_ends_the_experiment() -> None:
    fast = PacedServer(step=0.0, accepted=2)
    with pair(PacedServer(step=0.0), fast) as (one, other):
        running = experiment(one, other, replace(FEW, repeats=2, warm_up=0))
        steps = []
        for step in running:
            steps.append(step)
            if isinstance(step, CellEnded):
                fast.broken = True
    result = steps[-1].result
    assert not result.complete and [cell.side for cell in result.cells] == ["baseline", "speculative"]
    failed = result.cells[1].requests
    assert [request.ended for request in failed] == ["error"] * 3
    assert all("the engine is dead" in request.error["en"] and request.code == "server_refuses" for request in failed)
    assert "the engine is dead" in result.notes[0]["en"] and "spec" in result.notes[0]["zh"]
    said = markdown(result, None).en
    assert "Failed: 3 on spec" in said and speed_up(result, 0).value is None


def test_a_request_that_breaks_off_fails_alone() -> None:
    fast = PacedServer(step=0.0, accepted=2)

    def breaking(ask: Any) -> Any:
        reply = fast(ask)
        if ask.body.get("stream") and "Say b" in ask.body["prompt"]:
            return replace(reply, body=list(reply.body)[:2], breaks=True)
        return reply

    with pair(PacedServer(step=0.0), breaking) as (one, other):  # type: ignore[arg-type]
        _, result = ran(experiment(one, other))
    (cell,) = result.cells_of("speculative", 0)
    assert sorted(request.ended for request in cell.requests) == ["error", "length", "length"]
    assert value(cell, "failed") == 1 and value(cell, "throughput") == pytest.approx(26 / cell.seconds)


def test_stop_keeps_whole_cells_and_hangs_up() -> None:
    with pair(PacedServer(step=0.0), PacedServer(step=30.0, accepted=2)) as (one, other):
        running = experiment(one, other, replace(FEW, warm_up=0))
        well = PacedServer(step=0.0, accepted=2)
        other.answer, slow = well, other.answer  # asked what it can do while it is quick
        running.prober.capabilities(running.speculative)
        other.answer = slow
        steps = []
        for step in running:
            steps.append(step)
            if isinstance(step, CellBegan) and step.side == "speculative":
                threading.Timer(0.3, running.stop).start()
    result = steps[-1].result
    assert isinstance(steps[-1], LoadEnded) and not result.complete
    assert [cell.side for cell in result.cells] == ["baseline"]


def test_what_a_server_refuses_is_refused_before_the_run() -> None:
    plain, fast = PacedServer(step=0.0), PacedServer(step=0.0, accepted=2)
    with pair(plain, fast) as (one, other), pytest.raises(PlaygroundError) as refused:
        list(experiment(one, other, replace(FEW, strategy="sample", knobs={"min_p": 0.1})))
    assert refused.value.code == "server_refuses_knob" and "min_p" in str(refused.value)
    assert not any("Say a" in prompt for prompt in plain.prompts + fast.prompts)


def test_one_server_is_restarted_in_between() -> None:
    plain, fast = PacedServer(step=0.0), PacedServer(step=0.0, accepted=2, started=2.0)
    with serving(plain) as server:
        running = experiment(server, server)
        asked: list[RestartWanted] = []
        for step in running:
            if isinstance(step, RestartWanted):
                asked.append(step)
                if len(asked) == 2:
                    server.answer = fast
                running.resume()
    assert isinstance(step, LoadEnded)
    assert asked[0].problem is None and asked[1].problem is not None and "speculate" in asked[1].problem.en
    result = step.result
    assert result.setup.order == "restarted" and [cell.side for cell in result.cells] == ["baseline", "speculative"]
    assert "one after the other" in result.notes[0]["en"] and result.servers["speculative"].speculation


@pytest.mark.parametrize(("change", "words"), [
    ({"levels": ()}, "levels"), ({"levels": (Level(),)}, "streams or a rate"), ({"levels": load.levels([500])}, "concurrency"),
    ({"repeats": 0}, "repeats"), ({"requests": 10**6}, "requests"), ({"max_new_tokens": 1}, "max_new_tokens"), ({"slo": Slo(ttft=-1)}, "slo_ttft"),
])  # fmt: skip
def test_options_out_of_range_are_named(change: dict[str, Any], words: str) -> None:
    with pytest.raises(BadValue, match=words):
        replace(FEW, **change).check()


@pytest.mark.parametrize("raw", [None, [], {"repeats": "many"}, {"levels": [{"streams": 2}]}, {"levels": 4}, {"slo": {"ttft": "x"}}, {"port": 1}, {
    "knobs": 3}, {"sample_every": float("inf")}, {"levels": [{"concurrency": 1, "rate": 2}]}, {"seed": -1}])  # fmt: skip
def test_options_of_the_wrong_shape_are_refused(raw: Any) -> None:
    with pytest.raises(BadValue):
        LoadOptions.from_json(raw)


def test_options_are_read_from_plain_values() -> None:
    raw = {"levels": [{"concurrency": 4}, {"rate": 2.5}], "repeats": 2, "strategy": "sample", "knobs": {"temperature": 0.8}, "slo": {"tpot": 0.02}}
    found = LoadOptions.from_json(raw)
    assert found == LoadOptions(
        levels=(Level(concurrency=4), Level(rate=2.5)), repeats=2, strategy="sample", knobs={"temperature": 0.8}, slo=Slo(tpot=0.02)
    )


@pytest.mark.parametrize("word", ["abort", "content_filter", ""])
def test_a_reply_that_did_not_end_normally_is_no_good_request(word: str) -> None:
    with pair(PacedServer(step=0.0), PacedServer(step=0.0, accepted=2, ends=("length", word))) as (one, other):
        _, result = ran(experiment(one, other, replace(FEW, requests=6)))
    (cell,) = result.cells_of("speculative", 0)
    failed = [request for request in cell.requests if not request.whole]
    assert len(failed) == len(cell.whole) == 3 and all(request.ended == "error" for request in failed)
    assert {request.code for request in failed} == {f"server:{word}" if word else "server_broke_off"}
    assert (value(cell, "requests"), value(cell, "failed")) == (3, 3) and value(cell, "throughput") == pytest.approx(39 / cell.seconds)
    told = markdown(result, None, requests=True).en
    assert "Failed: 3 on spec:" in told and (f"“{word}”" in told if word else "without saying why" in told)


# --- numbers by hand ------------------------------------------------------------------------------


def request(ttft: float, e2e: float, tokens: int | None, **more: Any) -> LoadedRequest:
    return LoadedRequest(0, 0.0, ttft, e2e, tokens, "reported", more.pop("gaps", ()), more.pop("chunk_tokens", (1,)), "length", **more)


def test_a_cells_numbers_by_hand() -> None:
    quick = request(0.1, 0.5, 5, gaps=(0.1, 0.3), chunk_tokens=(1, 1, 3))  # TPOT 0.4 / 4
    slow = request(0.2, 1.4, 3, gaps=(0.6, 0.6), chunk_tokens=(1, 1, 1))  # TPOT 1.2 / 2
    short = request(0.3, 0.3, 1)  # no TPOT
    failed = replace(quick, ended="error", code="server_gone")
    cell = Cell("baseline", 0, 0, 0, 2.0, (quick, slow, short, failed))
    assert value(cell, "tpot_p50") == pytest.approx(0.35) and value(cell, "seconds_per_token") == pytest.approx(1.6 / 6)
    assert value(cell, "throughput") == pytest.approx(4.5) and value(cell, "request_rate") == 1.5
    # Token latencies 0.1, 0.1, 0.1, 0.1, 0.6, 0.6; chunk gaps 0.1, 0.3, 0.6, 0.6.
    assert value(cell, "itl_p50") == pytest.approx(0.1) and value(cell, "itl_p95") == pytest.approx(0.6)
    assert value(cell, "chunk_gap_p50") == pytest.approx(0.45) and value(cell, "ttft_p50") == 0.2
    assert value(cell, "goodput") is None  # nothing was asked for
    assert value(cell, "goodput", Slo(ttft=0.25, tpot=0.2)) == 0.5 and value(cell, "goodput", Slo(tpot=0.2)) == 1.0
    assert value(cell, "goodput", Slo(ttft=0.05)) == 0.0


def test_chunks_that_nobody_counts_give_no_token_latency() -> None:
    cell = Cell("baseline", 0, 0, 0, 1.0, (request(0.1, 0.5, 5, gaps=(0.4,), chunk_tokens=(None, None)),))
    assert value(cell, "itl_p50") is None and value(cell, "tokens_per_chunk") is None and value(cell, "tpot_p50") == pytest.approx(0.1)


# --- files that somebody gives --------------------------------------------------------------------


@pytest.mark.parametrize(("data", "code"), [
    (b"", "prompts_count"), (b"\n\n", "prompts_count"), (b"{", "prompts_broken"), (b"[1]", "prompts_broken"), (b'{"prompt": ""}', "prompts_broken"),
    (b'{"prompt": 7}', "prompts_broken"), (b'{"prompt": "a", "messages": []}', "prompts_broken"), (b'{"messages": []}', "prompts_broken"),
    (b'{"messages": [{"role": "tool", "content": "x"}]}', "prompts_broken"), (b'{"prompt": "\\ud800"}', "prompts_broken"),
    (b"\xff\xfe", "prompts_broken"), (b'{"prompt": "a"}\n' * 2001, "prompts_count"), (b'{"prompt": "' + b"a" * 20_001 + b'"}', "prompts_broken"),
    (b"[" * 100_000, "prompts_broken"), (b" " * 8_000_001, "prompts_size"),
])  # fmt: skip
def test_a_broken_prompt_file_is_refused(data: bytes, code: str) -> None:
    with pytest.raises(BadValue) as refused:
        prompts.parse(data, "mine.jsonl")
    assert refused.value.code == code and "mine.jsonl" in str(refused.value)


def test_prompts_of_both_kinds_are_read_and_prefixed() -> None:
    lines = [{"prompt": "Hi", "kind": "x", "id": 3}, {"messages": [{"role": "system", "content": "Be short"}, {"role": "user", "content": "Hi"}]}]
    found = prompts.parse("\n".join(map(json.dumps, lines)).encode(), "mine.jsonl")
    plain, chat = found.prompts
    assert not plain.chat and plain.kind == "x" and plain.prefixed("[1]").text == "[1]\nHi"
    assert chat.chat and [entry["content"] for entry in chat.prefixed("[1]").as_messages()] == ["[1]\nBe short", "Hi"]
    with pytest.raises(BadValue, match="Line 2 of"):
        prompts.parse(b'{"prompt": "a"}\n{"prompt": 1}\n', "mine.jsonl")


def test_the_shipped_prompts_are_forty_and_varied() -> None:
    shipped = prompts.shipped()
    kinds = [prompt.kind for prompt in shipped.prompts]
    assert len(shipped.prompts) == 40 == len({prompt.text for prompt in shipped.prompts})
    assert kinds.count("copy") >= 4 and len(set(kinds[:8])) >= 6


def test_what_the_server_said_and_what_its_gpus_did_are_drawn_on_one_clock() -> None:
    sample = ServerSample(0.5, running=3.0, kv_usage=0.25)
    gpus = [DeviceSampled(at, busy, 2 * 10**9, 8 * 10**9, name) for at, busy, name in ((0.0, 0.5, "a"), (0.0, 0.7, "b"), (1.0, None, "a"))]
    first = Cell("baseline", 0, 0, 0, 10.0, (), (sample,), tuple(gpus))
    second = Cell("speculative", 0, 0, 1, 5.0, (), (replace(sample, running=5.0),))
    with pair(PacedServer(step=0.0), PacedServer(step=0.0)) as (one, other):
        _, result = ran(experiment(one, other))
    result = replace(result, cells=(first, second))
    drawn = FIGURES["over_time"]
    spec = drawn.spec(result, Look())
    # Two of the server's gauges, two of the GPUs': each with a series per server; the second cell stands behind the first.
    assert [(one["x"], one["y"]) for one in spec["data"]] == [
        ([0.5], [3.0]), ([10.5], [5.0]), ([0.5], [25.0]), ([10.5], [25.0]), ([0.0], [60.0]), ([], []), ([0.0, 1.0], [4.0, 2.0]), ([], []),
    ]  # fmt: skip
    assert "GPU memory, GB at most 4 GB" in drawn.describe(result, Look()).en and "NVML" in drawn.describe(result, Look()).en
    table = drawn.table(result, Look())
    assert [row[:2] for row in table[1:]] == [("baseline", "0.0"), ("baseline", "0.5"), ("baseline", "1.0"), ("speculative", "10.5")]
    assert table[1][-2:] == ("60", "4") and table[2][2] == "3"
    bare = replace(result, cells=(replace(first, samples=(), gpu=()),))
    assert drawn.table(bare, Look()) == [] and "nothing is known" in drawn.describe(bare, Look()).en


def test_a_broken_result_is_refused() -> None:
    with pair(PacedServer(step=0.0), PacedServer(step=0.0, accepted=2)) as (one, other):
        _, result = ran(experiment(one, other))
    good = json.loads(result.to_json())
    cell = good["cells"][0]
    for broken in (
        {**good, "version": 99}, {**good, "extra": 1}, {**good, "servers": {}}, {**good, "cells": [cell, cell]},
        {**good, "cells": [{**cell, "level": 7}]}, {**good, "cells": [{**cell, "requests": [{**cell["requests"][0], "chunk_tokens": [1, 10**9]}]}]},
        {**good, "cells": [{**cell, "seconds": -1}]}, {**good, "cells": [{**cell, "requests": [{**cell["requests"][0], "tokens": -1}]}]},
    ):  # fmt: skip
        with pytest.raises(PlaygroundError, match="load result"):
            LoadResult.from_json(json.dumps(broken))
    for text in ("", "[]", "{}", "[" * 100_000, json.dumps(good).replace(str(cell["seconds"]), "NaN")):
        with pytest.raises(PlaygroundError):
            LoadResult.from_json(text)
    assert summary(LoadResult.from_json(json.dumps(good)))[0].to_json()["speculative"]["acceptance"]["value"] == 0.5


# --- the command line -----------------------------------------------------------------------------


def test_the_command_line_runs_prints_and_shows_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine, out, record = tmp_path / "mine.jsonl", tmp_path / "out.json", tmp_path / "record.md"
    mine.write_text('{"prompt": "Say a"}\n{"prompt": "Say b"}\n')
    with pair(PacedServer(step=0.03), PacedServer(step=0.03, accepted=3)) as (one, other):
        arguments = ["--concurrency", "1,2", "--repeats", "1", "--requests", "2", "--max-new-tokens", "9", "--warm-up", "0"]
        config = '{"method": "ngram", "prompt_lookup_max": 4}'
        code = main([
            "load", one.url, other.url, *arguments, "--prompts", str(mine), "--json", str(out), "--markdown", str(record), "--slo-tpot", "15",
            "--speculative-config", config,
        ])  # fmt: skip
    said = capsys.readouterr()
    assert code == 0 and "\r" not in said.err
    assert f"| {' | '.join(COMPARED)} |" in said.out and "| 1 stream |" in said.out and "n/a (" in said.out
    # Which of the k is best hangs on the times of this run.
    assert "Which k:" in said.out and '--speculative-config \'{"method": "ngram", "prompt_lookup_max": 4, "num_speculative_tokens": ' in said.out
    rows = [line for line in record.read_text().splitlines() if line.startswith("| speculative | ")]
    assert len(rows) == 4 and "| 75.0 % |" in rows[0]  # a row per request: three of four guesses accepted
    result = LoadResult.from_json(out.read_text())
    assert [level.concurrency for level in result.setup.levels] == [1, 2] and result.slo == Slo(tpot=0.015)
    assert main(["load", "--show", str(out)]) == 0
    assert "Which k:" in capsys.readouterr().out


@pytest.mark.parametrize(("ends", "status"), [(("length",), 0), (("length", "abort"), 1), (("abort",), 1)])
def test_the_exit_status_says_that_a_request_failed(ends: tuple[str, ...], status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "out.json")
    with pair(PacedServer(step=0.0), PacedServer(step=0.0, accepted=3, ends=ends)) as (one, other):
        words = ["--concurrency", "1", "--repeats", "1", "--requests", "4", "--max-new-tokens", "9"]
        assert main(["load", one.url, other.url, *words, "--json", out]) == status
    assert main(["load", "--show", out]) == status
    assert ("“abort”" in capsys.readouterr().out) == bool(status)


def test_the_command_line_confirms_a_saved_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    mine, out, again = tmp_path / "mine.jsonl", tmp_path / "out.json", tmp_path / "again.json"
    mine.write_text('{"prompt": "Say a"}\n{"prompt": "Say b"}\n')
    config = ["--speculative-config", '{"method": "ngram"}']
    with pair(PacedServer(step=0.01), PacedServer(step=0.01, accepted=3)) as (one, other):
        words = ["--concurrency", "1", "--repeats", "2", "--requests", "2", "--max-new-tokens", "9", "--prompts", str(mine)]
        assert main(["load", one.url, other.url, *words, "--json", str(out)]) == 0
        first = LoadResult.from_json(out.read_text())
        before = len(one.asks)
        capsys.readouterr()
        monkeypatch.setattr("sys.stdin", io.StringIO("\n"))
        assert main(["load", other.url, "--confirm", str(out), "--prompts", str(mine), *config, "--json", str(again)]) == 0
    said = capsys.readouterr()
    assert "Restart" in said.err and '--speculative-config \'{"method": "ngram", "num_speculative_tokens": ' in said.err
    assert "onfirmed: as expected at" in said.out and "Which k:" not in said.out
    second = LoadResult.from_json(again.read_text())
    assert len(one.asks) == before and [cell.side for cell in second.cells] == ["baseline"] * 2 + ["speculative"] * 2
    assert [cell.requests for cell in second.cells_of("baseline", 0)] == [cell.requests for cell in first.cells_of("baseline", 0)]
    assert second.setup.run == first.setup.run and second.complete and second.confirms is not None
    assert main(["load", other.url, "--confirm", str(out)]) == 2  # the shipped prompts are others
    assert "same prompts" in capsys.readouterr().err
    assert main(["load", other.url, "--confirm", str(again), "--prompts", str(mine)]) == 2


@pytest.mark.parametrize(("arguments", "words"), [
    (["http://127.0.0.1:1"], "two servers"), (["nobody", "neither"], "nobody"), (["a", "b", "--lane", "greedy stop=x"], "stop"),
    (["--show", "/no/such/file"], "/no/such/file"), (["--speculative-config", "[]"], "JSON object"),
    (["a", "b", "--json", "/no/such/x.json"], "/no/such"),
])  # fmt: skip
def test_a_mistake_is_one_line(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["load", *arguments]) == 2
    said = capsys.readouterr()
    assert said.err.startswith("error: ") and words in said.err and said.out == ""
