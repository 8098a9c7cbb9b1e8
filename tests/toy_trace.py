"""Traces of toy models: what a backend would have recorded, without a tokenizer or a request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from playground.engine.knobs import checked, values_of
from playground.engine.race import Race, Runner
from playground.engine.stages import ORDERS, Stage, knob_owners
from playground.engine.strategies import strategies
from playground.engine.task import Row, Task
from playground.trace import About, LaneAbout, ModelAbout, StageAbout, TokenChosen, TokenName, TokensNamed, Trace
from tests.toy_model import toy_task
from tests.toys import ToyVocabulary


class WideModel:
    """A wide vocabulary whose logits are random numbers, fixed by the last two tokens: nothing but the rest is large here."""

    def __init__(self, size: int = 5000, spread: float = 2.0, seed: int = 0, half: bool = False, tokens: Sequence[int] = ()) -> None:
        self.vocabulary_size, self.spread, self.seed, self.half = size, spread, seed, half
        self.context, self.device, self.tokens = None, torch.device("cpu"), list(tokens)
        self.weights: object = (size, spread, seed)
        self.reads_in_pieces = True

    @property
    def length(self) -> int:
        return len(self.tokens)

    @property
    def cache_length(self) -> int:
        return self.length

    @property
    def rows(self) -> int:
        return 1

    @property
    def cache_bytes(self) -> int:
        return 8 * len(self.tokens)

    def forward(self, tokens: Tensor, keep: int = 1, hidden: Sequence[int] = ()) -> Tensor:
        self.tokens += tokens[0].tolist()
        place = self.seed + 7919 * self.tokens[-1] + 104729 * (self.tokens[-2] if len(self.tokens) > 1 else 0)
        logits = torch.randn(self.vocabulary_size, generator=torch.Generator().manual_seed(place)) * self.spread
        return (logits.bfloat16().float() if self.half else logits)[None, None]

    def reserve(self, tokens: int) -> None:
        pass

    def fork(self) -> WideModel:
        return WideModel(self.vocabulary_size, self.spread, self.seed, self.half, self.tokens)


@dataclass(frozen=True)
class ToyLane:
    """What a lane of a toy trace asks: a strategy, knobs by name, a seed and an order of stages."""

    strategy: str = "sample"
    knobs: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    order: str = "transformers"
    name: str = "lane"
    prompt: tuple[int, ...] = (5, 9, 4, 9, 4)
    eos: tuple[int, ...] = ()

    def stages(self) -> list[Stage]:
        """Everything that is switched on, in order, warpers of a greedy lane included."""
        by_stage: dict[type[Stage], dict[str, Any]] = {}
        for name, value in self.knobs.items():
            by_stage.setdefault(knob_owners()[name], {})[name] = value
        built = [checked(stage, values) for stage, values in by_stage.items()]
        return sorted((stage for stage in built if not stage.is_off), key=lambda stage: ORDERS[self.order].index(stage.name))

    def task(self, model: Any, tokens: int) -> Task:
        active = [stage for stage in self.stages() if stage.kind == "processor" or self.strategy != "greedy"]
        return toy_task(model, self.prompt, active, self.seed, tokens, self.eos)


def toy_trace(models: Sequence[tuple[str, Any]], lanes: Sequence[ToyLane], tokens: int = 20) -> Trace:
    """Run toy lanes, each on its own model (key, LanguageModel), and collect what happened.

    A trace has one seed; lanes of other seeds are for traces that were put together from several runs.
    """
    events: list[Any] = []
    for index, ((key, model), lane) in enumerate(zip(models, lanes, strict=True)):
        for batch in Race([Runner(index, lane.task(model.fork(), tokens), strategies.get(lane.strategy)())]):
            events += batch
        ids = {*lane.prompt, *(i for owner, e in events if owner == index and isinstance(e, TokenChosen) for i in (e.view.ids if e.view else ()))}
        vocabulary = ToyVocabulary(model.vocabulary_size)
        events.append((None, TokensNamed(key, tuple(TokenName(token, vocabulary.piece(token)) for token in sorted(ids)))))
    about = About(
        request={"seed": lanes[0].seed, "lanes": [{"order": lane.order} for lane in lanes]},
        models=tuple({key: _model_about(key, model) for key, model in models}.values()),
        lanes=tuple(_lane_about(key, lane, tokens) for (key, _), lane in zip(models, lanes, strict=True)),
        versions={}, machine="toy", created="2026-01-01T00:00:00+00:00", warm=True,
    )  # fmt: skip
    # Through JSON, as a trace that somebody opens: scores have nine digits there.
    return Trace.from_json(Trace(about, events).to_json())


def _model_about(key: str, model: Any) -> ModelAbout:
    return ModelAbout(key, key, None, "float32", "cpu", 0, 0, 0, model.vocabulary_size, model.context, None, None)


def _lane_about(key: str, lane: ToyLane, tokens: int) -> LaneAbout:
    entries = tuple(
        StageAbout(stage.name, stage.kind, values_of(stage), "asked", idle=stage.kind == "warper" and lane.strategy == "greedy")
        for stage in lane.stages()
    )
    return LaneAbout(lane.name, key, lane.strategy, {}, entries, tokens, (), lane.eos, lane.prompt, "")


def logits_along(model: Any, prompt: Sequence[int], output: Sequence[int]) -> list[Tensor]:
    """The logits `[1, V]` that each output token was chosen from."""
    with torch.inference_mode():
        logits = [model.forward(torch.tensor([list(prompt)]))[:, -1]]
        for token in output[:-1]:
            logits.append(model.forward(torch.tensor([[token]]))[:, -1])
    return logits


def row_after(task: Task, chosen: Sequence[TokenChosen]) -> Row:
    """The row in which these recorded tokens stand, with the states that stages have after them."""
    row = task.start
    for event in chosen:
        row = task.extend(row, event.token, event.log_probability or 0.0)
    return row


def truth(task: Task, logits: Tensor, row: Row, u: float | None) -> int | None:
    """The token that the engine chooses from these logits after this row, scored by every stage, then drawn or argmaxed; None if none is left."""
    with torch.inference_mode():
        scored = task.score(logits, [row], views=())
        if bool((scored.scores == -float("inf")).all()):
            return None
        return (task.most_likely(scored) if u is None else task.draw(scored, u)).token
