"""Sampling: draw the next token from the distribution that the stages leave."""

from __future__ import annotations

from dataclasses import dataclass

from playground.engine.strategies import Steps, Strategy, strategies
from playground.engine.task import Task
from playground.errors import Text
from playground.trace import TokenChosen


@strategies.register
@dataclass(frozen=True)
class Sample(Strategy):
    """Roll one die per token and take what stands there on the cumulative bar."""

    name = "sample"
    label = Text("sample", "采样")
    summary = Text("Draws each token from the distribution that processors and warpers leave.", "从处理器和整形器留下的分布中抽取每个词元。")
    emits = frozenset({TokenChosen})
    when_cold = "greedy"
    loop = (
        ("forward", "logits = model(tokens, cache)"),
        ("processors", "scores = processors(history, logits)"),
        ("warpers", "scores = warpers(history, scores)"),
        ("select", "token = draw(softmax(scores), u)"),
        ("cache", "history.append(token)"),
    )

    def run(self, task: Task) -> Steps:
        row, logits = yield from task.begin()  # [1, V]
        while not row.stopped:
            scored = task.score(logits, [row])
            choice = task.draw(scored, task.dice.u(row.position))
            row, chosen = task.append(row, choice)
            yield (chosen,)
            if row.stopped:
                return
            logits = task.forward([[choice.token]])[:, -1]  # [1, V]
