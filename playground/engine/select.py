"""From a distribution to one token: the most likely one, or the one that a die hits."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

#: The die nearly always falls among the most likely tokens, so only these are sorted at first.
HEAD = 256


@dataclass(frozen=True)
class Drawn:
    """The token under the die, and its interval on the cumulative bar (a tensor each, to delay the sync)."""

    token: Tensor  # [] int64
    low: Tensor  # [] float64
    high: Tensor  # [] float64


def argmax(scores: Tensor) -> Tensor:
    """The most likely token of `[V]` scores; of equal ones the smallest id. Greedy decoding."""
    return scores.argmax(dim=-1)


def draw(probabilities: Tensor, u: float) -> Drawn:
    """Inverse-CDF sampling from `[V]`: lay the tokens end to end by probability descending, id ascending, and look what stands at u.

    Sums run in float64 and are divided by the total, so that a float32 softmax which adds up to
    0.9999998 leaves no gap at the end. A token of probability 0 is never hit.
    """
    total = probabilities.sum(dtype=torch.float64)
    if probabilities.device.type == "cpu" and probabilities.numel() > HEAD:
        values, tokens = probabilities.topk(HEAD)
        # topk breaks ties as it likes: trust only what is strictly above its last value.
        sure = int((values > values[-1]).sum())
        tokens = tokens[:sure].sort().values
        found = _search(probabilities[tokens], tokens, u, total)
        if found is not None:
            return found
    found = _search(probabilities, torch.arange(probabilities.numel(), device=probabilities.device), u, total, must=True)
    assert found is not None
    return found


def _search(values: Tensor, tokens: Tensor, u: float, total: Tensor, must: bool = False) -> Drawn | None:
    """The token at u among `tokens` (ids ascending), or None if u lies beyond them."""
    order = values.sort(descending=True, stable=True)
    edges = order.values.cumsum(0, dtype=torch.float64) / total  # [n]: the right edge of every token
    index = torch.searchsorted(edges, torch.full((1,), u, dtype=torch.float64, device=edges.device), right=True)[0]
    if must:
        # u at or past the last edge by rounding: the last token that has any probability.
        index = torch.minimum(index, (values > 0).sum() - 1)
    elif int(index) >= len(tokens):
        return None
    low = torch.where(index > 0, edges[(index - 1).clamp(min=0)], 0.0)
    return Drawn(token=tokens[order.indices[index]], low=low, high=edges[index])
