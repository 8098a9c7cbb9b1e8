"""The record of a load experiment as Markdown: baseline against speculative by load, and every request if wanted."""

from __future__ import annotations

from collections.abc import Sequence

from playground.measures import Quantity
from playground.measures.percentiles import percentile
from playground.measures.server_k import UNKNOWN, KVerdict, config_text
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


def markdown(result: LoadResult, verdict: KVerdict | None, requests: bool = False) -> str:
    """The whole record; `requests` adds one row per request."""
    levels = summary(result)
    lines = [*compared(result, levels), "", *loaded(result, levels), ""]
    lines += [*(verdict_lines(verdict) if verdict is not None else [UNKNOWN.en]), ""]
    lines += [f"Note: {note.get('en', '')}" for note in result.notes]
    lines += failures(result)
    if requests:
        lines += ["", *requested(result)]
    return "\n".join([*lines, "", about(result)])


def compared(result: LoadResult, levels: Sequence[LevelSummary]) -> list[str]:
    """baseline ITL | speculative ITL | GPU | acceptance | speed-up: medians of the repeats, with the smallest and the largest."""
    lines = [table_line(COMPARED), table_line(["---"] * len(COMPARED))]
    for level in levels:
        cells = [
            level.level.text.en, spread(level.baseline.get("itl_p50"), 1e3, 2), spread(level.speculative.get("itl_p50"), 1e3, 2),
            gpu(result, level), spread(level.speculative.get("acceptance"), 100, 1, " %"), spread(level.speed_up, 1, 2, "×"),
        ]  # fmt: skip
        lines.append(table_line(cells))
    return [
        *lines, "",
        "ITL is amortised (chunk gap / its tokens, median); speed-up is by seconds per token after the first; (smallest–largest of the repeats).",
    ]  # fmt: skip


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


def verdict_lines(verdict: KVerdict) -> list[str]:
    """Which k: the answer in one sentence, load by load, the server's setting, and how to confirm it."""
    lines = [f"Which k: {verdict.sentence.en}", ""]
    lines += [f"- {level.sentence.en}" for level in verdict.levels]
    lines += ["", "| load | k | tokens/step | step ms | expected speed-up |", "|---|---|---|---|---|"]
    for level in verdict.levels:
        for entry in level.expected:
            step = f"{number(entry.step, 1e3, 2)} ({entry.step.how})"
            speed = f"{number(entry.speed_up, 1, 2)}× ({entry.low:.2f}–{entry.high:.2f})"
            lines.append(table_line([level.level.text.en, entry.k, number(entry.tokens, 1, 2), step, speed]))
    if verdict.config is not None:
        lines += ["", f"    --speculative-config '{config_text(verdict.config)}'"]
    return [*lines, "", verdict.config_note.en, verdict.confirm.en]


def failures(result: LoadResult) -> list[str]:
    """Every kind of failure once, with how often it happened to which server."""
    counted: dict[tuple[Side, str], int] = {}
    for cell in result.cells:
        for request in cell.requests:
            if not request.whole:
                said = (request.error or {}).get("en") or request.ended
                counted[cell.side, said] = counted.get((cell.side, said), 0) + 1
    return [f"Failed: {count} on {result.servers[side].name}: {' '.join(said.split())}" for (side, said), count in counted.items()]


def requested(result: LoadResult) -> list[str]:
    """One row per request."""
    lines = [table_line(REQUESTED), table_line(["---"] * len(REQUESTED))]
    for cell in result.cells:
        for request in cell.requests:
            place = [cell.side, result.setup.levels[cell.level].text.en, cell.repeat + 1]
            lines.append(table_line([*place, *request_cells(request)]))
    return lines


def request_cells(request: LoadedRequest) -> list[str]:
    """A request's numbers as texts, from `prompt` on in `REQUESTED`; what isn't known is "–"."""
    counts = [count for count in request.chunk_tokens if count is not None]
    per_chunk = sum(counts) / len(counts) if counts and len(counts) == len(request.chunk_tokens) else None
    record = request.record
    rate, length = (record.acceptance_rate, record.mean_acceptance_length) if record is not None else (None, None)
    ended = request.ended if request.whole or request.error is None else f"{request.ended}: {request.code}"
    return [
        str(request.prompt + 1), f"{request.at:.2f}", scaled(request.ttft, 1e3, 1), scaled(percentile(sorted(request.token_latencies), 50), 1e3, 2),
        scaled(request.tpot, 1e3, 2), scaled(request.e2e, 1, 3), "–" if request.tokens is None else str(request.tokens), scaled(per_chunk, 1, 2),
        "–" if rate is None else number(rate, 100, 1) + " %", "–" if length is None else number(length, 1, 2), ended,
    ]  # fmt: skip


def about(result: LoadResult) -> str:
    """What was asked of which servers, when, in one line."""
    setup = result.setup
    named = " against ".join(
        f"{about.name} ({', '.join(filter(None, (about.kind, about.version, about.model)))})" for about in (result.servers[side] for side in SIDES)
    )
    asked = [
        setup.strategy, *(f"{name}={value}" for name, value in setup.knobs.items()), f"max {setup.max_new_tokens} tokens",
        *(["to the end whatever the model says (ignore_eos)"] if setup.ignore_eos else []),
        f"{setup.prompt_count} prompts of {setup.prompts} ({setup.prompts_sha256[:8]})", f"{setup.repeats} repeats, {setup.order}",
        "unique prefixes" if setup.unique_prefixes else "no unique prefixes", f"warm-up of {setup.warm_up} left out",
    ]  # fmt: skip
    slo = [f"{name.upper()} ≤ {limit * 1e3:g} ms" for name, limit in (("ttft", result.slo.ttft), ("tpot", result.slo.tpot)) if limit is not None]
    asked += [f"goodput: {', '.join(slo)}"] if slo else []
    versions = ", ".join(f"{name} {version}" for name, version in result.versions.items())
    whole = [] if result.complete else ["stopped before its end"]
    return " · ".join([named, ", ".join(asked), result.created, f"client: {result.machine}", versions, *whole]).replace("\n", " ")


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
    return f"{quantity.how}: {quantity.formula}" if quantity.formula else quantity.how


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
