"""Percentiles as NumPy's default gives them, without NumPy."""

from __future__ import annotations

import math
from collections.abc import Sequence


def percentile(ordered: Sequence[float], q: float) -> float | None:
    """The q-th percentile (0 to 100) of ascending values, linear between neighbours as NumPy's default."""
    if not ordered:
        return None
    at = (len(ordered) - 1) * q / 100
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)
