"""A KV cache that grows in place: transformers' own copies all of itself for every token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

#: Room for this many more tokens is made at a time, or for half as many again as there are.
ROOM = 64


class GrowingLayer(DynamicLayer):
    """A layer whose `keys` and `values` `[B, H, T, D]` are views of larger buffers with room behind them.

    Everything that transformers does to a layer (crop, select rows, reorder) works on the views. A
    buffer is written into only while the views still lie at its beginning; after a fork both sides
    let go of it, so neither can write where the other reads.
    """

    _room: tuple[Tensor, Tensor] | None = None

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append the new tokens' keys and values, and return all of them."""
        if not self.is_initialized:
            self.dtype, self.device = key_states.dtype, key_states.device
            self.keys, self.values = key_states[..., :0, :], value_states[..., :0, :]
            self.is_initialized = True
        length, more = self.keys.shape[-2], key_states.shape[-2]
        self.reserve(more)
        assert self._room is not None
        keys, values = self._room
        keys[..., length : length + more, :] = key_states
        values[..., length : length + more, :] = value_states
        self.keys, self.values = keys[..., : length + more, :], values[..., : length + more, :]
        return self.keys, self.values

    def select_rows(self, rows: Sequence[int]) -> None:
        """Make the rows the given ones, in that order; only rows that change are copied, in place where the number stays the same."""
        changed = [place for place, row in enumerate(rows) if row != place]
        if not self.is_initialized or (not changed and len(rows) == self.keys.shape[0]):
            return
        if len(rows) == self.keys.shape[0] and self._fits(self.keys.shape[-2]):
            for held in (self.keys, self.values):
                saved = {row: held[row].clone() for row in {rows[place] for place in changed} if rows[row] != row}  # before they are written over
                for place in changed:
                    held[place] = saved.get(rows[place], held[rows[place]])
        else:
            self._room = (_moved(self.keys, 1, rows), _moved(self.values, 1, rows))
            length = self.keys.shape[-2]
            self.keys, self.values = self._room[0][..., :length, :], self._room[1][..., :length, :]

    def reserve(self, more: int) -> None:
        """Have a buffer of one's own with room for `more` tokens."""
        if self.is_initialized and not self._fits(self.keys.shape[-2] + more):
            self._room = (_moved(self.keys, more), _moved(self.values, more))
            length = self.keys.shape[-2]
            self.keys, self.values = self._room[0][..., :length, :], self._room[1][..., :length, :]

    def _fits(self, length: int) -> bool:
        if self._room is None:
            return False
        at_its_beginning = self._room[0].data_ptr() == self.keys.data_ptr() and self._room[0].shape[0] == self.keys.shape[0]
        return at_its_beginning and self._room[0].shape[-2] >= length

    def fork(self) -> GrowingLayer:
        """A layer that reads the same tensors; whoever appends first moves to a buffer of its own."""
        self._room = None
        other = GrowingLayer()
        other.__dict__.update(self.__dict__)
        return other


def _moved(held: Tensor, more: int, rows: Sequence[int] | None = None) -> Tensor:
    """A larger buffer that begins with what is held, or with the given rows of it."""
    length = held.shape[-2]
    count = held.shape[0] if rows is None else len(rows)
    buffer = torch.empty(count, *held.shape[1:-2], length + more + max(ROOM, length // 2), held.shape[-1], dtype=held.dtype, device=held.device)
    for place, row in enumerate(range(count) if rows is None else rows):
        buffer[place, ..., :length, :] = held[row]
    return buffer


def growing_cache(config: Any) -> DynamicCache:
    """The cache that transformers would make for this model, its plain layers replaced by growing ones."""
    cache = DynamicCache(config=config)
    cache.layers = [GrowingLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache
