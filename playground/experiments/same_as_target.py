"""Is the text of a lane that speculates distributed as the plain lane's? A test over many short draws of both.

Every draw has a seed of its own, so the two samples are independent. Compared are the pairs of the second and third token: the
first comes from the prompt's own forward, these two from drafts where there are any.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from playground.backends import local
from playground.backends.catalog import LoadedModel
from playground.backends.drafting import load_draft
from playground.engine.dice import Dice
from playground.engine.strategies import strategies
from playground.engine.task import Task
from playground.errors import BadValue, Text
from playground.measures.ledger import PLAIN
from playground.request import Lane, Request
from playground.trace import DraftJudged, TokenChosen

#: How many tokens a draw writes: room for two guesses and the target's own token behind the first.
TOKENS = 4
#: Cells of which fewer than so many are expected in either sample are pooled: Pearson's χ² isn't χ² there.
LEAST_EXPECTED = 5.0
#: The test rejects below this p-value: once in a hundred times it does so although nothing is wrong.
SIGNIFICANCE = 0.01
DRAWS = 200

Pair = tuple[int, ...]


@dataclass(frozen=True)
class SameTest:
    """What the test found: Pearson's χ² for two samples over `cells` pooled cells; None where one cell holds all draws.

    `drafted`, `accepted` and `rejected` count the guesses of the speculating draws: without any, nothing was tested.
    """

    draws: int
    cells: int
    statistic: float | None
    freedom: int
    p_value: float | None
    drafted: int
    accepted: int
    rejected: int
    #: How many different pairs there were before pooling.
    pairs: int = 1

    @property
    def significant(self) -> bool:
        """Whether the test rejects that the two distributions are the same."""
        return self.p_value is not None and self.p_value < SIGNIFICANCE

    @property
    def verdict(self) -> Text:
        """In one sentence; a test never proves that two distributions are the same."""
        if not self.drafted:
            return Text("Nothing was guessed in any draw: there is nothing to test.", "所有抽取中都没有猜测：无可检验。")
        if self.p_value is None and self.pairs > 1:
            return Text(
                "Too few draws: none of the {pairs} different pairs came often enough for a test.",
                "抽取次数太少：{pairs} 种不同的对都不够多，无法检验。",
            ).filled(pairs=self.pairs)
        if self.p_value is None:
            return Text("All draws are alike: there is nothing to tell apart.", "所有抽取都相同：没有可区分的差异。")
        values = {
            "draws": self.draws, "cells": self.cells, "statistic": f"{self.statistic:.2f}", "freedom": self.freedom, "p": f"{self.p_value:.3f}",
            "accepted": self.accepted, "drafted": self.drafted,
        }  # fmt: skip
        if self.significant:
            return Text(
                "Rejected: the distributions differ (χ² = {statistic}, {freedom} degrees of freedom, p = {p}, {draws} draws each, {cells} cells; "
                "{accepted} of {drafted} guesses accepted).",
                "被拒绝：两个分布不同（χ² = {statistic}，自由度 {freedom}，p = {p}，各 {draws} 次抽取，{cells} 个单元；"
                "{drafted} 个猜测中接受 {accepted} 个）。",
            ).filled(**values)
        return Text(
            "Not rejected: no difference was found (χ² = {statistic}, {freedom} degrees of freedom, p = {p}, {draws} draws each, {cells} cells; "
            "{accepted} of {drafted} guesses accepted).",
            "未被拒绝：没有发现差异（χ² = {statistic}，自由度 {freedom}，p = {p}，各 {draws} 次抽取，{cells} 个单元；"
            "{drafted} 个猜测中接受 {accepted} 个）。",
        ).filled(**values)


def pooled(one: Sequence[Pair], other: Sequence[Pair]) -> list[tuple[int, int]]:
    """Counts of every pair in both samples; pairs too rare for the test share a cell, which joins the rarest other one if it is too rare itself."""
    counts = Counter(one), Counter(other)
    whole = len(one) + len(other)
    smaller = min(len(one), len(other)) / whole
    cells, rest = [], [0, 0]
    for pair, count in sorted((counts[0] + counts[1]).items(), key=lambda entry: (-entry[1], entry[0])):
        if count * smaller >= LEAST_EXPECTED:
            cells.append((counts[0][pair], counts[1][pair]))
        else:
            rest = [rest[0] + counts[0][pair], rest[1] + counts[1][pair]]
    if sum(rest) * smaller >= LEAST_EXPECTED or (sum(rest) and not cells):
        cells.append((rest[0], rest[1]))
    elif sum(rest):
        cells[-1] = (cells[-1][0] + rest[0], cells[-1][1] + rest[1])
    return cells


def chi_squared(cells: Sequence[tuple[int, int]]) -> tuple[float, float]:
    """Pearson's χ² of two samples over these cells, and its p-value: the upper regularised gamma function at (df / 2, χ² / 2)."""
    totals = [sum(cell[sample] for cell in cells) for sample in (0, 1)]
    whole = sum(totals)
    expected = [[sum(cell) * total / whole for total in totals] for cell in cells]
    pairs = ((count, wanted) for cell, row in zip(cells, expected, strict=True) for count, wanted in zip(cell, row, strict=True))
    statistic = sum((count - wanted) ** 2 / wanted for count, wanted in pairs)
    half = torch.tensor([(len(cells) - 1) / 2, statistic / 2], dtype=torch.float64)
    return statistic, float(torch.special.gammaincc(half[0], half[1]))


def compare(speculative: Sequence[Pair], plain: Sequence[Pair], judged: Sequence[DraftJudged]) -> SameTest:
    """Test two samples of equal size against each other."""
    cells = pooled(speculative, plain)
    statistic, p_value = chi_squared(cells) if len(cells) > 1 else (None, None)
    states = Counter(guess.state for one in judged for guess in one.guesses)
    drafted, accepted = sum(states.values()), states["accepted"] + states["cut"]
    pairs = len({*speculative, *plain})
    return SameTest(len(plain), len(cells), statistic, len(cells) - 1, p_value, drafted, accepted, states["rejected"], pairs)


def check(lane: Lane) -> None:
    """Refuse a lane that doesn't speculate."""
    if lane.strategy.name not in PLAIN:
        raise BadValue(
            "not_speculative",
            Text("This test is for a lane that speculates, got {strategy}.", "此检验用于投机解码的通道，而给出的是 {strategy}。"),
            strategy=lane.strategy.name,
        )  # fmt: skip


def same_as_target(
    request: Request, lane: Lane, load: Callable[[str | None], LoadedModel], draws: int = DRAWS, told: Callable[[int], None] = lambda done: None
) -> SameTest:
    """Draw from a lane and from its plain one, `draws` times each, and test whether they differ; `told` hears how many are done.

    `told` is called before every draw: what it raises ends the test.
    """
    check(lane)
    plain = strategies.get(PLAIN[lane.strategy.name])()
    samples: dict[str, list[Pair]] = {"speculative": [], "plain": []}
    judged: list[DraftJudged] = []
    short = replace(lane, max_new_tokens=TOKENS, stop=(), branch=None)
    with torch.inference_mode():
        task = _read(request, short, load)
        for number in range(draws):
            told(number)
            for name, strategy, seed in (("speculative", lane.strategy, request.seed + number), ("plain", plain, request.seed + draws + number)):
                tokens: list[int] = []
                for event in _drawn(task, strategy, seed):
                    if isinstance(event, TokenChosen):
                        tokens.append(event.token)
                    elif isinstance(event, DraftJudged):
                        judged.append(event)
                samples[name].append(tuple(tokens[1:3]))
    told(draws)
    return compare(samples["speculative"], samples["plain"], judged)


def _read(request: Request, lane: Lane, load: Callable[[str | None], LoadedModel]) -> Task:
    """The lane's task with its prompt read, by the drafter too."""
    prepared = local.prepare_lane(request, lane, load(lane.model or request.model))
    task = local.make_task(request, prepared, record=False)
    if drafted := load_draft(lane, prepared.loaded, load):
        local.give_drafter(task, *drafted)
    lane.strategy.check_models(task)
    logits = _read_prompt(task)
    if task.draft_model is not None:
        _read_prompt(replace(task, model=task.draft_model))
    return replace(task, prompt_logits=logits)


def _read_prompt(task: Task) -> torch.Tensor:
    reading = task.read_prompt()
    while True:
        try:
            next(reading)
        except StopIteration as end:
            return end.value


def _drawn(task: Task, strategy: object, seed: int) -> Iterator[object]:
    """The events of one run on copies of the caches."""
    draft = task.draft_model.fork() if task.draft_model is not None else None
    for events in strategy.run(replace(task, model=task.model.fork(), draft_model=draft, dice=Dice(seed))):  # type: ignore[attr-defined]
        yield from events
