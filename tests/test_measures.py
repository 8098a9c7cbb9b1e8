"""Measures on hand-made traces with values worked out by hand."""

from __future__ import annotations

import math

import numpy
import pytest

from playground.measures import Quantity
from playground.measures.distribution import bits, cumulative_bar, distributions, text_point
from playground.measures.kv import cache_series
from playground.measures.latency import LaneMeter, lane_meter, lane_numbers, percentile, race_meter
from playground.measures.parts import lane_parts
from playground.measures.text import TextJoiner, display_name, output_text
from playground.trace import (
    About,
    Finished,
    LaneAbout,
    LaneEvent,
    ModelAbout,
    PromptRead,
    StageView,
    StepTimed,
    StepView,
    TokenChosen,
    TokenName,
    TokensNamed,
    Trace,
)  # fmt: skip


def about(lanes: int = 1, models: tuple[str, ...] = ("toy",), per_token: int | None = 10) -> About:
    model = [ModelAbout(key, key, None, "float32", "cpu", 1, 4, 2, 8, 64, per_token, "2 × 5 B") for key in models]
    lane = [LaneAbout(f"lane {n}", models[n % len(models)], "greedy", {}, (), 9, (), (), (1,), "p") for n in range(lanes)]
    return About({}, tuple(model), tuple(lane), {}, "a machine", "2026-01-02", warm=True)


def step(number: int, seconds: float, tokens: int = 1, **more: float) -> StepTimed:
    memory = {"rows": int(more.pop("rows", 1)), "cache_length": int(more.pop("length", 3)), "cache_bytes": int(more.pop("nbytes", 30))}
    recording = more.pop("recording", 0.0)
    return StepTimed(step=number, tokens=tokens, seconds=seconds, parts=more, recording=recording, at=0.0, lane_seconds=0.0, **memory)


def chosen(position: int, token: int = 0) -> TokenChosen:
    return TokenChosen(position, token)


def lane_events(steps: list[tuple[float, int]], lane: int = 0) -> list[LaneEvent]:
    events: list[LaneEvent] = []
    position = 0
    for number, (seconds, tokens) in enumerate(steps):
        for _ in range(tokens):
            events.append((lane, chosen(position)))
            position += 1
        events.append((lane, step(number, seconds, tokens)))
    return events


# --- latency ---------------------------------------------------------------------------------------


def test_a_lane_that_reads_its_prompt_itself_has_a_ttft_of_its_own() -> None:
    reads: list[LaneEvent] = [(0, PromptRead(128, 200, 0.5, 1)), (0, PromptRead(200, 200, 0.3, 2))]
    trace = Trace(about(), [*reads, *lane_events([(0.2, 1), (0.1, 1), (0.3, 1)])])
    numbers = lane_numbers(trace, 0)
    assert numbers["ttft"].value == pytest.approx(0.5 + 0.3 + 0.2)
    assert numbers["e2e"].value == pytest.approx(0.5 + 0.3 + 0.2 + 0.1 + 0.3)
    assert numbers["decode"].value == pytest.approx(1.4 - 1.0)
    assert numbers["tpot"].value == pytest.approx((1.4 - 1.0) / 2)
    assert numbers["tokens_per_second"].value == pytest.approx(2 / 0.4)
    assert numbers["itl_p50"].value == pytest.approx(0.2)
    assert numbers["tokens"].value == 3
    assert race_meter(trace.events).ttft is None


def test_a_shared_prompt_belongs_to_the_race_and_to_no_lane() -> None:
    events: list[LaneEvent] = [
        (None, PromptRead(128, 200, 0.5, 1, shared=True)), (None, PromptRead(200, 200, 0.3, 2, shared=True)),
        (0, PromptRead(200, 200, 0.001, 2, reused=True)), (1, PromptRead(200, 200, 0.001, 2, reused=True)),
        *lane_events([(0.02, 1), (0.1, 1)], lane=1), *lane_events([(0.04, 1), (0.2, 1)], lane=0),
    ]  # fmt: skip
    trace = Trace(about(2), events)
    for lane, seconds in ((0, 0.2), (1, 0.1)):
        numbers = lane_numbers(trace, lane)
        assert numbers["ttft"].value is None
        assert numbers["e2e"].value is None and numbers["decode"].value == pytest.approx(seconds)
        assert numbers["decode"].formula_text is not None and "not in it" in numbers["decode"].formula_text.en
    ttft = race_meter(events).ttft
    assert ttft is not None and ttft.value == pytest.approx(0.8 + 0.02)
    assert race_meter(events).shared[0].lanes == [0, 1]


def test_two_shared_prompts_have_two_ttfts_and_the_race_has_none() -> None:
    events: list[LaneEvent] = [
        (None, PromptRead(9, 9, 0.5, 1, shared=True)), (0, PromptRead(9, 9, 0.0, 1, reused=True)),
        (None, PromptRead(7, 7, 0.25, 1, shared=True)), (1, PromptRead(7, 7, 0.0, 1, reused=True)),
        *lane_events([(0.5, 1)], lane=1), *lane_events([(0.25, 1)], lane=0),
    ]  # fmt: skip
    race = race_meter(events)
    assert [(reading.lanes, reading.ttft.value) for reading in race.shared] == [([0], 0.75), ([1], 0.75)]
    assert race.ttft is None


def test_a_step_with_several_tokens_gives_each_an_equal_part_of_the_gap() -> None:
    meter = lane_meter(Trace(about(), lane_events([(0.5, 1), (0.3, 3), (0.2, 1)])), 0)
    assert meter.itl == pytest.approx([0.1, 0.1, 0.1, 0.2])


def test_no_token_of_the_first_step_has_an_itl() -> None:
    meter = lane_meter(Trace(about(), lane_events([(0.5, 2), (0.3, 1)])), 0)
    assert meter.itl == pytest.approx([0.3])
    assert meter.numbers()["tpot"].value == pytest.approx(0.3 / 2)  # 3 tokens: (E2E − TTFT) / 2, as vllm bench serve


def test_a_step_without_a_token_adds_its_time_to_the_next_token() -> None:
    meter = lane_meter(Trace(about(), lane_events([(0.1, 1), (0.2, 0), (0.3, 1), (0.7, 0)])), 0)
    assert meter.itl == pytest.approx([0.5])
    assert meter.decode_seconds == pytest.approx(0.5)  # to the last token: what came behind it brought none


def test_one_token_has_no_itl_no_tpot_and_no_speed() -> None:
    numbers = lane_numbers(Trace(about(), lane_events([(0.5, 1)])), 0)
    assert [numbers[name].value for name in ("itl_p50", "itl_p95", "tpot", "tokens_per_second")] == [None] * 4
    assert numbers["tokens"].value == 1


def test_a_lane_that_has_not_begun_knows_nothing_but_its_count() -> None:
    numbers = LaneMeter().numbers()
    assert {name for name, quantity in numbers.items() if quantity.value is not None} == {"tokens"}


def test_percentiles_are_numpys() -> None:
    random = numpy.random.default_rng(3)
    for size in (1, 2, 3, 19, 20, 100):
        values = random.exponential(size=size)
        for q in (0, 50, 95, 100):
            assert percentile(sorted(values), q) == pytest.approx(float(numpy.percentile(values, q)), abs=1e-12)
    assert percentile([], 50) is None


def test_the_meter_fed_live_and_the_trace_read_at_once_agree() -> None:
    events = lane_events([(0.01 * (n % 7 + 1), n % 3) for n in range(60)])
    live = LaneMeter()
    for _, event in events:
        live.add(event)
        live.numbers()
    assert live.numbers() == lane_numbers(Trace(about(), events), 0)
    assert live.numbers()["itl_p95"].value == pytest.approx(float(numpy.percentile(live.itl, 95)))


def test_why_a_lane_stopped_is_told_in_words() -> None:
    events = [*lane_events([(0.5, 1)]), (0, Finished("stop", "eos", at=1.0))]
    stop = lane_numbers(Trace(about(), events), 0)["stop"]
    assert (stop.value, stop.label.en) == ("stop", "end of sequence")
    failed = [(0, Finished("error", "out_of_memory", at=1.0, message={"en": "No memory.", "zh": "内存不足。"}))]
    assert lane_numbers(Trace(about(), failed), 0)["stop"].label.zh == "内存不足。"


def test_a_quantity_keeps_unknown_apart_from_zero() -> None:
    unknown = lane_numbers(Trace(about(), lane_events([(0.5, 1)])), 0)["peak_memory"]
    assert isinstance(unknown, Quantity) and unknown.to_json()["value"] is None


# --- parts and cache --------------------------------------------------------------------------------


def test_parts_of_the_steps_and_their_shares() -> None:
    events: list[LaneEvent] = [
        (0, step(0, 1.0, forward=0.6, select=0.4, recording=0.5)),
        (0, step(1, 3.0, forward=2.6, select=0.4, recording=0.5)),
        (1, step(0, 9.0, forward=9.0)),
    ]
    parts = {part.name: part for part in lane_parts(Trace(about(2), events), 0)}
    assert parts["forward"].total.value == pytest.approx(3.2)
    assert parts["forward"].median.value == pytest.approx(1.6)
    assert parts["forward"].share.value == pytest.approx(0.8)
    assert parts["select"].share.value == pytest.approx(0.2)
    assert parts["recording"].share.value == pytest.approx(0.25)
    within = [part.share.value for name, part in parts.items() if name != "recording"]
    assert sum(value for value in within if isinstance(value, float)) == pytest.approx(1.0)
    assert lane_parts(Trace(about(), []), 0)[0].median.value is None


def test_cache_bytes_stand_beside_the_formula() -> None:
    events: list[LaneEvent] = [(0, PromptRead(3, 3, 0.1, 30)), (0, step(0, 1.0, length=3, nbytes=30)), (0, step(1, 1.0, length=4, rows=2, nbytes=81))]
    trace = Trace(about(), events)
    series = [(point.tokens, point.nbytes, point.by_formula, point.agrees) for point in cache_series(trace, 0)]
    assert series == [(3, 30, 30, True), (4, 81, 80, False)]


def test_without_a_formula_nothing_is_claimed() -> None:
    trace = Trace(about(per_token=None), [(0, step(0, 1.0))])
    assert cache_series(trace, 0)[0].agrees is None


# --- text -------------------------------------------------------------------------------------------

EMOJI = "🙂".encode()  # F0 9F 99 82
NAMES = {
    name.id: name
    for name in (
        TokenName(0, b" a"), TokenName(1, EMOJI[:1]), TokenName(2, EMOJI[1:3]), TokenName(3, EMOJI[3:]), TokenName(4, "你".encode()[:2]),
        TokenName(5, "你".encode()[2:]), TokenName(6, b"<|im_end|>", special=True), TokenName(7, b"b"), TokenName(8, "。\n".encode()),
    )
}  # fmt: skip


def joined(*tokens: int) -> list[str]:
    joiner = TextJoiner(NAMES)
    return [joiner.add(token).text for token in tokens] + [joiner.flush()]


def test_an_emoji_split_over_three_tokens_appears_with_the_third() -> None:
    joiner = TextJoiner(NAMES)
    told = [joiner.add(token) for token in (0, 1, 2, 3, 7)]
    assert [(part.text, part.start, part.end) for part in told] == [(" a", 0, 2), ("", 2, 3), ("", 3, 5), ("🙂", 5, 6), ("b", 6, 7)]


def test_cjk_split_over_two_tokens() -> None:
    assert joined(4, 5, 8) == ["", "你", "。\n", ""]


def test_bytes_that_cannot_be_completed_become_one_replacement_character() -> None:
    assert joined(4, 7) == ["", "\ufffdb", ""]
    assert joined(1, 2) == ["", "", "\ufffd"]


def test_special_and_unnamed_tokens_add_no_text() -> None:
    assert joined(0, 6, 99, 7) == [" a", "", "", "b", ""]


def test_output_is_cut_at_the_byte_where_the_stop_string_begins() -> None:
    tokens = [chosen(n, token) for n, token in enumerate((0, 4, 5, 8, 7))]
    events: list[LaneEvent] = [(None, TokensNamed("toy", tuple(NAMES.values()))), *((0, token) for token in tokens)]
    assert output_text(Trace(about(), events), 0) == " a你。\nb"
    cut = Finished("stop", "stop_string", at=0.0, cut=5)
    assert output_text(Trace(about(), [*events, (0, cut)]), 0) == " a你"


@pytest.mark.parametrize(
    ("piece", "shown"),
    [
        (b" the", "␣the"), (b"\n\n", "↵↵"), (b"\t", "⇥"), ("你".encode()[:2], "⟨E4 BD⟩"), (b" \xf0\x9f", "␣⟨F0 9F⟩"), (b" " * 16, "␣×16"),
        (b"", "⟨⟩"),
        ("\u202e".encode(), "⟨U+202E⟩"), ("\u200b".encode(), "⟨U+200B⟩"), (b"\x00", "⟨U+0000⟩"), ("\u0301".encode(), "◌\u0301"), (b"<b>", "<b>"),
    ],
)  # fmt: skip
def test_every_token_has_a_label_that_can_be_seen(piece: bytes, shown: str) -> None:
    assert display_name(TokenName(1, piece)) == shown


# --- distributions ----------------------------------------------------------------------------------


def softmax(scores: list[float]) -> list[float]:
    total = sum(math.exp(score) for score in scores)
    return [math.exp(score) / total for score in scores]


def two_stage_view() -> StepView:
    """Six tokens with logits ln 8, ln 4, ln 2, ln 1, ln 1, ln 0: halved by a temperature of 2, then top-k 2; ids 10 … 13 recorded."""
    raw = [math.log(8), math.log(4), math.log(2), 0.0]
    warm = [score / 2 for score in raw]
    total = sum(math.exp(score) for score in (*warm, 0.0))
    kept = sum(math.exp(score) for score in warm[:2])
    return StepView(
        ids=(10, 11, 12, 13), raw=tuple(raw), log_sum_exp=math.log(16), entropy=1.3, alive=5, rest_top=raw[0], rest=(0,) * 64,
        stages=(
            StageView("temperature", 5, 1.5, math.log(total), 0.0, (), tuple(warm)),
            StageView("top_k", 2, 0.6, math.log(kept), 1 - kept / total, (2, 3), None),
        ),
    )  # fmt: skip


def test_probabilities_raw_and_after_every_stage() -> None:
    raw, warm, top = distributions(two_stage_view())
    assert raw.probabilities == pytest.approx((0.5, 0.25, 0.125, 0.0625))
    assert raw.tail == pytest.approx(0.0625)
    assert warm.probabilities == pytest.approx(softmax([math.log(p) / 2 for p in (8, 4, 2, 1, 1)])[:4])
    root = math.sqrt(2)
    assert top.probabilities == pytest.approx((root / (root + 1), 1 / (root + 1), 0.0, 0.0))
    assert (top.alive, top.masked, top.changed, top.tail) == (2, frozenset({2, 3}), True, pytest.approx(0.0, abs=1e-12))


def test_a_stage_that_did_nothing_says_so() -> None:
    view = two_stage_view()
    idle = StageView("min_p", 5, 1.3, view.log_sum_exp, 0.0)
    after = distributions(StepView(view.ids, view.raw, view.log_sum_exp, 1.3, 5, view.rest_top, view.rest, (idle,)))
    assert not after[1].changed
    assert after[1].probabilities == after[0].probabilities


def test_the_cumulative_bar_stands_by_probability_then_by_id() -> None:
    view = StepView((30, 20, 10), (math.log(0.25), math.log(0.25), math.log(0.5)), 0.0, 1.0, 3, 0.0, (0,) * 64)
    assert [(view.ids[s.index], round(s.low, 9), round(s.high, 9)) for s in cumulative_bar(view)] == [(10, 0, 0.5), (20, 0.5, 0.75), (30, 0.75, 1)]


def test_surprise_and_entropy_along_the_text() -> None:
    point = text_point(TokenChosen(3, 11, log_probability=math.log(0.5), raw_log_probability=math.log(0.25), view=two_stage_view()))
    assert (point.raw_surprise, point.surprise) == (pytest.approx(math.log(4)), pytest.approx(math.log(2)))
    assert bits(point.raw_surprise) == pytest.approx(2.0)
    assert (point.entropy, point.final_entropy, point.alive) == (1.3, 0.6, 2)
    unknown = text_point(TokenChosen(0, 1))
    assert (unknown.raw_surprise, unknown.entropy, unknown.alive, bits(None)) == (None, None, None, None)
