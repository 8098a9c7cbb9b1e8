"""One token at a time on a CPU: let every core read its share of a weight matrix.

A decode step multiplies one row by every weight matrix of the model, and is as fast as memory can be
read. The BLAS of some builds does such a product on one core. Here the matrix is cut into as many
blocks of rows as there are threads and given to a batched product, which runs the blocks side by
side. Every output is the same dot product as before, bit for bit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from playground.backends import cores

#: Below this many weights a product is over before a second core has begun.
SMALLEST = 64 * 1024
#: The blocks must be this much faster, when tried, to be used at all.
WORTHWHILE = 1.1


class SplitLinears:
    """The linear layers of one model, taken apart into blocks; in effect only inside `active`.

    Outside of `active` the model computes exactly as transformers made it, `generate` included.
    """

    def __init__(self, model: Any) -> None:
        self._active = False
        self._blocks = torch.get_num_threads()
        for module in model.modules():
            if type(module) is nn.Linear and self._divides(module.weight):
                module.forward = partial(self._product, module, self._cut(module.weight))

    def _divides(self, weight: Tensor) -> bool:
        return weight.numel() >= SMALLEST and weight.shape[0] % self._blocks == 0 and weight.is_contiguous()

    def _cut(self, weight: Tensor) -> Tensor:
        """Views of the weight `[O, I]` as `[blocks, I, O / blocks]`: nothing is copied."""
        return weight.detach().view(self._blocks, -1, weight.shape[1]).transpose(1, 2)

    def _product(self, module: nn.Linear, blocks: Tensor, rows: Tensor) -> Tensor:
        """`rows` `[1, 1, I]` times the weight, `[1, 1, O]`; anything else goes the ordinary way."""
        if not self._active or rows.numel() != module.in_features:
            return functional.linear(rows, module.weight, module.bias)
        product = torch.bmm(rows.reshape(1, 1, -1).expand(self._blocks, 1, -1), blocks).view(*rows.shape[:-1], -1)
        return product if module.bias is None else product + module.bias

    @contextmanager
    def active(self) -> Iterator[None]:
        """Compute in blocks inside."""
        self._active = True
        try:
            yield
        finally:
            self._active = False


def split_linears(model: Any) -> SplitLinears | None:
    """Take a CPU model's linear layers apart, if that is the same to the bit and faster on this machine."""
    head = model.get_output_embeddings()
    cores.threads().use_all()
    threads = cores.threads().most
    if threads < 2 or type(head) is not nn.Linear or head.weight.device.type != "cpu" or head.weight.shape[0] % threads:
        return None
    with torch.inference_mode():
        row = torch.randn(1, 1, head.in_features, dtype=head.weight.dtype)
        blocks = head.weight.view(threads, -1, head.in_features).transpose(1, 2)

        def whole() -> Tensor:
            return functional.linear(row, head.weight)

        def split() -> Tensor:
            return torch.bmm(row.expand(threads, 1, -1), blocks).view(1, 1, -1)

        if not torch.equal(whole(), split()) or seconds(whole) < WORTHWHILE * seconds(split):
            return None
    return SplitLinears(model)


def seconds(product: Callable[[], Tensor]) -> float:
    """The shortest of fifteen calls: what the machine can do when nothing else runs on it."""
    taken = []
    for _ in range(15):
        started = time.perf_counter()
        product()
        taken.append(time.perf_counter() - started)
    return min(taken)
