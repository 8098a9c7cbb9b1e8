"""The experiment record: one row per lane, as a Markdown table."""

from __future__ import annotations

import json
from typing import Any

from playground.measures import Quantity
from playground.measures.formula import plain
from playground.measures.latency import race_meter, stop_text
from playground.measures.server_speculation import speculation_record
from playground.measures.text import output_text
from playground.trace import Finished, TokenChosen, Trace

#: The server's own times, as far as it tells them.
SERVER_TIMES = ("server_queue", "server_ttft", "server_prefill", "server_decode", "server_itl")

COLUMNS = (
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
)


def rows(trace: Trace) -> list[list[str]]:
    """One row of texts per lane, under `COLUMNS`; what isn't known is "–"."""
    meter = race_meter(trace.events)
    table = []
    for index, lane in enumerate(trace.about.lanes):
        if index not in meter.lanes:
            continue
        numbers = meter.lanes[index].numbers()
        finished = meter.lanes[index].finished
        amortised = " (amortised)" if meter.lanes[index].server is not None else ""
        shared = next((reading.ttft for reading in meter.shared if index in reading.lanes), None)
        ttft = _whole_time(numbers["ttft"]) if shared is None else f"{_whole_time(shared)} (race)"
        table.append(
            [
                lane.name, configuration(trace, index), output_text(trace, index), _number(numbers["tokens"], 1, 0),
                ttft, _whole_time(numbers["decode"]), _whole_time(numbers["e2e"]),
                _number(numbers["itl_p50"], 1e3, 1) + amortised, _number(numbers["itl_p95"], 1e3, 1) + amortised,
                _number(numbers["tokens_per_second"], 1, 1), _number(numbers["kv_bytes"], 1e-6, 2),
                stop_text(finished).en if finished else "–", "warm" if trace.about.warm else "cold",
            ]
        )  # fmt: skip
    return table


def configuration(trace: Trace, index: int) -> str:
    """A lane's effective configuration in one line; inherited values say of whom, idle ones that they are."""
    lane = trace.about.lanes[index]
    parts = [lane.strategy, *([f"on {lane.server}"] if lane.server else []), *(f"{name}={value}" for name, value in lane.knobs.items())]
    for stage in lane.stages:
        words = " ".join(f"{name}={_value(value)}" for name, value in stage.knobs.items())
        origin = {"asked": "", "model": " (model's default)", "library": " (transformers' default)"}[stage.origin]
        parts.append(f"{words}{origin}{' (idle under ' + lane.strategy + ')' if stage.idle else ''}")
    parts.append(f"max_new_tokens={lane.max_new_tokens}")
    if lane.stop:
        parts.append(f"stop={list(lane.stop)!r}")
    if lane.branch is not None:
        parts.append(f"branched from {lane.branch['lane']} at token {lane.branch['position'] + 1} ({len(lane.branch['tokens'])} tokens forced)")
    return ", ".join(parts)


def markdown(trace: Trace) -> str:
    """The record as a Markdown table, with where and when it was made under it."""
    about = trace.about
    lines = [table_line(COLUMNS), table_line(["---"] * len(COLUMNS)), *(table_line(row) for row in rows(trace))]
    formats = [model.number_format.en if model.number_format else None for model in about.models]
    models = ", ".join(f"{model.name} ({', '.join(filter(None, (how, model.device)))})" for model, how in zip(about.models, formats, strict=True))
    versions = ", ".join(f"{name} {version}" for name, version in about.versions.items())
    lines += [*note_lines(trace), *server_lines(trace)]
    if not all(any(trace.of(lane, Finished)) for lane in range(len(about.lanes))):
        lines += ["", "So far: not every lane has ended."]
    return "\n".join([*lines, "", f"{models} · {about.machine} · {about.created} · seed {about.request.get('seed')} · {versions}"])


def note_lines(trace: Trace) -> list[str]:
    """What a lane did otherwise than it was asked: a line per lane that has notes."""
    told = ((lane.name, " ".join(note["en"] for note in lane.notes)) for lane in trace.about.lanes if lane.notes)
    return [line for name, notes in told for line in ("", f"{name}: {notes}".replace("\n", " "))]


def server_lines(trace: Trace) -> list[str]:
    """For every server lane one line under the table: chunks, the server's own figures, speculation, and what was sent."""
    meter = race_meter(trace.events)
    lines = []
    for index, lane in enumerate(trace.about.lanes):
        if lane.server is None or index not in meter.lanes or meter.lanes[index].server is None:
            continue
        numbers = meter.lanes[index].numbers()
        told = [
            f"chunk gap p50 {_number(numbers['chunk_gap_p50'], 1e3, 1)} ms, p95 {_number(numbers['chunk_gap_p95'], 1e3, 1)} ms",
            f"{_number(numbers['tokens_per_chunk'], 1, 2)} tokens per chunk",
            f"TPOT {_number(numbers['tpot'], 1e3, 1)} ms",
        ]
        told += [f"{numbers[name].label.en} {_number(numbers[name], 1e3, 1)} ms" for name in SERVER_TIMES if name in numbers]
        record = speculation_record(trace, index)
        if record.source != "unknown":
            rate, length, forward = record.acceptance_rate, record.mean_acceptance_length, record.tokens_per_forward
            told.append(
                f"speculation: {record.accepted} of {record.drafted} drafted accepted ({_number(rate, 100, 1)} %), "
                f"mean acceptance length {_number(length, 1, 2)}, tokens per target forward {_number(forward, 1, 2)} ({record.fields})"
            )
            if record.source == "counters":
                other = "unknown" if record.other_tokens is None else record.other_tokens
                told.append(f"counted over the whole server in {record.window or 0:.1f} s, tokens of others: {other}")
        doubted = sum(chosen.view is not None and chosen.view.doubt is not None for chosen in trace.of(index, TokenChosen))
        if doubted:
            told.append(f"log-probabilities of {doubted} tokens are not to be trusted")
        told.append(f"sent: {json.dumps(lane.sent, ensure_ascii=False)}")
        lines += ["", f"{lane.name}: {'; '.join(told)}".replace("\n", " ")]
    return lines


def table_line(cells: Any) -> str:
    """One row of a Markdown table."""
    return "| " + " | ".join(_cell(str(cell)) for cell in cells) + " |"


def _cell(text: str) -> str:
    """Text that can't break out of its cell."""
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\r", "").replace("\n", "<br>")


def _number(quantity: Quantity, factor: float, digits: int) -> str:
    return "–" if not isinstance(quantity.value, (int, float)) else f"{quantity.value * factor:.{digits}f}"


def _whole_time(quantity: Quantity) -> str:
    """Seconds of a whole lane in four digits: tokens/s follows from them to the digits in which it is written."""
    return "–" if not isinstance(quantity.value, (int, float)) else plain(float(quantity.value), 4)


def _value(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
