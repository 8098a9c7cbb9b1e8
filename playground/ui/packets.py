"""A run as the page hears it: deltas only, so that the packet at token 500 is as small as at token 10.

A packet is one JSON string: state, the events since a sequence number (a count of events), and the
numbers line. What grows with the run never travels twice; a viewer who lost the stream names the
last sequence number that it has seen, and goes on from there.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from playground.line import Line, Run
from playground.measures import Quantity
from playground.measures.distribution import distributions
from playground.measures.latency import RaceMeter
from playground.measures.parts import PARTS
from playground.measures.text import TextJoiner, display_name
from playground.records.playhead import moments
from playground.trace import (
    About,
    BeamsAdvanced,
    BeamsRanked,
    ChunkArrived,
    DeviceSampled,
    DraftJudged,
    Event,
    Finished,
    LaneEvent,
    MetricsRead,
    PromptRead,
    ServerReported,
    SpeculationReported,
    StepTimed,
    StepView,
    TokenChosen,
    TokenName,
    TokensNamed,
    Trace,
    VerifyCalibrated,
)  # fmt: skip

#: Seconds between two packets, and how many events one may carry: the page draws while the rest waits.
TICK = 0.1
MOST_EVENTS = 400
#: Every packet costs the server a few milliseconds, which the run has to wait for: the more viewers a run has, the rarer are
#: their packets. So many a second, for all of its viewers together.
PACKETS_A_SECOND = 80
#: How many candidates travel with every token, for the hover; the rest is asked for when it is looked at.
HOVER_CANDIDATES = 6


def rounded(number: float | None, digits: int = 5) -> float | None:
    """A number as short as a screen needs it: so many significant digits."""
    return None if number is None else float(f"{number:.{digits}g}")


def range_json(seconds: tuple[float, float] | None) -> list[float | None] | None:
    """A range of seconds as a screen needs it."""
    return None if seconds is None else [rounded(end, 3) for end in seconds]


@dataclass
class Payloads:
    """The events of one run or recording as the page hears them, each encoded once for all of its viewers."""

    run: Run | Trace
    encoded: list[str] = field(default_factory=list)
    names: dict[str, dict[int, TokenName]] = field(default_factory=dict)
    joiners: dict[int, TextJoiner] = field(default_factory=dict)
    meter: RaceMeter = field(default_factory=RaceMeter)
    lock: threading.Lock = field(default_factory=threading.Lock)
    numbers: dict[str, dict[str, Quantity]] = field(default_factory=dict)

    def upto(self, count: int) -> None:
        """Encode the run's events up to `count`."""
        with self.lock:
            fresh = self.run.events[len(self.encoded) : count]
            for lane, event in fresh:
                self.meter.add(lane, event)
                self.encoded.append(self._encode(lane, event))
            if fresh:
                self.numbers = {str(lane): meter.numbers() for lane, meter in self.meter.lanes.items()}
                if (ttft := self.meter.ttft) is not None:
                    self.numbers["race"] = {"ttft": ttft}

    def _encode(self, lane: int | None, event: Event) -> str:
        kind, payload = self._payload(lane, event)
        return json.dumps([lane, kind, payload], separators=(",", ":"), ensure_ascii=False) if kind else ""

    def _payload(self, lane: int | None, event: Event) -> tuple[str, dict[str, Any]]:
        if isinstance(event, TokensNamed):
            known = self.names.setdefault(event.vocabulary, {})
            known.update((name.id, name) for name in event.names)
            return "", {}
        if isinstance(event, PromptRead):
            return "prompt", {
                "tokens": event.tokens,
                "total": event.total,
                "seconds": rounded(event.seconds),
                "shared": event.shared,
                "reused": event.reused,
            }
        if isinstance(event, TokenChosen):
            assert lane is not None
            return "token", self._token(lane, event)
        if isinstance(event, StepTimed):
            parts = [event.parts.get(name, 0.0) for name in PARTS]
            return "step", {
                "n": event.step, "tokens": event.tokens, "s": rounded(event.seconds, 4), "parts": [rounded(part, 4) for part in parts],
                "rec": rounded(event.recording, 3), "ls": rounded(event.lane_seconds, 6), "kv": event.cache_bytes, "len": event.cache_length,
                "mem": event.peak_memory, "at": rounded(event.at),
            }  # fmt: skip
        if isinstance(event, DeviceSampled):
            used, total = event.memory_bytes, event.memory_total
            return "device", {"at": rounded(event.at), "util": rounded(event.utilisation, 3), "mem": used, "total": total}
        if isinstance(event, BeamsAdvanced):
            assert lane is not None
            return "beams", self._beams(lane, event)
        if isinstance(event, BeamsRanked):
            ranked = [
                [one.step, one.candidate, rounded(one.score, 6), rounded(one.ranked, 6), one.ended, len(one.tokens)] for one in event.hypotheses
            ]
            return "ranked", {"h": ranked, "r": event.returned, "e": event.ending}
        if isinstance(event, DraftJudged):
            assert lane is not None
            return "draft", self._draft(lane, event)
        if isinstance(event, ChunkArrived):
            return "chunk", {"x": event.text, "t": event.tokens, "s": rounded(event.seconds, 6), "at": rounded(event.at)}
        if isinstance(event, SpeculationReported | MetricsRead):
            return "counted", {"k": event.kind}  # that there are figures; the page asks for them
        if isinstance(event, ServerReported | VerifyCalibrated):
            return "", {}  # their figures travel with the numbers line, or are asked for
        assert isinstance(event, Finished)
        return "finished", {"reason": event.reason, "detail": event.detail, "cut": event.cut, "message": event.message}

    def _beams(self, lane: int, event: BeamsAdvanced) -> dict[str, Any]:
        """A step of beam search: every candidate as a short list without its empty end; as small at step 80 as at step 10."""
        assert self.run.about is not None
        names = self.names.setdefault(self.run.about.lanes[lane].model, {})
        rows = []
        for one in event.candidates:
            row: list[Any] = [
                one.beam, one.token, display_name(names.get(one.token)), rounded(one.log_probability, 5), rounded(one.score, 6),
                rounded(one.ranked, 6),
                one.fate[0], one.reason, one.by, rounded(one.gap, 4), one.ended, one.group or None, rounded(one.penalty, 4) or None,
            ]  # fmt: skip
            while row[-1] is None:
                row.pop()
            rows.append(row)
        return {"s": event.step, "c": rows, "l": event.living, "o": event.pool, "b": event.best}

    def _draft(self, lane: int, event: DraftJudged) -> dict[str, Any]:
        """A round of speculation: every guess as a short list without its empty end; as small at round 80 as at round 10."""
        assert self.run.about is not None
        names = self.names.setdefault(self.run.about.lanes[lane].model, {})
        rows = []
        for one in event.guesses:
            row: list[Any] = [
                one.token, display_name(names.get(one.token)), one.state[0], rounded(one.q, 5), rounded(one.p, 5), rounded(one.accept, 5),
                rounded(one.u, 4),
            ]  # fmt: skip
            while row[-1] is None:
                row.pop()
            rows.append(row)
        extra = None if event.extra is None else [event.extra, display_name(names.get(event.extra))]
        seconds = [rounded(event.seconds.get(part, 0.0), 3) for part in ("draft", "verify", "select", "rollback")]
        return {
            "r": event.round, "p": event.position, "g": rows, "e": extra, "o": event.extra_origin, "s": seconds, "k": event.wanted, "l": event.limit,
            "f": event.source, "m": event.matched,
        }  # fmt: skip

    def _token(self, lane: int, event: TokenChosen) -> dict[str, Any]:
        assert self.run.about is not None
        names = self.names.setdefault(self.run.about.lanes[lane].model, {})
        joiner = self.joiners.setdefault(lane, TextJoiner(names))
        joiner.back_to(event.position)  # where the lane has a token there already, this one replaces it and all behind it
        joined = joiner.add(event.token)
        view = event.view
        last = view.stages[-1] if view and view.stages else view
        return {
            "p": event.position, "t": event.token, "x": joined.text, "n": display_name(names.get(event.token)), "b": [joined.start, joined.end],
            "lp": rounded(event.log_probability), "rlp": rounded(event.raw_log_probability), "r": event.rank, "rr": event.raw_rank,
            "u": rounded(event.u, 6), "iv": event.interval and [rounded(edge, 6) for edge in event.interval], "sh": event.shown,
            "h": rounded(last.entropy, 4) if last else None, "hr": rounded(view.entropy, 4) if view else None, "a": last.alive if last else None,
            "top": hover_candidates(view, event.token, names) if view and view.doubt is None else [], "o": event.origin,
            # Of a server: on which scale its numbers are, and why they can't be believed.
            **({"sc": view.scale, "d": view.doubt} if view is not None and view.scale != "logit" else {}),
        }  # fmt: skip


def hover_candidates(view: StepView, chosen: int, names: dict[int, TokenName]) -> list[list[Any]]:
    """The most likely candidates before the stages, the chosen token always among them: [text, raw, final, chosen, id]."""
    way = distributions(view)
    raw, final = way[0].probabilities, way[-1].probabilities
    order = sorted(range(len(view.ids)), key=lambda index: -raw[index])[:HOVER_CANDIDATES]
    if chosen in view.ids and view.ids.index(chosen) not in order:
        order[-1] = view.ids.index(chosen)
    return [
        [
            display_name(names.get(view.ids[index])),
            rounded(raw[index], 3),
            rounded(final[index], 3) if final[index] else None,
            view.ids[index] == chosen,
            view.ids[index],
        ]
        for index in order
    ]


def numbers_json(numbers: dict[str, dict[str, Quantity]], told: dict[tuple[str, str], Quantity]) -> dict[str, dict[str, Any]]:
    """The numbers line: a value each, and all that is known of a quantity only when something else than its value changed.

    `told` holds what this viewer was told last, and is kept up to date.
    """
    answer: dict[str, dict[str, Any]] = {}
    for key, quantities in numbers.items():
        answer[key] = {}
        for name, quantity in quantities.items():
            before, told[key, name] = told.get((key, name)), replace(quantity, value=None)
            value = _short(quantity.value)
            answer[key][name] = value if before == told[key, name] else {**quantity.to_json(), "value": value}
    return answer


def _short(value: float | int | str | None) -> float | int | str | None:
    return rounded(value, 5) if isinstance(value, float) else value


def payloads_of(run: Run) -> Payloads:
    """The run's payloads, kept with it and forgotten with it."""
    with run.changed:
        if run.payloads is None:
            run.payloads = Payloads(run)
    return run.payloads


def follow(line: Line, run: Run, seq: int, superseded: threading.Event, stream: int = 0) -> Iterator[str]:
    """Packets of a run from event `seq` on, at most one per tick, until it has ended or this viewer left.

    `stream` is the viewer's own number for this asking and stands in every packet: the whole of a finished run, asked for
    twice, would else be the same text twice, and a page hears only of what changes.

    Where nothing is new the last packet is given again, which costs the wire nothing and lets the
    server notice that a viewer left.
    """
    payloads = payloads_of(run)
    number, version, about_sent, packet = 0, -1, False, ""
    told: dict[tuple[str, str], Quantity] = {}
    seq = max(0, min(seq, len(run.events)))
    with line.watch(run):
        while not superseded.is_set():
            started = time.monotonic()
            if packet:
                line.wait(run, seq, version, 2 * TICK)
            with run.changed:
                count, seen = min(len(run.events), seq + MOST_EVENTS), run.version
                last = run.ended and count == len(run.events)
                # A page stops listening at the end: it must not hear of it before the last event.
                phase = "running" if run.ended and not last else run.phase
                state = {"phase": phase, "text": run.text, "progress": run.progress, "error": run.error, "viewers": run.viewers}
            # The place in the line moves without the run changing: a waiting run is told every time.
            if count > seq or seen != version or not packet or run.phase == "queued":
                payloads.upto(count)
                about = about_json(run.about) if run.about is not None and not about_sent else None
                about_sent = about_sent or about is not None
                number += 1
                where = {"stream": stream, "n": number, "seq": count}
                packet = _packet(line, run, where, payloads.encoded[seq:count], numbers_json(payloads.numbers, told), about, state)
                seq, version = count, seen
            yield packet
            if last:
                return
            time.sleep(max(0.0, max(TICK, run.viewers / PACKETS_A_SECOND) - (time.monotonic() - started)))


def _packet(
    line: Line, run: Run, where: dict[str, int], events: list[str], numbers: dict[str, Any], about: dict[str, Any] | None, state: dict[str, Any]
) -> str:
    told = {name: value.to_json() if hasattr(value, "to_json") else value for name, value in state.items()}
    told |= {"place": line.place(run), "seconds": range_json(line.seconds_until(run))}
    rest = {"v": 1, **where, "run": run.id, "state": told, "about": about, "numbers": numbers}
    return f'{json.dumps(rest, separators=(",", ":"), ensure_ascii=False)[:-1]},"events":[{",".join(filter(None, events))}]}}'


def replayed(trace: Trace) -> list[dict[str, Any]]:
    """A whole trace as the packets of a live run, one per step or chunk: events, the numbers that changed, and the second when it came."""
    payloads = Payloads(trace)
    told: dict[tuple[str, str], Quantity] = {}
    known: dict[tuple[str, str], Any] = {}
    made: list[dict[str, Any]] = []
    begun = 0
    for at, count in moments(trace):
        payloads.upto(count)
        numbers: dict[str, dict[str, Any]] = {}
        for key, values in numbers_json(payloads.numbers, told).items():
            numbers[key] = {name: value for name, value in values.items() if known.get((key, name), known) != value}
            known |= {(key, name): value for name, value in values.items()}
        events = [json.loads(encoded) for encoded in payloads.encoded[begun:count] if encoded]
        made.append({"at": rounded(at), "events": events, "numbers": {key: values for key, values in numbers.items() if values}})
        begun = count
    return made


def about_json(about: About, recorded: bool = False) -> dict[str, Any]:
    """What the page needs to know of a run before its first event."""
    lanes = [
        {
            "name": lane.name, "model": lane.model, "strategy": lane.strategy,
            "stages": [{"stage": s.stage, "kind": s.kind, "knobs": s.knobs, "origin": s.origin, "idle": s.idle} for s in lane.stages],
            "max_new_tokens": lane.max_new_tokens, "stop": lane.stop, "notes": lane.notes, "prompt_tokens": len(lane.prompt_ids),
            "branch": lane.branch and {name: lane.branch[name] for name in ("lane", "position")}, "server": lane.server, "sent": lane.sent,
        }
        for lane in about.lanes
    ]  # fmt: skip
    models = [
        {"key": m.key, "name": m.name, "format": m.number_format and m.number_format.to_json(), "device": m.device, "cacheFormula": m.cache_formula}
        for m in about.models
    ]
    return {
        "lanes": lanes, "models": models, "machine": about.machine, "created": about.created, "warm": about.warm, "rendered": about.lanes[0].rendered,
        "request": about.request, "recorded": recorded,
    }  # fmt: skip


def events_of(run: Run) -> list[LaneEvent]:
    """A stable copy of what has happened so far."""
    with run.changed:
        return list(run.events)
