"""The random numbers: a pure function of the seed, so that any step can be decided again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from numpy.random import Philox

Purpose = Literal["choose", "accept", "draft", "residual", "beam"]
_PURPOSES: dict[Purpose, int] = {"choose": 0, "accept": 1, "draft": 2, "residual": 3, "beam": 4}


@dataclass(frozen=True)
class Dice:
    """Counter-based dice (Philox 4x64, Salmon et al. 2011): the counter is the place where it is rolled.

    Every lane with the same seed rolls the same die at the same output position. A rollback costs
    nothing, because nothing was consumed.
    """

    seed: int

    def u(self, position: int, purpose: Purpose = "choose", index: int = 0, round: int = 0) -> float:
        """A uniform float64 in [0, 1); `choose` depends on seed and position alone, never on the round."""
        if purpose == "choose":
            round = 0
        counter = [position, _PURPOSES[purpose], index, round]
        raw = int(Philox(key=self.seed, counter=counter).random_raw())
        return (raw >> 11) * 2.0**-53
