"""Drafting with a model, token by token: what a draft model and an early exit have in common."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from playground.engine.drafters import Draft, Drafter
from playground.engine.knobs import knob
from playground.engine.model import LanguageModel
from playground.engine.select import argmax, draw
from playground.errors import Text

if TYPE_CHECKING:
    from playground.engine.task import Row, Task


@dataclass(frozen=True)
class ChainDrafter(Drafter):
    """A drafter that asks a model for one token after the other."""

    doubts = True

    drafting: str = knob(
        "greedy",
        label=Text("drafting", "起草方式"),
        help=Text(
            "greedy: the drafter's most likely token, no die. probabilistic: drawn from the drafter's own distribution q, after the same stages.",
            "greedy：取草稿模型最可能的词元，不掷骰子。probabilistic：从草稿模型自己的分布 q 中抽取，经过同样的阶段。",
        ),
        choices=("greedy", "probabilistic"), names={"vllm": "draft_sample_method"},
    )  # fmt: skip


@dataclass
class Chain:
    """A model that guesses k tokens, each after the ones before it, through the lane's own stages."""

    task: Task
    model: LanguageModel
    greedy: bool
    #: Ids from here on are not the drafter's to guess.
    shared: int

    def guess(self, row: Row, unread: Sequence[int], k: int, round: int, doubt: float) -> Draft:
        """Read `unread`, the row's tokens that the model's cache doesn't hold, then guess."""
        tokens: list[int] = []
        q: list[Tensor] = []
        while True:
            scores = self._scores(unread, row)  # [V]
            if bool((scores == -math.inf).all()):
                return self._draft(tokens, q)
            if self.greedy:
                token = int(argmax(scores))
                probability = float(scores.softmax(-1)[token]) if doubt else 1.0
            else:
                q.append(self.distribution(scores))
                token = int(draw(q[-1], self.task.dice.u(row.position, "draft", round=round)).token)
                probability = float(q[-1][token])
            tokens.append(token)
            if len(tokens) == k:
                return self._draft(tokens, q)
            if probability < doubt:
                return self._draft(tokens, q, doubtful=True)
            row = self.task.extend(row, token, math.log(probability) if probability else -math.inf)
            if row.stopped:
                return self._draft(tokens, q)
            unread = (token,)

    def _scores(self, unread: Sequence[int], row: Row) -> Tensor:
        """Scores `[V]` after the lane's stages, over the target's ids; -inf where the drafter has no say."""
        logits = self.model.forward(torch.tensor([unread], dtype=torch.long).to(self.model.device))
        assert isinstance(logits, Tensor)
        own = logits[:, -1, : self.shared]
        padded = functional.pad(own, (0, self.task.model.vocabulary_size - own.shape[-1]), value=-math.inf)  # [1, V]
        return self.task.score(padded, [row], views=()).scores[0]

    @staticmethod
    def distribution(scores: Tensor) -> Tensor:
        """The q `[V]` that a guess is drawn from and judged by: one tensor for both."""
        return scores.double().softmax(-1)

    def _draft(self, tokens: list[int], q: list[Tensor], doubtful: bool = False) -> Draft:
        return Draft(tuple(tokens), None if self.greedy else tuple(q), limit="confidence" if doubtful else None)
