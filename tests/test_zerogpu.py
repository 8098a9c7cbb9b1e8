"""ZeroGPU: a whole comparison in one call of a GPU function, made in a viewer's thread; with a `spaces` that runs it here.

The real package forks a process; this one keeps to what its source (0.51) lets through: arguments and items are pickled,
a closed generator is noticed after the item that is being made, and items are made ahead of whoever fetches them.
"""

from __future__ import annotations

import json
import pickle
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import gradio as gr
import pytest
import torch

from playground.backends import local
from playground.errors import BadValue, PlaygroundError, Text
from playground.line import LEFT_ALONE
from playground.request import Limits, Request
from playground.trace import Finished, TokenChosen, Trace
from playground.ui import zerogpu
from playground.ui.service import Service
from tests.tiny_folder import tiny_folder, tiny_loaded

#: Stands for the process in the pipe where it has ended before its time.
ABORTED = b"aborted"


class Spaces(ModuleType):
    """The module `spaces`, as far as it is used."""

    def __init__(self) -> None:
        super().__init__("spaces")
        self.decorated = 0
        self.asked: list[int] = []
        self.threads: set[str] = set()
        self.begun = self.ended = self.closed = 0
        self.running = self.most_running = 0
        self.made = 0
        self.refuse: Exception | None = None
        self.abort_after: int | None = None
        self.slow = 0.0
        self.granted = threading.Event()
        self.granted.set()

    def GPU(self, duration: Callable[..., int]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def decorate(task: Callable[..., Any]) -> Callable[..., Any]:
            self.decorated += 1

            def call(*arguments: Any) -> Iterator[Any]:
                self.threads.add(threading.current_thread().name)
                self.asked.append(duration(*arguments))
                assert self.granted.wait(10)
                if self.refuse is not None:
                    raise self.refuse
                self.begun += 1
                self.running += 1
                self.most_running = max(self.most_running, self.running)
                stopped, ahead = threading.Event(), queue.SimpleQueue[bytes | None]()
                worker = threading.Thread(target=self._work, args=(task, pickle.dumps(arguments), stopped, ahead), name="gpu process")
                worker.start()
                try:
                    while (item := ahead.get()) is not None:
                        if item == ABORTED:
                            raise gr.Error("GPU task aborted", title="ZeroGPU worker error")
                        try:
                            yield pickle.loads(item)
                        except GeneratorExit:
                            self.closed += 1
                            stopped.set()
                            raise
                finally:
                    worker.join()
                    self.running -= 1
                    self.ended += 1

            return call

        return decorate

    def _work(self, task: Callable[..., Any], arguments: bytes, stopped: threading.Event, ahead: queue.SimpleQueue[bytes | None]) -> None:
        steps = task(*pickle.loads(arguments))
        try:
            for number, item in enumerate(steps):
                self.made += 1
                time.sleep(self.slow)
                if stopped.is_set():
                    steps.close()
                    break
                ahead.put(pickle.dumps(item))
                if self.abort_after == number:
                    ahead.put(ABORTED)
        except Exception:  # all that gets through is that there was one
            ahead.put(ABORTED)
        ahead.put(None)


@pytest.fixture
def spaces(monkeypatch: pytest.MonkeyPatch) -> Iterator[Spaces]:
    fake = Spaces()
    monkeypatch.setitem(sys.modules, "spaces", fake)
    monkeypatch.setenv("SPACES_ZERO_GPU", "true")
    zerogpu.gpu.cache_clear()
    yield fake
    zerogpu.gpu.cache_clear()


@pytest.fixture
def service(spaces: Spaces) -> Service:
    return Service(Limits(max_new_tokens=450))


def asked(*tokens: int, **more: Any) -> dict[str, Any]:
    lanes = [{"strategy": "sample", "max_new_tokens": count, "knobs": {"min_new_tokens": count, "temperature": 0.9}} for count in tokens]
    return {"prompt": {"text": "Hello 你好", "chat": True}, "lanes": lanes, "model": str(tiny_folder()), "seed": 3, **more}


def started(service: Service, request: dict[str, Any], visitor: str = "visitor-0001") -> str:
    answer = service.start(request, visitor)
    assert "error" not in answer, answer
    return answer["run"]


def packets(service: Service, run: str, session: str = "tab") -> Iterator[dict[str, Any]]:
    """Every packet once."""
    number = None
    for text in service.follow(run, 0, session):
        packet = json.loads(text)
        if packet["n"] != number:
            yield packet
        number = packet["n"]


def wait_for(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends, "waited in vain"
        time.sleep(0.005)


def positions(packet: dict[str, Any], lane: int) -> list[int]:
    return [payload["p"] for owner, kind, payload in packet["events"] if kind == "token" and owner == lane]


def test_only_a_zerogpu_space_has_a_gpu_to_borrow(spaces: Spaces, monkeypatch: pytest.MonkeyPatch) -> None:
    assert zerogpu.gpu() is zerogpu.gpu() is not None and spaces.decorated == 1
    for flag, module in (("", spaces), ("0", spaces), ("true", None)):
        zerogpu.gpu.cache_clear()
        monkeypatch.setenv("SPACES_ZERO_GPU", flag)
        monkeypatch.setitem(sys.modules, "spaces", module)
        assert zerogpu.gpu() is None
        service = Service()
        assert service.declarations()["pause"] is True and service.device == "auto"


def test_a_run_arrives_whole_in_one_call_made_by_its_viewer(service: Service, spaces: Spaces) -> None:
    run = started(service, asked(60, 40))
    seen: dict[int, list[int]] = {0: [], 1: []}
    phases = []
    for packet in packets(service, run):
        phases.append(packet["state"]["phase"])
        for lane, known in seen.items():
            known += positions(packet, lane)
    assert seen == {0: list(range(60)), 1: list(range(40))} and phases[-1] == "done"
    assert spaces.begun == spaces.ended == 1 and spaces.closed == 0
    assert spaces.threads == {threading.current_thread().name} and spaces.asked == [10 + 3]
    trace = Trace.from_json(service.trace(run)["json"])
    here = local.prepare(Request.from_json(asked(60, 40)), lambda model: service.gpu.models[str(tiny_folder())])  # type: ignore[union-attr]
    same = [event.token for events in here for lane, event in events if lane == 1 and isinstance(event, TokenChosen)]
    assert [event.token for event in trace.of(1, TokenChosen)] == same
    assert trace.about.warm is False and trace.about.models[0].dtype == "bfloat16"


def test_a_second_comparison_in_the_same_process_is_warm(service: Service) -> None:
    abouts = []
    for _ in range(2):
        run = started(service, asked(3))
        assert list(packets(service, run))
        abouts.append(Trace.from_json(service.trace(run)["json"]).about.warm)
    assert abouts == [False, True]


def test_the_page_hears_that_a_gpu_is_waited_for(service: Service, spaces: Spaces) -> None:
    spaces.granted.clear()
    run = started(service, asked(5))
    stream = packets(service, run)
    texts = []
    for packet in stream:
        texts.append((packet["state"]["phase"], packet["state"]["text"] and packet["state"]["text"]["en"]))
        if texts[-1] == ("loading", "Waiting for a GPU."):
            break
    assert spaces.begun == 0
    spaces.granted.set()
    assert list(stream)[-1]["state"]["phase"] == "done"


def test_stop_ends_it_within_a_step(service: Service, spaces: Spaces) -> None:
    spaces.slow = 0.01
    run = started(service, asked(450, 450))
    stream = packets(service, run)
    for packet in stream:
        if positions(packet, 0):
            break
    assert service.control(run, "stop", "visitor-0001") == {"ok": True}
    asked_at, made = time.monotonic(), spaces.made
    last = list(stream)[-1]
    assert last["state"]["phase"] == "done" and time.monotonic() - asked_at < 1.0
    assert spaces.closed == spaces.ended == 1 and spaces.made < made + 60
    trace = Trace.from_json(service.trace(run)["json"])
    for lane in range(2):
        (end,) = trace.of(lane, Finished)
        assert (end.reason, end.detail) == ("cancelled", "stopped") and end.at > 0


def test_stop_before_the_gpu_is_granted_takes_no_step(service: Service, spaces: Spaces) -> None:
    spaces.granted.clear()
    run = started(service, asked(400))
    follower = threading.Thread(target=lambda: list(packets(service, run)))
    follower.start()
    wait_for(lambda: bool(spaces.asked))
    service.control(run, "stop", "visitor-0001")
    spaces.granted.set()
    follower.join(5)
    kept = service.line.get(run)
    assert kept.phase == "done" and not follower.is_alive() and spaces.closed == 1
    assert not any(isinstance(event, TokenChosen) for _, event in kept.events)


def test_the_last_viewer_takes_the_gpu_along_and_the_run_says_so(service: Service, spaces: Spaces) -> None:
    spaces.slow = 0.01
    run = started(service, asked(450))
    stream = service.follow(run, 0, "tab")
    for text in stream:
        if positions(json.loads(text), 0):
            break
    left = time.monotonic()
    stream.close()
    assert time.monotonic() - left < 0.1  # a tab's end must not wait for the GPU
    wait_for(lambda: service.line.get(run).ended, 1.0)
    assert spaces.closed == spaces.ended == 1 and not service.line.busy
    again = list(packets(service, run))
    assert again[-1]["state"]["phase"] == "done" and again[-1]["state"]["text"] == LEFT_ALONE.to_json()
    written = [event.position for _, event in service.line.get(run).events if isinstance(event, TokenChosen)]
    assert [position for packet in again for position in positions(packet, 0)] == written != []
    assert spaces.begun == 1


def test_a_second_viewer_goes_on_where_the_first_left(service: Service, spaces: Spaces) -> None:
    spaces.slow = 0.002
    run = started(service, asked(150))
    first = packets(service, run, "tab-1")
    arrived = threading.Event()
    seen: list[int] = []

    def second() -> None:
        for packet in packets(service, run, "tab-2"):
            seen.extend(positions(packet, 0))
            arrived.set()

    follower = threading.Thread(target=second)
    follower.start()
    for packet in first:
        if positions(packet, 0) and arrived.is_set():
            break
    first.close()
    follower.join(10)
    assert seen == list(range(150)) and spaces.begun == 1 and spaces.closed == 0


@pytest.mark.parametrize("action", ["pause", "step"])
def test_pause_and_step_are_refused_and_the_run_goes_on(service: Service, spaces: Spaces, action: str) -> None:
    assert service.declarations()["pause"] is False
    spaces.slow = 0.002
    run = started(service, asked(60))
    stream = packets(service, run)
    for packet in stream:
        if positions(packet, 0):
            break
    error = service.control(run, action, "visitor-0001")["error"]
    assert error["code"] == "pause_off" and "Stop works" in error["text"]["en"] and "停止" in error["text"]["zh"]
    assert list(stream)[-1]["state"]["phase"] == "done"
    assert len(list(Trace.from_json(service.trace(run)["json"]).of(0, TokenChosen))) == 60


def test_two_runs_are_served_one_after_the_other(service: Service, spaces: Spaces) -> None:
    spaces.slow = 0.002
    runs = [started(service, asked(60), f"visitor-000{number}") for number in range(2)]
    ends: dict[str, float] = {}
    places: list[int | None] = []

    def follow(run: str) -> None:
        for packet in packets(service, run, f"tab-{run}"):
            if run == runs[1]:
                places.append(packet["state"]["place"])
        ends[run] = time.monotonic()

    followers = [threading.Thread(target=follow, args=(run,)) for run in runs]
    for follower in followers:
        follower.start()
    for follower in followers:
        follower.join(10)
    assert spaces.begun == 2 and spaces.most_running == 1
    assert ends[runs[0]] <= ends[runs[1]] and 1 in places
    assert [service.line.get(run).phase for run in runs] == ["done", "done"]


@pytest.mark.parametrize("when", ["before", "during"])
def test_what_spaces_refuses_is_one_clear_error_and_the_next_run_works(service: Service, spaces: Spaces, when: str) -> None:
    if when == "before":
        spaces.refuse = gr.Error("You have exceeded your free ZeroGPU quota (20s requested vs. 3s left).", title="ZeroGPU quota exceeded")
    else:
        spaces.abort_after = 20
    run = started(service, asked(60))
    last = list(packets(service, run))[-1]
    error = last["state"]["error"]
    assert last["state"]["phase"] == "failed" and error["code"] == "gpu_refused"
    assert ("quota exceeded: You have exceeded" if when == "before" else "GPU task aborted") in error["text"]["en"]
    assert spaces.ended == spaces.begun
    spaces.refuse = spaces.abort_after = None
    assert list(packets(service, started(service, asked(5))))[-1]["state"]["phase"] == "done"


def test_what_spaces_itself_gets_wrong_ends_the_run_loudly(service: Service, spaces: Spaces, caplog: pytest.LogCaptureFixture) -> None:
    spaces.refuse = RuntimeError("ZeroGPU API /schedule error: 500")
    last = list(packets(service, started(service, asked(5))))[-1]
    assert last["state"]["error"]["code"] == "bug" and "/schedule error: 500" in caplog.text


def test_a_request_that_can_not_run_costs_no_gpu(service: Service, spaces: Spaces) -> None:
    request = asked(5)
    request["prompt"]["text"] = "x" * 600  # one token per byte, 512 positions
    last = list(packets(service, started(service, request)))[-1]
    assert last["state"]["error"]["code"] == "prompt_tokens" and spaces.asked == []


def test_an_error_in_the_gpu_process_reaches_the_visitor_whole(service: Service, monkeypatch: pytest.MonkeyPatch, spaces: Spaces) -> None:
    def full(loaded: Any, device: Any) -> Any:
        raise BadValue("memory_short", Text("{model} is too large.", "{model} 太大。"), model="tiny")

    monkeypatch.setattr(zerogpu.loading, "moved", full)
    last = list(packets(service, started(service, asked(5))))[-1]
    assert last["state"]["error"] == {
        "code": "memory_short",
        "text": {"en": "tiny is too large.", "zh": "tiny 太大。"},
        "values": {"model": "tiny", "lane": 0},
    }
    assert spaces.ended == 1


def test_a_process_without_the_model_reads_it_from_its_files(spaces: Spaces) -> None:
    gpu = zerogpu.gpu()
    assert gpu is not None and gpu.models == {}
    race = gpu.comparison(Request.from_json(asked(4)))
    while race.fetch(1.0):
        pass
    events = [event for events in race for _, event in events]
    assert sum(isinstance(event, TokenChosen) for event in events) == 4 and race.about is not None


def test_errors_travel_between_processes() -> None:
    error = pickle.loads(pickle.dumps(BadValue("range", Text("{name} is {{{value}", "{name}：{{{value}"), name="k", value="}")))
    assert type(error) is BadValue and (error.code, error.text.en, error.values) == ("range", "k is {}", {"name": "k", "value": "}"})
    assert isinstance(error, PlaygroundError) and str(error) == "k is {}"


def test_seconds_asked_for_follow_the_tokens_and_have_an_end() -> None:
    assert zerogpu.duration(Request.from_json(asked(80, 80, 80, 80))) == 20
    assert zerogpu.duration(Request.from_json(asked(450, 450, 450, 450, 450, 450))) == 91
    assert zerogpu.duration(Request.from_json(asked(*[1000] * 6))) == zerogpu.LONGEST_CALL


def test_programs_lend_their_thread_too(service: Service, spaces: Spaces) -> None:
    answers = list(service.compare("Hello", ["greedy max_new_tokens=5"], 5, 0, None, str(tiny_folder()), False, "api-visitor-1"))
    assert answers[-1]["state"] == "done" and answers[-1]["lanes"] and spaces.threads == {threading.current_thread().name}


def test_models_wait_in_the_cpus_memory_and_the_page_is_told_of_the_gpu(service: Service) -> None:
    list(packets(service, started(service, asked(3))))
    (loaded,) = service.catalog.loaded()
    assert (loaded.device.type, str(loaded.dtype)) == ("cpu", "torch.bfloat16")
    told = service.models()
    assert (told["device"], told["dtype"]) == ("cuda", "bfloat16")
    assert "error" in service.set_device("cpu", "float32")


def test_a_model_that_leaves_the_cpu_keeps_its_key_and_computes_as_transformers_made_it() -> None:
    loaded = tiny_loaded()
    assert zerogpu.loading.moved(loaded, loaded.device) is loaded
    meta = zerogpu.loading.moved(zerogpu.catalog.Catalog().get(str(tiny_folder()), "cpu", "float32"), torch.device("meta"))
    assert meta.key == loaded.key and meta.device.type == "meta" and meta.linears is None
    assert {parameter.device.type for parameter in meta.model.parameters()} == {"meta"}
    assert not any("forward" in vars(module) for module in meta.model.modules())


@pytest.mark.slow
def test_the_app_imports_spaces_before_torch_and_names_its_gpu_function_before_launch(tmp_path: Path) -> None:
    (tmp_path / "spaces.py").write_text(
        "import sys\nassert 'torch' not in sys.modules\nmade = []\ndef GPU(duration):\n    return lambda task: made.append(task) or task\n"
    )
    script = "import app, spaces; assert len(spaces.made) == 1, spaces.made"
    root = Path(__file__).parent.parent
    environment = {"SPACES_ZERO_GPU": "true", "PYTHONPATH": f"{tmp_path}:{root}", "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120, cwd=root, env=environment)
