"""Counters of `/metrics`, and the ledger that is made of them: recorded, hand-made and broken pages."""

from __future__ import annotations

import pytest

from playground.errors import PlaygroundError
from playground.measures.server_latency import ServerMeter
from playground.measures.server_speculation import LARGEST_K, Counters, between, counters, difference
from playground.trace import ChunkArrived, ServerReported
from tests.recorded_server import RECORDED


def page(drafts: int, drafted: int, accepted: int, positions: tuple[int, ...], tokens: int, iterations: int, started: int = 1) -> str:
    rows = [
        f'vllm:spec_decode_num_drafts_total{{engine="0"}} {drafts}', f'vllm:spec_decode_num_draft_tokens_total{{engine="0"}} {drafted}',
        f'vllm:spec_decode_num_accepted_tokens_total{{engine="0"}} {accepted}', f"vllm:generation_tokens_total {tokens}",
        f"vllm:iteration_tokens_total_count {iterations}", f"process_start_time_seconds {started}", "vllm:kv_cache_usage_perc 0.25",
        *(f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{position="{i}"}} {n}' for i, n in enumerate(positions)),
    ]  # fmt: skip
    return "\n".join(rows)


def test_the_recorded_page_is_read() -> None:
    found = counters((RECORDED / "metrics.txt").read_text())
    assert (found.drafts, found.drafted, found.accepted, found.per_position) == (31, 123, 87, (24, 21, 21, 21))
    assert found.tokens == 165 and found.running == 0 and found.waiting == 0 and found.kv_usage is not None and found.iterations


def test_the_difference_of_two_pages_is_the_ledger_of_the_window() -> None:
    record = between(page(10, 40, 20, (9, 6, 3, 2), 100, 50), page(30, 120, 70, (25, 20, 15, 10), 171, 72))
    assert (record.source, record.steps, record.drafted, record.accepted, record.by_position) == ("counters", 20, 80, 50, (16, 14, 12, 8))
    assert record.acceptance_rate.value == 0.625 and record.mean_acceptance_length.value == 3.5
    assert [rate.value for rate in record.position_rates()] == [0.8, 0.7, 0.6, 0.4]
    assert [rate.value for rate in record.position_rates(conditional=True)] == pytest.approx([0.8, 14 / 16, 12 / 14, 8 / 12])
    assert record.tokens_per_forward.value == pytest.approx(71 / 22)  # below the acceptance length: steps without a draft count
    assert record.tokens_per_forward.how == "derived" and "iterations" in record.tokens_per_forward.formula_text.en  # type: ignore[union-attr]


def test_other_traffic_is_counted_and_spoils_what_it_must() -> None:
    before, after = page(10, 40, 20, (9,), 100, 50), page(30, 120, 70, (25,), 171, 72)
    alone, shared = between(before, after, own_tokens=71), between(before, after, own_tokens=40)
    assert alone.other_tokens == 0 and alone.tokens_per_forward.value is not None
    assert shared.other_tokens == 31 and shared.tokens_per_forward.value is None


def test_a_restart_between_two_pages_is_seen() -> None:
    before = page(10, 40, 20, (9,), 100, 50)
    assert between(before, page(30, 120, 70, (25,), 171, 72, started=2)).source == "unknown"
    assert difference(counters(before), counters(page(3, 12, 7, (5,), 17, 7))) is None


def test_absent_is_unknown_and_never_zero() -> None:
    record = between("vllm:generation_tokens_total 5", "vllm:generation_tokens_total 9")
    assert record.source == "unknown" and record.acceptance_rate.value is None and record.mean_acceptance_length.value is None
    assert record.position_rates() == [] and counters("vllm:generation_tokens_total 5") == Counters(tokens=5)
    nothing = between(page(10, 40, 20, (9,), 100, 50), page(10, 40, 20, (9,), 110, 60))
    assert nothing.acceptance_rate.value is None and nothing.steps == 0  # no draft in the window: no rate


def test_counters_that_appear_in_the_window_began_at_zero() -> None:
    assert difference(counters("vllm:generation_tokens_total 5"), counters(page(3, 12, 7, (5, 2), 17, 7))) == Counters(
        drafts=3, drafted=12, accepted=7, per_position=(5, 2), tokens=12, iterations=7, kv_usage=0.25, started=1
    )


@pytest.mark.parametrize("broken", [
    "", "hello", "<html>", "vllm:generation_tokens_total", "vllm:generation_tokens_total x", '{"a": 1}', "# only a comment",
    'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="x"} 1', 'vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0"} 1',
    'a{b="', "up 1",
])  # fmt: skip
def test_a_page_that_is_none_is_refused(broken: str) -> None:
    with pytest.raises(PlaygroundError) as raised:
        counters(broken)
    assert raised.value.code == "metrics_broken"


def test_a_position_that_no_server_has_costs_nothing() -> None:
    huge = f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{position="{10**15}"}} 1\nvllm:generation_tokens_total 3'
    assert counters(huge).per_position is None and LARGEST_K < 10**6


def test_five_tokens_in_two_chunks() -> None:
    """By hand: chunks of 2 and 3 tokens at 0.5 s and 0.8 s."""
    meter = ServerMeter()
    for chunk in (ChunkArrived("ab", 2, 0.5, 10.5), ChunkArrived("cde", 3, 0.8, 10.8)):
        meter.add(chunk)
    assert (meter.ttft, meter.e2e, meter.gaps) == (0.5, 0.8, [pytest.approx(0.3)])
    assert meter.amortised == [pytest.approx(0.1)] * 3 and meter.tpot == pytest.approx(0.3 / 4)
    meter.add(ServerReported("usage", completion_tokens=7))  # the server counts two that it didn't show
    assert meter.tpot == pytest.approx(0.3 / 6) and meter.output_tokens == 7


def test_without_token_counts_nothing_is_said_per_token() -> None:
    meter = ServerMeter()
    for seconds in (0.5, 0.8):
        meter.add(ChunkArrived("ab", None, seconds, seconds))
    assert meter.amortised == [] and meter.tpot is None and meter.output_tokens is None and meter.gaps == [pytest.approx(0.3)]
    meter.add(ServerReported("usage", completion_tokens=4))
    assert meter.tpot == pytest.approx(0.1)
