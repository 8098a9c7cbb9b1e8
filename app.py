"""Builds the page and serves it: on a Space and on your own machine."""

from __future__ import annotations

from playground.ui.app import Arriving, build, launch
from playground.ui.endpoints import register

service = Arriving("playground.ui.service", "Service", first="load_default")
demo = build(service, register)

if __name__ == "__main__":
    service.begin()
    launch(demo)
