"""Which k, by hand; and what two pasted snapshots or two bench files say."""

from __future__ import annotations

import itertools
import json
import re
import shlex
from dataclasses import replace
from typing import Any

import pytest

from playground.cli import main
from playground.errors import PlaygroundError
from playground.experiments import serve_commands
from playground.measures.server_k import (
    KVerdict,
    LevelVerdict,
    Repeat,
    confirmation,
    confirmed,
    confirmed_sentence,
    draft_shape,
    level_verdict,
    verdict,
    which_k,
)
from playground.measures.server_load import Cell, Level, LoadedRequest, LoadResult, LoadSetup, ServerAbout
from playground.measures.server_pasted import from_bench, from_snapshots
from playground.measures.server_speculation import SpeculationRecord
from playground.trace import SpeculationReported
from tests.recorded_server import RECORDED

POSITIONS = (0.8, 0.6, 0.4, 0.2)


def at(streams: int, *seconds: float, baseline: float = 0.010) -> LevelVerdict:
    return level_verdict(Level(concurrency=streams), [Repeat(baseline, each, POSITIONS, 1.0) for each in seconds])


def numbers(found: LevelVerdict, name: str) -> list[float]:
    return [getattr(entry, name).value for entry in found.expected]


def test_every_k_by_hand() -> None:
    found = at(4, 0.006)
    assert numbers(found, "tokens") == pytest.approx([1.8, 2.4, 2.8, 3.0])
    # T(4) = 6 ms · 3 = 18 ms, T(0) = 10 ms, and a straight line between.
    assert numbers(found, "step") == pytest.approx([0.012, 0.014, 0.016, 0.018])
    assert numbers(found, "speed_up") == pytest.approx([1.5, 2.4 / 1.4, 1.75, 10 / 6])
    assert [entry.speed_up.how for entry in found.expected] == ["estimated"] * 3 + ["derived"]
    assert found.k == 3 and found.sure
    assert (found.best.low, found.best.high) == (pytest.approx(28 / 18), pytest.approx(1.75))
    assert found.sentence.en == "At 4 streams: k = 3, expected 1.75× (1.56–1.75)." and "4 路并发" in found.sentence.zh


def test_k_max_is_what_was_measured_and_its_interval_the_repeats() -> None:
    found = at(1, 0.005, 0.006, 0.008)
    last = found.expected[-1]
    assert last.speed_up.value == pytest.approx(10 / 6) and (last.low, last.high) == (pytest.approx(1.25), pytest.approx(2.0))


def test_steps_without_a_draft_count_as_one_token() -> None:
    found = level_verdict(Level(concurrency=1), [Repeat(0.01, 0.008, (1.0, 1.0), 0.25)])
    assert numbers(found, "tokens") == [1.25, 1.5] and numbers(found, "step") == pytest.approx([0.011, 0.012])


def test_it_is_left_off_where_it_loses_and_doubted_where_it_may_not() -> None:
    off = at(64, 0.015)  # T = 45 ms: the best is k = 1 at 1.8 · 10 / 18.75
    assert off.k == 0 and off.sure and off.best.k == 1 and off.best.speed_up.value == pytest.approx(0.96)
    assert off.sentence.en.startswith("At 64 streams: leave it off; the best, k = 1, is expected at 0.96×")
    maybe = at(16, 0.012)  # T = 36 ms: 1.8 · 10 / 16.5 on the line, 0.5 if every step costs the same
    assert maybe.k == 1 and not maybe.sure and (maybe.best.low, maybe.best.high) == (pytest.approx(0.5), pytest.approx(1.8 / 1.65))
    assert "confirm it with a run" in maybe.sentence.en
    near = at(32, 0.013)  # T = 39 ms: 1.8 · 10 / 17.25
    assert near.k == 0 and not near.sure and "too close to 1" in near.sentence.en


def whole(*levels: LevelVerdict, **more: Any) -> KVerdict:
    return verdict(levels, more.get("config"), more.get("takes_table", True))


def test_the_sentence_and_the_table_by_batch_size() -> None:
    found = whole(at(16, 0.015), at(1, 0.006), at(8, 0.006), config={"method": "eagle3", "model": "m", "num_speculative_tokens": 4})
    assert found.sentence.en == "k = 3 up to 8 streams, expected 1.75× (1.56–1.75); off from 16 streams on."
    assert found.sentence.zh == "8 路并发及以下 k = 3，预期 1.75× (1.56–1.75)；16 路并发及以上关闭。"
    assert found.config == {
        "method": "eagle3", "model": "m", "num_speculative_tokens": 3, "num_speculative_tokens_per_batch_size": [[1, 8, 3], [9, 512, 0]],
    }  # fmt: skip
    assert "k = 3" in found.confirm.en and "num_speculative_tokens" in found.confirm.en
    one = whole(at(1, 0.006), at(16, 0.015), takes_table=False)
    assert one.config == {"num_speculative_tokens": 3} and "isn't known to take a table" in one.config_note.en


def test_fewer_than_one_stream_is_no_load() -> None:
    assert whole(at(1, 0.006), at(2, 0.015)).sentence.en == "k = 3 at 1 stream, expected 1.75× (1.56–1.75); off from 2 streams on."


def test_a_single_repeat_says_that_its_interval_holds_no_spread() -> None:
    assert whole(at(1, 0.006)).confirm.en.startswith("A load was measured only once") and "只测过一次" in whole(at(1, 0.006)).confirm.zh
    assert whole(at(1, 0.006, 0.006), at(2, 0.006)).confirm.en.startswith("A load was measured only once")
    assert whole(at(1, 0.006, 0.007)).confirm.en.startswith("To confirm:")


def test_one_answer_for_all_loads_needs_no_table() -> None:
    assert whole(at(1, 0.006), at(2, 0.006)).config == {"num_speculative_tokens": 3}
    assert whole(at(1, 0.006), at(2, 0.006)).sentence.en == "k = 3 from 1 stream to 2 streams, expected 1.75× (1.56–1.75)."
    off = whole(at(1, 0.015), at(2, 0.016))
    assert off.config is None and off.sentence.en.startswith("Leave it off: at every load measured; the best, k = 1 at 1 stream,")
    json.dumps(off.to_json())


@pytest.mark.parametrize("loads", [[(1, 0.015), (2, 0.006)], [(1, 0.006), (2, 0.012), (4, 0.015)], [(1, 0.006), (2, 0.015), (4, 0.006)]])
def test_tables_start_at_one_and_have_neither_gaps_nor_overlaps(loads: list[tuple[int, float]]) -> None:
    found = whole(*(at(streams, seconds) for streams, seconds in loads))
    assert found.config is not None
    table = found.config["num_speculative_tokens_per_batch_size"]
    assert table[0][0] == 1 and table[-1][1] == 512 and table[-1][2] == 0
    assert all(later[0] == earlier[1] + 1 and later[2] != earlier[2] for earlier, later in itertools.pairwise(table))
    for streams, seconds in loads:
        (k,) = [k for low, high, k in table if low <= streams <= high]
        assert k == at(streams, seconds).k
    assert found.config["num_speculative_tokens"] == max(k for _, _, k in table)


def test_a_ledger_gives_the_shape_of_drafts() -> None:
    # 3 requests: 43 tokens, 10 accepted, so 33 forwards, three of them the prompts': 30 steps, 20 with a draft.
    record = SpeculationRecord("request", "f", steps=20, drafted=80, accepted=10, by_position=(6, 3, 1, 0), tokens=43)
    assert draft_shape(record, 3) == ((0.3, 0.15, 0.05, 0.0), 20 / 30)
    # The text ended inside drafts: no fewer steps than had one.
    cut = SpeculationRecord("request", "f", steps=20, drafted=80, accepted=40, by_position=(20, 20, 0, 0), tokens=43)
    assert draft_shape(cut, 3) == ((1.0, 1.0, 0.0, 0.0), 1.0)
    # Told request by request: 36 forwards, although the sums would say 33.
    exact = SpeculationRecord("request", "f", steps=20, drafted=80, accepted=10, by_position=(6, 3, 1, 0), tokens=43, forwards=36)
    assert draft_shape(exact, 3) == ((0.3, 0.15, 0.05, 0.0), 20 / 33)
    others = SpeculationRecord("counters", "f", steps=20, drafted=80, accepted=10, by_position=(6, 3, 1, 0), tokens=43, other_tokens=5)
    assert draft_shape(others, 3) is None and draft_shape(SpeculationRecord("unknown"), 3) is None


def test_an_experiment_leads_to_a_verdict() -> None:
    told = SpeculationReported("m", steps=10, drafted=20, accepted=10, most=2, histogram=(2, 6, 2))  # P = 0.8, 0.2
    plain = LoadedRequest(0, 0.0, 0.1, 0.1 + 20 * 0.01, 21, "reported", (), (1,), "length")
    fast = LoadedRequest(0, 0.0, 0.1, 0.1 + 20 * 0.006, 21, "reported", (), (1,), "length", speculation=told)
    setup = LoadSetup((Level(concurrency=4), Level(concurrency=8)), 1, 1, 21, "greedy", {}, 0, "p", "0", 1, True, 1, "alternating", "r")
    servers = {"baseline": ServerAbout("a", "vllm", "0.32.0", "m", False), "speculative": ServerAbout("b", "vllm", "0.32.0", "m", True)}
    cells = (Cell("baseline", 0, 0, 0, 1.0, (plain,)), Cell("speculative", 0, 0, 1, 1.0, (fast,)), Cell("baseline", 1, 0, 2, 1.0, (plain,)))
    result = LoadResult(setup, servers, cells, "now", {}, "m")  # type: ignore[arg-type]
    found = which_k(result)
    assert found is not None and len(found.levels) == 1  # the other load was measured on one side only
    # E = 1.8, 2.0; T(2) = 12 ms, T(1) = 11 ms.
    assert numbers(found.levels[0], "speed_up") == pytest.approx([1.8 * 10 / 11, 10 / 6])
    assert found.levels[0].k == 2 and found.config == {"num_speculative_tokens": 2}


# --- two snapshots --------------------------------------------------------------------------------

AFTER = (RECORDED / "metrics.txt").read_text()


def earlier(text: str = AFTER, share: float = 0.0) -> str:
    """The recorded page with every counter and histogram of vLLM at a share of its value."""
    pattern = r"(?m)^(vllm:\S*(?:_total|_sum|_count|_bucket)\{[^}]*\}) (\S+)$"
    return re.sub(pattern, lambda match: f"{match[1]} {float(match[2]) * share}", text)


def setup_of(*streams: int) -> LoadSetup:
    levels = tuple(Level(concurrency=count) for count in streams)
    return LoadSetup(levels, 1, 1, 11, "greedy", {}, 0, "p", "0" * 64, 1, True, 0, "alternating", "r")


def timed(streams: tuple[int, ...], *speculative: float) -> LoadResult:
    """A result whose baseline writes a token in 10 ms, and whose speculative server takes so many ms at each load."""
    cells = []
    for level, each in enumerate(speculative):
        for side, seconds in (("baseline", 0.010), ("speculative", each / 1e3)):
            request = LoadedRequest(0, 0.0, 0.1, 0.1 + 10 * seconds, 11, "reported", (), (), "length")
            cells.append(Cell(side, level, 0, len(cells), 1.0, (request,)))  # type: ignore[arg-type]
    servers = {side: ServerAbout(side, "vllm", "0.32.0", "m", side == "speculative") for side in ("baseline", "speculative")}
    return LoadResult(setup_of(*streams), servers, tuple(cells), "2026-01-01", {}, "here")  # type: ignore[arg-type]


def test_a_confirming_run_is_held_against_what_was_expected_of_its_own_k() -> None:
    # One stream: k = 3, 1.75 (1.56-1.75). Eight: k = 1, 0.96. Four lies on neither side: k = 1, 1.09 (0.5-1.09).
    found = whole(at(1, 0.006), at(4, 0.012), at(8, 0.015))
    assert found.trial == found.config and found.trial["num_speculative_tokens_per_batch_size"] == [[1, 1, 3], [2, 4, 1], [5, 512, 0]]
    asked = confirmation(timed((1, 4, 8), 6, 12, 15), found)
    assert [(one.level, one.k) for one in asked.expected] == [(0, 3), (1, 1), (2, 0)] and asked.config == found.config
    assert (asked.expected[0].low, asked.expected[0].high) == (pytest.approx(28 / 18), pytest.approx(1.75))
    # 10 ms / 6 ms = 1.67 lies in the interval; 10 / 25 = 0.4 lies below; where it is off there is nothing to be shown.
    told = confirmed(replace(timed((1, 4, 8), 6, 25, 10), confirms=asked))
    assert [one.as_expected for one in told] == [True, False, None]
    assert told[0].sentence.en == "At 1 stream: k = 3, expected 1.75× (1.56–1.75), measured 1.67×: as expected."
    assert "below" in told[1].sentence.en and "off there; measured 1.00×" in told[2].sentence.en
    assert confirmed_sentence(told).en == "Not confirmed: as expected at 1 of 2 loads."
    assert confirmed_sentence(told[:1]).en == "Confirmed: as expected at 1 load."
    faster = confirmed(replace(timed((1,), 4), confirms=replace(asked, expected=asked.expected[:1])))
    assert faster[0].as_expected is False and "above" in faster[0].sentence.en  # 2.5 was not expected either
    unmeasured = replace(timed((1, 4, 8)), confirms=asked)
    assert {one.as_expected for one in confirmed(unmeasured)} == {None} and "Nothing was measured" in confirmed_sentence(confirmed(unmeasured)).en
    assert confirmed(timed((1,), 6)) == []


def test_where_it_is_to_be_left_off_the_best_k_is_tried_all_the_same() -> None:
    found = whole(at(8, 0.015), at(16, 0.020), config={"method": "ngram", "num_speculative_tokens": 4})
    assert found.config is None and found.trial == {"method": "ngram", "num_speculative_tokens": 1}
    asked = confirmation(timed((8, 16), 15, 20), found)
    assert [one.k for one in asked.expected] == [1, 1] and asked.expected[0].speed_up == pytest.approx(0.96)


def test_a_recorded_page_becomes_a_ledger_and_a_number_to_beat() -> None:
    found = from_snapshots(earlier(), AFTER)
    values = {name: quantity.value for name, quantity in found.ledger.items()}
    assert (values["requests"], values["tokens"], values["drafts"], values["drafted"], values["accepted"]) == (21, 165, 31, 123, 87)
    assert values["acceptance"] == pytest.approx(87 / 123) and values["acceptance_length"] == pytest.approx(1 + 87 / 31)
    # 21 first tokens, then 144 in 65 steps that took 5.2228 s.
    assert values["tokens_per_step"] == pytest.approx(144 / 65) and values["seconds_per_step"] == pytest.approx(5.22282886 / 65)
    assert values["seconds_per_token"] == pytest.approx(5.22282886 / 144)
    assert [quantity.value for quantity in found.positions] == pytest.approx([24 / 31, 21 / 31, 21 / 31, 21 / 31])
    assert [quantity.value for quantity in found.conditional] == pytest.approx([24 / 31, 21 / 24, 1, 1])
    assert values["window"] is None and values["tokens_per_second"] is None and "give the seconds" in found.notes[0].en
    assert "longer than 36.27 ms per token" in found.verdict.en and "36.27" in found.verdict.zh
    timed = from_snapshots(earlier(), AFTER.replace("\n", "\r\n"), seconds=30)
    assert timed.ledger["tokens_per_second"].value == pytest.approx(5.5) and timed.notes == ()
    json.dumps(found.to_json())


def test_the_window_counts_only_what_lies_between() -> None:
    doubled = re.sub(r"(?m)^(vllm:spec_decode_num_drafts_total\S*) \S+$", r"\1 50.0", AFTER)
    found = from_snapshots(AFTER, doubled)
    assert found.ledger["drafts"].value == 19 and found.ledger["tokens"].value == 0 and found.ledger["accepted"].value == 0


@pytest.mark.parametrize(("before", "after", "code"), [
    (AFTER, earlier(), "metrics_swapped"),
    (earlier(share=0.5), re.sub(r"(?m)^(process_start_time_seconds) \S+$", r"\1 1.9e9", AFTER), "metrics_restarted"),
    (re.sub(r"(?m)^process_start.*$", "", AFTER), re.sub(r"(?m)^(vllm:generation_tokens_total\S*) \S+$", r"\1 2.0",
        re.sub(r"(?m)^process_start.*$", "", AFTER).replace("num_drafts_total{engine=\"0\",model_name=\"smol\"} 31.0",
        "num_drafts_total{engine=\"0\",model_name=\"smol\"} 50.0")), "metrics_restarted"),
    (AFTER, AFTER.replace('model_name="smol"', 'model_name="other"'), "metrics_mismatch"),
    (AFTER, AFTER.replace('engine="0"', 'engine="1"'), "metrics_mismatch"),
    (AFTER, AFTER.replace("vllm:", "llamacpp:"), "metrics_mismatch"),
    ("", AFTER, "metrics_broken"), ("<html>", AFTER, "metrics_broken"), (AFTER, "vllm:x{" * 1000, "metrics_broken"),
    ("a" * 5_000_001, AFTER, "metrics_size"),
])  # fmt: skip
def test_snapshots_that_dont_belong_together_are_refused_by_name(before: str, after: str, code: str) -> None:
    with pytest.raises(PlaygroundError) as refused:
        from_snapshots(before, after)
    assert refused.value.code == code


def test_a_server_without_speculation_gives_the_number_to_beat() -> None:
    plain = re.sub(r"(?m)^.*spec_decode.*\n", "", AFTER)
    found = from_snapshots(earlier(plain), plain)
    assert any("no counters of speculation" in note.en for note in found.notes) and found.ledger["acceptance"].value is None
    assert "Without speculation this server took 36.27 ms per token" in found.verdict.en


def test_values_that_are_no_numbers_break_nothing() -> None:
    odd = re.sub(r"(?m)^(vllm:(?:spec_decode_num_drafts_total|kv_cache_usage_perc)\S*) \S+$", r"\1 NaN", AFTER)
    assert from_snapshots(earlier(), odd).ledger["drafts"].value is None
    endless = re.sub(r"(?m)^(vllm:generation_tokens_total\S*) \S+$", r"\1 +Inf", AFTER)
    assert from_snapshots(earlier(), endless).ledger["tokens"].value is None


# --- two bench files ------------------------------------------------------------------------------

PLAIN = {
    "model_id": "m", "num_prompts": 40, "max_concurrency": 4, "request_rate": float("inf"), "duration": 10.0, "completed": 40, "failed": 0,
    "total_output_tokens": 4000, "output_throughput": 400.0, "mean_tpot_ms": 10.0, "median_tpot_ms": 9.9, "p99_tpot_ms": 12.0,
    "mean_ttft_ms": 50.0, "mean_itl_ms": 10.0,
}  # fmt: skip
#: 40 requests, 4000 tokens, 2520 accepted: 1440 steps after the first tokens, all with a draft.
FAST = {
    **PLAIN, "duration": 7.0, "output_throughput": 600.0, "mean_tpot_ms": 6.0, "mean_itl_ms": 16.0,
    "spec_decode_num_drafts": 1440, "spec_decode_draft_tokens": 5760, "spec_decode_accepted_tokens": 2520,
    "spec_decode_acceptance_rate": 43.75, "spec_decode_acceptance_length": 2.75,
    "spec_decode_per_position_acceptance_rates": [0.8, 0.5, 0.3, 0.15],
}  # fmt: skip


def test_two_bench_files_compare_whichever_comes_first() -> None:
    found = from_bench(json.dumps(FAST), json.dumps(PLAIN))
    values = {name: quantity.value for name, quantity in found.ledger.items()}
    assert values["speed_up"] == pytest.approx(10 / 6) and values["throughput_ratio"] == pytest.approx(1.5)
    assert values["acceptance"] == pytest.approx(2520 / 5760) and values["acceptance_length"] == pytest.approx(2.75)
    assert values["baseline_itl_mean"] == 0.01 and values["speculative_itl_mean"] == 0.016 and values["baseline_goodput"] is None
    assert found.verdict.en.startswith("Speculation paid: 1.67×") and found.notes == ()
    assert found.which_k is not None
    (level,) = found.which_k.levels
    assert level.level.concurrency == 4 and numbers(level, "tokens") == pytest.approx([1.8, 2.3, 2.6, 2.75])
    # T(4) = 16.5 ms: 11.625, 13.25, 14.875 between.
    assert numbers(level, "speed_up") == pytest.approx([18 / 11.625, 23 / 13.25, 26 / 14.875, 10 / 6]) and level.k == 3


def test_bench_runs_that_differ_are_named() -> None:
    other = {**FAST, "model_id": "n", "max_concurrency": 8, "total_output_tokens": 5000, "failed": 2, "mean_tpot_ms": 12.0}
    found = from_bench(json.dumps(PLAIN), json.dumps(other))
    said = " ".join(note.en for note in found.notes)
    assert all(words in said for words in ("differ in model: m and n", "differ in concurrency: 4 and 8", "4000 and 5000", "failed"))
    assert found.verdict.en.startswith("Leave it off: 0.83×")


@pytest.mark.parametrize(("first", "second", "code"), [
    (json.dumps(PLAIN), json.dumps(PLAIN), "bench_sides"), (json.dumps(FAST), json.dumps(FAST), "bench_sides"),
    ("{}", json.dumps(FAST), "bench_broken"),
    ("[1]", "[1]", "bench_broken"), ("x", "x", "bench_broken"), ("[" * 100_000, "{}", "bench_broken"),
])  # fmt: skip
def test_bench_files_that_are_none_are_refused(first: str, second: str, code: str) -> None:
    with pytest.raises(PlaygroundError) as refused:
        from_bench(first, second)
    assert refused.value.code == code


def test_hostile_bench_values_are_unknown() -> None:
    odd = {**FAST, "mean_tpot_ms": "6", "output_throughput": -1, "spec_decode_per_position_acceptance_rates": [2.0, "x"], "model_id": ["m"]}
    found = from_bench(json.dumps(PLAIN), json.dumps(odd))
    assert found.ledger["speed_up"].value is None and found.ledger["throughput_ratio"].value is None and found.which_k is None
    assert found.positions == ()


def test_snapshots_and_bench_files_work_from_the_command_line(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    for name, text in (("before", earlier()), ("after", AFTER), ("plain", json.dumps(PLAIN)), ("fast", json.dumps(FAST))):
        (tmp_path / name).write_text(text)
    out = tmp_path / "out.json"
    assert main(["load", "--metrics", str(tmp_path / "before"), str(tmp_path / "after"), "--seconds", "30", "--json", str(out)]) == 0
    assert "36.27 ms per token" in capsys.readouterr().out and json.loads(out.read_text())["ledger"]["tokens_per_second"]["value"] == 5.5
    assert main(["load", "--bench", str(tmp_path / "plain"), str(tmp_path / "fast")]) == 0
    said = capsys.readouterr().out
    assert "Speculation paid: 1.67×" in said and "Which k: k = 3 at 4 streams" in said
    assert main(["load", "--metrics", str(tmp_path / "after"), str(tmp_path / "before")]) == 2
    assert "swap them" in capsys.readouterr().err


# --- the commands ---------------------------------------------------------------------------------


def test_commands_are_whole_shell_lines_and_say_what_was_checked() -> None:
    found = {command.name: command for command in serve_commands.commands("org/m", "org/d", "org/e", k=5, port=9000)}
    assert set(found) == {"baseline", "ngram", "draft_model", "eagle3", "mtp", "suffix"}
    for name, command in found.items():
        words = shlex.split(command.command)
        assert words[:5] == ["vllm", "serve", "org/m", "--port", "9000" if name == "baseline" else "9001"]
        if name != "baseline":
            assert json.loads(words[words.index("--speculative-config") + 1]) == command.config
            assert command.config is not None and command.config["method"] == name
            assert words[words.index("--per-request-spec-decode-metrics") + 1] == "detailed"
        else:  # vLLM 0.32 doesn't start with the second without the first
            assert "--speculative-config" not in words and "--per-request-spec-decode-metrics" not in words
    assert {name for name, command in found.items() if command.checked == "ran"} == {"baseline", "ngram", "draft_model"}
    assert found["draft_model"].config == {"method": "draft_model", "model": "org/d", "num_speculative_tokens": 5}
    baseline, draft = serve_commands.classic()
    assert "meta-llama/Llama-2-7b-hf" in baseline.command and "JackFram/llama-160m" in draft.command and len(draft.notes) == 3


@pytest.mark.parametrize("change", [{"k": 0}, {"k": 129}, {"port": 0}, {"model": "a; rm -rf"}, {"draft": "--help"}, {"eagle": "a\nb"}])
def test_hostile_names_make_no_command(change: dict[str, Any]) -> None:
    with pytest.raises(PlaygroundError):
        serve_commands.commands(**change)


def test_names_are_quoted() -> None:
    (baseline, *_) = serve_commands.commands("$(reboot)'`")
    assert "'$(reboot)'" in baseline.command
