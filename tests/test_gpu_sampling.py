"""The GPU's load beside a race: read from a driver that isn't here, sampled by a thread, told to the page, drawn."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest
import torch

from playground.backends import gpu, local
from playground.figures import Look, figure_json, get_figure
from playground.line import Run
from playground.request import Request
from playground.trace import About, DeviceSampled, LaneEvent, ModelAbout, StepTimed, Trace
from playground.ui.packets import Payloads
from tests.tiny_folder import tiny_loaded

UUID = "8f1a2b3c-0000-1111-2222-333344445555"


@dataclass
class Driver:
    """NVML as a machine with the named devices would answer."""

    devices: tuple[str, ...] = (f"GPU-{UUID}",)
    busy: int | None = 62
    memory: tuple[int, int] | None = (3_000_000_000, 80_000_000_000)
    begun: int = 0

    def start(self) -> None:
        self.begun += 1
        if not self.devices:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    def handle(self, name: str) -> str:
        if name not in self.devices:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return name

    def rates(self, handle: str) -> Any:
        if self.busy is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return SimpleNamespace(gpu=self.busy)

    def used(self, handle: str) -> Any:
        if self.memory is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return SimpleNamespace(used=self.memory[0], total=self.memory[1])


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    fake = Driver()
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: fake.start())
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", lambda name: fake.handle(name))
    monkeypatch.setattr(pynvml, "nvmlDeviceGetUtilizationRates", lambda handle: fake.rates(handle))
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryInfo", lambda handle: fake.used(handle))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Toy GPU")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid=UUID))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return fake


def reader() -> gpu.GpuReader:
    return gpu.GpuReader(torch.device("cuda"))


# --- the driver -------------------------------------------------------------------------------------


def test_a_device_is_read_by_its_uuid_and_nvml_begins_only_then(driver: Driver) -> None:
    driver.devices = ("GPU-another", f"GPU-{UUID}")
    ours = reader()
    assert driver.begun == 0
    assert ours.read(1.5) == DeviceSampled(1.5, 0.62, 3_000_000_000, 80_000_000_000, "Toy GPU")
    ours.read(2.0)
    assert driver.begun == 1


def test_a_slice_named_in_cuda_visible_devices_comes_before_the_whole_gpu(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-one, MIG-two")
    assert gpu.uuids(torch.device("cuda:1"), "MIG-one, MIG-two") == ["MIG-two", f"GPU-{UUID}", f"MIG-{UUID}"]
    assert gpu.uuids(torch.device("cuda"), "3,1") == [f"GPU-{UUID}", f"MIG-{UUID}"]  # torch's 0 is the driver's 3: the UUID knows
    driver.devices, driver.busy = (f"GPU-{UUID}", "MIG-one"), None
    asked: list[str] = []
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryInfo", lambda handle: asked.append(handle) or driver.used(handle))
    sample = reader().read(0.0)
    assert asked == ["MIG-one"] and sample is not None and sample.utilisation is None and sample.memory_total == 80_000_000_000


@pytest.mark.parametrize("lacks", ["driver", "device", "torch"])
def test_where_nothing_can_be_read_nothing_is_told_and_nothing_raised(driver: Driver, monkeypatch: pytest.MonkeyPatch, lacks: str) -> None:
    if lacks == "torch":
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: torch._C._not_there)
    else:
        driver.devices = () if lacks == "driver" else ("GPU-another",)
    ours = reader()
    assert ours.read(0.0) is None and ours.read(1.0) is None
    assert driver.begun == 1


def test_what_the_driver_does_not_know_is_none(driver: Driver) -> None:
    driver.memory = None
    assert reader().read(0.0) == DeviceSampled(0.0, 0.62, None, None, "Toy GPU")


# --- the sampler ------------------------------------------------------------------------------------


class Counting:
    """A reader that counts, and keeps the thread that asked."""

    def __init__(self, most: int = 10**9) -> None:
        self.most, self.asked, self.threads = most, 0, set[threading.Thread]()

    def read(self, at: float) -> DeviceSampled | None:
        self.asked += 1
        self.threads.add(threading.current_thread())
        return DeviceSampled(at, 0.5, 1, 2, "toy") if self.asked <= self.most else None


def slow_steps(count: int, seconds: float) -> Iterator[list[LaneEvent]]:
    for number in range(count):
        time.sleep(seconds)
        yield [(0, StepTimed(number, 1, 0.0, {}, 0.0, 0.0, 0.0, 1, 1, 1))]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "INTERVAL", 0.01)


def samplers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "gpu sampler"]


def test_samples_come_after_the_steps_that_they_fell_into_in_order() -> None:
    counting, started = Counting(), time.perf_counter()
    steps = list(gpu.sampled(slow_steps(5, 0.05), counting, started))
    assert [events[0][0] for events in steps] == [0] * 5  # every step first, then what was sampled meanwhile
    samples = [event for events in steps for lane, event in events[1:] if lane is None]
    assert len(samples) >= 5 and all(isinstance(sample, DeviceSampled) for sample in samples)
    times = [sample.at for sample in samples]
    assert times == sorted(times) and 0 < times[0] and times[-1] < time.perf_counter() - started
    assert threading.current_thread() not in counting.threads and not samplers()


def test_a_paused_race_is_not_sampled() -> None:
    counting = Counting()
    race = gpu.sampled(slow_steps(50, 0.02), counting, time.perf_counter())
    next(race)
    time.sleep(0.03)  # the sample that was due at the pause is held until the next step
    before = counting.asked
    time.sleep(0.15)
    assert counting.asked == before
    for _ in range(5):
        next(race)
    assert counting.asked > before
    race.close()


@pytest.mark.parametrize("ending", ["closed", "broken", "unreadable"])
def test_the_thread_ends_with_the_race_however_that_ends(ending: str) -> None:
    def broken() -> Iterator[list[LaneEvent]]:
        yield []
        raise ZeroDivisionError

    if ending == "broken":
        with pytest.raises(ZeroDivisionError):
            list(gpu.sampled(broken(), Counting(), 0.0))
    elif ending == "closed":
        race = gpu.sampled(slow_steps(50, 0.01), Counting(), 0.0)
        next(race)
        assert samplers()
        race.close()
    else:
        steps = list(gpu.sampled(slow_steps(6, 0.02), unreadable := Counting(most=0), 0.0))
        assert unreadable.asked == 1 and all(len(events) == 1 for events in steps)
    assert not samplers()


def test_a_comparison_on_a_gpu_is_sampled_and_one_on_the_cpu_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "GpuReader", lambda device: Counting())
    request = Request.from_json({"prompt": "Hello", "lanes": [{"strategy": "sample", "max_new_tokens": 60, "knobs": {"min_new_tokens": 60}}]})
    counts = {}
    for kind in ("cpu", "cuda"):
        comparison = local.prepare(request, lambda model: tiny_loaded())
        assert comparison.device.type == "cpu"
        comparison = replace(comparison, device=torch.device(kind))
        events = [pair for events in comparison for pair in events]
        counts[kind] = [lane for lane, event in events if isinstance(event, DeviceSampled)]
        assert sum(isinstance(event, StepTimed) for _, event in events) == 60
    assert counts["cpu"] == [] and set(counts["cuda"]) == {None}


def test_a_comparison_on_the_cpu_reads_no_driver() -> None:
    script = "\n".join(
        [
            "import sys",
            "from playground.backends import local",
            "from playground.request import Request",
            "from tests.tiny_folder import tiny_loaded",
            'request = Request.from_json({"prompt": "x", "lanes": [{"max_new_tokens": 2}]})',
            "assert list(local.prepare(request, lambda model: tiny_loaded()))",
            'assert "playground.backends.gpu" not in sys.modules',
        ]
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


# --- the page and the figure ------------------------------------------------------------------------


def sampled_trace(*samples: DeviceSampled, device: str = "cuda") -> Trace:
    model = ModelAbout("toy", "toy", None, "bfloat16", device, 1, 2, 2, 20, 64, 10, None)
    return Trace(About({}, (model,), (), {}, "a machine", "2026-01-02T03:04:05", warm=True), [(None, sample) for sample in samples])


SAMPLES = (
    DeviceSampled(0.25, 0.1, 2 * 10**9, 80 * 10**9, "GPU <b>"),
    DeviceSampled(0.5, 0.7, 3 * 10**9, 80 * 10**9, "GPU <b>"),
    DeviceSampled(9.0, None, 4 * 10**9, 80 * 10**9, "GPU <b>"),
)


def test_the_page_hears_of_a_sample_in_four_numbers() -> None:
    run = Run(Request.from_json({"prompt": "x", "lanes": [{}]}), "visitor-1")
    run.events = [(None, SAMPLES[1]), (None, SAMPLES[2])]
    payloads = Payloads(run)
    payloads.upto(2)
    assert json.loads(payloads.encoded[0]) == [None, "device", {"at": 0.5, "util": 0.7, "mem": 3 * 10**9, "total": 80 * 10**9}]
    assert json.loads(payloads.encoded[1])[2]["util"] is None


def test_samples_survive_a_file() -> None:
    trace = sampled_trace(*SAMPLES)
    assert Trace.from_json(trace.to_json()).events == trace.events


def test_utilisation_and_memory_are_drawn_along_the_wall_clock_and_a_pause_breaks_the_line() -> None:
    figure = json.loads(figure_json("gpu", sampled_trace(*SAMPLES)))
    busy, memory = figure["data"]
    assert busy["x"] == [0.25, 0.5, 4.75, 9.0] == memory["x"]
    assert busy["y"] == [10.0, 70.0, None, None] and memory["y"] == [2.0, 3.0, None, 4.0]
    assert figure["layout"]["yaxis"]["range"] == [0, 105] and figure["layout"]["yaxis2"]["range"] == [0, 4.6]
    assert any("GPU &lt;b&gt;" in note["text"] and "NVML" in note["text"] for note in figure["layout"]["annotations"])


def test_the_gpu_in_words_and_rows() -> None:
    figure, trace = get_figure("gpu"), sampled_trace(*SAMPLES)
    assert figure.table(trace, None, None, Look())[1] == ("GPU <b>", "3", "40 %", "70 %", "4.00 GB", "80.00 GB")
    assert "median 40 % busy, at most 70 %; at most 4.00 GB of 80.00 GB" in figure.describe(trace, None, None, Look()).en
    unknown = sampled_trace(DeviceSampled(0.25, None, None, None, "slice"))
    assert figure.table(unknown, None, None, Look())[1] == ("slice", "1", "–", "–", "–", "–")
    assert json.loads(figure_json("gpu", unknown))["data"][0]["y"] == [None]


def test_without_samples_the_figure_says_why() -> None:
    assert get_figure("gpu").describe(sampled_trace(device="cpu"), None, None, Look()).en == "No GPU here: nothing was sampled."
    assert "too short" in get_figure("gpu").describe(sampled_trace(device="cuda"), None, None, Look()).en
