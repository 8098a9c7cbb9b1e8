"""The app in a process of its own, and the browser that looks at it: for checks that do what a visitor does."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: Seconds until the app must answer, and for it to end by itself.
START, END = 180.0, 20.0
#: What Chromium is started with: it runs as root in containers, and asks nobody anything by itself.
CHROMIUM_FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip


def chromium() -> str | None:
    """The browser that somebody named or that is installed; None leaves the choice to Playwright."""
    return os.environ.get("PLAYGROUND_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class AppMissing(RuntimeError):
    """The app didn't start; the text has the end of its log."""


@contextmanager
def served(log: Path, environment: Mapping[str, str], port: int | None = None) -> Iterator[str]:
    """The address of the app once it answers; its model may still be loading. Raises `AppMissing` if it doesn't answer."""
    port = port or free_port()
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "app.py"],
            cwd=ROOT,
            env={**os.environ, **environment, "GRADIO_SERVER_PORT": str(port)},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    address = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + START
        while not _answers(address):
            if process.poll() is not None or time.monotonic() > deadline:
                raise AppMissing(f"The app didn't start:\n{log.read_text('utf-8', 'replace')[-4000:]}")
            time.sleep(0.1)
        yield address
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(timeout=END)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _answers(address: str) -> bool:
    try:
        urllib.request.urlopen(address, timeout=5).close()
    except (urllib.error.URLError, OSError):
        return False
    return True
