"""Builds the page and serves it: on a Space and on your own machine."""

from __future__ import annotations

import os
from contextlib import suppress

if os.environ.get("SPACES_ZERO_GPU"):
    with suppress(ImportError):
        import spaces  # noqa: F401  (before anything imports torch: it wants CUDA untouched)

    from playground.ui import zerogpu

    zerogpu.gpu()  # a Space tells of its GPU functions when it launches

from playground.ui.app import Arriving, build, launch
from playground.ui.endpoints import register

service = Arriving("playground.ui.service", "Service", first="load_default")
demo = build(service, register)

if __name__ == "__main__":
    service.begin()
    launch(demo)
