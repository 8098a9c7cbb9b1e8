"""Greedy decoding: always the most likely token."""

from __future__ import annotations

from dataclasses import dataclass

from playground.engine.strategies import Steps, Strategy, strategies
from playground.engine.task import Task
from playground.errors import Text
from playground.trace import TokenChosen


@strategies.register
@dataclass(frozen=True)
class Greedy(Strategy):
    """Take the token with the highest score, at every step."""

    name = "greedy"
    label = Text("greedy", "贪心")
    summary = Text("Takes the token with the highest score at every step; rolls no die.", "每一步取分数最高的词元；不掷骰子。")
    emits = frozenset({TokenChosen})
    warps = False
    when_cold = "greedy"
    loop = (
        ("forward", "logits = model(tokens, cache)"),
        ("processors", "scores = processors(history, logits)"),
        ("select", "token = argmax(scores)"),
        ("cache", "history.append(token)"),
    )

    def run(self, task: Task) -> Steps:
        row, logits = yield from task.begin()  # [1, V]
        while not row.stopped:
            scored = task.score(logits, [row])
            choice = task.most_likely(scored)
            row, chosen = task.append(row, choice)
            yield (chosen,)
            if row.stopped:
                return
            logits = task.forward([[choice.token]])[:, -1]  # [1, V]
