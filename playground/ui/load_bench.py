"""Many people, one small machine: thirty viewers of one live run, and thirty visitors with runs of their own.

The app is served over HTTP as for browsers; all clients live in one process beside it, on the same
machine, and the figures say how much of it they took.
"""

from __future__ import annotations

import multiprocessing
import secrets
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from playground import presets
from playground.backends.tiny_model import tiny_model
from playground.experiments.bench import WARM_UP_TOKENS, spread
from playground.experiments.bounded import Budget, PartFailed
from playground.line import Comparison, Line, Run
from playground.request import Limits, Request
from playground.trace import TokenChosen
from playground.ui.app import build, launch
from playground.ui.crowd import answer_load
from playground.ui.service import Service

PEOPLE = 30
#: How long clients may take to find their place before the figures mean nothing.
PATIENCE = 120.0


@contextmanager
def served(service: Service) -> Iterator[Connection]:
    """The page over a service, and the process of its clients: send it what to do, receive what it found."""
    page = build(service)
    launch(page, prevent_thread_lock=True, quiet=True, server_port=None, server_name="127.0.0.1")
    here, there = multiprocessing.Pipe()
    clients = multiprocessing.get_context("spawn").Process(target=answer_load, args=(page.local_url, there), daemon=True)
    clients.start()
    there.close()  # so that it shows here when the process ends
    try:
        yield here
        here.send(None)
        clients.join(timeout=5)
    finally:
        clients.kill()
        page.close()


# --- thirty viewers of one run -----------------------------------------------------------------


def viewers(pairs: int, tokens: int, say: Callable[[str], None], people: int = PEOPLE) -> dict[str, Any]:
    """One run on the default model with so many viewers, and with one, in turn."""
    budget, service = Budget(), Service(Limits())
    ratios, updates, longest, shares, missing = [], [], [], [], 0
    with served(service) as clients:
        service.load(None)
        for count in (1, people):  # both warm up
            watched(service, clients, count, min(tokens, WARM_UP_TOKENS))
        for pair in budget.turns(pairs):
            order = (1, people) if pair % 2 else (people, 1)
            seconds, found = {}, {}
            for count in order:
                seconds[count], found[count] = watched(service, clients, count, tokens)
            ratios.append(seconds[people] / seconds[1])
            updates += [viewer["updates"] / seconds[people] for viewer in found[people]["viewers"]]
            longest += [viewer["longest"] for viewer in found[people]["viewers"]]
            shares.append(found[people]["cpu_seconds"] / seconds[people])
            missing += found[people]["missing"]
    ratio = spread(ratios)
    say(
        f"{people} viewers of one run: updates a second per viewer min {min(updates):.2f}, median {statistics.median(updates):.2f}; "
        f"longest silence {max(longest):.2f} s; {missing} tokens missing"
    )
    say(
        f"run with {people} viewers ÷ with 1: {ratio['median']:.3f} (min {ratio['min']:.3f}, max {ratio['max']:.3f}, {len(ratios)} pairs); "
        f"the clients themselves took {statistics.median(shares):.2f} cores of this machine"
    )
    return {
        "people": people,
        "pairs": len(ratios),
        "ratio": ratio,
        "updates_per_second": spread(updates),
        "longest_silence": max(longest),
        "missing_tokens": missing,
    }


def watched(service: Service, clients: Connection, count: int, tokens: int) -> tuple[float, dict[str, Any]]:
    """Seconds of a run from the moment when all its viewers are there, and what they saw of it."""
    lanes = [{**lane, "max_new_tokens": tokens} for lane in presets.CLASSIC_LANES]
    run = service.line.start(Request.from_json({**presets.classic(), "lanes": lanes}), secrets.token_hex(8))
    service.line.pause(run)
    clients.send(("watch", run.id, count))
    until(lambda: (run.viewers == count and run.phase == "paused") or run.ended, "the viewers did not arrive")
    began = time.monotonic()
    service.line.resume(run)
    while not run.ended:
        with run.changed:
            run.changed.wait(timeout=0.5)
    ended = time.monotonic()
    if run.error is not None:
        raise PartFailed(run.error.text.en)
    found = clients.recv()
    written = sum(isinstance(event, TokenChosen) for _, event in run.events)
    found["missing"] = sum(written - viewer["tokens"] for viewer in found["viewers"])
    for viewer in found["viewers"]:
        heard = [second for second in viewer["updates"] if began <= second <= ended]
        viewer["updates"] = len(heard)
        viewer["longest"] = max((b - a for a, b in zip([began, *heard], [*heard, ended], strict=True)), default=ended - began)
    return ended - began, found


# --- thirty visitors, each with a run ------------------------------------------------------------


class WitnessedLine(Line):
    """A line that notes in which order runs were asked for and in which they began."""

    def __init__(self, prepare: Callable[..., Comparison]) -> None:
        super().__init__(self._begin)
        self._make = prepare
        self.asked: list[Run] = []
        self.begun: list[int] = []

    def start(self, request: Request, visitor: str, settings: tuple[str, ...] = ()) -> Run:
        run = super().start(request, visitor, settings)
        self.asked.append(run)
        return run

    def _begin(self, request: Request, tell: Callable[..., None]) -> Comparison:
        self.begun.append(request.seed)
        return self._make(request, tell)


def visitors(tokens: int, say: Callable[[str], None], people: int = PEOPLE) -> dict[str, Any]:
    """So many visitors press Run at once, each with a seed of their own, on a tiny model."""
    service = Service(Limits())
    line = service.line = WitnessedLine(service._prepare)
    with tempfile.TemporaryDirectory() as folder, served(service) as clients:
        model = str(tiny_model(Path(folder)))
        lanes = [{"strategy": "sample", "knobs": {"temperature": 0.9, "min_new_tokens": tokens}, "max_new_tokens": tokens} for _ in range(2)]
        clients.send(("visit", [{"prompt": {"text": "Hello"}, "lanes": lanes, "model": model, "seed": seed} for seed in range(people)]))
        found = clients.recv()
        asked = [run.request.seed for run in sorted(line.asked, key=lambda run: run.created)]
    whole = sum(visitor["tokens"] == 2 * tokens for visitor in found)
    tokens_lost = sum(2 * tokens - visitor["tokens"] for visitor in found)
    waits = [visitor["waited"] for visitor in found if visitor["waited"] is not None]
    for visitor in found:
        if visitor["error"] is not None:
            say(f"visitor {visitor['seed']} was not served: {visitor['error']}")
    say(
        f"{people} visitors at once on a tiny model: {whole} served whole, in the order of asking: {'yes' if line.begun == asked else 'NO'}; "
        f"{tokens_lost} tokens missing; waited median {statistics.median(waits):.2f} s, worst {max(waits):.2f} s"
    )
    return {
        "people": people, "served": whole, "in_order": line.begun == asked, "asked": asked, "begun": line.begun,
        "missing_tokens": tokens_lost, "waited_seconds": spread(waits),
    }  # fmt: skip


def until(reached: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not reached():
        if time.monotonic() > deadline:
            raise TimeoutError(otherwise)
        time.sleep(0.01)
