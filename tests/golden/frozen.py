"""What must not change while the code is rebuilt: of a trace its events, its measures, its tables, and what its packets say."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import lzma
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from playground.backends import local
from playground.figures import Look, figures
from playground.measures.latency import race_meter
from playground.measures.parts import Part, lane_parts
from playground.records import recordings
from playground.records.table import markdown
from playground.request import Request
from playground.trace import DraftJudged, Event, Finished, PromptRead, StepTimed, Trace, VerifyCalibrated
from playground.ui import packets
from tests.golden.wire import meant
from tests.tiny_folder import tiny_loaded

FOLDER = Path(__file__).parent
#: How many candidates of a step are frozen, by raw score descending.
CANDIDATES = 8


def read(name: str) -> Any:
    return json.loads(lzma.decompress((FOLDER / f"{name}.json.xz").read_bytes()))


def write(name: str, frozen: Any) -> None:
    text = json.dumps(frozen, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    (FOLDER / f"{name}.json.xz").write_bytes(lzma.compress(text.encode(), preset=9))


def toy(request: dict[str, Any]) -> Trace:
    """A request as the app runs it, on the tiny model, with times that follow from the events."""
    asked, loaded = Request.from_json(request), tiny_loaded()
    comparison = local.prepare(asked, lambda _: loaded)
    made = timed(Trace(comparison.about, [pair for batch in comparison for pair in batch]))
    return Trace.from_json(made.to_json().replace(loaded.key, "tiny").replace(loaded.entry.name, "tiny"))


def plain(value: Any) -> Any:
    """A value as JSON has it: tuples are lists, keys are texts."""
    return json.loads(json.dumps(value, ensure_ascii=False))


def of_trace(trace: Trace) -> Any:
    """Measures, tables and packets of a trace; its events are frozen apart, where they are not a file already."""
    meter = race_meter(trace.events)
    lanes = range(len(trace.about.lanes))
    looks = [(lane, language) for lane in lanes for language in ("en", "zh")]
    return plain(
        {
            "numbers": {lane: {name: one.to_json() for name, one in known.numbers().items()} for lane, known in meter.lanes.items()},
            "ttft": None if meter.ttft is None else meter.ttft.to_json(),
            "parts": {lane: [_part(part) for part in lane_parts(trace, lane)] for lane in lanes},
            "record": markdown(trace),
            "figures": {f"{name} {lane} {language}": drawn for lane, language in looks for name, drawn in _figures(trace, lane, language)},
            "packets": [{**packet, "events": [meant(event) for event in packet["events"]]} for packet in packets.replayed(trace)],
        }
    )


def _part(part: Part) -> list[Any]:
    return [part.name, part.median.to_json(), part.total.to_json(), part.share.to_json()]


def _figures(trace: Trace, lane: int, language: Any) -> Iterator[tuple[str, Any]]:
    """Every figure in words and as a table; a figure of the whole race with the first lane only."""
    look = Look(language=language)
    for name, figure in figures().items():
        if figure.scope == "race" and lane:
            continue
        yield name, {"text": getattr(figure.describe(trace, lane, None, look), language), "table": figure.table(trace, lane, None, look)}


def events(trace: Trace) -> Any:
    """A trace as JSON, of every step's candidates the likeliest alone."""
    frozen = json.loads(trace.to_json())
    for _, event in frozen["events"]:
        if (view := event.get("view")) is not None:
            view["ids"], view["raw"] = view["ids"][:CANDIDATES], view["raw"][:CANDIDATES]
            view["rest"] = sum(view["rest"])  # at the edge of a bin a token may fall to either side
            for stage in view["stages"]:
                stage["scores"] = stage["scores"] and stage["scores"][:CANDIDATES]
    return frozen


def of_recording(name: str) -> Any:
    """All that a shipped recording shows; its events are the file itself, held by its digest."""
    trace = recordings.load(name)
    return {"trace": hashlib.sha256(trace.to_json().encode()).hexdigest(), **of_trace(trace)}


def of_request(index: int, request: dict[str, Any]) -> Any:
    """What a toy request gives: every one its events and numbers, every tenth also tables and packets."""
    trace = toy(request)
    shown = of_trace(trace)
    return {"trace": events(trace), **(shown if index % 10 == 0 else {"numbers": shown["numbers"], "record": shown["record"]})}


def of_requests(requests: list[dict[str, Any]]) -> list[Any]:
    return [of_request(index, request) for index, request in enumerate(requests)]


# --- times that follow from the events ------------------------------------------------------------


def timed(trace: Trace) -> Trace:
    """The same trace with seconds that follow from its events alone: a run's own are never the same twice."""
    spent: dict[int | None, float] = {}
    about = dataclasses.replace(trace.about, versions={}, machine="toy", created="2026-01-01T00:00:00+00:00", warm=True)
    return Trace(about, [(lane, _timed(event, lane, (1 + tick) / 64, spent)) for tick, (lane, event) in enumerate(trace.events)])


def _timed(event: Event, lane: int | None, at: float, spent: dict[int | None, float]) -> Event:
    if isinstance(event, StepTimed):
        parts = {name: (2 + index + event.rows) / 1024 for index, name in enumerate(sorted(event.parts))}
        seconds = sum(parts.values())
        spent[lane] = spent.get(lane, 0.0) + seconds
        return dataclasses.replace(event, seconds=seconds, parts=parts, recording=1 / 1024, at=at, lane_seconds=spent[lane], peak_memory=None)
    if isinstance(event, PromptRead):
        return dataclasses.replace(event, seconds=event.tokens / 512)
    if isinstance(event, Finished):
        return dataclasses.replace(event, at=at)
    if isinstance(event, DraftJudged):
        return dataclasses.replace(event, seconds={name: (1 + index) / 2048 for index, name in enumerate(sorted(event.seconds))})
    if isinstance(event, VerifyCalibrated):
        verify = tuple((positions, (4 + positions) / 1024) for positions, _ in event.verify)
        return dataclasses.replace(event, verify=verify, draft=None if event.draft is None else 1 / 1024)
    return event


# --- comparing ------------------------------------------------------------------------------------


#: How far numbers may be apart: another processor sums in another order, and a difference of two sums shows that first.
RELATIVE, ABSOLUTE = 1e-3, 2e-5
NUMBER = re.compile(r"\d+\.\d+(?:e[+-]?\d+)?")


def differences(was: Any, now: Any, where: str = "") -> Iterator[str]:
    """Where two frozen values differ; floating-point numbers may by what another processor's rounding does to a sum, in a text too."""
    if isinstance(was, dict) and isinstance(now, dict):
        for key in sorted({*was, *now}):
            if key not in was or key not in now:
                yield f"{where}.{key}: {'new' if key in now else 'gone'}"
            else:
                yield from differences(was[key], now[key], f"{where}.{key}")
    elif isinstance(was, list) and isinstance(now, list) and len(was) == len(now):
        for index, (one, other) in enumerate(zip(was, now, strict=True)):
            yield from differences(one, other, f"{where}[{index}]")
    elif not _alike(was, now):
        yield f"{where}: {str(was)[:200]} is {str(now)[:200]}"


def _alike(was: Any, now: Any) -> bool:
    if isinstance(was, float) and isinstance(now, float):
        return math.isclose(was, now, rel_tol=RELATIVE, abs_tol=ABSOLUTE)
    if isinstance(was, str) and isinstance(now, str):
        pairs = zip(NUMBER.findall(was), NUMBER.findall(now), strict=False)
        return NUMBER.sub("", was) == NUMBER.sub("", now) and all(_rounded_alike(one, other) for one, other in pairs)
    return bool(was == now)


def _rounded_alike(was: str, now: str) -> bool:
    """Numbers in a text are rounded: their last digit may be one off."""
    digit = 10.0 ** -len(was.partition(".")[2].partition("e")[0])
    return math.isclose(float(was), float(now), rel_tol=RELATIVE, abs_tol=max(ABSOLUTE, 1.01 * digit if "e" not in was else 0.0))
