"""Freezes anew what must not change: run it only when a change of behaviour is meant, and name the reason where it lands."""

from __future__ import annotations

from playground.records import recordings
from tests.golden.frozen import of_recording, of_requests, write
from tests.golden.matrix import requests

if __name__ == "__main__":
    for one in recordings.RECORDINGS:
        write(f"recording-{one.name}", of_recording(one.name))
    write("requests", of_requests(requests()))
