"""The first-come line: one race per device at a time, watched by whoever has the run's id.

A run is driven by the device's worker thread and read by any number of viewers. Losing the last
viewer, or a visitor's Pause, ends the worker's turn at the next step; the race is kept and goes on
from there when it is its turn again.
"""

from __future__ import annotations

import atexit
import functools
import logging
import secrets
import threading
import time
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from playground.errors import Cancelled, PlaygroundError, Text
from playground.expected import Expected, Range, time_used
from playground.trace import About, ChunkArrived, Finished, LaneEvent, StepTimed, Trace

if TYPE_CHECKING:
    from playground.request import Request

log = logging.getLogger(__name__)

Phase = Literal["queued", "loading", "running", "paused", "done", "failed"]
ENDED: frozenset[Phase] = frozenset({"done", "failed"})

#: How long a run waits for a viewer that left, and how long a new run waits for its first.
VIEWER_GRACE = 30.0
FIRST_VIEWER_GRACE = 10.0
#: How many runs are kept for reloads, links and records, and how many may wait.
KEPT_RUNS = 200
KEPT_EVENTS = 150_000
LONGEST_LINE = 64
#: How many of them may have no viewer after these seconds: whoever starts runs and looks at none can't fill the line.
UNSEEN = 16
ARRIVING = 3.0
#: A pause holds KV caches: after this long it ends the run.
LONGEST_PAUSE = 600.0

LEFT_ALONE = Text(
    "Stopped when the last page that watched it was closed: a run on this host can't wait. What it wrote is kept.",
    "最后一个观看的页面关闭时已停止：此主机上的运行无法等待。已生成的内容保留。",
)


STOPPED = Text("Stopped.", "已停止。")
NOT_BEGUN = Text("Stopped before it began.", "在开始前已停止。")


class Comparison(Protocol):
    """What a backend makes of a request: iterate to run it, one list of events per step.

    `about` is None as long as it isn't known where the comparison will run; an empty list of events says
    that there is nothing new, so that the line looks up from waiting.
    """

    about: About | None

    def __iter__(self) -> Iterator[list[LaneEvent]]: ...

    def stop(self) -> None: ...

    def one_round(self) -> None:
        """Owe every lane that has not ended one step."""
        ...

    @property
    def owed(self) -> int:
        """How many of these steps are still to be made."""
        ...


Prepare = Callable[["Request", Callable[[Text, float | None], None]], Comparison]


@dataclass(eq=False)
class Run:
    """One comparison: its request, its state, and everything that has happened so far."""

    request: Request
    visitor: str
    #: What besides the request decides the trace (the device, the numbers' type).
    settings: tuple[str, ...] = ()
    #: Tokens of every lane's prompt, where whoever asked could tell.
    prompts: tuple[int, ...] | None = None
    id: str = field(default_factory=lambda: secrets.token_urlsafe(16))
    created: float = field(default_factory=time.monotonic)
    phase: Phase = "queued"
    text: Text | None = None
    progress: float | None = None
    error: PlaygroundError | None = None
    about: About | None = None
    events: list[LaneEvent] = field(default_factory=list)
    comparison: Comparison | None = None
    changed: threading.Condition = field(default_factory=threading.Condition)
    version: int = 0
    viewers: int = 0
    left: float | None = None
    wants: Literal["run", "pause", "stop"] = "run"
    #: Seconds of its prompts and steps so far, recording included, and how many tokens they brought.
    spent: float = 0.0
    tokens: int = 0
    steps: Iterator[list[LaneEvent]] | None = None
    paused_at: float = 0.0
    #: What viewers' packets are cut from: whoever makes them keeps them here, so that they go with the run.
    payloads: Any = None

    def tell(self, phase: Phase | None = None, text: Text | None = None, progress: float | None = None) -> None:
        """Change the state and wake every viewer."""
        with self.changed:
            if phase is not None:
                self.phase = phase
            if phase == "paused":
                self.paused_at = time.monotonic()
            self.text, self.progress = text, progress
            self.version += 1
            self.changed.notify_all()

    def add(self, events: list[LaneEvent]) -> None:
        timed = [event for _, event in events if isinstance(event, StepTimed)]
        with self.changed:
            self.events.extend(events)
            self.spent += time_used(events)
            self.tokens += sum(step.tokens for step in timed) + sum(event.tokens or 0 for _, event in events if isinstance(event, ChunkArrived))
            self.changed.notify_all()

    @property
    def ended(self) -> bool:
        return self.phase in ENDED

    @property
    def whole(self) -> bool:
        """Whether every lane came to an end of its own."""
        ends = [event for _, event in self.events if isinstance(event, Finished)]
        return len(ends) == len(self.request.lanes) and all(end.reason in ("stop", "length") for end in ends)

    def unwatched(self, now: float) -> bool:
        """Whether the last viewer has left, or none ever came."""
        if self.viewers:
            return False
        return self.left is not None or now - self.created > FIRST_VIEWER_GRACE

    @property
    def trace(self) -> Trace:
        assert self.about is not None
        return Trace(self.about, list(self.events))


class Viewer:
    """Keeps a run alive while somebody looks: a context manager that counts itself."""

    def __init__(self, line: Line, run: Run) -> None:
        self._line, self._run = line, run

    def __enter__(self) -> Run:
        with self._run.changed:
            self._run.viewers += 1
            self._run.left = None
        self._line.viewer_came(self._run)
        return self._run

    def __exit__(self, *error: object) -> None:
        with self._run.changed:
            self._run.viewers -= 1
            if not self._run.viewers:
                self._run.left = time.monotonic()
            self._run.changed.notify_all()


_lines: weakref.WeakSet[Line] = weakref.WeakSet()


@atexit.register
def _close_lines() -> None:
    for line in list(_lines):
        line.close()


class Line:
    """Who waits, who runs, who is kept. `prepare` makes a race of a request and may load a model."""

    #: Whether a run can give the device to the next and go on later; where not, it ends with its last viewer.
    pausable = True

    def __init__(self, prepare: Prepare) -> None:
        self._prepare = prepare
        self._lock = threading.Condition()
        self._waiting: deque[Run] = deque()
        self._running: Run | None = None
        self._kept: OrderedDict[str, Run] = OrderedDict()
        self._expected = Expected()
        self._worker: threading.Thread | None = None
        self._reaped = 0.0
        self._closed = False
        _lines.add(self)

    def close(self) -> None:
        """End the worker at its next step: called when the program ends, so that it isn't torn down in mid-product."""
        with self._lock:
            self._closed = True
            self._waiting.clear()
            if self._running is not None:
                self._running.wants = "stop"
            self._lock.notify_all()
        if self._worker is not None:
            self._worker.join(timeout=5)

    # --- for visitors ------------------------------------------------------------------------

    def made(self, request: Request, settings: tuple[str, ...] = (), ended: bool = True) -> Run | None:
        """A run of the same request under the same settings that is being watched now, or (with `ended`) has ended by itself.

        A server may have been restarted since, with other settings: of a lane there only a run that is being watched now counts.
        """
        now = time.monotonic()
        elsewhere = any(lane.server is not None for lane in request.lanes)
        with self._lock:
            same = [run for run in self._kept.values() if run.request == request and run.settings == settings]
        for run in reversed(same):
            if (ended and run.phase == "done" and run.whole and not elsewhere) or (not run.ended and run.wants == "run" and not run.unwatched(now)):
                return run
        return None

    def start(self, request: Request, visitor: str, settings: tuple[str, ...] = (), prompts: tuple[int, ...] | None = None) -> Run:
        """Take a place in the line; one unfinished run per visitor."""
        with self._lock:
            for other in [run for run in self._kept.values() if run.visitor == visitor and not run.ended]:
                if other.viewers:
                    raise PlaygroundError(
                        "run_already", Text("You already have a run in progress: stop it first.", "您已有一个运行正在进行：请先停止它。")
                    )
                self._end(other, Text("Stopped: another run was started.", "已停止：另一个运行已开始。"))
            self._reap()
            unseen = [run for run in self._waiting if not run.viewers]
            late = [run for run in unseen if time.monotonic() - run.created >= ARRIVING]
            too_many = max(len(late) + 1 - UNSEEN, min(len(unseen), len(self._waiting) + 1 - LONGEST_LINE), 0)
            for ghost in unseen[:too_many]:  # the oldest first
                self._end(ghost, Text("Stopped: nobody was watching.", "已停止：没有人在看。"))
            if len(self._waiting) >= LONGEST_LINE:
                raise PlaygroundError(
                    "line_full",
                    Text("{count} runs are waiting already: try again in a few minutes.", "已有 {count} 个运行在排队：请几分钟后再试。"),
                    count=len(self._waiting),
                )
            run = Run(request, visitor, settings, prompts)
            self._kept[run.id] = run
            self._waiting.append(run)
            self._forget_old()
            if self._worker is None:
                self._worker = threading.Thread(target=self._work, name="device", daemon=True)
                self._worker.start()
            self._lock.notify_all()
        return run

    def get(self, run_id: object) -> Run:
        with self._lock:
            run = self._kept.get(run_id) if isinstance(run_id, str) else None
        if run is None:
            raise PlaygroundError(
                "run_unknown",
                Text(
                    "This run is no longer here: runs live as long as the app that made them, and only the newest are kept. Run it again.",
                    "该运行已不在此处：运行只在生成它的应用运行期间保留，且只保留最新的。请重新运行。",
                ),
            )
        return run

    def watch(self, run: Run) -> Viewer:
        return Viewer(self, run)

    def stop(self, run: Run) -> None:
        """End the run at its next step or prompt piece, at once if it isn't its turn; what was generated stays."""
        with self._lock:
            if not run.ended:
                self._end(run, STOPPED if run.events else NOT_BEGUN)

    def pause(self, run: Run) -> None:
        self._check_pausable()
        with self._lock:
            if run.wants == "run":
                run.wants = "pause"

    def resume(self, run: Run) -> None:
        with self._lock:
            if run.wants == "pause":
                run.wants = "run"
                self._wake(run)

    def step(self, run: Run) -> None:
        """While paused: every lane that has not ended makes one step."""
        self._check_pausable()
        with self._lock:
            if run.wants == "pause" and run.phase == "paused" and run.comparison is not None and run is not self._running:
                run.comparison.one_round()
                self._wake(run)

    def _check_pausable(self) -> None:
        if not self.pausable:
            raise PlaygroundError(
                "pause_off",
                Text(
                    "Pause and step are off here: the GPU is lent for one comparison in one piece. Stop works.",
                    "此处不能暂停和单步：GPU 只为一次对比借用，须一次跑完。可以停止。",
                ),
            )

    def wait(self, run: Run, events: int, version: int, seconds: float) -> None:
        """For a viewer who knows so many events and this state: until there is more, at most so long."""
        with run.changed:
            if len(run.events) == events and run.version == version:
                run.changed.wait(timeout=seconds)

    def place(self, run: Run) -> int | None:
        """How many runs are ahead; None once it runs."""
        with self._lock:
            if run not in self._waiting:
                return None
            return list(self._waiting).index(run) + (1 if self._running is not None else 0)

    def expected_seconds(self, request: Request, settings: tuple[str, ...] = (), prompts: tuple[int, ...] | None = None) -> Range | None:
        """From how many to how many seconds a run will take here, by runs measured so far; None where none was like it.

        `prompts` holds the tokens of every lane's prompt; None: unknown.
        """
        return self._expected.seconds(request, settings, prompts)

    def seconds_until(self, run: Run) -> Range | None:
        """From when to when a waiting run begins: what those ahead of it still need, or None if that isn't known."""
        with self._lock:
            if run not in self._waiting:
                return 0.0, 0.0
            ahead = list(self._waiting)[: list(self._waiting).index(run)]
            if self._running is not None:
                ahead.append(self._running)
        needs = [self._remaining(other) for other in ahead]
        if any(need is None for need in needs):
            return None
        return sum(need[0] for need in needs if need is not None), sum(need[1] for need in needs if need is not None)

    def _remaining(self, run: Run) -> Range | None:
        whole = self._expected.seconds(run.request, run.settings, run.prompts)
        return None if whole is None else (max(whole[0] - run.spent, 0.0), max(whole[1] - run.spent, 0.0))

    @property
    def waiting(self) -> int:
        with self._lock:
            return len(self._waiting)

    @property
    def busy(self) -> bool:
        with self._lock:
            return self._running is not None

    # --- viewers -----------------------------------------------------------------------------

    def viewer_came(self, run: Run) -> None:
        self._wake(run)

    def _wake(self, run: Run) -> None:
        """Bring a run that isn't running to the head of the line, if it has something to do there."""
        with self._lock:
            if run.phase == "paused" and run is not self._running and run not in self._waiting:
                self._requeue(run)
            self._lock.notify_all()

    def _requeue(self, run: Run) -> None:
        """Put a paused run to the head of the line if it has something to do. Called with the lock held."""
        owed = run.comparison.owed if run.comparison is not None else 0
        if run.wants == "run" and not owed:
            run.tell("queued")
        if run.wants == "run" or owed:
            self._waiting.appendleft(run)

    # --- the worker --------------------------------------------------------------------------

    def _work(self) -> None:
        while not self._closed:
            with self._lock:
                while not (run := self._next()):
                    if self._closed:
                        return
                    self._lock.wait(timeout=1.0)
                    self._reap()
                self._running = run
                self._reap()
            try:
                self._drive(run)
            except PlaygroundError as error:
                run.error = error
                run.tell("failed", error.text)
            except Cancelled:
                run.tell("done", NOT_BEGUN)
            except Exception:
                self._broke(run)
            finally:
                with self._lock:
                    self._running = None
                    if run.ended:
                        run.steps = run.comparison = None
                    elif run.wants == "stop":  # pressed while the worker was letting go of it
                        self._end(run, STOPPED)
                    elif run.viewers or run.wants == "pause":
                        self._requeue(run)
                    self._lock.notify_all()

    @staticmethod
    def _broke(run: Run) -> None:
        """A bug ends its run, loudly in the log, and nothing else."""
        log.exception("run %s broke", run.id)
        run.error = PlaygroundError("bug", Text("Something broke here; it is in the server's log.", "程序出错；详情在服务器日志中。"))
        run.tell("failed", run.error.text)

    def _next(self) -> Run | None:
        """The first run in the line that somebody looks at; others step out of the line until they do."""
        while self._waiting:
            run = self._waiting.popleft()
            if run.ended:
                continue
            if run.unwatched(time.monotonic()) and run.wants != "stop":
                run.tell("paused", Text("Nobody is watching.", "没有人在看。"))
                continue
            return run
        return None

    def _drive(self, run: Run) -> None:
        """Run steps until the race ends, or the run has to give the device to the next."""
        if run.steps is None:
            run.tell("loading")
            run.comparison = self._prepare(run.request, functools.partial(self._tell_loading, run))
            run.steps = iter(run.comparison)
        assert run.comparison is not None
        why = None
        while True:
            if run.phase != "running" and run.comparison.about is not None:
                run.about = run.comparison.about
                run.tell("running")
            if run.wants == "stop":
                run.comparison.stop()
            elif run.unwatched(time.monotonic()):
                if not self.pausable:
                    run.wants, why = "stop", LEFT_ALONE
                    continue
                run.tell("paused", Text("Nobody is watching.", "没有人在看。"))
                return
            elif run.wants == "pause" and not run.comparison.owed:
                run.tell("paused")
                return
            events = next(run.steps, None)
            if events is None:
                self._expected.learn(run.request, run.settings, run.events)
                run.tell("done", why)
                return
            if events:
                run.add(events)
            if time.monotonic() - self._reaped > 1.0:
                with self._lock:
                    self._reap()

    @staticmethod
    def _tell_loading(run: Run, text: Text, progress: float | None) -> None:
        """How far a model is; raises `Cancelled` when nobody wants it any more."""
        if run.wants == "stop" or run.unwatched(time.monotonic()):
            raise Cancelled
        run.tell("loading", text, progress)

    def _reap(self) -> None:
        """Cancel what nobody came back to. Called with the lock held."""
        now = self._reaped = time.monotonic()
        for run in list(self._kept.values()):
            if run.phase != "paused" or run is self._running:
                continue
            if run.unwatched(now) and now - (run.left or run.created) > VIEWER_GRACE:
                self._end(run, Text("Stopped: nobody was watching.", "已停止：没有人在看。"))
            elif now - run.paused_at > LONGEST_PAUSE:
                self._end(run, Text("Stopped: it was paused for too long.", "已停止：暂停时间过长。"))

    def _end(self, run: Run, why: Text) -> None:
        """Cancel a run that isn't running, or ask the one that is. Called with the lock held."""
        run.wants = "stop"
        if run is self._running:
            return
        if run in self._waiting:
            self._waiting.remove(run)
        try:
            if run.comparison is not None and run.steps is not None:
                run.comparison.stop()
                for events in run.steps:
                    run.add(events)
            run.tell("done", why)
        except Exception:
            self._broke(run)
        run.steps = run.comparison = None

    def _forget_old(self) -> None:
        """Drop the oldest ended runs that nobody looks at. Called with the lock held."""
        events = sum(len(run.events) for run in self._kept.values())
        for run in list(self._kept.values()):
            if len(self._kept) <= KEPT_RUNS and events <= KEPT_EVENTS:
                return
            if run.ended and not run.viewers:
                events -= len(run.events)
                del self._kept[run.id]
