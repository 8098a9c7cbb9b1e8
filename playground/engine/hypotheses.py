"""The hypotheses of a beam search: sequences that are being written, the pool of finished ones, and when the search is over."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from playground.engine.task import Row
from playground.trace import TokenChosen


@dataclass(frozen=True)
class Path:
    """A sequence that the search has written: its score is the sum of `log_probabilities`, one for each token that the search added.

    `told` are the events that tell these tokens, `group` the beams that it competes with, `seat` its row of the KV cache.
    """

    row: Row
    score: float = 0.0
    log_probabilities: tuple[float, ...] = ()
    told: tuple[TokenChosen, ...] = ()
    group: int = 0
    seat: int = 0


@dataclass(frozen=True)
class Ended:
    """A path that ended, and what it counts: its score under the length penalty. `step` and `candidate` say where it ended."""

    path: Path
    ranked: float
    step: int
    candidate: int


@dataclass
class Pool:
    """The best finished hypotheses so far, at most `size` of them, best first.

    A score counts as score / length ** length_penalty; the length is the number of tokens that the search wrote, the end token
    included, the prompt not. `longest` is the most that a hypothesis can have. As in transformers 5 (`_beam_search`), a full pool
    ends the search at once (`early_stopping` "true"), or when the best living beam can't rank above the pool's worst: judged at the
    length that it has ("false", a heuristic where the penalty is above 0), or at the length that suits it best ("never").
    """

    size: int
    length_penalty: float
    early_stopping: str
    longest: int
    held: list[Ended] = field(default_factory=list)

    def ranked(self, score: float, length: int) -> float:
        """What a hypothesis of this score and length counts."""
        return score / length**self.length_penalty

    def take(self, ended: list[Ended]) -> None:
        """Let finished hypotheses in; the worst fall out if there are more than `size`."""
        self.held = sorted([*self.held, *ended], key=lambda one: -one.ranked)[: self.size]  # of equals, the earlier one stays

    @property
    def is_full(self) -> bool:
        return len(self.held) == self.size

    @property
    def worst(self) -> float:
        return self.held[-1].ranked

    def hope(self, score: float, length: int) -> float:
        """The best rank that a living beam of this score and length is granted."""
        longest = self.early_stopping == "never" and self.length_penalty > 0
        return self.ranked(score, self.longest if longest else length)

    def over(self, score: float, length: int) -> Literal["early_stop", "no_better"] | None:
        """Why the search is over, seen from its best living beam; None if it goes on."""
        if not self.is_full:
            return None
        if self.early_stopping == "true":
            return "early_stop"
        return "no_better" if self.hope(score, length) <= self.worst else None
