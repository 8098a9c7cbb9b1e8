"""The random numbers: a pure function of the seed, so that any step can be decided again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.random import Generator, Philox
from numpy.typing import NDArray

Purpose = Literal["choose", "accept", "draft", "residual", "beam"]
_PURPOSES: dict[Purpose, int] = {"choose": 0, "accept": 1, "draft": 2, "residual": 3, "beam": 4}
#: The last word of the counter where many dice are rolled at once: no round gets there.
_MANY = 2**63


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

    def uniforms(self, position: int, purpose: Purpose, count: int) -> NDArray[np.float64]:
        """`count` uniform float64 in [0, 1) at once, `[count]`: other dice than those of `u`."""
        counter = [0, _PURPOSES[purpose], position, _MANY]  # the first word counts along: it can't be the position
        return Generator(Philox(key=self.seed, counter=counter)).random(count)
