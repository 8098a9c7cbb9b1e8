"""Baseline against speculative: the same prompts at the same loads on two servers, in turns.

    for step in LoadExperiment(baseline, speculative, prompts.shipped(), LoadOptions(levels=(Level(concurrency=1),))):
        ...   # the last step is `LoadEnded`, with the result

- A closed loop keeps so many streams busy; an open loop sends at random times (Poisson), answered or not.
- Every prompt begins with a line of its own, so that no prefix cached earlier makes the TTFT look better. The line is the
  same on both servers: under greedy decoding both write the same text.
- The servers take turns (A B, then B A), so that a machine that gets slower doesn't favour one of them. One server that its
  owner restarts in between is measured one after the other, and the result says so.
- The first requests at every load are a warm-up and are left out.
"""

from __future__ import annotations

import datetime
import itertools
import logging
import math
import os
import platform
import queue
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

import openai
import psutil
from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config

import playground
from playground.backends.gpu import HostGpus
from playground.backends.guarded_http import Bounds, ServerFailed
from playground.backends.mixed import STOP_PATIENCE
from playground.backends.openai_api import UNREADABLE, Pieces, ServerLane, kept_metrics, metrics_text
from playground.backends.probing import Prober
from playground.backends.server_request import ServerRequest, server_request
from playground.backends.servers import Capabilities, ServerEntry
from playground.engine.dice import Dice
from playground.errors import BadValue, PlaygroundError, Text
from playground.experiments.prompts import PromptSet
from playground.measures.server_load import (
    SIDES,
    Cell,
    Confirmation,
    Level,
    LoadedRequest,
    LoadResult,
    LoadSetup,
    ServerAbout,
    ServerSample,
    Side,
    Slo,
)
from playground.measures.server_speculation import Counters, counters, difference
from playground.request import Limits, Request
from playground.trace import ChunkArrived, DeviceSampled, Event, Finished, ServerReported, SpeculationReported

#: Under load a request may wait long before its first token.
BOUNDS = Bounds(silence=300.0, seconds=1800.0)
#: More streams than this at once and this client would measure itself.
MOST_STREAMS = 256
MOST_LEVELS, MOST_REPEATS, MOST_REQUESTS = 12, 20, 5000
MOST_TOKENS = 8192
WARM_UP_TOKENS = 32
#: Counters are looked at again until they have counted all replies: so often, so many seconds apart.
LOOKS, BETWEEN_LOOKS = 10, 0.2
LOOK_UP = 0.1
FIRST_SAMPLE = 0.2
#: Digits of a second that are kept of every chunk: microseconds.
DIGITS = 6

log = logging.getLogger(__name__)

MACHINE_DRIFT = Text(
    "Measured one after the other, not in turns: whatever changed on the machine in between is in the speed-up too.",
    "两次测量先后进行，而非交替进行：期间机器的任何变化也会计入加速比。",
)
EARLIER_BASELINE = Text(
    "The baseline is the one that was measured at {when}; only the speculative server was measured again.",
    "基线为 {when} 时所测；仅重新测量了推测服务器。",
)
BASELINE_SPECULATES = Text(
    "{server}, the baseline, speculates too: this is no comparison with plain decoding.", "基线服务器 {server} 也在推测解码：这不是与普通解码的比较。"
)
NO_SPECULATION = Text("{server} doesn't seem to speculate.", "{server} 似乎没有开启推测解码。")
TWO_MODELS = Text("The servers name different models: {a} and {b}.", "两台服务器的模型名称不同：{a} 与 {b}。")
NOT_ALONE = Text(
    "{server} was serving others when a measurement began: its times and counters hold their load too.",
    "测量开始时 {server} 正在为他人服务：其时间和计数包含他人的负载。",
)
ALL_FAILED = Text(
    "Every request to {server} failed at {level}, and the experiment ended there: {error}",
    "在 {level} 下发往 {server} 的请求全部失败，实验到此结束：{error}",
)
STILL_PLAIN = Text(
    "The server answers, but it doesn't speculate: start it with --speculative-config.",
    "服务器已应答，但未开启推测解码：请用 --speculative-config 启动。",
)


@with_config(ConfigDict(extra="forbid", allow_inf_nan=False))
@dataclass(frozen=True)
class LoadOptions:
    """What to ask of both servers; `requests` per cell (None: every prompt once, and at least two per stream)."""

    levels: tuple[Level, ...] = (Level(concurrency=1), Level(concurrency=2), Level(concurrency=4), Level(concurrency=8))
    repeats: int = 3
    requests: int | None = None
    max_new_tokens: int = 128
    strategy: str = "greedy"
    knobs: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    unique_prefixes: bool = True
    warm_up: int | None = None
    ignore_eos: bool = False
    slo: Slo = field(default_factory=Slo)
    sample_every: float = 1.0

    @staticmethod
    def from_json(raw: Any) -> LoadOptions:
        """Options from plain values that somebody gives; the first thing wrong with them is raised as a `BadValue`."""
        try:
            options = TypeAdapter(LoadOptions).validate_python(raw)
        except ValidationError as error:
            where = " → ".join(str(part) for part in error.errors()[0]["loc"])[:80] or "options"
            text = Text("The load's {name} can't be {why}.", "负载的 {name} 无效：{why}。")
            raise BadValue("load_options", text, name=where, why=repr(error.errors()[0].get("input"))[:80]) from error
        options.check()
        return options

    def check(self) -> None:
        """Raise `BadValue` for the first value that can't be."""
        _within("levels", len(self.levels), 1, MOST_LEVELS)
        for level in self.levels:
            if (level.concurrency is None) == (level.rate is None):
                raise BadValue("load_level", Text("A load is a number of streams or a rate.", "负载是并发数或请求速率之一。"))
            _within("concurrency", level.concurrency if level.concurrency is not None else 1, 1, MOST_STREAMS)
            _within("rate", level.rate if level.rate is not None else 1, 0.001, 1000)
        _within("repeats", self.repeats, 1, MOST_REPEATS)
        _within("requests", self.requests if self.requests is not None else 1, 1, MOST_REQUESTS)
        _within("max_new_tokens", self.max_new_tokens, 2, MOST_TOKENS)
        _within("warm_up", self.warm_up or 0, 0, MOST_STREAMS)
        _within("seed", self.seed, 0, 2**63 - 1)
        _within("sample_every", self.sample_every, 0.05, 60)
        for name, seconds in (("slo_ttft", self.slo.ttft), ("slo_tpot", self.slo.tpot)):
            _within(name, seconds if seconds is not None else 1, 1e-6, 1e6)

    def requests_at(self, level: Level, prompts: int) -> int:
        return self.requests if self.requests is not None else max(prompts, 2 * (level.concurrency or 1))

    def warm_up_at(self, level: Level) -> int:
        return self.warm_up if self.warm_up is not None else min(level.concurrency or 1, 8)


def levels(concurrency: Sequence[int] = (), rates: Sequence[float] = ()) -> tuple[Level, ...]:
    """Loads from plain numbers, ascending."""
    return (*(Level(concurrency=streams) for streams in sorted(set(concurrency))), *(Level(rate=rate) for rate in sorted(set(rates))))


def _within(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise BadValue(
            "load_range",
            Text("{name} must be in [{low}, {high}], got {value}.", "{name} 必须在 [{low}, {high}] 范围内，而给出的是 {value}。"),
            name=name, low=low, high=high, value=value,
        )  # fmt: skip


# --- what happens meanwhile -----------------------------------------------------------------------


@dataclass(frozen=True)
class CellBegan:
    """A server's turn at a load; `done` of `of` requests of the whole experiment have ended so far, and `so_far` has the cells that did."""

    side: Side
    level: Level
    repeat: int
    done: int
    of: int
    so_far: LoadResult


@dataclass(frozen=True)
class RequestEnded:
    """One request came to its end, whichever."""

    side: Side
    level: Level
    repeat: int
    request: LoadedRequest
    done: int
    of: int


@dataclass(frozen=True)
class ServerSampled:
    """What the server said of itself during a cell."""

    side: Side
    level: Level
    repeat: int
    sample: ServerSample


@dataclass(frozen=True)
class CellEnded:
    """A cell is whole; `so_far` has it and those before it."""

    cell: Cell
    done: int
    of: int
    so_far: LoadResult


@dataclass(frozen=True)
class RestartWanted:
    """The baseline is measured: its owner restarts the server with speculation, then `resume` goes on.

    `problem` says what is wrong with what answers now, after a first `resume`; `config` is the setting that is to be confirmed.
    """

    server: str
    problem: Text | None = None
    config: dict[str, Any] | None = None


@dataclass(frozen=True)
class LoadEnded:
    """The experiment is over; the result holds every cell that ran to its end."""

    result: LoadResult


LoadStep = CellBegan | RequestEnded | ServerSampled | CellEnded | RestartWanted | LoadEnded


@dataclass(frozen=True)
class _Server:
    """One side made ready: the requests of all prompts, in their order."""

    entry: ServerEntry
    can: Capabilities
    asked: tuple[ServerRequest, ...]
    request: Request

    @property
    def about(self) -> ServerAbout:
        return ServerAbout(self.entry.name, self.can.kind, self.can.version, self.can.model, self.can.speculation, on_this_host(self.entry))


@dataclass
class LoadExperiment:
    """A whole experiment: iterate to run it, `stop` from any thread to end it after what is measured."""

    baseline: ServerEntry
    speculative: ServerEntry
    prompts: PromptSet
    options: LoadOptions = field(default_factory=LoadOptions)
    prober: Prober = field(default_factory=Prober)
    baseline_model: str | None = None
    speculative_model: str | None = None
    earlier: LoadResult | None = None
    confirms: Confirmation | None = None
    _running: dict[int, ServerLane] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _stopped: threading.Event = field(default_factory=threading.Event)
    _resumed: threading.Event = field(default_factory=threading.Event)

    @classmethod
    def confirming(cls, earlier: LoadResult, confirms: Confirmation, speculative: ServerEntry, prompts: PromptSet, prober: Prober) -> LoadExperiment:
        """The speculative half of an earlier experiment once more, with the setting that followed from it: same prompts, same loads.

        The baseline's cells are the earlier ones. Raises `BadValue` where the prompts aren't those, or no baseline was measured.
        """
        setup = earlier.setup
        if prompts.sha256 != setup.prompts_sha256:
            text = Text("A confirming run takes the same prompts: {name} as it was.", "验证运行须使用相同的提示词：原来的 {name}。")
            raise BadValue("load_prompts_differ", text, name=setup.prompts)
        if not any(cell.side == "baseline" for cell in earlier.cells):
            raise BadValue("load_no_baseline", Text("That result has no baseline to compare with.", "该结果没有可供比较的基线。"))
        equal = all(len(cell.requests) == setup.requests for cell in earlier.cells)
        usual = LoadOptions(levels=setup.levels)
        options = LoadOptions(
            levels=setup.levels, repeats=setup.repeats, requests=setup.requests if equal else None, max_new_tokens=setup.max_new_tokens,
            strategy=setup.strategy, knobs=setup.knobs, seed=setup.seed, unique_prefixes=setup.unique_prefixes, ignore_eos=setup.ignore_eos,
            warm_up=None if setup.warm_up == max(map(usual.warm_up_at, setup.levels)) else setup.warm_up, slo=earlier.slo,
        )  # fmt: skip
        model = earlier.servers["speculative"].model
        return cls(speculative, speculative, prompts, options, prober, speculative_model=model, earlier=earlier, confirms=confirms)

    @property
    def restarts(self) -> bool:
        """Whether both sides are the same server, restarted in between."""
        return self.baseline.root == self.speculative.root

    def stop(self) -> None:
        """End the experiment: streams are cut, the cell that runs is dropped, and the result holds the others."""
        self._stopped.set()
        self._resumed.set()
        with self._lock:
            running = list(self._running.values())
        for lane in running:
            lane.stop()

    def resume(self) -> None:
        """The server has been restarted."""
        self._resumed.set()

    def __iter__(self) -> Iterator[LoadStep]:
        self.options.check()
        ready = self._prepare()
        notes = self._notes(ready)
        cells = self._earlier_cells()
        plan = self._plan(cells)
        known = len(cells)
        total = sum(self.options.requests_at(self.options.levels[level], len(self.prompts.prompts)) for _, level, _ in plan)
        done = 0
        # A confirming run asks the very same prompts, the line before each of them included.
        run = self.earlier.setup.run if self.earlier is not None else secrets.token_hex(4)
        try:
            for order, (side, index, repeat) in enumerate(plan, known):
                if side not in ready:
                    yield from self._restart(ready, notes)
                if self._stopped.is_set():
                    break
                level = self.options.levels[index]
                yield CellBegan(side, level, repeat, done, total, self._result(ready, cells, False, notes, run))
                if repeat == 0 and (warm_up := self.options.warm_up_at(level)):
                    self._warm_up(ready[side], level, warm_up, f"{run}w{index}")
                gathered = _Gathered()
                for found in self._cell(ready[side], level, index, repeat, run, gathered):
                    if isinstance(found, LoadedRequest):
                        done += 1
                        yield RequestEnded(side, level, repeat, found, done, total)
                    else:
                        yield ServerSampled(side, level, repeat, found)
                if self._stopped.is_set():
                    break
                cell = gathered.cell(side, index, repeat, order)
                cells.append(cell)
                if gathered.crowded:
                    notes.append(NOT_ALONE.filled(server=ready[side].entry.name))
                yield CellEnded(cell, done, total, self._result(ready, cells, False, notes, run))
                if not cell.whole:
                    notes.append(self._all_failed(cell, ready[side].entry, level))
                    break
        finally:
            self.stop()
        yield LoadEnded(self._result(ready, cells, len(cells) == known + len(plan) and all(cell.whole for cell in cells), notes, run))

    # --- before the run -------------------------------------------------------------------------

    def _earlier_cells(self) -> list[Cell]:
        """The baseline's cells that a confirming run begins with."""
        if self.earlier is None:
            return []
        cells = sorted((cell for cell in self.earlier.cells if cell.side == "baseline"), key=lambda cell: cell.order)
        return [replace(cell, order=order) for order, cell in enumerate(cells)]

    def _plan(self, earlier: Sequence[Cell]) -> list[tuple[Side, int, int]]:
        """(side, level, repeat) of every cell in its order; of a confirming run those that have a baseline already."""
        if earlier:
            return [("speculative", cell.level, cell.repeat) for cell in sorted(earlier, key=lambda cell: (cell.level, cell.repeat))]
        loads, repeats = range(len(self.options.levels)), range(self.options.repeats)
        if self.restarts:
            return [(side, level, repeat) for side in SIDES for level in loads for repeat in repeats]
        return [(side, level, repeat) for level in loads for repeat in repeats for side in (SIDES if repeat % 2 == 0 else SIDES[::-1])]

    def _prepare(self) -> dict[Side, _Server]:
        if self.earlier is not None:
            return {}
        found: dict[Side, _Server] = {"baseline": self._server(self.baseline, self.baseline_model)}
        if not self.restarts:
            found["speculative"] = self._server(self.speculative, self.speculative_model)
        return found

    def _server(self, entry: ServerEntry, model: str | None, again: bool = False) -> _Server:
        """Ask a server what it can do, and make all requests for it. Raises `PlaygroundError` for what it can't."""
        # Numbers that this experiment doesn't look at would cost the server time, and snapshots are taken per cell.
        can = replace(self.prober.capabilities(entry, model, again), metrics=False, logprobs=0, scale=None)
        options = self.options
        if options.ignore_eos and can.kind == "other":
            text = Text(
                "{server} can't be told to write on after the end: leave ignore_eos off.", "{server} 无法在结束后继续生成：请关闭 ignore_eos。"
            )
            raise BadValue("load_ignore_eos", text, server=entry.name)
        lane = {"strategy": options.strategy, "knobs": options.knobs, "max_new_tokens": options.max_new_tokens, "model": model}
        limits = Limits(max_new_tokens=MOST_TOKENS)
        requests = [
            Request.from_json({"prompt": {"text": prompt.text, "chat": True if prompt.chat else None}, "lanes": [lane], "seed": options.seed}, limits)
            for prompt in self.prompts.prompts
        ]
        return _Server(entry, can, tuple(server_request(request, request.lanes[0], entry, can) for request in requests), requests[0])

    def _notes(self, ready: dict[Side, _Server]) -> list[Text]:
        if self.earlier is not None:
            return [EARLIER_BASELINE.filled(when=self.earlier.created), MACHINE_DRIFT]
        notes = [MACHINE_DRIFT] if self.restarts else []
        if ready["baseline"].can.speculation:
            notes.append(BASELINE_SPECULATES.filled(server=self.baseline.name))
        if (other := ready.get("speculative")) is not None:
            if other.can.speculation is False:
                notes.append(NO_SPECULATION.filled(server=self.speculative.name))
            if other.can.model != ready["baseline"].can.model:
                notes.append(TWO_MODELS.filled(a=ready["baseline"].can.model, b=other.can.model))
        return notes

    def _restart(self, ready: dict[Side, _Server], notes: list[Text]) -> Iterator[LoadStep]:
        """Wait until the server has been restarted and speculates."""
        problem: Text | None = None
        config = self.confirms.config if self.confirms is not None else None
        plain = self.earlier.servers["baseline"].model if self.earlier is not None else ready["baseline"].can.model
        while not self._stopped.is_set():
            self._resumed.clear()
            yield RestartWanted(self.speculative.name, problem, config)
            self._resumed.wait()
            if self._stopped.is_set():
                return
            try:
                server = self._server(self.speculative, self.speculative_model, again=True)
            except ServerFailed as error:
                problem = error.text
                continue
            if server.can.speculation is False:
                problem = STILL_PLAIN
                continue
            ready["speculative"] = server
            if server.can.model != plain:
                notes.append(TWO_MODELS.filled(a=plain, b=server.can.model))
            return

    # --- one cell -------------------------------------------------------------------------------

    def _warm_up(self, server: _Server, level: Level, count: int, run: str) -> None:
        fewer = min(WARM_UP_TOKENS, self.options.max_new_tokens)
        jobs = [self._job(server, number, f"{run}{number}", tokens=fewer) for number in range(count)]
        for _ in self._answers(server, jobs, Level(concurrency=min(level.concurrency or 1, count)), [], time.perf_counter(), queue.SimpleQueue()):
            pass

    def _cell(self, server: _Server, level: Level, index: int, repeat: int, run: str, gathered: _Gathered) -> Iterator[LoadedRequest | ServerSample]:
        """Answers and samples as they come; what makes up the cell is left in `gathered`."""
        count = self.options.requests_at(level, len(self.prompts.prompts))
        jobs = [self._job(server, number, f"{run}{index:x}{repeat:x}{number:04x}") for number in range(count)]
        due = arrivals(self.options.seed, repeat, level.rate, count) if level.rate is not None else []
        before = _snapshot(server.entry)
        gathered.before = before
        start = counters(before) if before is not None else None
        gathered.crowded = start is not None and bool((start.running or 0) + (start.waiting or 0))
        news: queue.SimpleQueue[Any] = queue.SimpleQueue()
        ended = threading.Event()
        began = time.perf_counter()
        watchers = self._watch(server.entry, start, began, news, ended)
        try:
            for found in self._answers(server, jobs, level, due, began, news):
                if isinstance(found, DeviceSampled):
                    gathered.gpu.append(found)
                elif isinstance(found, ServerSample):
                    gathered.samples.append(found)
                    yield found
                else:
                    gathered.requests.append(found)
                    gathered.seconds = time.perf_counter() - began
                    yield found
        finally:
            ended.set()
        if before is not None and not self._stopped.is_set():
            gathered.after = self._snapshot_after(server.entry, before, sum(request.whole for request in gathered.requests))
        for watcher in watchers:
            watcher.join(timeout=STOP_PATIENCE)

    def _job(self, server: _Server, number: int, prefix: str, tokens: int | None = None) -> _Job:
        """The n-th request of a cell, behind a line of its own."""
        index = number % len(self.prompts.prompts)
        asked = server.asked[index]
        prompt = self.prompts.prompts[index]
        if self.options.unique_prefixes:
            prompt = prompt.prefixed(f"[{prefix}]")
        said: dict[str, Any] = {"messages": prompt.as_messages()} if asked.chat else {"prompt": prompt.text}
        body = {**asked.body, **said, "max_tokens": tokens or self.options.max_new_tokens}
        if self.options.strategy != "greedy":
            body["seed"] = (self.options.seed + number) % 2**32
        if self.options.ignore_eos:
            body["ignore_eos"] = True
        return _Job(index, replace(asked, body=body))

    def _answers(
        self, server: _Server, jobs: Sequence[_Job], level: Level, due: Sequence[float], began: float, news: queue.SimpleQueue[Any]
    ) -> Iterator[LoadedRequest | ServerSample | DeviceSampled]:
        """Send the jobs in threads of their own, and give whatever comes, until all are answered or the experiment is stopped."""
        waiting = iter(jobs)
        lock = threading.Lock()

        def streams() -> None:
            while not self._stopped.is_set():
                with lock:
                    job = next(waiting, None)
                if job is None:
                    return
                news.put(self._answer(server, job, began))

        def clock() -> None:
            open_streams: list[threading.Thread] = []
            for job, moment in zip(jobs, due, strict=True):
                self._stopped.wait(max(began + moment - time.perf_counter(), 0.0))
                if self._stopped.is_set():
                    return
                open_streams = [thread for thread in open_streams if thread.is_alive()]
                if len(open_streams) >= MOST_STREAMS:
                    news.put(_not_sent(job, moment))
                    continue
                thread = threading.Thread(target=lambda job=job: news.put(self._answer(server, job, began)), name="load stream", daemon=True)
                thread.start()
                open_streams.append(thread)

        if due:
            threads = [threading.Thread(target=clock, name="load clock", daemon=True)]
        else:
            threads = [threading.Thread(target=streams, name="load stream", daemon=True) for _ in range(min(level.concurrency or 1, len(jobs)))]
        for thread in threads:
            thread.start()
        left = len(jobs)
        given_up: float | None = None
        while left:
            if self._stopped.is_set():
                given_up = given_up or time.monotonic() + STOP_PATIENCE
                if time.monotonic() > given_up or not any(thread.is_alive() for thread in threads):
                    return
            try:
                found = news.get(timeout=LOOK_UP)
            except queue.Empty:
                continue
            left -= isinstance(found, LoadedRequest)
            yield found
        while not news.empty():
            yield news.get()

    def _answer(self, server: _Server, job: _Job, began: float) -> LoadedRequest:
        """Send one request and read its reply to the end."""
        lane = ServerLane(0, server.request.lanes[0], server.entry, server.can, job.asked, Pieces(server.entry.name), began, BOUNDS)
        with self._lock:
            self._running[id(lane)] = lane
        if self._stopped.is_set():
            lane.stop()
        events: list[Event] = []
        try:
            for batch in lane:
                events += [event for _, event in batch if isinstance(event, (ChunkArrived, ServerReported, SpeculationReported, Finished))]
        except Exception:  # a thread that died would be waited for until the end
            log.exception("a reply of %s could not be read", server.entry.name)
            events.append(Finished("error", "server_malformed", 0.0, message=UNREADABLE.to_json()))
        finally:
            with self._lock:
                self._running.pop(id(lane), None)
        return loaded_request(job.prompt, (lane.wire.sent or time.perf_counter()) - began, events)

    def _watch(
        self, entry: ServerEntry, start: Counters | None, began: float, news: queue.SimpleQueue[Any], ended: threading.Event
    ) -> list[threading.Thread]:
        """Sample the server's `/metrics` and this host's GPUs until the cell has ended."""

        def metrics() -> None:
            pause = min(FIRST_SAMPLE, self.options.sample_every)  # so that a short cell has a sample too
            while not ended.wait(pause):
                pause = self.options.sample_every
                text = _snapshot(entry)
                if text is None or start is None:
                    return
                news.put(server_sample(start, counters(text), time.perf_counter() - began))

        def devices() -> None:
            gpus = HostGpus()
            while samples := gpus.read(time.perf_counter() - began):
                for sample in samples:
                    news.put(sample)
                if ended.wait(min(self.options.sample_every, 0.5)):
                    return

        jobs: list[Callable[[], None]] = [metrics] if start is not None else []
        if on_this_host(entry):
            jobs.append(devices)
        threads = [threading.Thread(target=job, name="load watcher", daemon=True) for job in jobs]
        for thread in threads:
            thread.start()
        return threads

    def _snapshot_after(self, entry: ServerEntry, before: str, answered: int) -> str | None:
        """A snapshot in which all replies are counted, as far as waiting for it is worth it."""
        start = counters(before)
        after = _snapshot(entry)
        for _ in range(LOOKS):
            moved = difference(start, counters(after)) if after is not None else None
            if moved is None or moved.requests is None or moved.requests >= answered or self._stopped.wait(BETWEEN_LOOKS):
                break
            after = _snapshot(entry)
        return after

    # --- after the run --------------------------------------------------------------------------

    def _all_failed(self, cell: Cell, entry: ServerEntry, level: Level) -> Text:
        said = next((request.error for request in cell.requests if request.error), {"en": "?", "zh": "?"})
        return Text(
            ALL_FAILED.en.format(server=entry.name, level=level.text.en, error=said["en"]),
            ALL_FAILED.zh.format(server=entry.name, level=level.text.zh, error=said["zh"]),
        )

    def _result(self, ready: dict[Side, _Server], cells: Sequence[Cell], complete: bool, notes: list[Text], run: str) -> LoadResult:
        options = self.options
        counts = [options.requests_at(level, len(self.prompts.prompts)) for level in options.levels]
        setup = LoadSetup(
            levels=options.levels, repeats=options.repeats, requests=max(counts), max_new_tokens=options.max_new_tokens, strategy=options.strategy,
            knobs=options.knobs, seed=options.seed, prompts=self.prompts.name, prompts_sha256=self.prompts.sha256,
            prompt_count=len(self.prompts.prompts), unique_prefixes=options.unique_prefixes,
            warm_up=max(map(options.warm_up_at, options.levels)), order="restarted" if self.restarts else "alternating", run=run,
            ignore_eos=options.ignore_eos,
        )  # fmt: skip
        known = dict(self.earlier.servers) if self.earlier is not None else {}
        known["speculative"] = ServerAbout(self.speculative.name, "?", None, "?", None)
        return LoadResult(
            setup=setup,
            servers={side: ready[side].about if side in ready else known[side] for side in SIDES},
            cells=tuple(cells),
            created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            versions={"playground": playground.__version__, "python": platform.python_version(), "openai": openai.__version__},
            machine=f"{platform.machine()}, {os.cpu_count()} CPU cores",
            complete=complete,
            slo=options.slo,
            notes=tuple(note.to_json() for note in dict.fromkeys(notes)),
            confirms=self.confirms,
        )


@dataclass(frozen=True)
class _Job:
    prompt: int
    asked: ServerRequest


@dataclass
class _Gathered:
    """What a cell is made of, while it runs."""

    requests: list[LoadedRequest] = field(default_factory=list)
    samples: list[ServerSample] = field(default_factory=list)
    gpu: list[DeviceSampled] = field(default_factory=list)
    seconds: float = 0.0
    before: str | None = None
    after: str | None = None
    crowded: bool = False

    def cell(self, side: Side, level: int, repeat: int, order: int) -> Cell:
        requests = tuple(sorted(self.requests, key=lambda request: request.at))
        return Cell(side, level, repeat, order, self.seconds, requests, tuple(self.samples), tuple(self.gpu), self.before, self.after)


def arrivals(seed: int, repeat: int, rate: float, count: int) -> list[float]:
    """When the requests of an open loop are sent, in seconds: exponential pauses, the same on both servers."""
    dice = Dice(seed)
    moments, at = [], 0.0
    for number in range(count):
        at += -math.log1p(-dice.u(number, "choose", index=repeat)) / rate
        moments.append(at)
    return moments


def loaded_request(prompt: int, at: float, events: Sequence[Event]) -> LoadedRequest:
    """One reply in numbers, from its events: `vllm bench serve`'s definitions, as in `ServerMeter`."""
    chunks = [event for event in events if isinstance(event, ChunkArrived)]
    reported = next((event for event in events if isinstance(event, ServerReported)), ServerReported(""))
    finished = next((event for event in events if isinstance(event, Finished)), None)
    told = reported.completion_tokens
    per_chunk = [chunk.tokens for chunk in chunks]
    own = sum(count for count in per_chunk if count is not None) if chunks and all(count is not None for count in per_chunk) else None
    failed = finished is None or finished.reason == "error"
    return LoadedRequest(
        prompt=prompt,
        at=max(at, 0.0),
        ttft=chunks[0].seconds if chunks else None,
        e2e=chunks[-1].seconds if chunks else None,
        tokens=told if told is not None else own,
        counted="reported" if told is not None else "measured" if own is not None else None,
        gaps=tuple(round(max(b.seconds - a.seconds, 0.0), DIGITS) for a, b in itertools.pairwise(chunks)),
        chunk_tokens=tuple(per_chunk),
        ended=finished.reason if finished is not None else "error",
        error=finished.message if finished is not None and failed else None,
        code=finished.detail if finished is not None and failed else None,
        prompt_tokens=reported.prompt_tokens,
        cached_tokens=reported.cached_tokens,
        queue=reported.queue,
        speculation=next((event for event in events if isinstance(event, SpeculationReported)), None),
    )


def _not_sent(job: _Job, at: float) -> LoadedRequest:
    """A request of an open loop that found all streams of this client taken."""
    text = Text("Not sent: {most} streams were open already.", "未发送：已有 {most} 路并发。").filled(most=MOST_STREAMS)
    return LoadedRequest(job.prompt, at, None, None, None, None, (), (), "error", text.to_json(), "load_too_many_open")


def server_sample(start: Counters, now: Counters, at: float) -> ServerSample:
    """A snapshot as a point in time: gauges as they are, counters since `start`."""
    moved = difference(start, now) or replace(Counters(), running=now.running, waiting=now.waiting, kv_usage=now.kv_usage)
    return ServerSample(at, now.running, now.waiting, now.kv_usage, moved.preemptions, moved.prefix_queries, moved.prefix_hits, moved.tokens)


def on_this_host(entry: ServerEntry) -> bool:
    """Whether a server answers on this machine, so that this machine's GPUs are its."""
    parts = urlsplit(entry.root)
    try:
        found = {str(info[4][0]) for info in socket.getaddrinfo(parts.hostname, parts.port or 80, type=socket.SOCK_STREAM)}
    except (OSError, UnicodeError):
        return False
    own = {address.address.partition("%")[0] for addresses in psutil.net_if_addrs().values() for address in addresses}
    return bool(found) and all(address in own or address.startswith("127.") or address == "::1" for address in found)


def _snapshot(entry: ServerEntry) -> str | None:
    """The lines of `/metrics` that tell of load and speculation; None where the server has none, or something else there."""
    text = metrics_text(entry)
    kept = kept_metrics(text) if text is not None else ""
    try:
        counters(kept)
    except PlaygroundError:
        return None
    return kept
