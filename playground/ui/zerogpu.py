"""ZeroGPU Spaces: a GPU that is borrowed for one call at a time, in a process of its own.

Follows the source of `spaces` 0.51 (`zero/wrappers.py`, `zero/torch/patching.py`) and was not run on ZeroGPU hardware: the
package itself was tried on a CPU, with stand-ins for CUDA and for the service that lends the GPU.
What that source asks for, and how it is met:

- The GPU is lent to one decorated sync generator: a whole comparison, all lanes in turn, is one call of it.
- The call is made in the thread of a visitor's own request, whose quota it uses. So the line's worker doesn't call it:
  whoever watches the run lends it a moment of their thread (`ZeroGpuLine.wait`), and what arrives goes to the worker.
- It runs in a forked process. Plain events come back through a pipe; no flag reaches it, so there is no pause. Stop closes
  the generator, which the process looks at after every step.
- Models come by the fork. `spaces` emulates `.to("cuda")` only in the thread that imported it, and the app loads models
  in others: so here they lie in the CPU's memory, and the process itself brings them to its GPU.
- A Space tells of its GPU functions when it launches: `app.py` makes `gpu()` before that.
"""

from __future__ import annotations

import importlib
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Generator, Iterator
from functools import cache
from types import ModuleType

import gradio as gr

from playground.backends import catalog, loading, local
from playground.errors import PlaygroundError, Text
from playground.line import Line, Run
from playground.request import Request
from playground.trace import About, Finished, LaneEvent, StepTimed

log = logging.getLogger(__name__)

#: What the GPU process sends: first where it runs, then the events of each step, or what kept it from them.
Sent = About | list[LaneEvent] | PlaygroundError

#: Seconds of GPU that one comparison asks for at most; what a token takes at most; what bringing the model there takes.
LONGEST_CALL = 120
SECONDS_PER_TOKEN = 0.03
BEGINNING = 10

#: What models are kept as: the GPU that is lent computes in it, and half the bytes have to travel.
DTYPE = "bfloat16"

#: How long the line waits for news before it looks up, and how long a viewer lends its thread at a time.
PATIENCE = 0.05
LOAN = 0.1

WAITING = Text("Waiting for a GPU.", "正在等待 GPU。")


@cache
def gpu() -> Gpu | None:
    """The GPU that this Space borrows; None anywhere else."""
    if os.environ.get("SPACES_ZERO_GPU", "").lower() not in {"1", "t", "true"}:
        return None
    try:
        return Gpu(importlib.import_module("spaces"))
    except ImportError:
        log.warning("SPACES_ZERO_GPU is set, but there is no package spaces: running without")
        return None


def duration(request: Request) -> int:
    """Seconds of GPU to ask for: it is taken back after them, and a visitor must have as many left."""
    return min(LONGEST_CALL, BEGINNING + round(SECONDS_PER_TOKEN * sum(lane.max_new_tokens for lane in request.lanes)))


class Gpu:
    """Runs whole comparisons in the GPU process."""

    def __init__(self, spaces: ModuleType) -> None:
        #: By catalog id, in the main process' memory: a new GPU process finds them in its own.
        self.models: dict[str, catalog.LoadedModel] = {}
        self._on_gpu: dict[str, catalog.LoadedModel] = {}
        self._call: Callable[[Request], Generator[Sent, None, None]] = spaces.GPU(duration=duration)(self._run)

    def comparison(self, request: Request) -> BorrowedRace:
        """A comparison of models that `models` holds; the GPU is asked for when somebody works on it."""
        return BorrowedRace(self._call(request))

    def _run(self, request: Request) -> Generator[Sent, None, None]:
        """In the GPU process: the whole comparison, one item per step."""
        try:
            comparison = local.prepare(request, self._model)
            yield comparison.about
            yield from comparison
        except PlaygroundError as error:
            yield error

    def _model(self, name: str | None) -> catalog.LoadedModel:
        """In the GPU process: a model on the GPU, from the memory that was forked, or from its files where it isn't in that."""
        entry = catalog.resolve(name).id
        if entry not in self._on_gpu:
            # A process that serves its second call doesn't have what was loaded since it was forked. The main process'
            # catalog would be of no use: one of its locks may have been held by a thread that isn't here.
            loaded = self.models.get(entry) or catalog.Catalog().get(entry, "cpu", DTYPE)
            self._on_gpu[entry] = loading.moved(loaded, loading.choose_device())
        return self._on_gpu[entry]


class BorrowedRace:
    """A comparison whose steps are taken in the GPU process: viewers' threads fetch them, the line's worker hands them on."""

    def __init__(self, steps: Generator[Sent, None, None]) -> None:
        self.about: About | None = None
        self._steps = steps
        self._fetching = threading.Lock()  # held by whoever is inside `_steps`
        self._fetched: queue.SimpleQueue[Sent | Exception | None] = queue.SimpleQueue()
        self._stopping = self._over = False

    def fetch(self, seconds: float) -> bool:
        """For a viewer's thread: bring what the GPU has done, for so long or one step longer. False if that isn't needed."""
        if self._over or not self._fetching.acquire(blocking=False):
            return False
        try:
            ends = time.monotonic() + seconds
            while not self._over and time.monotonic() < ends:
                self._fetch_one()
        finally:
            self._fetching.release()
        return True

    def _fetch_one(self) -> None:
        try:
            if self._stopping:
                self._steps.close()
            sent: Sent | Exception | None = next(self._steps, None)
            if isinstance(sent, PlaygroundError):
                self._steps.close()
        except gr.Error as error:
            sent = _refused(error)
        except Exception as error:  # raised again in the line's worker, where bugs are logged
            sent = error
        self._over = sent is None or isinstance(sent, Exception)
        self._fetched.put(sent)

    def __iter__(self) -> Iterator[list[LaneEvent]]:
        """For the line's worker: the events as they arrive; an empty list where there are none for a while."""
        racing: set[int] = set()
        at = 0.0
        while True:
            try:
                sent = self._fetched.get(timeout=PATIENCE)
            except queue.Empty:
                yield []
                continue
            if sent is None:
                break
            if isinstance(sent, Exception):
                raise sent
            if isinstance(sent, About):
                self.about, racing = sent, set(range(len(sent.lanes)))
                yield []
                continue
            for lane, event in sent:
                if isinstance(event, Finished) and lane is not None:
                    racing.discard(lane)
                elif isinstance(event, StepTimed):
                    at = event.at
            yield sent
        if racing:  # the process was stopped, and can't say so any more
            yield [(lane, Finished("cancelled", "stopped", at)) for lane in sorted(racing)]

    def stop(self) -> None:
        """End it after the step that is being taken; while a GPU is being waited for, as soon as there is one."""
        self._stopping = True
        if not self._over and self._fetching.acquire(blocking=False):
            try:
                self._fetch_one()
            finally:
                self._fetching.release()

    def one_round(self) -> None:
        """No steps are owed here: the line refuses to pause."""

    @property
    def owed(self) -> int:
        return 0


def _refused(error: gr.Error) -> PlaygroundError:
    """What `spaces` says when there is no GPU, no quota, or no time left: shown to whoever asked for the run."""
    reason = f"{getattr(error, 'title', '')}: {error.message}"
    return PlaygroundError(
        "gpu_refused",
        Text("The GPU was refused or taken back. {reason}", "GPU 未获批准或已被收回。{reason}"),
        reason=reason[:400],
    )


class ZeroGpuLine(Line):
    """The line of a host whose GPU works in the threads of those who watch."""

    pausable = False

    def wait(self, run: Run, events: int, version: int, seconds: float) -> None:
        """Waiting for news of a run that is on is done by fetching them; the news that there are come first."""
        race = run.comparison
        if len(run.events) == events and run.version == version and isinstance(race, BorrowedRace) and race.fetch(min(seconds, LOAN)):
            return
        super().wait(run, events, version, seconds)
