"""Traces that visitors opened from a file of their own: checked, kept for a while, and shown like a recording.

A file is hostile until it is checked: its size, its form, and whether what it says of itself fits together.
"""

from __future__ import annotations

import gzip
import math
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from playground.errors import BadValue, PlaygroundError, Text
from playground.trace import BeamsAdvanced, BeamsRanked, DraftJudged, Finished, StepTimed, StepView, TokenChosen, Trace, VerifyCalibrated

#: What stands before the name of an opened trace, where a recording has its name.
PREFIX = "opened-"
#: The largest file, in bytes; how many are kept, for how many seconds, and how many bytes all of them may take, packed.
MOST_BYTES = 12_000_000
MOST_TRACES = 24
MOST_SECONDS = 3600.0
MOST_PACKED = 60_000_000
MOST_LANES = 6
LONGEST_NAME = 200
MOST_CANDIDATES = 1000

BROKEN = Text("This trace is broken: {what}.", "记录已损坏：{what}。")


class Opened:
    """The traces that were opened here, the newest kept: bounded in number, bytes and time."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, tuple[float, bytes]] = OrderedDict()
        self._read = lru_cache(maxsize=3)(lambda name, packed: Trace.from_json(gzip.decompress(packed)))

    def open(self, text: object) -> str:
        """Check a file's text and keep it; returns the name by which it can be asked for."""
        if not isinstance(text, str) or len(text) > MOST_BYTES:
            raise BadValue(
                "trace_large",
                Text("A trace may be {most} MB: this file is larger, or no text.", "记录最大 {most} MB：此文件更大，或不是文本。"),
                most=MOST_BYTES // 1_000_000,
            )
        trace = Trace.from_json(text)
        check(trace)
        packed = gzip.compress(trace.to_json().encode(), compresslevel=3)
        name = PREFIX + secrets.token_urlsafe(12)
        with self._lock:
            self._kept[name] = (self._clock(), packed)
            self._forget()
        return name

    def load(self, name: str) -> Trace:
        """An opened trace by its name; not to be changed."""
        with self._lock:
            self._forget()
            kept = self._kept.get(name)
        if kept is None:
            raise BadValue("trace_gone", Text("This trace is no longer here: open its file again.", "该记录已不在此处：请重新打开文件。"))
        return self._read(name, kept[1])

    def drop(self, name: str) -> None:
        with self._lock:
            self._kept.pop(name, None)

    def _forget(self) -> None:
        """Drop what is too old, and the oldest of what is too much. Called with the lock held."""
        while self._kept:
            oldest, (second, _) = next(iter(self._kept.items()))
            packed = sum(len(data) for _, data in self._kept.values())
            if len(self._kept) <= MOST_TRACES and packed <= MOST_PACKED and self._clock() - second <= MOST_SECONDS:
                return
            del self._kept[oldest]


OPENED = Opened()


def check(trace: Trace) -> None:
    """Refuse a trace that every view would stumble over: lanes that aren't there, tokens out of order, views of unequal lengths."""
    about = trace.about
    lanes = range(len(about.lanes))
    if not 1 <= len(lanes) <= MOST_LANES:
        raise _broken("it has {count} lanes", "它有 {count} 条通道", count=len(lanes))
    if not trace.events:
        raise PlaygroundError("trace_empty", Text("Nothing happened in this trace.", "这份记录里什么都没有发生。"))
    names = (about.machine, about.created, *(lane.name for lane in about.lanes), *(model.name for model in about.models))
    if any(len(name) > LONGEST_NAME for name in names):
        raise _broken("a name is longer than {most} characters", "名称超过 {most} 个字符", most=LONGEST_NAME)
    _check_request(about.request, len(lanes))
    models = {model.key for model in about.models}
    if any(lane.model not in models for lane in about.lanes):
        raise _broken("a lane's model is not described", "有通道的模型没有说明")
    counts = dict.fromkeys(lanes, 0)
    searched: dict[int | None, list[BeamsAdvanced]] = {}
    rounds: dict[int | None, int] = {}
    last = 0.0
    for lane, event in trace.events:
        if lane is not None and lane not in lanes:
            raise _broken("it tells of lane {lane}", "提到了通道 {lane}", lane=lane)
        if isinstance(event, TokenChosen):
            if lane is None or not 0 <= event.position <= counts[lane]:
                raise _broken("a token stands at position {position}", "有词元位于位置 {position}", position=event.position)
            counts[lane] = event.position + 1
            if event.view is not None:
                _check_view(event.view)
        if isinstance(event, BeamsAdvanced):
            _check_beams(event, searched.setdefault(lane, []))
        if isinstance(event, BeamsRanked) and not all(
            _names_candidate((one.step, one.candidate), searched.get(lane, [])) for one in event.hypotheses
        ):
            raise _broken("a finished text of its beam search is not there", "束搜索中某个完成的文本不存在")
        if isinstance(event, DraftJudged):
            _check_draft(event, rounds.get(lane, 0), lane)
            rounds[lane] = event.round + 1
        if isinstance(event, VerifyCalibrated):
            _check_calibration(event)
        if isinstance(event, StepTimed | Finished):
            if lane is None or not last <= event.at < 1e6:
                raise _broken("its times don't run forwards", "时间顺序不对")
            last = event.at
    if not any(isinstance(event, StepTimed | Finished) for _, event in trace.events):
        raise _broken("no step in it ended", "没有任何一步完成")


def _check_request(request: dict[str, Any], count: int) -> None:
    """What was asked becomes what the page asks: as far as the page builds on its form, it is checked here, its values when it runs."""
    prompt, lanes = request.get("prompt"), request.get("lanes")
    fits = isinstance(prompt, dict) and isinstance(prompt.get("text"), str) and isinstance(lanes, list) and len(lanes) == count
    for lane in lanes if fits else ():
        if not isinstance(lane, dict):
            raise _broken("a lane's settings are missing", "缺少某条通道的设置")
        order = lane.get("order", [])
        fits &= all(isinstance(lane.get(name, ""), str) for name in ("name", "strategy", "defaults")) and isinstance(lane.get("knobs", {}), dict)
        fits &= isinstance(lane.get("stop", []), list) and isinstance(lane.get("max_new_tokens", 1), int)
        fits &= order in ("transformers", "vllm") or (isinstance(order, list) and all(isinstance(name, str) for name in order))
        fits &= lane.get("branch") is None or isinstance(lane["branch"], dict)
    if not fits:
        raise _broken("what was asked in it has another form", "其中的请求格式不符")


def _check_beams(step: BeamsAdvanced, before: list[BeamsAdvanced]) -> None:
    """A step of a beam search continues the one before: its candidates extend beams that lived, and what it names is there."""
    rows, living = range(len(step.candidates)), set(step.living)
    parents = range(len(before[-1].living)) if before else range(1)
    fits = step.step == len(before) and 0 < len(rows) <= MOST_CANDIDATES
    fits &= len(living) == len(step.living) and step.best in (None, *range(len(living)))
    fits &= living == {index for index, one in enumerate(step.candidates) if one.fate == "kept"}
    for one in step.candidates:
        fits &= one.beam in parents and (one.by is None or one.by in rows)
        fits &= all(abs(value) < 1e9 for value in (one.log_probability, one.score, one.ranked, one.gap or 0.0, one.penalty))
    before.append(step)
    if not fits or not all(_names_candidate(key, before) for key in step.pool):
        raise _broken("step {step} of its beam search doesn't follow from the one before", "束搜索的第 {step} 步与前一步对不上", step=step.step)


def _check_draft(judged: DraftJudged, rounds: int, lane: int | None) -> None:
    """A round of speculation continues the one before, its probabilities are some, and its seconds are times."""
    fits = lane is not None and judged.round == rounds and judged.position >= 0 and len(judged.guesses) <= MOST_CANDIDATES
    for guess in judged.guesses:
        fits &= all(0 <= value <= 1 for value in (guess.q, guess.p or 0.0, guess.accept or 0.0, guess.u or 0.0))
    fits &= all(0 <= seconds < 1e6 for seconds in judged.seconds.values()) and (judged.extra is None) == (judged.extra_origin is None)
    if not fits:
        raise _broken("round {round} of its guesses doesn't follow from the one before", "第 {round} 轮猜测与前一轮对不上", round=judged.round)


def _check_calibration(measured: VerifyCalibrated) -> None:
    counts = [positions for positions, _ in measured.verify]
    fits = 0 < len(counts) <= MOST_CANDIDATES and counts == sorted(set(counts)) and counts[0] >= 1
    if not fits or not all(0 < seconds < 1e6 for _, seconds in measured.verify) or not 0 <= (measured.draft or 0.0) < 1e6:
        raise _broken("its calibration is no measurement", "校准数据不是测量值")


def _names_candidate(key: tuple[int, int], steps: list[BeamsAdvanced]) -> bool:
    step, index = key
    return 0 <= step < len(steps) and 0 <= index < len(steps[step].candidates)


def _check_view(view: StepView) -> None:
    count = len(view.ids)
    fits = len(view.raw) == count > 0
    scores, normaliser = view.raw, view.log_sum_exp
    for stage in (None, *view.stages):
        if stage is not None:
            fits &= all(0 <= index < count for index in stage.masked)
            scores, normaliser = stage.scores or scores, stage.log_normaliser
        # A token that a stage removed may keep a score that no longer means anything; exp must bear it.
        fits &= len(scores) == count and math.isfinite(normaliser) and all(score is None or -1e9 < score - normaliser < 500.0 for score in scores)
    if not fits:
        raise _broken("a step's candidates don't fit its scores", "某一步的候选与分数对不上")


def _broken(en: str, zh: str, **values: object) -> PlaygroundError:
    what = Text(en, zh).filled(**values)
    return PlaygroundError("trace_broken", Text(BROKEN.en.format(what=what.en), BROKEN.zh.format(what=what.zh)))
