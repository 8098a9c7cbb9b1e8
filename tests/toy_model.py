"""A language model that can be read: the next token's logits follow from the last two tokens by a table."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from playground.engine.clock import Clock
from playground.engine.dice import Dice
from playground.engine.race import Race, Runner
from playground.engine.stages import Context, Stage
from playground.engine.stop import EndOfSequence, MaxNewTokens, StopRule, StopStrings
from playground.engine.strategies import Strategy
from playground.engine.task import Task
from playground.trace import TokenChosen
from tests.toys import ToyVocabulary


class ToyModel:
    """Logits `[B, keep, V]` looked up by the last two tokens; the "cache" is the tokens themselves."""

    def __init__(self, size: int = 12, seed: int = 0, spread: float = 2.0, rows: list[list[int]] | None = None, table: Tensor | None = None) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.table = table if table is not None else torch.randn(size, size, size, generator=generator) * spread
        self.weights: object = self.table
        self.vocabulary_size, self.context, self.device = size, None, torch.device("cpu")
        self.layers, self.can_roll_back = 1, True
        self.reads_in_pieces = self.can_exit_early = True
        self._rows = rows if rows is not None else []

    @property
    def length(self) -> int:
        return len(self._rows[0]) if self._rows else 0

    @property
    def cache_length(self) -> int:
        return self.length

    @property
    def rows(self) -> int:
        return max(1, len(self._rows))

    @property
    def cache_bytes(self) -> int:
        return sum(8 * len(row) for row in self._rows)

    def forward(self, tokens: Tensor, keep: int = 1, hidden: Sequence[int] = ()) -> Tensor:
        batch = tokens.tolist()
        if not self._rows:
            self._rows = [[] for _ in batch]
        logits = []
        for row, new in zip(self._rows, batch, strict=True):
            start = len(row)
            row.extend(new)
            ends = range(max(start, len(row) - keep), len(row))
            logits.append(torch.stack([self.table[row[end - 1] if end else 0, row[end]] for end in ends]))
        return torch.stack(logits)

    def head(self, hidden: Tensor) -> Tensor:
        raise NotImplementedError

    def truncate(self, length: int) -> None:
        if not 0 <= length <= self.length:
            raise ValueError(length)
        self._rows = [row[:length] for row in self._rows]

    def select_rows(self, rows: Sequence[int]) -> None:
        self._rows = [list(self._rows[row]) for row in rows]

    def reserve(self, tokens: int) -> None:
        pass

    def fork(self) -> ToyModel:
        return ToyModel(self.vocabulary_size, table=self.table, rows=copy.deepcopy(self._rows))

    def early_exit(self, layer: int) -> ToyModel:
        return self

    def distribution(self, history: Sequence[int]) -> Tensor:
        """The exact next-token probabilities `[V]` after a history, in float64: the oracle's view."""
        before = history[-2] if len(history) > 1 else 0
        return self.table[before, history[-1]].double().softmax(-1)


def toy_task(
    model: Any,
    prompt: Sequence[int] = (1, 2),
    stages: Sequence[Stage] = (),
    seed: int = 0,
    max_new_tokens: int = 20,
    eos: Sequence[int] = (),
    stop: Sequence[str] = (),
    record: bool = True,
) -> Task:
    """A task over any LanguageModel with a vocabulary of single characters."""
    vocabulary = ToyVocabulary(model.vocabulary_size)
    context = Context(tuple(prompt), tuple(eos), max_new_tokens, vocabulary, model.device)
    rules: list[StopRule] = [EndOfSequence(frozenset(eos))]
    if stop:
        rules.append(StopStrings(tuple(text.encode() for text in stop), vocabulary))
    rules.append(MaxNewTokens(max_new_tokens))
    return Task(
        model=model,
        prompt=tuple(prompt),
        stages=tuple((stage.name, stage.kind, stage.bind(context)) for stage in stages),
        stop_rules=tuple(rules),
        dice=Dice(seed),
        clock=Clock(model.device),
        record=record,
        vocabulary=vocabulary,
    )


def run_alone(task: Task, strategy: Strategy) -> list[Any]:
    """Run one lane to its end; every event in order."""
    return [event for events in Race([Runner(0, task, strategy)]) for lane, event in events if lane == 0]


def tokens_of(events: Sequence[Any]) -> list[int]:
    return [event.token for event in events if isinstance(event, TokenChosen)]
