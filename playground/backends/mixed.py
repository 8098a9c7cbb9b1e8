"""A comparison whose lanes run on servers, on this machine, or both at once.

Network time is no device time: server lanes stream in threads of their own while the local race goes on. Lanes of one server
run one after the other, because a second stream would change the latency of the first.
"""

from __future__ import annotations

import datetime
import platform
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import playground
from playground.backends import servers
from playground.backends.guarded_http import ServerFailed
from playground.backends.openai_api import Pieces, ServerLane, bounds_for
from playground.backends.probing import Prober
from playground.backends.server_request import KIND_NAMES, server_request
from playground.backends.servers import Capabilities, ServerEntry
from playground.engine.knobs import values_of
from playground.errors import PlaygroundError, Text
from playground.request import Lane, Request
from playground.trace import About, Finished, LaneAbout, LaneEvent, ModelAbout

#: How many batches may wait to be looked at, of all server lanes together; beyond that the streams are held up.
MOST_WAITING = 20_000
#: Whoever waits for a chunk is let go this often: Stop and Pause are answered in between.
LOOK_UP = 0.1
#: After Stop a lane that can't be cut off (a name that is being resolved) is given up after so many seconds.
STOP_PATIENCE = 2.0

ONE_AT_A_TIME = Text(
    "Lanes on {server} run one after the other: a second stream would slow the first.",
    "{server} 上的通道依次运行：同时运行会互相拖慢。",
)


class Local(Protocol):
    """The part of a comparison that runs on this machine."""

    about: About | None

    def __iter__(self) -> Iterator[list[LaneEvent]]: ...

    def stop(self) -> None: ...

    def one_round(self) -> None: ...

    @property
    def owed(self) -> int: ...


@dataclass(frozen=True)
class PreparedServerLane:
    """A server lane made ready; `run` is None where the server failed when it was asked what it can do, and `failed` says how."""

    index: int
    about: LaneAbout
    model: ModelAbout
    run: ServerLane | None
    failed: PlaygroundError | None = None


def prepare(request: Request, prepare_local: Callable[[Request], Local], prober: Prober, versions: Callable[[], dict[str, str]]) -> Local:
    """Make a request ready that names servers; one that names none is `prepare_local`'s alone.

    A lane that its server can't do is refused here, with its index in `values["lane"]`; a server that doesn't answer
    costs only its own lanes.
    """
    local_lanes = [index for index, lane in enumerate(request.lanes) if lane.server is None]
    if len(local_lanes) == len(request.lanes):
        return prepare_local(request)
    started = time.perf_counter()
    pieces: dict[str, Pieces] = {}
    prepared = [_prepare_lane(request, index, lane, prober, pieces, started) for index, lane in enumerate(request.lanes) if lane.server is not None]
    local = None
    if local_lanes:
        try:
            local = prepare_local(replace(request, lanes=tuple(request.lanes[index] for index in local_lanes)))
        except PlaygroundError as error:
            if (lane := error.values.get("lane")) is not None:
                error.values = {**error.values, "lane": local_lanes[lane]}
            raise
    return MixedComparison(request, prepared, local, local_lanes, started, versions)


def check_servers(request: Request) -> None:
    """Whether every server that a request names may be used here; asks none of them anything. Raises `PlaygroundError`."""
    for index, lane in enumerate(request.lanes):
        if lane.server is not None:
            try:
                servers.resolve(lane.server)
            except PlaygroundError as error:
                error.values = {**error.values, "lane": index}
                raise


def _prepare_lane(request: Request, index: int, lane: Lane, prober: Prober, pieces: dict[str, Pieces], started: float) -> PreparedServerLane:
    assert lane.server is not None
    try:
        entry = servers.resolve(lane.server)
        can = prober.capabilities(entry, lane.model)
        asked = server_request(request, lane, entry, can)
    except ServerFailed as error:
        return _failed_lane(request, index, lane, error)
    except PlaygroundError as error:
        error.values = {**error.values, "lane": index}
        raise
    key = f"{entry.name}/{can.model}"
    several = sum(other.server == lane.server for other in request.lanes) > 1
    notes = (*asked.notes, *([ONE_AT_A_TIME.filled(server=entry.name)] if several else []))
    about = LaneAbout(
        name=lane.name, model=key, strategy=lane.strategy.name, knobs=values_of(lane.strategy), stages=asked.stages,
        max_new_tokens=lane.max_new_tokens, stop=lane.stop, eos=(), prompt_ids=(), rendered=request.prompt.text,
        notes=tuple(note.to_json() for note in notes), server=entry.name,
        sent={"path": asked.path, **{name: value for name, value in asked.body.items() if name not in ("prompt", "messages")}},
    )  # fmt: skip
    run = ServerLane(index, lane, entry, can, asked, pieces.setdefault(key, Pieces(key)), started, bounds_for(lane))
    return PreparedServerLane(index, about, model_about(key, entry, can), run)


def _failed_lane(request: Request, index: int, lane: Lane, error: PlaygroundError) -> PreparedServerLane:
    """A lane whose server doesn't answer: it ends with that, and the others run."""
    assert lane.server is not None
    key = f"{lane.server}/{lane.model or '?'}"
    about = LaneAbout(
        name=lane.name, model=key, strategy=lane.strategy.name, knobs=values_of(lane.strategy), stages=(), max_new_tokens=lane.max_new_tokens,
        stop=lane.stop, eos=(), prompt_ids=(), rendered=request.prompt.text, notes=tuple(note.to_json() for note in lane.notes), server=lane.server,
    )  # fmt: skip
    model = ModelAbout(key, lane.model or "?", None, None, lane.server, None, None, None, None, None, None, None)
    return PreparedServerLane(index, about, model, None, error)


def model_about(key: str, entry: ServerEntry, can: Capabilities) -> ModelAbout:
    """What is known of a model on a server: its name and how long its texts may be."""
    where = " ".join(filter(None, (f"{entry.name}:", KIND_NAMES[can.kind], can.version)))
    return ModelAbout(
        key=key, name=can.model, revision=None, dtype=None, device=where, parameters=None, weight_bytes=None, layers=None, vocabulary=None,
        context=can.context, cache_bytes_per_token=None, cache_formula=None,
    )  # fmt: skip


@dataclass
class MixedComparison:
    """Server streams and a local race as one comparison: iterate to run it, one list of events per step or chunk."""

    request: Request
    prepared: list[PreparedServerLane]
    local: Local | None
    local_lanes: list[int]
    started: float
    versions: Callable[[], dict[str, str]]
    _arrived: dict[int, deque[list[LaneEvent]]] = field(default_factory=dict)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _open: set[int] = field(default_factory=set)
    _owed: set[int] = field(default_factory=set)
    _stopped: float | None = None

    @property
    def about(self) -> About | None:
        """The whole comparison's: the local race's, with the server lanes in their places; None while that is unknown."""
        own = self.local.about if self.local is not None else None
        if self.local is not None and own is None:
            return None
        lanes = {entry.index: entry.about for entry in self.prepared} | dict(zip(self.local_lanes, own.lanes if own else (), strict=True))
        models = {model.key: model for model in (*(own.models if own else ()), *(entry.model for entry in self.prepared))}
        named = ", ".join(dict.fromkeys(entry.model.device for entry in self.prepared))
        return About(
            request=self.request.to_json(),
            models=tuple(models.values()),
            lanes=tuple(lanes[index] for index in sorted(lanes)),
            versions=own.versions if own else {"playground": playground.__version__, "python": platform.python_version()} | self.versions(),
            machine=f"{own.machine}; {named}" if own else named,
            created=own.created if own else datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            warm=own.warm if own else True,  # the model has answered before: when it was asked what the server can do
        )

    def __iter__(self) -> Iterator[list[LaneEvent]]:
        running = [entry.run for entry in self.prepared if entry.run is not None]
        self._open = {run.index for run in running}
        self._arrived = {run.index: deque() for run in running}
        for lanes in _by_server(running).values():
            threading.Thread(target=self._stream, args=(lanes,), name="server lanes", daemon=True).start()
        local = iter(self.local) if self.local is not None else None
        failed = [(entry.index, entry.failed) for entry in self.prepared if entry.failed is not None]
        try:
            if failed:
                yield [(index, Finished("error", error.code, 0.0, message=error.text.to_json())) for index, error in failed]
            while local is not None or self._open or any(self._arrived.values()):
                if events := self._take():
                    yield events
                if local is not None and (not self._owed or self._local_owes()):
                    step = next(local, None)
                    if step is None:
                        local = None
                    else:
                        yield [(lane if lane is None else self.local_lanes[lane], event) for lane, event in step]
                elif not events:
                    yield self._wait()
        finally:
            self.stop()

    def stop(self) -> None:
        with self._changed:
            self._stopped = self._stopped or time.monotonic()
            self._changed.notify_all()
        for entry in self.prepared:
            if entry.run is not None:
                entry.run.stop()
        if self.local is not None:
            self.local.stop()

    def one_round(self) -> None:
        """Owe every lane one step; a server can't be held back, so its lane gives the next batch that came or comes."""
        with self._changed:
            self._owed = {lane for lane, batches in self._arrived.items() if lane in self._open or batches}
        if self.local is not None:
            self.local.one_round()

    @property
    def owed(self) -> int:
        return len(self._owed) + (self.local.owed if self.local is not None else 0)

    def _local_owes(self) -> bool:
        return self.local is not None and self.local.owed > 0

    # --- between the streams' threads and whoever iterates ----------------------------------------

    def _stream(self, lanes: Sequence[ServerLane]) -> None:
        """For a thread of its own: the lanes of one server, one after the other."""
        for lane in lanes:
            try:
                for batch in lane:
                    self._put(lane.index, batch)
            finally:
                with self._changed:
                    self._open.discard(lane.index)
                    self._changed.notify_all()

    def _put(self, lane: int, batch: list[LaneEvent]) -> None:
        with self._changed:
            while sum(map(len, self._arrived.values())) >= MOST_WAITING and self._stopped is None:
                self._changed.wait()
            if lane in self._open:  # else it was given up
                self._arrived[lane].append(batch)
                self._changed.notify_all()

    def _take(self) -> list[LaneEvent]:
        """What has come of the server lanes: all of it, or one batch of each lane that owes one."""
        with self._changed:
            taken: list[LaneEvent] = []
            in_steps = bool(self._owed) or self._local_owes()
            for lane, batches in self._arrived.items():
                count = len(batches) if not in_steps else min(len(batches), lane in self._owed)
                for _ in range(count):
                    taken += batches.popleft()
                if count:
                    self._owed.discard(lane)
            self._owed &= {lane for lane, batches in self._arrived.items() if lane in self._open or batches}
            self._changed.notify_all()
            return taken

    def _wait(self) -> list[LaneEvent]:
        """Wait for news, shortly; after Stop, give up the lanes that can't be cut off."""
        with self._changed:
            if self._open and not any(self._arrived.values()):
                self._changed.wait(timeout=LOOK_UP)
            if self._stopped is None or time.monotonic() - self._stopped < STOP_PATIENCE:
                return []
            given_up, self._open = self._open, set()
            at = time.perf_counter() - self.started
            return [(lane, Finished("cancelled", "stopped", at)) for lane in sorted(given_up)]


def _by_server(lanes: Sequence[ServerLane]) -> dict[str, list[ServerLane]]:
    grouped: dict[str, list[ServerLane]] = {}
    for lane in lanes:
        grouped.setdefault(lane.entry.root, []).append(lane)
    return grouped
