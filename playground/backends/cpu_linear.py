"""A few tokens at a time on a CPU: let every core read its share of a weight matrix.

A decode step multiplies one row, or a few (beams, guesses to verify), by every weight matrix of the
model, and is as fast as memory can be read. The BLAS of some builds does such a product on one core.
Here the matrix is cut into as many blocks of rows as there are threads and given to a batched product,
which runs the blocks side by side. Every output is the same dot product as before, bit for bit: how many
rows at a time that holds for is tried out when the model is loaded, and more go the ordinary way.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from playground.backends import cores

#: Below this many weights a product is over before a second core has begun.
SMALLEST = 64 * 1024

#: So many rows are taken together at the most: beyond it an ordinary matrix product keeps every core busy.
MOST_ROWS = 16


class SplitLinears:
    """The linear layers of one model, taken apart into blocks; in effect only inside `active`.

    Outside of `active` the model computes exactly as transformers made it, `generate` included.
    """

    def __init__(self, model: Any, rows: int = 1) -> None:
        self.rows = rows  # taken together at the most
        self._active = False
        self._blocks = torch.get_num_threads()
        self._modules = [module for module in model.modules() if type(module) is nn.Linear and self._divides(module.weight)]
        for module in self._modules:
            module.forward = partial(self._product, module, self._cut(module.weight))

    def _divides(self, weight: Tensor) -> bool:
        return weight.numel() >= SMALLEST and weight.shape[0] % self._blocks == 0 and weight.is_contiguous()

    def _cut(self, weight: Tensor) -> Tensor:
        """Views of the weight `[O, I]` as `[blocks, I, O / blocks]`: nothing is copied."""
        return weight.detach().view(self._blocks, -1, weight.shape[1]).transpose(1, 2)

    def _product(self, module: nn.Linear, blocks: Tensor, rows: Tensor) -> Tensor:
        """`rows` `[B, T, I]` times the weight, `[B, T, O]`; more than `self.rows` go the ordinary way."""
        if not self._active or rows.numel() > self.rows * module.in_features:
            return functional.linear(rows, module.weight, module.bias)
        product = in_blocks(rows, blocks)
        return product if module.bias is None else product + module.bias

    def release(self) -> None:
        """Give every layer its own forward back: the model leaves the CPU."""
        for module in self._modules:
            del module.forward
        self._modules = []

    @contextmanager
    def active(self) -> Iterator[None]:
        """Compute in blocks inside."""
        self._active = True
        try:
            yield
        finally:
            self._active = False


def split_linears(model: Any) -> SplitLinears | None:
    """Take a CPU model's linear layers apart, if every shape among them gives the same numbers to the bit."""
    cores.threads().use_all()
    threads = cores.threads().most
    weights = {module.weight.shape: module.weight for module in model.modules() if type(module) is nn.Linear}
    if threads < 2 or any(weight.device.type != "cpu" for weight in weights.values()):
        return None
    with torch.inference_mode():
        cut = [weight for weight in weights.values() if weight.shape[0] % threads == 0]
        same = takewhile(lambda rows: all(_same_in_blocks(weight, threads, rows) for weight in cut), range(1, MOST_ROWS + 1))
        rows = max(same, default=0)
    return SplitLinears(model, rows) if rows else None


def in_blocks(rows: Tensor, blocks: Tensor) -> Tensor:
    """`rows` `[B, T, I]` times `blocks` `[blocks, I, O / blocks]`: `[B, T, O]`."""
    together = rows.reshape(1, -1, rows.shape[-1]).expand(len(blocks), -1, -1)  # [blocks, B · T, I]
    return torch.bmm(together, blocks).transpose(0, 1).reshape(*rows.shape[:-1], -1)


def _same_in_blocks(weight: Tensor, blocks: int, count: int) -> bool:
    rows = torch.linspace(-1, 1, count * weight.shape[1], dtype=weight.dtype).view(1, count, -1)
    return torch.equal(in_blocks(rows, weight.view(blocks, -1, weight.shape[1]).transpose(1, 2)), functional.linear(rows, weight))
