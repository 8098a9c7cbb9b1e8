"""What speculative decoding did on a server: one record, whichever server it was and wherever the figures come from.

In order of trust: the server's figures for this one request; the difference of two `/metrics` snapshots around it, which are
the whole server's and say so; else nothing is known. No rate is made of a figure that a server doesn't give.

- acceptance rate = accepted / drafted
- mean acceptance length = 1 + accepted / drafts: tokens per step that had a draft, before the end of the text cuts any off
- acceptance by position: accepted at position i / drafts (unconditional), and / accepted at position i - 1 (conditional)
- tokens per target forward = tokens / all decode forwards, those without a draft included; the figure that speed follows
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import Literal

from prometheus_client.parser import text_string_to_metric_families

from playground.errors import PlaygroundError, Text
from playground.measures import Quantity
from playground.measures.formula import Formula, evaluated, worked, written
from playground.trace import MetricsRead, ServerReported, SpeculationReported, Trace

_RATE = Text("acceptance rate", "接受率")
_LENGTH = Text("mean acceptance length", "平均接受长度")
_PER_FORWARD = Text("tokens per target forward", "每次目标前向的词元数")
_POSITION = Text("accepted at position {n}", "第 {n} 位的接受率")
_OF_ALL = Text("accepted here / drafts", "此位接受 / 草稿次数")
_REACHED = Text("accepted here / accepted before", "此位接受 / 前一位接受")
#: How the target's forwards are counted.
_BY_ITERATIONS = Text("Δ engine iterations, prompt included", "Δ 引擎迭代次数，含提示词")
_BY_ACCEPTED = Text("tokens − accepted", "词元 − 接受")
_BY_STEPS = Text("steps with a draft + steps without: tokens − steps − accepted", "有草稿的步数 + 无草稿的步数：词元 − 步数 − 接受")
_CUT_OFF = Text(
    "steps with a draft + the first token's: the text ended inside the last draft", "有草稿的步数 + 首词元的一次：文本在最后一个草稿内结束"
)

_FORWARDS = Text("target forwards", "目标前向次数")
#: How each of them is worked out of one request's figures.
_WORKED_FORWARDS = {
    _BY_ACCEPTED: "{tokens} − {accepted}",
    _BY_STEPS: "{steps} + ({tokens} − {steps} − {accepted})",
    _CUT_OFF: "{steps} + 1",
}

#: Sample names without their prefix (vllm:, llamacpp:) → the field of `Counters` that they add to.
_COUNTED = {
    "spec_decode_num_drafts_total": "drafts",
    "spec_decode_num_draft_tokens_total": "drafted",
    "spec_decode_num_accepted_tokens_total": "accepted",
    "generation_tokens_total": "tokens",
    "tokens_predicted_total": "tokens",
    "prompt_tokens_total": "prompt_tokens",
    "iteration_tokens_total_count": "iterations",
    "request_success_total": "requests",
    "num_preemptions_total": "preemptions",
    "prefix_cache_queries_total": "prefix_queries",
    "prefix_cache_hits_total": "prefix_hits",
    "num_requests_running": "running",
    "requests_processing": "running",
    "num_requests_waiting": "waiting",
    "requests_deferred": "waiting",
    "kv_cache_usage_perc": "kv_usage",
    "gpu_cache_usage_perc": "kv_usage",
    "kv_cache_usage_ratio": "kv_usage",
}
_PER_POSITION = "spec_decode_num_accepted_tokens_per_pos_total"
_STARTED = "process_start_time_seconds"
#: Gauges: what they say holds at the moment of the snapshot, and no difference of them means anything.
_GAUGES = frozenset({"running", "waiting", "kv_usage", "started"})

#: More guesses than any server makes: a larger position is no position.
LARGEST_K = 1000

NOT_METRICS = Text("This is no /metrics page of a server: paste the whole text of one.", "这不是服务器的 /metrics 页面：请粘贴完整文本。")


@dataclass(frozen=True)
class Counters:
    """One `/metrics` snapshot, summed over engines; what it doesn't hold is None. `kv_usage` is a share, the highest of any engine."""

    drafts: float | None = None
    drafted: float | None = None
    accepted: float | None = None
    per_position: tuple[float, ...] | None = None
    tokens: float | None = None
    prompt_tokens: float | None = None
    iterations: float | None = None
    requests: float | None = None
    preemptions: float | None = None
    prefix_queries: float | None = None
    prefix_hits: float | None = None
    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None
    started: float | None = None


def counters(text: str) -> Counters:
    """Read a snapshot in Prometheus' text format. Raises `PlaygroundError` where it is none."""
    found: dict[str, float] = {}
    positions: Counter[int] = Counter()
    try:
        for family in text_string_to_metric_families(text if text.endswith("\n") else text + "\n"):
            for sample in family.samples:
                if not math.isfinite(sample.value):
                    continue
                name = sample.name.rpartition(":")[2]
                if name == _PER_POSITION:
                    positions[int(sample.labels["position"])] += sample.value
                elif name == _STARTED:
                    found["started"] = sample.value
                elif (field := _COUNTED.get(name)) == "kv_usage":
                    found[field] = max(found.get(field, 0.0), sample.value)
                elif field is not None:
                    found[field] = found.get(field, 0.0) + sample.value
    except (ValueError, KeyError, IndexError, AttributeError, TypeError) as error:
        raise PlaygroundError("metrics_broken", NOT_METRICS) from error
    if not found and not positions:
        raise PlaygroundError("metrics_broken", NOT_METRICS)
    per_position = tuple(positions[i] for i in range(max(positions) + 1)) if positions and max(positions) < LARGEST_K else None
    return Counters(**found, per_position=per_position)


def difference(before: Counters, after: Counters) -> Counters | None:
    """What was counted between two snapshots; None if the server was started anew between them. Gauges are the later ones."""
    if before.started is not None and after.started is not None and before.started != after.started:
        return None
    found: dict[str, float | None] = {}
    for name in vars(after):
        if name == "per_position":
            continue
        early, late = getattr(before, name), getattr(after, name)
        if name in _GAUGES or late is None:
            found[name] = late
        else:
            found[name] = late - (early or 0.0)  # a counter appears with the first thing that it counts
    positions = None
    if after.per_position is not None:
        early_positions = (before.per_position or ()) + (0.0,) * len(after.per_position)
        positions = tuple(late - early for late, early in zip(after.per_position, early_positions, strict=False))
    moved = [value for name, value in found.items() if name not in _GAUGES and value is not None]
    if any(value < 0 for value in (*moved, *(positions or ()))):
        return None
    return Counters(**found, per_position=positions)  # type: ignore[arg-type]


@dataclass(frozen=True)
class SpeculationRecord:
    """The ledger of one request, or of a window on a server; None is what is not known.

    `steps` are target forwards that had a draft. `by_position[i]` counts the drafts whose guess i was accepted.
    `window` is in seconds and `other_tokens` what the server wrote for others in it: only for `counters`.
    """

    source: Literal["request", "counters", "unknown"]
    fields: str = ""
    steps: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    most: int | None = None
    by_position: tuple[int, ...] | None = None
    histogram: tuple[int, ...] | None = None
    reported_length: float | None = None
    per_step_drafted: tuple[int, ...] | None = None
    per_step_accepted: tuple[int, ...] | None = None
    tokens: int | None = None
    forwards: int | None = None
    forwards_formula: Text | None = None
    window: float | None = None
    other_tokens: int | None = None

    @property
    def acceptance_rate(self) -> Quantity:
        rate = self.accepted / self.drafted if self.accepted is not None and self.drafted else None
        formula = self._of("accepted / drafted", "接受 / 草稿", "{accepted} / {drafted}", accepted=self.accepted, drafted=self.drafted)
        return Quantity(rate, "1", "derived", _RATE, formula)

    @property
    def mean_acceptance_length(self) -> Quantity:
        if self.reported_length is not None:
            return Quantity(self.reported_length, "tokens", "reported", _LENGTH, self.fields)
        length = 1 + self.accepted / self.steps if self.accepted is not None and self.steps else None
        words = ("1 + accepted / steps with a draft", "1 + 接受 / 有草稿的步数")
        formula = self._of(*words, "1 + {accepted} / {steps}", accepted=self.accepted, steps=self.steps)
        return Quantity(length, "tokens", "derived", _LENGTH, formula)

    @property
    def target_forwards(self) -> Quantity:
        """How many forwards of the target there were, and by which count."""
        formula: Text | Formula | None = self.forwards_formula
        if self.forwards_formula in _WORKED_FORWARDS:
            counts = {"tokens": self.tokens, "accepted": self.accepted, "steps": self.steps}
            arithmetic = _WORKED_FORWARDS[self.forwards_formula]
            found = worked(self.forwards_formula, arithmetic, written("1"), **{name: n for name, n in counts.items() if f"{{{name}}}" in arithmetic})
            # Of several requests together it needn't come out: each of them may have been cut off.
            formula = found if found.arithmetic and evaluated(found.arithmetic) == self.forwards else self.forwards_formula
        return Quantity(self.forwards, "1", "derived", _FORWARDS, formula)

    @property
    def tokens_per_forward(self) -> Quantity:
        known = self.tokens / self.forwards if self.tokens is not None and self.forwards else None
        by = self.forwards_formula
        formula = None
        if by is not None:
            words = Text(f"tokens / ({by.en})", f"词元 / ({by.zh})")
            formula = worked(words, "{tokens} / {forwards}", written("tokens"), tokens=self.tokens, forwards=self.forwards)
        return Quantity(known, "tokens", "derived", _PER_FORWARD, formula)

    def position_rates(self, conditional: bool = False) -> list[Quantity]:
        """Acceptance by position, of all drafts or of those whose guess before was accepted; unknown where nothing got that far."""
        if self.by_position is None or not self.steps:
            return []
        reached = [self.steps, *self.by_position[:-1]] if conditional else [self.steps] * len(self.by_position)
        words = _REACHED if conditional else _OF_ALL
        return [
            Quantity(
                count / n if n else None, "1", "derived", _POSITION.filled(n=i), worked(words, "{count} / {n}", written("1"), count=count, n=n)
            )
            for i, (count, n) in enumerate(zip(self.by_position, reached, strict=True), 1)
        ]  # fmt: skip

    def _of(self, english: str, chinese: str, arithmetic: str, **counts: int | None) -> Formula:
        """A formula with the fields that went into it, and whose they are."""
        words = Text(english, chinese)
        if self.fields:
            whole = Text(", whole server", "，整个服务器") if self.source == "counters" else Text("", "")
            words = Text(f"{english} ({self.fields}{whole.en})", f"{chinese}（{self.fields}{whole.zh}）")
        return worked(words, arithmetic, written("1"), **counts)


def speculation_record(trace: Trace, lane: int) -> SpeculationRecord:
    """What speculation did in one server lane, from the best source that its events hold."""
    reported = next(iter(trace.of(lane, SpeculationReported)), None)
    figures = next(iter(trace.of(lane, ServerReported)), None)
    tokens = figures.completion_tokens if figures is not None else None
    if reported is not None:
        return record_of_request(reported, tokens)
    snapshots = list(trace.of(lane, MetricsRead))
    if len(snapshots) < 2:
        return SpeculationRecord("unknown")
    try:
        found = between(snapshots[0].text, snapshots[-1].text, tokens)
    except PlaygroundError:
        return SpeculationRecord("unknown")
    return replace(found, window=snapshots[-1].at - snapshots[0].at)


def between(before: str, after: str, own_tokens: int | None = None) -> SpeculationRecord:
    """The record of the time between two snapshots of a server; `own_tokens` are those that are known to be ours.

    Raises `PlaygroundError` for texts that are no snapshots.
    """
    moved = difference(counters(before), counters(after))
    if moved is None or moved.drafts is None:
        return SpeculationRecord("unknown")
    other = None if own_tokens is None or moved.tokens is None else max(round(moved.tokens) - own_tokens, 0)
    # Engine iterations are forwards of one request only while it is alone.
    alone = own_tokens is None or other == 0
    forwards = round(moved.iterations) if moved.iterations and alone else None
    return SpeculationRecord(
        source="counters",
        fields="spec_decode counters of /metrics",
        steps=round(moved.drafts),
        drafted=_round(moved.drafted),
        accepted=_round(moved.accepted),
        most=len(moved.per_position) if moved.per_position is not None else None,
        by_position=tuple(map(round, moved.per_position)) if moved.per_position is not None else None,
        tokens=_round(moved.tokens),
        forwards=forwards,
        forwards_formula=_BY_ITERATIONS if forwards else None,
        other_tokens=other,
    )


def _round(value: float | None) -> int | None:
    return None if value is None else round(value)


def record_of_request(told: SpeculationReported, tokens: int | None) -> SpeculationRecord:
    """The ledger of one request from what its server said of it; `tokens` is how many it wrote."""
    histogram = told.histogram
    if histogram is None and told.per_step_accepted is not None:
        most = told.most or max(told.per_step_accepted, default=0)
        histogram = tuple(told.per_step_accepted.count(n) for n in range(most + 1)) if most < LARGEST_K else None
    forwards, formula = _forwards(told, tokens)
    return SpeculationRecord(
        source="request",
        fields=told.source,
        steps=told.steps,
        drafted=told.drafted,
        accepted=told.accepted,
        most=told.most,
        by_position=tuple(sum(histogram[i:]) for i in range(1, len(histogram))) if histogram is not None else None,
        histogram=histogram,
        reported_length=told.mean_acceptance_length,
        per_step_drafted=told.per_step_drafted,
        per_step_accepted=told.per_step_accepted,
        tokens=tokens,
        forwards=forwards,
        forwards_formula=formula,
    )


def _forwards(told: SpeculationReported, tokens: int | None) -> tuple[int | None, Text | None]:
    """How many forwards of the target wrote the text.

    Each writes one token of its own besides the accepted ones, so there are tokens - accepted of them; where the text
    ended inside a draft some accepted tokens were never written, and at least the first token's forward had no draft.
    """
    if tokens is None or told.accepted is None:
        return None, None
    if told.steps is None:
        forwards = tokens - told.accepted
        return (forwards, _BY_ACCEPTED) if forwards > 0 else (None, None)
    without = tokens - told.steps - told.accepted
    if without >= 1:
        return told.steps + without, _BY_STEPS
    return told.steps + 1, _CUT_OFF
