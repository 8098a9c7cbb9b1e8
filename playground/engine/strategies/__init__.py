"""Ways of decoding, one file each: every file here registers itself."""

from __future__ import annotations

import sys
from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from playground.engine.knobs import Registry
from playground.errors import Text
from playground.trace import Event

if TYPE_CHECKING:
    from playground.engine.task import Task

Steps = Generator[tuple[Event, ...], None, None]


@dataclass(frozen=True)
class Strategy:
    """A way of decoding: a value with knobs as fields, and the loop that reads like the paper.

    `run` yields one tuple of events per step, a step being one forward of the target; it contains
    no timing and no logging. `warps` says whether warpers apply (they can't change an argmax).
    """

    name: ClassVar[str]
    label: ClassVar[Text]
    summary: ClassVar[Text]
    emits: ClassVar[frozenset[type]]
    warps: ClassVar[bool] = True
    #: What a temperature of 0 makes of this strategy, by name; None where it makes no sense.
    when_cold: ClassVar[str | None] = None
    #: The decode step as the code that it is: (part of StepTimed or "", one line).
    loop: ClassVar[tuple[tuple[str, str], ...]] = ()

    def run(self, task: Task) -> Steps:
        raise NotImplementedError


strategies: Registry[type[Strategy]] = Registry("strategy")
strategies.folder(sys.modules[__name__])
