"""Every formula that is shown with numbers in it, recomputed from those numbers: it has to give the number that is shown.

The arithmetic is read from the texts themselves, as somebody with a pocket calculator would, and not by the app's own evaluation.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from playground.errors import Text
from playground.figures import Look, figures
from playground.measures import Quantity
from playground.measures.beams import beam_tree, cost
from playground.measures.formula import Formula, shown, worked, written
from playground.measures.latency import lane_numbers
from playground.measures.ledger import ledger, rows, verdict
from playground.measures.server_load import LoadedRequest
from playground.measures.server_speculation import SpeculationRecord, between, record_of_request
from playground.records import load_table, recordings, table
from playground.records.recordings import RECORDINGS
from playground.trace import BeamsAdvanced, DraftJudged, PromptRead, SpeculationReported, StepTimed, Trace
from playground.ui import beams as beams_page
from playground.ui import speculation as speculation_page
from playground.ui.server_ledger import ledger_rows
from tests.toy_beams import beam_trace
from tests.toy_drafts import ACCEPTED, NEVER, REJECTED, draft_events, draft_trace

FIXTURES = Path(__file__).parent / "fixtures" / "vllm-0.32"


# --- the pocket calculator --------------------------------------------------------------------------


def calculated(text: str) -> float:
    """What an arithmetic in the app's notation comes to."""
    bare = re.sub(r"[^\W\d_]+", "", text)
    for sign, written_as in (("−", "-"), ("×", "*"), ("÷", "/"), ("^", "**")):
        bare = bare.replace(sign, written_as)
    assert re.fullmatch(r"[\d.\s()+*/-]+", bare), text
    return float(eval(bare, {"__builtins__": {}}))


def number(text: str) -> tuple[float, float]:
    """The first number of a text, and what its last digit is worth."""
    found = re.search(r"([−-]?)(\d[\d,]*)(?:\.(\d+))?", text)
    assert found, text
    sign, whole, decimals = found.groups()
    value = float(f"{whole.replace(',', '')}.{decimals or 0}")
    return (-value if sign else value), 10.0 ** -len(decimals or "")


def holds(arithmetic: str, result: str, scale: float = 1.0) -> None:
    """The arithmetic gives the result to the digits shown: at most one of the last is off, as operands are rounded themselves."""
    value, digit = number(result)
    assert abs(calculated(arithmetic) * scale - value) <= digit * 1.0001, f"{arithmetic} = {calculated(arithmetic) * scale}, not {result}"


def unit_scale(arithmetic: str, result: str) -> float:
    """What the arithmetic's unit is in the result's."""
    units = {"GB": 1e9, "MB": 1e6, "kB": 1e3, "B": 1.0, "ms": 1e-3, "s": 1.0, "%": 1e-2}
    of = re.search(r"\b(ms|s|GB|MB|kB|B)\b", arithmetic)
    to = re.search(r"(?<![a-zA-Z])(ms|s|GB|MB|kB|B|%)(?![a-zA-Z])", result)
    same = "/" in arithmetic and arithmetic.count(of.group(1) if of else " ") != 1  # a quotient of two times has no unit
    return (1.0 if not of or same else units[of.group(1)]) / (units[to.group(1)] if to else 1.0)


def check(quantity: Quantity, result: str) -> int:
    """A quantity's formula against what is shown beside it; how many numbers it was checked by. Numbers stand in structured formulas only."""
    formula = quantity.formula
    if not isinstance(formula, Formula):
        said = formula.en + formula.zh if isinstance(formula, Text) else formula or ""
        assert not re.search(r"=\s*[\d(]", said), f"a formula with numbers that nobody can check: {said}"
        return 0
    if not formula.arithmetic or "{" in formula.arithmetic:
        return 0
    assert formula.arithmetic in formula.text.en and formula.arithmetic in formula.text.zh
    for result_ in (formula.gives.en, formula.gives.zh) if formula.gives is not None else (result,):
        holds(formula.arithmetic, result_, unit_scale(formula.arithmetic, result_))
    return 1


def shorter(trace: Trace) -> Iterator[Trace]:
    """A trace as it was after a part of its steps, too."""
    ends = [index for index, (_, event) in enumerate(trace.events, 1) if isinstance(event, StepTimed)]
    for part in (0.2, 0.37, 0.61, 0.83):
        yield Trace(trace.about, trace.events[: ends[int(len(ends) * part)]])
    yield trace


def traces() -> list[Trace]:
    return [recordings.load(recording.name) for recording in RECORDINGS]


def speculating() -> Iterator[tuple[Trace, int]]:
    """Every lane that guesses: recorded ones and made-up ones, whole and in part."""
    full = draft_trace(draft_events((((ACCEPTED,) * 3, "bonus", None),) * 4))
    nothing = draft_trace(draft_events((((REJECTED, NEVER, NEVER), "resampled", None),) * 4))
    for trace in [*(part for one in traces() for part in shorter(one)), draft_trace(), full, nothing]:
        for lane in range(len(trace.about.lanes)):
            if next(trace.of(lane, DraftJudged), None) is not None:
                yield trace, lane


# --- formulas ---------------------------------------------------------------------------------------


def test_operands_have_as_many_digits_as_give_the_number_beside_them() -> None:
    formula = worked(Text("a / b", "a / b"), "{a} / {b}", written("×"), a=4.4049, b=1.7351)
    assert shown(4.4049 / 1.7351, "×")[0] == "2.54" and formula.text.en == "a / b = 4.405 / 1.735"  # 4.40 / 1.74 were 2.53
    assert worked(Text("a", "a"), "{a} / {b}", written("×"), a=1.0, b=0).text.en == "a"
    assert worked(Text("a", "a"), "{a} / {b}", written("×"), a=1.0, b=None).text.zh == "a"


def test_every_number_of_a_speculation_ledger_follows_from_the_operands_beside_it() -> None:
    checked = 0
    for trace, lane in speculating():
        answer = speculation_page.speculation(trace, lane)
        for row, told in zip(rows(ledger(trace, lane)), answer["rows"], strict=True):
            checked += check(row.quantity, " ".join(told["shown"])) if row.quantity.value is not None else 0
    assert checked > 400


def test_the_speed_up_of_every_k_follows_from_all_of_its_factors() -> None:
    checked = 0
    for trace, lane in speculating():
        for asked in ({}, {"alpha": 0.73}, {"alpha": 0.91, "draft": 0.07, "verify": 0.13}):
            answer = speculation_page.which_k(trace, lane, asked, {})
            for point, row in zip(answer["sums"], answer["table"][1:], strict=True):
                for said in point["text"].values():
                    _, arithmetic, result = said.rsplit(" = ", 2)
                    holds(arithmetic, result)
                    assert number(result)[0] == number(row[3])[0]
                    assert answer["hit"] is None or arithmetic.count(point["hit"]) == 4
                holds(f"{row[1]} / {row[2]}", row[3])
                checked += 1
            if answer["hit"] is not None:  # the share in the sums is the hit rate of the ledger, with the ledger's own counts
                rounds, of = answer["hit"]
                holds(f"{rounds} / {of}", answer["sums"][6]["hit"])
                assert f"= {rounds} / {of}" in next(row.quantity.formula_text.en for row in rows(ledger(trace, lane)) if row.name == "hit_rate")  # type: ignore[union-attr]
    assert checked > 200


def test_one_is_no_plural_and_nothing_is_resampled_where_nothing_is_drawn() -> None:
    trace = recordings.load("copying")
    told = speculation_page.speculation(trace, 1)["rows"]
    assert ["1", "round"] in [list(row["shown"]) for row in told] and not any(row["shown"][0] == "1" and row["shown"][1] == "rounds" for row in told)
    assert not any("resampled" in row["label"]["en"] or "抽取" in row["label"]["zh"] for row in told)
    one = draft_trace(draft_events((((ACCEPTED, ACCEPTED, REJECTED), "resampled", None),)))
    assert "1 draft," in figures()["draft_positions"].describe(one, 1, None, Look()).en  # type: ignore[misc]


def test_the_verdict_on_a_lane_divides() -> None:
    found = 0
    for trace, lane in speculating():
        said = verdict(ledger(trace, lane))
        en = re.search(r"([\d.]+)(?: times as fast|×\)).* ([\d.]+) tokens per target forward, and a round took ([\d.]+) times", said.en)
        zh = re.search(r"([\d.]+)(?: 倍。|×）).*每次目标前向 ([\d.]+) 个词元，而一轮耗时为普通一步的 ([\d.]+) 倍", said.zh)
        assert bool(en) == bool(zh)
        for match in filter(None, (en, zh)):
            holds(f"{match[2]} / {match[3]}", match[1])
            found += 1
    assert found >= 10


def records() -> Iterator[SpeculationRecord]:
    """Ledgers of servers: of one request in every shape that tells of it, and of two `/metrics` pages."""
    for told, tokens in (
        (SpeculationReported("spec", 10, 40, 40, 4, (0, 0, 0, 0, 10), None, None, (4,) * 10), 48),
        (SpeculationReported("spec", 7, 21, 9, 3, (2, 2, 2, 1), None, None, None), 19),
        (SpeculationReported("timings", None, 30, 13, None, None, None, None, None), 47),
        (SpeculationReported("spec", 3, 12, 11, 4, (0, 0, 1, 2), None, None, None), 13),
    ):
        yield record_of_request(told, tokens)
    page = (FIXTURES / "metrics.txt").read_text()
    yield between(re.sub(r"(?m)^((?!#).*(?:_total|_count)\S*) \S+$", r"\1 0.0", page), page)


def test_every_number_of_a_servers_ledger_follows_from_the_counts_beside_it() -> None:
    checked = 0
    for record in records():
        for _, quantity in [*ledger_rows(record), *(("", rate) for c in (False, True) for rate in record.position_rates(c))]:
            if isinstance(quantity.value, (int, float)):
                checked += check(quantity, f"{quantity.value:.3f}")  # as the page writes them
                checked += check(quantity, load_table.shown(quantity))  # as the command line does
    assert checked > 50


def test_the_kv_cache_follows_from_tokens_rows_and_bytes_per_token() -> None:
    kv, by_beam = figures()["kv"], figures()["beam_kv"]
    for trace in [*(part for one in traces() for part in shorter(one)), beam_trace(beams=4, steps=12)]:
        for model in trace.about.models:
            if model.cache_formula and "layers" in model.cache_formula:
                assert calculated(re.sub(r"\(K, V\)", "", model.cache_formula)) == model.cache_bytes_per_token
        for language in ("en", "zh"):
            said = kv.describe(trace, None, None, Look()).to_json()[language]  # type: ignore[arg-type]
            products = re.findall(r"([\d]+ × [\d]+ × [\d]+ B) = ([\d.]+ \w+)", said)
            for arithmetic, result in products:
                holds(arithmetic, result, unit_scale(arithmetic, result))
            assert len(products) == sum(next(trace.of(lane, StepTimed), None) is not None for lane in range(len(trace.about.lanes)))
        for _, tokens, rows_, _, by_formula in kv.table(trace, None, None, Look())[1:]:  # type: ignore[misc]
            arithmetic, result = by_formula.split(" = ")
            assert arithmetic.startswith(f"{tokens} × {rows_} × ")
            holds(arithmetic, result, unit_scale(arithmetic, result))
        for lane in range(len(trace.about.lanes)):
            if next(trace.of(lane, BeamsAdvanced), None) is not None:
                said = by_beam.describe(trace, lane, None, Look()).en  # type: ignore[misc]
                result, arithmetic = re.search(r"would take ([\d.]+ \w+) \(derived: .* = (.*?)\)", said).groups()  # type: ignore[union-attr]
                holds(arithmetic, result, unit_scale(arithmetic, result))


def test_a_beams_cost_over_greedy_is_the_quotient_of_what_stands_beside_it() -> None:
    checked = 0
    for trace in [*(part for one in traces() for part in shorter(one)), beam_trace(beams=4, steps=12)]:
        for lane in range(len(trace.about.lanes)):
            if next(trace.of(lane, BeamsAdvanced), None) is None:
                continue
            for row, told in zip(cost(trace, lane), beams_page.beams(trace, lane, None)["cost"], strict=True):
                if row.ratio is not None:
                    result = f"{row.ratio.value:.2f}"
                    holds(" / ".join(told["divided"]), result)
                    checked += check(row.ratio, result)
    assert checked > 20


def test_a_beams_scores_follow_from_the_sum_and_the_length_beside_them() -> None:
    def size(value: float) -> int:
        return math.floor(math.log10(abs(value)))

    def score(value: float) -> str:  # as assets/beams.js writes a score
        return f"{value:.3e}" if abs(value) >= 1e4 else f"{value:.{max(0, min(3, 3 - size(value)))}f}"

    for trace in (recordings.load("classic"), recordings.load("repetition"), beam_trace(beams=4, steps=30, end=0.1)):
        lane = next(n for n in range(len(trace.about.lanes)) if next(trace.of(n, BeamsAdvanced), None) is not None)
        prompt = beam_tree(trace, lane).prompt
        for penalty in (-2.0, -0.65, 0.0, 1.0, 1.35, 3.0):
            for row in beams_page.beams(trace, lane, penalty)["hypotheses"]:
                s = f"{row['values'][0]:.{max(3, 4 - size(row['values'][0]))}f}"
                mean, hf, gnmt, vllm = map(score, row["values"][1:])
                n, counted = row["length"], row["length"] - (row["ended"]["en"] == "end token")
                for formula, result in (
                    (f"{s} / {n}", mean), (f"{s} / {n}^({penalty})", hf), (f"{s} / ((5 + {n}) / 6)^({penalty})", gnmt),
                    (f"{s} / ({prompt} + {counted})^({penalty})", vllm),
                ):  # fmt: skip
                    mantissa, _, power = result.partition("e")
                    holds(formula, mantissa, 10.0 ** -int(power or 0))


# --- speed ------------------------------------------------------------------------------------------


def own_prompt(trace: Trace) -> Trace:
    """The same race, had every lane read its prompt itself."""
    shared = next(event for lane, event in trace.events if lane is None and isinstance(event, PromptRead))
    events = [(lane, replace(event, reused=False, seconds=shared.seconds)) if isinstance(event, PromptRead) else (lane, event)
              for lane, event in trace.events if lane is not None or not isinstance(event, PromptRead)]  # fmt: skip
    return Trace(trace.about, events)


@pytest.mark.parametrize("read", [lambda trace: trace, own_prompt], ids=["shared prompt", "own prompt"])
def test_tokens_per_second_follow_from_the_tokens_and_seconds_of_the_same_row(read: Any) -> None:
    """In the record, which the command line prints, and in the table of the latency figure."""
    for trace in [read(part) for one in traces() for part in shorter(one)]:
        for told in table.rows(trace):
            row = dict(zip(table.COLUMNS, told, strict=True))
            holds(f"({row['tokens']} − 1) / {row['decode s']}", row["tokens/s"])
            if row["E2E s"] != "–":
                ttft, e2e = number(row["TTFT s"]), number(row["E2E s"])
                assert "race" not in row["TTFT s"] and abs(ttft[0] + number(row["decode s"])[0] - e2e[0]) <= 1.5 * e2e[1]
            else:
                assert "(race)" in row["TTFT s"]  # unknown to the lane, and nowhere called E2E
        for row in figures()["latency"].table(trace, None, None, Look())[1:]:  # type: ignore[misc]
            holds(f"({row[6]} − 1) / {row[2]}", row[5])


@pytest.mark.parametrize("read", [lambda trace: trace, own_prompt], ids=["shared prompt", "own prompt"])
def test_end_to_end_holds_the_time_to_the_first_token_or_is_unknown(read: Any) -> None:
    for trace in map(read, traces()):
        for lane in range(len(trace.about.lanes)):
            numbers = {name: quantity.value for name, quantity in lane_numbers(trace, lane).items()}
            if read is own_prompt:
                assert numbers["e2e"] == pytest.approx(numbers["ttft"] + numbers["decode"])  # type: ignore[operator]
            else:
                assert numbers["e2e"] is None and numbers["ttft"] is None
            assert numbers["tokens_per_second"] == pytest.approx((numbers["tokens"] - 1) / numbers["decode"])  # type: ignore[operator]
            assert numbers["tpot"] == pytest.approx(numbers["decode"] / (numbers["tokens"] - 1))  # type: ignore[operator]


def test_a_loads_tpot_follows_from_the_times_of_the_same_request() -> None:
    for ttft, e2e, tokens in ((0.1876543, 0.6934567, 48), (0.0123456, 0.0456789, 3), (1.6306712, 2.5715489, 128), (0.25, 0.3, 2)):
        one = LoadedRequest(0, 0.0, ttft, e2e, tokens, "reported", (), (1,) * tokens, "length")
        row = dict(zip(load_table.REQUESTED[3:], load_table.request_cells(one), strict=True))
        shown_tpot = row["TPOT ms"]
        assert abs(calculated(f"({row['E2E s']} × 1000 − {row['TTFT ms']}) / ({row['tokens']} − 1)") - float(shown_tpot)) <= 0.02
