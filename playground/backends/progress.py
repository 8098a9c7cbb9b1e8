"""How far the fetching and loading of a model has come."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from playground.errors import Text


@dataclass(frozen=True)
class Progress:
    """One report on the way to a loaded model; `fraction` in [0, 1] is of this phase, None where it can't be known."""

    phase: Literal["download", "convert", "load"]
    fraction: float | None
    text: Text


Report = Callable[[Progress], None]


def unreported(progress: Progress) -> None:
    """The report of those who don't watch."""


def downloaded(name: str, done: int, total: int) -> Progress:
    """So many bytes of a download of `total` bytes are here."""
    return Progress(
        "download",
        min(1.0, done / total) if total else None,
        Text("Downloading {name}: {done} of {total} MB.", "正在下载 {name}：{done} / {total} MB。").filled(
            name=name, done=round(min(done, total) / 1e6), total=round(total / 1e6)
        ),
    )
