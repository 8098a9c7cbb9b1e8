"""Ways of decoding, one file each: every file here registers itself."""

from __future__ import annotations

import sys
from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from playground.engine.knobs import Registry
from playground.engine.record import Scale
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

    @property
    def rows(self) -> int:
        """How many sequences of the KV cache it fills."""
        return 1

    @property
    def scale(self) -> Scale:
        """What the stages are given."""
        return "logit"

    def min_tokens_to_keep(self, ends: int) -> int:
        """How many tokens warpers must leave; `ends` is the number of EOS ids."""
        return 1

    def cooled(self) -> Strategy:
        """What a temperature of 0 makes of it, where it keeps its name."""
        return self

    def check(self) -> None:
        """Raise `BadValue` where knobs don't go together; each by itself has been held against its range."""

    @property
    def drafts_with(self) -> str | None:
        """The second model that this strategy needs, "" for the one that the catalog pairs with the lane's; None: none."""
        return None

    def check_models(self, task: Task) -> None:
        """Refuse, before the run, what can't work on this lane's models: raises `PlaygroundError`."""

    def run(self, task: Task) -> Steps:
        raise NotImplementedError


strategies: Registry[type[Strategy]] = Registry("strategy")
strategies.folder(sys.modules[__name__])
