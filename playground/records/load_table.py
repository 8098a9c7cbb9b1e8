"""The record of a load experiment as Markdown: baseline against speculative by load, and every request if wanted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial

from playground.errors import Text
from playground.measures import How, Quantity
from playground.measures.percentiles import percentile
from playground.measures.server_k import UNKNOWN, KVerdict, config_text, confirmed, confirmed_sentence
from playground.measures.server_load import SIDES, LevelSummary, LoadedRequest, LoadResult, Side, Spread, summary
from playground.measures.server_pasted import Pasted
from playground.records.table import table_line

COMPARED = ("load", "baseline ITL ms", "speculative ITL ms", "GPU", "acceptance", "speed-up")
LOADED = (
    "load", "server", "TTFT p50 / p95 / p99 ms", "TPOT p50 / p95 / p99 ms", "chunk gap p50 / p95 / p99 ms", "tokens/s", "goodput req/s",
    "tokens/forward", "KV most", "waiting most", "preemptions", "prefix hits", "answered", "failed",
)  # fmt: skip
REQUESTED = (
    "server", "load", "repeat", "prompt", "sent at s", "TTFT ms", "ITL p50 ms", "TPOT ms", "E2E s", "tokens", "tokens/chunk", "acceptance",
    "acceptance length", "ended",
)  # fmt: skip

#: The tables' own words in Chinese; numbers and names stay as they are.
WORDS = {
    "load": "负载", "baseline ITL ms": "基线 ITL 毫秒", "speculative ITL ms": "推测 ITL 毫秒", "acceptance": "接受率", "speed-up": "加速比",
    "server": "服务器", "TTFT p50 / p95 / p99 ms": "TTFT p50 / p95 / p99 毫秒", "TPOT p50 / p95 / p99 ms": "TPOT p50 / p95 / p99 毫秒",
    "chunk gap p50 / p95 / p99 ms": "块间隔 p50 / p95 / p99 毫秒", "tokens/s": "词元/秒", "goodput req/s": "有效吞吐 请求/秒",
    "tokens/forward": "词元/前向",
    "KV most": "KV 最高", "waiting most": "等待最多", "preemptions": "抢占", "prefix hits": "前缀命中", "answered": "完成", "failed": "失败",
    "repeat": "重复", "prompt": "提示词", "sent at s": "发送时刻 秒", "TTFT ms": "TTFT 毫秒", "ITL p50 ms": "ITL p50 毫秒", "TPOT ms": "TPOT 毫秒",
    "E2E s": "E2E 秒", "tokens": "词元", "tokens/chunk": "词元/块", "acceptance length": "接受长度", "ended": "结束", "baseline": "基线",
    "speculative": "推测", "n/a (remote)": "不适用（远程）", "n/a (no GPU read)": "不适用（未读到 GPU）", "length": "长度上限", "stop": "文本结束",
    "cancelled": "已停止", "error": "错误", "tokens/step": "词元/步", "step ms": "每步毫秒", "expected speed-up": "预期加速比",
}  # fmt: skip

_AMORTISED = Text(
    "ITL is amortised (chunk gap / its tokens, median); speed-up is by seconds per token after the first; (smallest–largest of the repeats).",
    "词元间隔为摊销值（数据块间隔 / 其词元数，中位数）；加速比按首词元之后的每词元秒数计算；（各次重复的最小–最大）。",
)
_NOTE = Text("Note: {text}", "注：{text}")
_WHICH_K = Text("Which k: {text}", "选哪个 k：{text}")
_HOW: dict[How, str] = {"measured": "实测", "derived": "推导", "estimated": "估计", "reported": "服务器报告"}
_ORDER = {"alternating": "交替测量", "restarted": "重启后先后测量"}


def markdown(result: LoadResult, verdict: KVerdict | None, requests: bool = False) -> Text:
    """The whole record in both languages; `requests` adds one row per request."""
    levels, known = summary(result), words(result)
    tables = [compared(result, levels), loaded(result, levels)]
    found = []
    for language in ("en", "zh"):
        said = partial(_said, language)
        lines = [*tables[0], "", said(_AMORTISED), "", *tables[1], ""]
        if tested := confirmed(result):
            assert result.confirms is not None
            setting = f"    --speculative-config '{config_text(result.confirms.config)}'"
            lines += [said(confirmed_sentence(tested)), "", *(f"- {said(one.sentence)}" for one in tested), "", setting, ""]
        else:
            lines += [*(verdict_lines(verdict, language) if verdict is not None else [said(UNKNOWN)]), ""]
        lines += [said(_NOTE).format(text=note.get(language, "")) for note in result.notes]
        lines += [said(one) for one in failures(result)]
        if requests:
            lines += ["", *requested(result)]
        lines += ["", said(about(result))]
        found.append("\n".join(lines if language == "en" else [in_words(line, known) for line in lines]))
    return Text(*found)


def _said(language: str, text: Text) -> str:
    return text.zh if language == "zh" else text.en


def words(result: LoadResult) -> dict[str, str]:
    """What of a table's cells has a Chinese word."""
    return WORDS | {level.text.en: level.text.zh for level in result.setup.levels}


def in_words(line: str, known: Mapping[str, str]) -> str:
    """A table's line with the words that are known; any other line as it is."""
    if not line.startswith("|") or is_rule(cells := cells_of(line)):
        return line
    return table_line([known.get(cell, cell) for cell in cells])


def cells_of(line: str) -> list[str]:
    """The cells of one line of a Markdown table."""
    return [cell.strip() for cell in line.strip().strip("|").split(" | ")]


def is_rule(cells: Sequence[str]) -> bool:
    """Whether these are the dashes under a table's head."""
    return all(cell and set(cell) <= {"-", ":"} for cell in cells)


def compared(result: LoadResult, levels: Sequence[LevelSummary]) -> list[str]:
    """baseline ITL | speculative ITL | GPU | acceptance | speed-up: medians of the repeats, with the smallest and the largest."""
    lines = [table_line(COMPARED), table_line(["---"] * len(COMPARED))]
    for level in levels:
        cells = [
            level.level.text.en, spread(level.baseline.get("itl_p50"), 1e3, 2), spread(level.speculative.get("itl_p50"), 1e3, 2),
            gpu(result, level), spread(level.speculative.get("acceptance"), 100, 1, " %"), spread(level.speed_up, 1, 2, "×"),
        ]  # fmt: skip
        lines.append(table_line(cells))
    return lines


def gpu(result: LoadResult, level: LevelSummary) -> str:
    """GPU of both servers, baseline first; where it can't be read, why."""
    told = []
    for side in SIDES:
        numbers = getattr(level, side)
        busy, memory = numbers.get("gpu_utilisation"), numbers.get("gpu_memory")
        if busy is None and memory is None:
            told.append("–")
        elif memory is None or memory.value is None:
            told.append("n/a (no GPU read)" if result.servers[side].here else "n/a (remote)")
        else:
            told.append(f"{spread(busy, 100, 0, ' %')}, {memory.value / 1e9:.1f} GB")
    return told[0] if told[0] == told[1] else " / ".join(told)


def loaded(result: LoadResult, levels: Sequence[LevelSummary]) -> list[str]:
    """One row per load and server: times by percentile, throughput, and what the server said of itself."""
    lines = [table_line(LOADED), table_line(["---"] * len(LOADED))]
    for level in levels:
        for side in SIDES:
            numbers: dict[str, Spread] = getattr(level, side)
            if not numbers:
                continue
            cells = [cell for cell in result.cells if cell.side == side and result.setup.levels[cell.level] == level.level]
            three = [" / ".join(plain(numbers[f"{name}_{q}"], 1e3, 1) for q in ("p50", "p95", "p99")) for name in ("ttft", "tpot", "chunk_gap")]
            lines.append(
                table_line(
                    [
                        level.level.text.en, side, *three, spread(numbers["throughput"], 1, 1), spread(numbers["goodput"], 1, 2),
                        plain(numbers["tokens_per_forward"], 1, 2), plain(numbers["kv_usage"], 100, 1, " %"), plain(numbers["waiting"], 1, 0),
                        plain(numbers["preemptions"], 1, 0), plain(numbers["prefix_hits"], 100, 1, " %"), sum(len(cell.whole) for cell in cells),
                        sum(len(cell.requests) - len(cell.whole) for cell in cells),
                    ]
                )
            )  # fmt: skip
    return lines


def verdict_lines(verdict: KVerdict, language: str = "en") -> list[str]:
    """Which k: the answer in one sentence, load by load, the server's setting, and how to confirm it."""
    said = partial(_said, language)
    lines = [said(_WHICH_K).format(text=said(verdict.sentence)), ""]
    lines += [f"- {said(level.sentence)}" for level in verdict.levels]
    lines += ["", "| load | k | tokens/step | step ms | expected speed-up |", "|---|---|---|---|---|"]
    for level in verdict.levels:
        for entry in level.expected:
            step = f"{number(entry.step, 1e3, 2)} ({_HOW[entry.step.how] if language == 'zh' else entry.step.how})"
            speed = f"{number(entry.speed_up, 1, 2)}× ({entry.low:.2f}–{entry.high:.2f})"
            lines.append(table_line([level.level.text.en, entry.k, number(entry.tokens, 1, 2), step, speed]))
    if verdict.config is not None:
        lines += ["", f"    --speculative-config '{config_text(verdict.config)}'"]
    return [*lines, "", said(verdict.config_note), said(verdict.confirm)]


def failures(result: LoadResult) -> list[Text]:
    """Every kind of failure once, with how often it happened to which server."""
    counted: Counter[tuple[Side, Text]] = Counter()
    for cell in result.cells:
        for request in cell.requests:
            if not request.whole:
                error = request.error or {}
                english = error.get("en") or request.ended
                counted[cell.side, Text(english, error.get("zh") or WORDS.get(request.ended, english))] += 1
    return [
        Text(
            f"Failed: {count} on {result.servers[side].name}: {' '.join(said.en.split())}",
            f"失败：{result.servers[side].name} 上 {count} 次：{' '.join(said.zh.split())}",
        )
        for (side, said), count in counted.items()
    ]


def requested(result: LoadResult) -> list[str]:
    """One row per request."""
    lines = [table_line(REQUESTED), table_line(["---"] * len(REQUESTED))]
    for cell in result.cells:
        for request in cell.requests:
            place = [cell.side, result.setup.levels[cell.level].text.en, cell.repeat + 1]
            lines.append(table_line([*place, *request_cells(request)]))
    return lines


def request_cells(request: LoadedRequest) -> list[str]:
    """A request's numbers as texts, from `prompt` on in `REQUESTED`; what isn't known is "–".

    TTFT and E2E have the digits from which TPOT = (E2E - TTFT) / (tokens - 1) follows.
    """
    counts = [count for count in request.chunk_tokens if count is not None]
    per_chunk = sum(counts) / len(counts) if counts and len(counts) == len(request.chunk_tokens) else None
    record = request.record
    rate, length = (record.acceptance_rate, record.mean_acceptance_length) if record is not None else (None, None)
    ended = request.ended if request.whole or request.error is None else f"{request.ended}: {request.code}"
    return [
        str(request.prompt + 1), f"{request.at:.2f}", scaled(request.ttft, 1e3, 2), scaled(percentile(sorted(request.token_latencies), 50), 1e3, 2),
        scaled(request.tpot, 1e3, 2), scaled(request.e2e, 1, 5), "–" if request.tokens is None else str(request.tokens), scaled(per_chunk, 1, 2),
        "–" if rate is None else number(rate, 100, 1) + " %", "–" if length is None else number(length, 1, 2), ended,
    ]  # fmt: skip


def about(result: LoadResult) -> Text:
    """What was asked of which servers, when, in one line."""
    setup = result.setup
    names = [
        f"{about.name} ({', '.join(filter(None, (about.kind, about.version, about.model)))})" for about in (result.servers[side] for side in SIDES)
    ]
    slo = [f"{name.upper()} ≤ {limit * 1e3:g} ms" for name, limit in (("ttft", result.slo.ttft), ("tpot", result.slo.tpot)) if limit is not None]
    asked = [
        Text(setup.strategy, setup.strategy), *(Text(f"{name}={value}", f"{name}={value}") for name, value in setup.knobs.items()),
        Text(f"max {setup.max_new_tokens} tokens", f"最多 {setup.max_new_tokens} 个词元"),
        *([Text("to the end whatever the model says (ignore_eos)", "一直写到上限（ignore_eos）")] if setup.ignore_eos else []),
        Text(
            f"{setup.prompt_count} prompts of {setup.prompts} ({setup.prompts_sha256[:8]})",
            f"{setup.prompts} 的 {setup.prompt_count} 条提示词（{setup.prompts_sha256[:8]}）",
        ),
        Text(f"{setup.repeats} repeat{'s' if setup.repeats > 1 else ''}, {setup.order}", f"重复 {setup.repeats} 次，{_ORDER[setup.order]}"),
        Text("unique prefixes", "前缀各不相同") if setup.unique_prefixes else Text("no unique prefixes", "无不同前缀"),
        Text(f"warm-up of {setup.warm_up} left out", f"不计 {setup.warm_up} 个预热请求"),
        *([Text(f"goodput: {', '.join(slo)}", f"有效吞吐：{'，'.join(slo)}")] if slo else []),
    ]  # fmt: skip
    versions = ", ".join(f"{name} {version}" for name, version in result.versions.items())
    english = [" against ".join(names), ", ".join(one.en for one in asked), f"{result.created} · client: {result.machine} · {versions}"]
    chinese = [" 对比 ".join(names), "，".join(one.zh for one in asked), f"{result.created} · 客户端：{result.machine} · {versions}"]
    if not result.complete:
        english, chinese = [*english, "stopped before its end"], [*chinese, "未完成即停止"]
    return Text(*(" · ".join(parts).replace("\n", " ") for parts in (english, chinese)))


def pasted_markdown(pasted: Pasted) -> str:
    """The ledger of two snapshots or two bench files: every number with its unit and how it was got, and the verdict."""
    lines = ["| figure | value | unit | how |", "|---|---|---|---|"]
    for quantity in pasted.ledger.values():
        lines.append(table_line([quantity.label.en, shown(quantity), quantity.unit, how(quantity)]))
    for quantities, after in ((pasted.positions, ""), (pasted.conditional, ", if the one before was")):
        lines += [table_line([f"{quantity.label.en}{after}", shown(quantity), quantity.unit, how(quantity)]) for quantity in quantities]
    lines += ["", pasted.verdict.en, *(f"Note: {note.en}" for note in pasted.notes)]
    if pasted.which_k is not None:
        lines += ["", *verdict_lines(pasted.which_k)]
    return "\n".join(lines)


def how(quantity: Quantity) -> str:
    formula = quantity.formula_text
    return f"{quantity.how}: {formula.en}" if formula is not None else quantity.how


def shown(quantity: Quantity) -> str:
    """A value with as many digits as it is worth; unknown is "–"."""
    value = quantity.value
    if not isinstance(value, (int, float)):
        return "–"
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"


def number(quantity: Quantity, factor: float, digits: int) -> str:
    return scaled(quantity.value if isinstance(quantity.value, (int, float)) else None, factor, digits)


def scaled(value: float | None, factor: float, digits: int) -> str:
    return "–" if value is None else f"{value * factor:.{digits}f}"


def plain(spread: Spread | None, factor: float, digits: int, unit: str = "") -> str:
    """A median alone."""
    return "–" if spread is None or spread.value is None else f"{spread.value * factor:.{digits}f}{unit}"


def spread(spread: Spread | None, factor: float, digits: int, unit: str = "") -> str:
    """A median with the smallest and the largest of the repeats, where there were several."""
    said = plain(spread, factor, digits, unit)
    if spread is None or spread.low is None or spread.high is None:
        return said
    return f"{said} ({spread.low * factor:.{digits}f}–{spread.high * factor:.{digits}f})"
