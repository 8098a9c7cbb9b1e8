"""The target's own first layers guess ahead (Elhoushi et al. 2024, LayerSkip)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from playground.engine.drafters import Draft, Drafting, Start, drafters
from playground.engine.drafters.chain import Chain, ChainDrafter
from playground.engine.knobs import knob
from playground.errors import BadValue, PlaygroundError, Text

if TYPE_CHECKING:
    from playground.engine.task import Row, Task


@drafters.register
@dataclass(frozen=True)
class EarlyExit(ChainDrafter):
    """The first layers and the head write the guesses, over the target's own KV cache."""

    name = "early_exit"
    label = Text("early exit", "提前退出")
    summary = Text(
        "The target's first layers and its head write the guesses over the same KV cache; "
        "a model that was not trained for it seldom agrees with itself.",
        "由目标模型的前几层和输出头在同一 KV 缓存上写出猜测；未为此训练的模型很少与自身一致。",
    )

    exit_layer: int = knob(
        15,
        label=Text("exit layer", "退出层"),
        help=Text("How many of the model's layers write a guess.", "用模型的前多少层写出猜测。"),
        low=1,
        slider=(1, 30),
        names={"transformers": "assistant_early_exit"},
    )  # fmt: skip

    def check_models(self, task: Task) -> None:
        if not task.model.can_exit_early:
            raise PlaygroundError(
                "early_exit_impossible",
                Text(
                    "This model can't end after its first layers (they stand in no list, or it keeps no KV cache): choose another drafter.",
                    "此模型无法在前几层之后提前退出（各层不在同一列表中，或没有 KV 缓存）：请选择其他起草器。",
                ),
            )
        if self.exit_layer >= task.model.layers:
            raise BadValue(
                "knob_range",
                Text(
                    "exit_layer must be below the model's {layers} layers, got {value}.",
                    "exit_layer 必须小于模型的层数 {layers}，而给出的是 {value}。",
                ),
                layers=task.model.layers, value=self.exit_layer,
            )  # fmt: skip

    def start(self, task: Task) -> Start:
        yield from ()
        return _FirstLayers(task, self.exit_layer, self.drafting == "greedy")


class _FirstLayers(Drafting):
    """A view of the target that ends early; its layers are cropped again before the target reads on."""

    forwards = True

    def __init__(self, task: Task, layer: int, greedy: bool) -> None:
        self._prompt = task.prompt
        self._view = task.model.early_exit(layer)
        self._chain = Chain(task, self._view, greedy, shared=task.model.vocabulary_size)

    def guess(self, row: Row, k: int, round: int, doubt: float = 0.0) -> Draft:
        length = self._view.length
        try:
            return self._chain.guess(row, row.output[-1:] or self._prompt[-1:], k, round, doubt)
        finally:
            self._view.truncate(length)
