"""Ways of guessing ahead, one file each: every file here registers itself."""

from __future__ import annotations

import sys
from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from torch import Tensor

from playground.engine.knobs import Registry
from playground.errors import Text
from playground.trace import Event

if TYPE_CHECKING:
    from playground.engine.task import Row, Task


@dataclass(frozen=True)
class Draft:
    """Guesses at how a row goes on, and the distributions that they were drawn from.

    `q` holds one distribution `[V]` per guess, float64: exactly the tensor that the guess was drawn
    from. It is None where no die was rolled: then q is one-hot. `limit` says why there are fewer
    guesses than were asked for; `source` and `matched` where a lookup found them, and by how many tokens.
    """

    tokens: tuple[int, ...] = ()
    q: tuple[Tensor, ...] | None = None
    limit: Literal["adaptive", "confidence", "context", "max_new_tokens", "no_match"] | None = None
    source: Literal["prompt", "output", "earlier_run", "recorded"] | None = None
    matched: int | None = None


class Drafting:
    """One lane's drafter at work. It knows the lane by its row alone, so a rejection needs no message."""

    #: The KV cache that the drafter has besides the target's; None where it has none.
    length: int | None = None
    cache_bytes: int | None = None
    #: Whether a guess costs a forward of some model.
    forwards: bool = False

    def guess(self, row: Row, k: int, round: int, doubt: float = 0.0) -> Draft:
        """Up to `k` tokens that may follow the row; `round` is what its dice depend on.

        With `doubt`, a guess below that probability is the last one: it stays in, because leaving it
        out for what it is would bias the output.
        """
        raise NotImplementedError


Start = Generator[tuple[Event, ...], None, Drafting]


@dataclass(frozen=True)
class Drafter:
    """A way of guessing ahead: a value with knobs as fields; `start` puts it to work on one lane."""

    name: ClassVar[str]
    label: ClassVar[Text]
    summary: ClassVar[Text]
    #: Whether the knob `draft_model` names a second model that the lane needs.
    needs_model: ClassVar[bool] = False
    #: Whether its guesses come with probabilities, so that drafting can end at a doubtful one.
    doubts: ClassVar[bool] = False

    def check_models(self, task: Task) -> None:
        """Refuse, before the run, what can't work on this lane's models: raises `PlaygroundError`."""

    def start(self, task: Task) -> Start:
        """Get ready behind the prompt: yields what is to be told on the way, returns the drafter at work."""
        raise NotImplementedError


drafters: Registry[type[Drafter]] = Registry("drafter")
drafters.folder(sys.modules[__name__])
