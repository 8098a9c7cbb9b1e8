"""How busy and how full a GPU is while a race runs on it, read from its driver (NVML) beside the race."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, Protocol

import pynvml
import torch

from playground.trace import DeviceSampled, LaneEvent

log = logging.getLogger(__name__)

#: Seconds between two samples: about as often as the driver renews its own number.
INTERVAL = 0.25


class Reader(Protocol):
    """Whoever can say how busy and how full a device is now."""

    def read(self, at: float) -> DeviceSampled | None: ...


class GpuReader:
    """Reads NVML for one of torch's CUDA devices; tells nothing where there is no NVML, and never raises.

    torch counts the devices that CUDA_VISIBLE_DEVICES leaves, NVML counts all of them: the UUID says which is which.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._handle: Any = None
        self._name = ""
        self._opened = False

    def read(self, at: float) -> DeviceSampled | None:
        """A sample for the moment `at` of the race; None if this device can't be read."""
        if not self._opened:
            self._opened = True
            self._open()
        if self._handle is None:
            return None
        return _sample(self._handle, self._name, at)

    def _open(self) -> None:
        try:
            pynvml.nvmlInit()
            self._name = torch.cuda.get_device_name(self._device)
            names = uuids(self._device, os.environ.get("CUDA_VISIBLE_DEVICES", ""))
            handles = (_told(pynvml.nvmlDeviceGetHandleByUUID, name) for name in names)
            self._handle = next((handle for handle in handles if handle is not None), None)
        except Exception as error:  # no driver, or one that is older than its Python side: the race needs none
            log.info("the GPU can't be sampled: %s", error)


class HostGpus:
    """Reads every GPU of this host, whoever uses it; tells nothing where there is no NVML, and never raises."""

    def __init__(self) -> None:
        self._handles: list[tuple[str, Any]] = []
        try:
            pynvml.nvmlInit()
            for index in range(pynvml.nvmlDeviceGetCount()):
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                self._handles.append((f"{index}: {_told(pynvml.nvmlDeviceGetName, handle) or 'GPU'}", handle))
        except Exception as error:  # no driver, or one that is older than its Python side
            log.info("no GPU can be sampled: %s", error)

    def read(self, at: float) -> list[DeviceSampled]:
        """One sample of each GPU for the moment `at`."""
        return [_sample(handle, name, at) for name, handle in self._handles]


def uuids(device: torch.device, visible: str) -> list[str]:
    """The names that NVML may know a CUDA device by, the surest first.

    A slice of a GPU (MIG) is named in CUDA_VISIBLE_DEVICES, while CUDA may give it the UUID of the whole GPU.
    """
    named = [name.strip() for name in visible.split(",")]
    index = device.index if device.index is not None else torch.cuda.current_device()
    asked = [named[index]] if index < len(named) and named[index].startswith(("GPU-", "MIG-")) else []
    with suppress(AttributeError):  # ROCm's torch may have none
        uuid = str(torch.cuda.get_device_properties(device).uuid)
        asked += [f"GPU-{uuid}", f"MIG-{uuid}"]
    return asked


def _sample(handle: Any, name: str, at: float) -> DeviceSampled:
    used = _told(pynvml.nvmlDeviceGetUtilizationRates, handle)  # a MIG slice has none
    memory = _told(pynvml.nvmlDeviceGetMemoryInfo, handle)
    return DeviceSampled(
        at=at,
        utilisation=None if used is None else min(used.gpu / 100, 1.0),
        memory_bytes=None if memory is None else int(memory.used),
        memory_total=None if memory is None else int(memory.total),
        device=name,
    )


def _told(ask: Callable[..., Any], about: Any) -> Any:
    """NVML's answer, or None where it has none."""
    try:
        return ask(about)
    except pynvml.NVMLError:
        return None


def sampled(steps: Iterable[list[LaneEvent]], reader: Reader, started: float) -> Iterator[list[LaneEvent]]:
    """The steps of a race as they come, each followed by what was sampled meanwhile.

    A thread of its own does the reading, so no step's time holds it. While nobody asks for the next step
    (the race is paused, and the device may be another's) nothing is sampled. `started` is when the race's
    clock began, by `time.perf_counter`.
    """
    found: deque[DeviceSampled] = deque()
    stepping, ended = threading.Event(), threading.Event()

    def watch() -> None:
        while not ended.wait(INTERVAL):
            stepping.wait()
            if ended.is_set():
                return
            sample = reader.read(time.perf_counter() - started)
            if sample is None:
                return
            found.append(sample)

    watcher = threading.Thread(target=watch, name="gpu sampler", daemon=True)
    watcher.start()
    race = iter(steps)
    try:
        while True:
            stepping.set()
            events = next(race, None)
            stepping.clear()
            if events is None:
                return
            yield [*events, *((None, found.popleft()) for _ in range(len(found)))]
    finally:
        ended.set()
        stepping.set()
        watcher.join(timeout=2.0)
