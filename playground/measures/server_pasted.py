"""Without connecting to a server: what two pasted `/metrics` snapshots, or two `vllm bench serve` result files, say.

From two snapshots of one speculating server follow its acceptance, its tokens per step and its seconds per step (vLLM's ITL
histogram has one entry per engine output, which is one step of one request). Whether it pays then hangs on one
number that the snapshots don't hold: the seconds per token without speculation. The verdict names the number to beat.
Two bench files, one of them without speculation, hold that too.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from playground.errors import BadValue, PlaygroundError, Text
from playground.measures import Quantity
from playground.measures.server_k import KVerdict, Repeat, draft_shape, level_verdict, verdict
from playground.measures.server_load import Level
from playground.measures.server_speculation import NOT_METRICS, SpeculationRecord, between, counters, difference

MOST_SNAPSHOT_BYTES = 5_000_000
MOST_BENCH_BYTES = 50_000_000
#: Positions that a bench file may name.
MOST_POSITIONS = 200

_SUMS = ("inter_token_latency_seconds", "time_to_first_token_seconds", "e2e_request_latency_seconds")


@dataclass(frozen=True)
class Pasted:
    """What the two texts say: the ledger by name, acceptance by position, remarks, one verdict, and which k where that follows."""

    ledger: dict[str, Quantity]
    positions: tuple[Quantity, ...]
    conditional: tuple[Quantity, ...]
    notes: tuple[Text, ...]
    verdict: Text
    which_k: KVerdict | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "ledger": {name: quantity.to_json() for name, quantity in self.ledger.items()},
            "positions": [quantity.to_json() for quantity in self.positions],
            "conditional": [quantity.to_json() for quantity in self.conditional],
            "notes": [note.to_json() for note in self.notes],
            "verdict": self.verdict.to_json(),
            "which_k": None if self.which_k is None else self.which_k.to_json(),
        }


# --- two snapshots --------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Identity:
    """Whose snapshot it is: its models, its engines, its kind by the names it uses; and the sums of its histograms."""

    models: frozenset[str]
    engines: frozenset[str]
    kinds: frozenset[str]
    sums: dict[str, float]


def from_snapshots(before: str, after: str, seconds: float | None = None) -> Pasted:
    """The ledger of the time between two snapshots of one server; `seconds` is how long that was, if it is known.

    Raises `PlaygroundError` for texts that are no snapshots, and where they can't be of one run of one server.
    """
    for text in (before, after):
        if len(text.encode("utf-8", "replace")) > MOST_SNAPSHOT_BYTES:
            text_ = Text("A snapshot may have {most} MB.", "快照最多 {most} MB。")
            raise BadValue("metrics_size", text_, most=MOST_SNAPSHOT_BYTES // 10**6)
    if seconds is not None and not (0 < seconds < 1e9 and math.isfinite(seconds)):
        raise BadValue("window", Text("The window is a number of seconds above 0.", "时间窗口应为大于 0 的秒数。"))
    before, after = before.replace("\r\n", "\n"), after.replace("\r\n", "\n")
    early, late = counters(before), counters(after)
    first, last = _identity(before), _identity(after)
    _same_server(first, last)
    if early.started is not None and late.started is not None and early.started != late.started:
        raise PlaygroundError(
            "metrics_restarted",
            Text(
                "The snapshots come from two starts of a server: it was restarted in between, or they are of two servers. "
                "Counters began anew, so no difference means anything.",
                "两个快照来自服务器的两次启动：期间重启过，或来自两台服务器。计数器已重新开始，差值没有意义。",
            ),
        )  # fmt: skip
    moved = difference(early, late)
    if moved is None:
        swapped = difference(late, early) is not None
        text = (
            Text("The second snapshot is the older one: swap them.", "第二个快照更早：请交换两者。")
            if swapped
            else Text("Some counters went down: the server was restarted in between.", "部分计数器变小了：期间服务器重启过。")
        )
        raise PlaygroundError("metrics_swapped" if swapped else "metrics_restarted", text)
    record = between(before, after)
    notes = []
    if moved.running or moved.waiting:
        notes.append(
            Text(
                "Requests were running when the second snapshot was taken: their steps are counted in part.",
                "取第二个快照时仍有请求在运行：它们的步骤只计入了一部分。",
            )
        )
    if seconds is None:
        notes.append(
            Text(
                "Snapshots hold no time: give the seconds between them to see rates per second.", "快照不含时间：填写两者相隔的秒数即可看到每秒速率。"
            )
        )
    if record.source == "unknown":
        notes.append(
            Text(
                "There are no counters of speculation: the server runs without it, or its version doesn't publish them.",
                "没有推测解码的计数器：服务器未开启推测解码，或其版本不提供这些数据。",
            )
        )
    sums = {name: last.sums[name] - first.sums.get(name, 0.0) for name in last.sums}
    steps, firsts = sums.get("inter_token_latency_seconds_count"), sums.get("time_to_first_token_seconds_count")
    decode = sums.get("inter_token_latency_seconds_sum")
    later = moved.tokens - firsts if moved.tokens is not None and firsts is not None else None
    per_step = later / steps if later is not None and later > 0 and steps else None
    per_token = decode / later if decode is not None and later is not None and later > 0 else None
    step = decode / steps if decode is not None and steps else None
    hits = moved.prefix_hits / moved.prefix_queries if moved.prefix_hits is not None and moved.prefix_queries else None
    ledger = {
        "requests": _count(moved.requests, Text("requests finished", "完成的请求"), "requests"),
        "tokens": _count(moved.tokens, Text("tokens written", "生成的词元"), "tokens"),
        "prompt_tokens": _count(moved.prompt_tokens, Text("prompt tokens", "提示词元"), "tokens"),
        "drafts": _count(record.steps, Text("steps with a draft", "有草稿的步数"), "steps"),
        "drafted": _count(record.drafted, Text("tokens drafted", "草稿词元"), "tokens"),
        "accepted": _count(record.accepted, Text("tokens accepted", "接受的词元"), "tokens"),
        "acceptance": record.acceptance_rate,
        "acceptance_length": record.mean_acceptance_length,
        "tokens_per_step": Quantity(
            per_step,
            "tokens",
            "derived",
            Text("tokens per step", "每步词元数"),
            Text("Δ (tokens − first tokens) / Δ ITL entries, all steps", "Δ (词元 − 首词元) / Δ ITL 条目，所有步"),
        ),
        "seconds_per_step": Quantity(
            step,
            "s",
            "derived",
            Text("seconds per step", "每步秒数"),
            Text("Δ ITL sum / Δ ITL entries, by the server", "Δ ITL 总和 / Δ ITL 条目，服务器报告"),
        ),
        "seconds_per_token": Quantity(
            per_token,
            "s",
            "derived",
            Text("seconds per token", "每词元秒数"),
            Text("Δ ITL sum / Δ (tokens − first tokens), by the server", "Δ ITL 总和 / Δ (词元 − 首词元)，服务器报告"),
        ),
        "preemptions": _count(moved.preemptions, Text("preemptions", "抢占次数"), "times"),
        "prefix_hits": Quantity(
            hits, "1", "derived", Text("prefix-cache hit rate", "前缀缓存命中率"), Text("Δ hits / Δ queries, in tokens", "Δ 命中 / Δ 查询，按词元")
        ),
        "running": Quantity(moved.running, "requests", "reported", Text("requests running at the end", "结束时运行中的请求")),
        "waiting": Quantity(moved.waiting, "requests", "reported", Text("requests waiting at the end", "结束时等待中的请求")),
        "kv_usage": Quantity(moved.kv_usage, "1", "reported", Text("KV cache used at the end", "结束时 KV 缓存占用")),
        "window": Quantity(seconds, "s", "reported", Text("window", "时间窗口"), Text("as given", "按所填")),
        "tokens_per_second": Quantity(
            moved.tokens / seconds if seconds and moved.tokens is not None else None,
            "1/s",
            "derived",
            Text("tokens/s, all", "词元/秒（合计）"),
            Text("Δ tokens / window", "Δ 词元 / 时间窗口"),
        ),
    }
    return Pasted(
        ledger,
        tuple(record.position_rates()),
        tuple(record.position_rates(conditional=True)),
        tuple(notes),
        _to_beat(record, per_step, per_token, step),
    )


def _identity(text: str) -> _Identity:
    models, engines, kinds, sums = set(), set(), set(), Counter()
    try:
        for family in text_string_to_metric_families(text if text.endswith("\n") else text + "\n"):
            for sample in family.samples:
                prefix, _, name = sample.name.rpartition(":")
                if prefix:
                    kinds.add(prefix)
                    models.add(sample.labels.get("model_name", ""))
                    engines.add(sample.labels.get("engine", ""))
                stem, _, part = name.rpartition("_")
                if stem in _SUMS and part in ("sum", "count"):
                    sums[name] += sample.value
    except (ValueError, KeyError, IndexError, AttributeError, TypeError) as error:
        raise PlaygroundError("metrics_broken", NOT_METRICS) from error
    return _Identity(frozenset(models - {""}), frozenset(engines - {""}), frozenset(kinds), dict(sums))


def _same_server(first: _Identity, last: _Identity) -> None:
    """Raise where two snapshots name different servers: programs, models or engines."""
    pairs = (
        ("program", "程序", first.kinds, last.kinds),
        ("model", "模型", first.models, last.models),
        ("engine", "引擎", first.engines, last.engines),
    )
    for what, what_zh, one, other in pairs:
        if one and other and not (one <= other or other <= one):
            raise PlaygroundError(
                "metrics_mismatch",
                Text(
                    "The snapshots are of different servers: the first names {what} {one}, the second {other}.",
                    "两个快照来自不同的服务器：第一个的{what_zh}是 {one}，第二个是 {other}。",
                ),
                what=what, what_zh=what_zh, one=", ".join(sorted(one))[:100], other=", ".join(sorted(other))[:100],
            )  # fmt: skip


def _to_beat(record: SpeculationRecord, per_step: float | None, per_token: float | None, step: float | None) -> Text:
    """One sentence: how much slower a step may be for speculation to pay, and which plain latency it has to beat."""
    if record.source == "unknown":
        if per_token is None:
            return Text("Nothing follows for speculation from these snapshots.", "这两个快照无法说明推测解码的情况。")
        return Text(
            f"Without speculation this server took {per_token * 1e3:.2f} ms per token: that is what a speculative run has to beat.",
            f"未开启推测解码时，此服务器每词元 {per_token * 1e3:.2f} ms：推测解码须快于此值。",
        )
    if not record.steps:
        return Text("No draft was made between the snapshots: speculation did nothing.", "两个快照之间没有产生草稿：推测解码没有起作用。")
    length = record.mean_acceptance_length.value
    tokens = per_step if per_step is not None else length
    if not isinstance(tokens, (int, float)):
        return Text("The counters don't tell how many tokens a step wrote.", "计数器无法说明每步写了多少词元。")
    whose = Text("a step wrote", "每步平均写出") if per_step is not None else Text("a step with a draft wrote", "有草稿的一步平均写出")
    if per_token is None or step is None:
        return Text(
            f"On average {whose.en} {tokens:.2f} tokens: speculation pays if such a step takes less than {tokens:.2f} times a plain one.",
            f"{whose.zh} {tokens:.2f} 个词元：若这样一步的耗时不到普通一步的 {tokens:.2f} 倍，推测解码就有收益。",
        )
    return Text(
        f"On average {whose.en} {tokens:.2f} tokens in {step * 1e3:.2f} ms: {per_token * 1e3:.2f} ms per token. "
        f"It pays if the same server without speculation takes longer than {per_token * 1e3:.2f} ms per token under this load, else leave it off.",
        f"{whose.zh} {tokens:.2f} 个词元，用时 {step * 1e3:.2f} ms，即每词元 {per_token * 1e3:.2f} ms。"
        f"若同一服务器在同样负载下不开推测解码时每词元超过 {per_token * 1e3:.2f} ms，则值得开启，否则不要开启。",
    )


def _count(value: float | None, label: Text, unit: str) -> Quantity:
    return Quantity(
        None if value is None else round(value),
        unit,
        "reported",
        label,
        Text("difference of /metrics counters, whole server", "/metrics 计数器之差，整个服务器"),
    )


# --- two bench results ----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Bench:
    """What is used of a `vllm bench serve` result; None is what it doesn't hold. Seconds."""

    model: str | None
    prompts: float | None
    concurrency: float | None
    rate: float | None
    completed: float | None
    failed: float | None
    duration: float | None
    output_tokens: float | None
    throughput: float | None
    goodput: float | None
    ttft: dict[str, float | None]
    tpot: dict[str, float | None]
    itl: dict[str, float | None]
    record: SpeculationRecord


def from_bench(first: str | bytes, second: str | bytes) -> Pasted:
    """The comparison of two `vllm bench serve --save-result` files; the one with figures on speculation is the speculative one.

    Raises `PlaygroundError` for files that are none, and where both or neither speculated.
    """
    a, b = _bench(first), _bench(second)
    if (a.record.source == "unknown") == (b.record.source == "unknown"):
        both = a.record.source != "unknown"
        raise PlaygroundError(
            "bench_sides",
            Text(
                "Both files hold figures on speculation: one has to be the baseline without it.",
                "两个文件都含推测解码数据：其中一个应是未开启推测解码的基线。",
            )
            if both
            else Text(
                "Neither file holds figures on speculation: one has to come from a server with --speculative-config.",
                "两个文件都不含推测解码数据：其中一个应来自带 --speculative-config 的服务器。",
            ),
        )
    base, spec = (a, b) if a.record.source == "unknown" else (b, a)
    notes = [*_differences(base, spec)]
    before, after = base.tpot["mean"], spec.tpot["mean"]
    ratio = before / after if before and after else None
    throughput = spec.throughput / base.throughput if base.throughput and spec.throughput else None
    ledger: dict[str, Quantity] = {}
    for side, found in (("baseline", base), ("speculative", spec)):
        label, label_zh = side, {"baseline": "基线", "speculative": "推测"}[side]
        ledger[f"{side}_requests"] = _told(found.completed, "requests", f"{label}: requests", f"{label_zh}：请求")
        ledger[f"{side}_failed"] = _told(found.failed, "requests", f"{label}: failed", f"{label_zh}：失败")
        for name, values in (("ttft", found.ttft), ("tpot", found.tpot), ("itl", found.itl)):
            shown = "chunk gap (ITL)" if name == "itl" else name.upper()
            for which, value in values.items():
                ledger[f"{side}_{name}_{which}"] = _told(value, "s", f"{label}: {shown} {which}", f"{label_zh}：{shown} {which}")
        ledger[f"{side}_throughput"] = _told(found.throughput, "1/s", f"{label}: output tokens/s", f"{label_zh}：输出词元/秒")
        ledger[f"{side}_goodput"] = _told(found.goodput, "1/s", f"{label}: goodput, requests/s", f"{label_zh}：有效吞吐（请求/秒）")
    record = spec.record
    ledger |= {
        "drafts": _told(record.steps, "steps", "steps with a draft", "有草稿的步数"),
        "drafted": _told(record.drafted, "tokens", "tokens drafted", "草稿词元"),
        "accepted": _told(record.accepted, "tokens", "tokens accepted", "接受的词元"),
        "acceptance": record.acceptance_rate,
        "acceptance_length": record.mean_acceptance_length,
        "speed_up": Quantity(
            ratio, "x", "derived", Text("speed-up", "加速比"), Text("baseline mean TPOT / speculative mean TPOT", "基线平均 TPOT / 推测平均 TPOT")
        ),
        "throughput_ratio": Quantity(
            throughput,
            "x",
            "derived",
            Text("throughput ratio", "吞吐比"),
            Text("speculative output tokens/s / baseline output tokens/s", "推测输出词元每秒 / 基线输出词元每秒"),
        ),
    }
    shape = draft_shape(record, round(spec.completed or 0))
    answer = None
    if shape is not None and before and after:
        answer = verdict([level_verdict(_level(spec), [Repeat(before, after, *shape)])])
    return Pasted(ledger, tuple(record.position_rates()), tuple(record.position_rates(conditional=True)), tuple(notes), _bench_verdict(ratio), answer)


def _bench_verdict(ratio: float | None) -> Text:
    if ratio is None:
        return Text("The files don't hold a TPOT on both sides: nothing follows.", "两个文件并非都含 TPOT：无法得出结论。")
    once = Text("One run each: how much it scatters isn't known.", "每侧只有一次测量：离散程度未知。")
    if ratio > 1:
        return Text(f"Speculation paid: {ratio:.2f}× by mean TPOT. {once.en}", f"推测解码有收益：按平均 TPOT 为 {ratio:.2f}×。{once.zh}")
    return Text(f"Leave it off: {ratio:.2f}× by mean TPOT. {once.en}", f"不要开启：按平均 TPOT 为 {ratio:.2f}×。{once.zh}")


def _bench(text: str | bytes) -> _Bench:
    broken = Text("This file is not a result of `vllm bench serve --save-result`.", "这个文件不是 `vllm bench serve --save-result` 的结果。")
    if len(text) > MOST_BENCH_BYTES:
        raise PlaygroundError("bench_broken", broken)
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PlaygroundError("bench_broken", broken) from error
    if not isinstance(raw, dict) or not {"duration", "completed"} <= set(raw):
        raise PlaygroundError("bench_broken", broken)

    def number(name: str, scale: float = 1.0) -> float | None:
        value = raw.get(name)
        good = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e18 and value >= 0
        return value * scale if good else None

    def times(name: str) -> dict[str, float | None]:
        return {which: number(f"{which}_{name}_ms", 1e-3) for which in ("mean", "median", "p99")}

    model = raw.get("model_id")
    return _Bench(
        model=model[:200] if isinstance(model, str) else None,
        prompts=number("num_prompts"),
        concurrency=number("max_concurrency"),
        rate=number("request_rate"),
        completed=number("completed"),
        failed=number("failed"),
        duration=number("duration"),
        output_tokens=number("total_output_tokens"),
        throughput=number("output_throughput"),
        goodput=number("request_goodput"),
        ttft=times("ttft"),
        tpot=times("tpot"),
        itl=times("itl"),
        record=_bench_record(raw, number),
    )


def _bench_record(raw: dict[str, Any], number: Any) -> SpeculationRecord:
    drafts, drafted, accepted = (number(f"spec_decode_{name}") for name in ("num_drafts", "draft_tokens", "accepted_tokens"))
    if drafts is None and number("spec_decode_acceptance_length") is None:
        return SpeculationRecord("unknown")
    rates = raw.get("spec_decode_per_position_acceptance_rates")
    good = isinstance(rates, list) and 0 < len(rates) <= MOST_POSITIONS and all(isinstance(rate, (int, float)) and 0 <= rate <= 1 for rate in rates)
    tokens = number("total_output_tokens")
    return SpeculationRecord(
        "counters",
        "spec_decode_* of the result file",
        steps=None if drafts is None else round(drafts),
        drafted=None if drafted is None else round(drafted),
        accepted=None if accepted is None else round(accepted),
        most=len(rates) if good else None,
        by_position=tuple(round(rate * drafts) for rate in rates) if good and drafts is not None else None,
        reported_length=number("spec_decode_acceptance_length") if drafts is None else None,
        tokens=None if tokens is None else round(tokens),
    )


def _level(bench: _Bench) -> Level:
    if bench.concurrency is not None and 1 <= bench.concurrency <= 4096:
        return Level(concurrency=round(bench.concurrency))
    if bench.rate is not None and 0 < bench.rate <= 1e6:
        return Level(rate=bench.rate)
    return Level(concurrency=max(min(round(bench.prompts or 1), 4096), 1))


def _differences(base: _Bench, spec: _Bench) -> list[Text]:
    """In what else than speculation the two runs differ: each of them spoils the comparison."""
    named = (
        ("model", "模型", base.model, spec.model), ("number of prompts", "提示词数", base.prompts, spec.prompts),
        ("concurrency", "并发数", base.concurrency, spec.concurrency), ("request rate", "请求速率", base.rate, spec.rate),
    )  # fmt: skip
    notes = [
        Text(f"The runs differ in {what}: {_plain(one)} and {_plain(other)}.", f"两次测量的{zh}不同：{_plain(one)} 与 {_plain(other)}。")
        for what, zh, one, other in named
        if one != other
    ]
    if base.output_tokens and spec.output_tokens and abs(base.output_tokens / spec.output_tokens - 1) > 0.02:
        notes.append(
            Text(
                f"They wrote different numbers of tokens: {base.output_tokens:.0f} and {spec.output_tokens:.0f}.",
                f"两次生成的词元数不同：{base.output_tokens:.0f} 与 {spec.output_tokens:.0f}。",
            )
        )
    if base.failed or spec.failed:
        notes.append(Text("Some requests failed; the times are of the others.", "部分请求失败；时间数据来自其余请求。"))
    return notes


def _plain(value: str | float | None) -> str:
    return "–" if value is None else f"{value:g}" if isinstance(value, (int, float)) else value


def _told(value: float | None, unit: str, en: str, zh: str) -> Quantity:
    return Quantity(value, unit, "reported", Text(en, zh), Text("result file", "结果文件"))
