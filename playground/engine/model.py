"""What a strategy may ask of a model, and what a stage may ask of a vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor


class Vocabulary(Protocol):
    """Token ids as text: the backend supplies it, so that the engine imports no tokenizer."""

    size: int

    def piece(self, token: int) -> bytes:
        """The bytes a token adds to the output text; a special token adds none."""
        ...

    def is_special(self, token: int) -> bool: ...

    def encode(self, text: str) -> tuple[int, ...]:
        """The ids of a text exactly as it stands, with no special tokens around it."""
        ...


class LanguageModel(Protocol):
    """A causal language model with its own KV cache, or with none; forks share the weights.

    Shapes: tokens `[B, T]`, logits `[B, keep, V]` for the last `keep` positions, in float32.
    """

    device: torch.device
    vocabulary_size: int
    context: int | None
    #: How many layers there are; an early exit takes the first few of them.
    layers: int
    #: What forks share: two models with the same object here compute the same logits.
    weights: object

    @property
    def length(self) -> int:
        """How many tokens of each row have been read, and are not forgotten."""
        ...

    @property
    def cache_length(self) -> int:
        """How many tokens of each row the KV cache holds: `length`, or 0 where every forward reads the whole text."""
        ...

    @property
    def rows(self) -> int: ...

    @property
    def cache_bytes(self) -> int:
        """Bytes of the KV cache, read off its tensors; 0 where there is none."""
        ...

    @property
    def can_roll_back(self) -> bool:
        """Whether `truncate` works at any time: not for a recurrent state or a sliding window."""
        ...

    @property
    def reads_in_pieces(self) -> bool:
        """Whether a prompt may be read piece by piece, and should: else all of it in one forward."""
        ...

    @property
    def can_exit_early(self) -> bool:
        """Whether `early_exit` works: the layers stand in one list, over a cache that can be rolled back."""
        ...

    def forward(self, tokens: Tensor, keep: int = 1, hidden: Sequence[int] = ()) -> Tensor | tuple[Tensor, dict[int, Tensor]]:
        """Run `tokens` after what was read before, remember them, return logits `[B, keep, V]`.

        With `hidden`, also the hidden states `[B, T, H]` after each of the named layers.
        """
        ...

    def head(self, hidden: Tensor) -> Tensor:
        """Logits `[B, T, V]` of hidden states `[B, T, H]`: the final norm and the output matrix."""
        ...

    def truncate(self, length: int) -> None:
        """Forget everything after the first `length` tokens (the rollback of rejected drafts)."""
        ...

    def select_rows(self, rows: Sequence[int]) -> None:
        """Make the cache's rows the given ones, in that order; a row may be repeated (beams)."""
        ...

    def reserve(self, tokens: int) -> None:
        """Make room in the cache for so many more tokens now, so that no step pays for it."""
        ...

    def fork(self) -> LanguageModel:
        """The same weights with a copy of this cache: what either appends, the other doesn't see."""
        ...

    def early_exit(self, layer: int) -> LanguageModel:
        """A view of the first `layer` layers and the head, over the same cache."""
        ...
