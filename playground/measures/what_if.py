"""Recorded steps decided again under other knobs: the same scores, the same dice, and no model.

The one allowed second path from scores to a token. What a record holds of a step is exact for its candidates and bounded for the rest, so
every answer is either certain or says that it isn't. Knowledge ends at the first flip: from there on the model would have read another text.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from playground.engine.dice import Dice
from playground.engine.knobs import Knob, cast, checked, values_of
from playground.engine.known import Interval, Known
from playground.engine.stages import COLD, ORDERS, TRANSFORMERS_ORDER, BoundStage, Stage, Temperature, is_cold, knob_owners, recorded_context, stages
from playground.engine.strategies import strategies
from playground.errors import BadValue, PlaygroundError, Text
from playground.measures.distribution import EstimatedStepView, StageBounds
from playground.trace import StageAbout, StageView, StepView, TokenChosen, TokensNamed, Trace

Verdict = Literal["same", "flips", "flips_unrecorded", "flips_unsure", "undecided", "needs_model"]

#: Ways of decoding that choose each token by its own distribution: by argmax, or by the die `choose`.
CHOOSERS = ("greedy", "sample")


def chooses_as(strategy: str) -> str:
    """The strategy that would take the same token at every step: a speculative lane writes what its plain one would."""
    return str(getattr(strategies.get(strategy), "plain", strategy))


NO_DISTRIBUTION = Text("No distribution of this step was recorded.", "这一步没有记录分布。")
NO_LOGITS = Text("A server's log-probabilities are not enough: run it here.", "服务器给出的对数概率不足以重新决定：请在这里运行。")
OTHER_STRATEGY = Text("{strategy} looks at more than one distribution per token: run it here.", "{strategy} 每个词元不只看一个分布：请在这里运行。")
STAGE_NEEDS_MODEL = Text("{stage} needs the model: run it here.", "{stage} 需要模型：请在这里运行。")

NOTHING_LEFT = Text("The stages leave no token at all: loosen them.", "这些阶段没有留下任何词元：请放宽。")

_SEED = Knob("int", 0, Text("seed", "种子"), Text("What every die follows from.", "所有骰子由它决定。"), low=0, high=2**63 - 1)


@dataclass(frozen=True)
class Redecided:
    """One recorded step, decided again.

    `verdict`: same; flips (to `token`, a recorded candidate); flips_unrecorded (certainly to a token that was not recorded);
    flips_unsure (certainly to another token, but the record leaves open which: `possible` are the candidates among them);
    undecided; needs_model. `probability` and the two edges of `interval` are bounds, each (low, high), of `token`'s.
    """

    position: int
    recorded: int
    verdict: Verdict
    token: int | None = None
    u: float | None = None
    probability: Interval | None = None
    interval: tuple[Interval, Interval] | None = None
    possible: tuple[int, ...] = ()
    reason: Text | None = None

    @property
    def flips(self) -> bool:
        return self.verdict.startswith("flips")


@dataclass(frozen=True)
class EstimatedView:
    """A step's distribution under the new knobs, as a `StepView` to draw.

    Scores of the candidates are exact. Everything that spans the whole vocabulary, each probability therefore too, is the middle of its
    bounds; where a stage runs as recorded its numbers are the recorded ones. Candidates that may or may not be alive are drawn alive.
    `chosen` is the step as an event, with the middle of its bounds as probability and interval. Where it is not sure which token is chosen
    it holds the recorded one, without probability and interval, and the view says so.
    """

    chosen: TokenChosen
    view: EstimatedStepView

    @property
    def estimated(self) -> bool:
        """Whether any number of the view is a middle of bounds, and no recorded or exact value."""
        known = [pair for bound in self.view.bounds if bound for pair in (bound.alive, bound.entropy, bound.log_normaliser, bound.removed_mass)]
        return any(high - low > 1e-3 * max(1.0, abs(high)) for low, high in known)


@dataclass(frozen=True)
class WhatIf:
    """A lane decided again: its steps up to and including the first flip, and the view of the selected step.

    Steps after one that is undecided hold only if that one stays the same. `selected` is None beyond the first flip.
    """

    lane: int
    strategy: str
    seed: int
    stages: tuple[StageAbout, ...]
    steps: tuple[Redecided, ...]
    selected: EstimatedView | None = None

    @property
    def first_flip(self) -> Redecided | None:
        return next((step for step in self.steps if step.flips), None)

    @property
    def first_undecided(self) -> Redecided | None:
        """The first step from which on the answer is open: undecided, or the model is needed."""
        return next((step for step in self.steps if step.verdict in ("undecided", "needs_model")), None)

    def as_trace(self, trace: Trace) -> Trace:
        """The selected step alone under the new stages, for a figure that draws a step of a trace."""
        about = replace(trace.about.lanes[self.lane], strategy=self.strategy, stages=self.stages)
        lanes = (*trace.about.lanes[: self.lane], about, *trace.about.lanes[self.lane + 1 :])
        named = [(owner, event) for owner, event in trace.events if isinstance(event, TokensNamed)]
        return Trace(replace(trace.about, lanes=lanes), [*named, *([(self.lane, self.selected.chosen)] if self.selected else [])])


@dataclass(frozen=True)
class Settings:
    """How a lane chooses: everything that a recorded step can be decided by again."""

    strategy: str
    stages: tuple[Stage, ...]  # those with work to do, in order
    seed: int
    about: tuple[StageAbout, ...] = field(default=(), compare=False)

    @staticmethod
    def of(trace: Trace, lane: int) -> Settings:
        """A lane's settings as it ran."""
        about = trace.about.lanes[lane]
        return Settings.of_stages(about.strategy, about.stages, int(trace.about.request.get("seed", 0)))

    @staticmethod
    def of_stages(strategy: str, entries: Sequence[StageAbout], seed: int) -> Settings:
        """Settings from stages as a trace tells them, idle or not."""
        built = tuple(checked(stages.get(entry.stage), entry.knobs) for entry in entries)
        return Settings.made(strategy, built, seed, {entry.stage: entry.origin for entry in entries})

    @staticmethod
    def made(strategy: str, ordered: Sequence[Stage], seed: int, origins: Mapping[str, Any]) -> Settings:
        """Settings from stages in order: those that are off drop out, and warpers have nothing to do where nothing is drawn."""
        on = [stage for stage in ordered if not stage.is_off]
        idle = [stage.kind == "warper" and strategy == "greedy" for stage in on]
        entries = tuple(StageAbout(s.name, s.kind, values_of(s), origins.get(s.name, "asked"), idle=i) for s, i in zip(on, idle, strict=True))
        return Settings(strategy, tuple(s for s, i in zip(on, idle, strict=True) if not i), seed, entries)


def changed(trace: Trace, lane: int, changes: Mapping[str, Any], order: Sequence[str] | None = None) -> Settings:
    """A lane's settings with some knobs changed, checked as a request's are.

    Keys are knobs of stages, `seed`, and `strategy` (greedy | sample). A temperature of 0 means greedy; a greedy lane stays greedy until
    `strategy` says otherwise. `order` names all stages in the order in which they are to run; None is the lane's own.
    """
    about = trace.about.lanes[lane]
    strategy, knobs = str(changes.get("strategy", about.strategy)), {k: v for k, v in changes.items() if k not in ("strategy", "seed")}
    if strategy not in CHOOSERS and strategy != about.strategy:
        raise BadValue(
            "strategy_unknown",
            Text("What if knows the strategies {names}, got {value}.", "“如果”只支持策略 {names}，而给出的是 {value}。"),
            names=" | ".join(CHOOSERS), value=repr(strategy)[:60],
        )  # fmt: skip
    if is_cold(knobs.get("temperature")):
        strategy, knobs = "greedy", {**knobs, "temperature": 1.0}
    values = {entry.stage: dict(entry.knobs) for entry in about.stages}
    origins = {entry.stage: entry.origin for entry in about.stages}
    owners = knob_owners()
    for name, value in knobs.items():
        if name not in owners:
            raise BadValue("knob_unknown", Text("There is no knob {name}.", "没有参数 {name}。"), name=repr(name)[:60])
        values.setdefault(owners[name].name, {})[name] = value
        origins[owners[name].name] = "asked"
    sequence = _order(trace, lane) if order is None else tuple(order)
    built = [checked(stages.get(name), own) for name, own in sorted(values.items(), key=lambda entry: sequence.index(entry[0]))]
    seed = cast("seed", _SEED, changes["seed"]) if "seed" in changes else int(trace.about.request.get("seed", 0))
    return Settings.made(strategy, built, seed, origins)


def _order(trace: Trace, lane: int) -> tuple[str, ...]:
    """The order of a lane's stages: what was asked, held against how they ran."""
    lanes = trace.about.request.get("lanes", ())
    asked = lanes[lane].get("order", "transformers") if lane < len(lanes) else "transformers"
    if isinstance(asked, str):
        return ORDERS.get(asked, TRANSFORMERS_ORDER)
    return (*asked, *(name for name in TRANSFORMERS_ORDER if name not in asked))


def what_if(trace: Trace, lane: int, changes: Mapping[str, Any], order: Sequence[str] | None = None, position: int | None = None) -> WhatIf:
    """Decide a lane's recorded steps again with some knobs changed; `position` (default: the first flip) gets a view to draw."""
    return redecide(trace, lane, changed(trace, lane, changes, order), position)


def redecide(
    trace: Trace,
    lane: int,
    settings: Settings,
    position: int | None = None,
    only: int | None = None,
    die: float | None = None,
    patience: float = math.inf,
) -> WhatIf:
    """Decide a lane's recorded steps again under other settings, or the one at position `only`, taking what came before as it was.

    `die` is what every step rolls; None is what the seed says. After `patience` seconds the steps that are left stay undecided.
    """
    until = time.monotonic() + patience
    lane_again = _Lane(trace, lane, settings, die)
    steps: list[Redecided] = []
    for chosen in lane_again.chosen:
        if only is not None and chosen.position != only:
            continue
        steps.append(lane_again.decide(chosen))
        if steps[-1].flips or steps[-1].verdict == "needs_model" or time.monotonic() >= until:
            break
    wanted = position
    if wanted is None:
        wanted = steps[-1].position if steps and steps[-1].flips else None
    selected = next((lane_again.view(step) for step in steps if step.position == wanted), None)
    return WhatIf(lane, settings.strategy, settings.seed, settings.about, tuple(steps), selected)


class _Lane:
    """One lane of a trace under other settings: what all of its steps share."""

    def __init__(self, trace: Trace, lane: int, settings: Settings, die: float | None) -> None:
        about = trace.about.lanes[lane]
        model = next(model for model in trace.about.models if model.key == about.model)
        self.was, self.settings = Settings.of(trace, lane), settings
        self.prompt, self.vocabulary = about.prompt_ids, model.vocabulary
        self.chosen = trace.output(lane)
        self.text = np.array([*about.prompt_ids, *(chosen.token for chosen in self.chosen)], np.int64)
        self.places = {chosen.position: index for index, chosen in enumerate(self.chosen)}
        self.dice, self.thrown = Dice(settings.seed), die
        longest = about.max_new_tokens if model.context is None else min(about.max_new_tokens, model.context - len(self.prompt))
        self.needs: Text | None = None
        self.bound: list[BoundStage] = []
        if self.was.strategy not in CHOOSERS:
            self.needs = OTHER_STRATEGY.filled(strategy=self.was.strategy)
            return
        context = recorded_context(self.prompt, about.eos, longest, self.vocabulary)
        #: How many stages run with the same knobs on the same scores as recorded.
        self.common = next(
            (i for i, (old, new) in enumerate(zip(self.was.stages, settings.stages, strict=False)) if old != new),
            min(len(self.was.stages), len(settings.stages)),
        )
        for index, stage in enumerate(settings.stages):
            try:
                self.bound.append(stage.bind(context))
            except PlaygroundError as error:
                if error.code != "needs_model":
                    raise
                self.bound.append(BoundStage())
                if index >= self.common:
                    self.needs = error.text
                    return
        warm = [float(stage.temperature) for stage in self.was.stages if isinstance(stage, Temperature)]
        first = self.was.stages[0] if self.was.stages else None
        self.temperature = warm[0] if warm and isinstance(first, Temperature) and warm[0] >= COLD else None
        #: By what the raw scores were multiplied in the end, where nothing but that changed their order.
        in_order = all(stage.keeps_order for stage in self.was.stages) and all(value >= COLD for value in warm)
        self.exponent = (1.0 / warm[0] if warm else 1.0) if in_order else None

    def die(self, chosen: TokenChosen) -> float | None:
        """The die of a step: the recorded one, or what the seed says."""
        if self.settings.strategy == "greedy":
            return None
        if self.thrown is not None:
            return self.thrown
        return chosen.u if self.settings.seed == self.was.seed and chosen.u is not None else self.dice.u(chosen.position)

    def way(self, chosen: TokenChosen) -> list[Known] | Text:
        """What is known before the first stage and after each; or why the model is needed."""
        if self.needs is not None:
            return self.needs
        view = chosen.view
        if view is None or chosen.token not in view.ids:
            return NO_DISTRIBUTION
        if view.scale != "logit":
            return NO_LOGITS
        known = Known.of(view, chosen, self.temperature, self.exponent)
        if self.common == 0:
            known = self._placed(known, chosen, view)
        history = self.text[: len(self.prompt) + self.places[chosen.position]]
        taken = [known]
        # Where the record holds everything that was left before the first change, the rest needn't be followed there.
        exact = self.common > 0 and _candidates_left(view, self.common) == view.stages[self.common - 1].alive
        if exact:
            known = known.without_rest()
        for index, (stage, bound) in enumerate(zip(self.settings.stages, self.bound, strict=True)):
            after = known if exact and index < self.common else stage.redecide(known, bound, history, self.vocabulary)
            if index < self.common:
                recorded = view.stages[index]
                after = (after or known.unfollowed(recorded)).recorded(recorded, last=index == len(view.stages) - 1)
                if index == self.common - 1:
                    after = self._placed(after, chosen, view)
            if after is None:
                return Text(STAGE_NEEDS_MODEL.en.format(stage=stage.label.en), STAGE_NEEDS_MODEL.zh.format(stage=stage.label.zh))
            known = after
            taken.append(known)
        return taken

    def _placed(self, known: Known, chosen: TokenChosen, view: StepView) -> Known:
        """With the chosen token's place on the recorded bar, if the rest of the recorded way left all that stood before it as it was."""
        left = self.was.stages[self.common :]
        if chosen.interval is None or not all(stage.keeps_order for stage in left) or any(isinstance(stage, Temperature) for stage in left):
            return known
        return known.placed(chosen.interval[0], view.stages[-1].log_normaliser if view.stages else view.log_sum_exp)

    def decide(self, chosen: TokenChosen) -> Redecided:
        if chosen.origin == "forced":
            return self._given(chosen)
        u = self.die(chosen)
        unchanged = self.settings.stages == self.was.stages and self.settings.strategy == self.was.strategy
        if unchanged and u == chosen.u:
            return self._as_recorded(chosen)
        way = self.way(chosen)
        if isinstance(way, Text):
            return Redecided(chosen.position, chosen.token, "needs_model", u=u, reason=way)
        known = way[-1]
        if not known.possible.any() and not known.rest[1]:
            return Redecided(chosen.position, chosen.token, "needs_model", u=u, reason=NOTHING_LEFT)
        index = known.index_of(chosen.token)
        assert index is not None, "the chosen token is always a candidate"
        answer = known.is_most_likely(index) if u is None else known.hit(index, u)
        if unchanged and chosen.interval is not None:  # only the die differs, and the record says where the token stood
            answer = _inside(u, chosen.interval)
        if answer == "yes":
            return Redecided(chosen.position, chosen.token, "same", chosen.token, u, *known.place(index))
        if answer == "maybe":
            return Redecided(chosen.position, chosen.token, "undecided", None, u)
        decision = known.decide(u)
        if decision.token is not None:
            return Redecided(chosen.position, chosen.token, "flips", decision.token, u, decision.probability, decision.interval)
        verdict: Verdict = "flips_unsure" if decision.possible else "flips_unrecorded"
        return Redecided(chosen.position, chosen.token, verdict, None, u, possible=tuple(sorted(decision.possible)))

    def _given(self, chosen: TokenChosen) -> Redecided:
        """A forced token: no knob chose it, so none can change it."""
        way = self.way(chosen)
        index = None if isinstance(way, Text) else way[-1].index_of(chosen.token)
        if isinstance(way, Text) or index is None or not way[-1].sure[index]:
            return Redecided(chosen.position, chosen.token, "same", chosen.token)
        return Redecided(chosen.position, chosen.token, "same", chosen.token, probability=way[-1].place(index)[0])

    def _as_recorded(self, chosen: TokenChosen) -> Redecided:
        probability = None if chosen.log_probability is None else math.exp(chosen.log_probability)
        left, right = chosen.interval or (None, None)
        return Redecided(
            chosen.position, chosen.token, "same", chosen.token, chosen.u,
            probability=None if probability is None else (probability, probability),
            interval=None if left is None or right is None else ((left, left), (right, right)),
        )  # fmt: skip

    def view(self, step: Redecided) -> EstimatedView | None:
        """The selected step as something to draw, if its distribution was recorded."""
        chosen = self.chosen[self.places[step.position]]
        view, way = chosen.view, self.way(chosen)
        if view is None or isinstance(way, Text):
            return None
        views: list[StageView] = []
        bounds: list[StageBounds | None] = []
        for index, (before, after) in enumerate(pairwise(way)):
            if index < self.common:
                views.append(view.stages[index])
                bounds.append(None)
            else:
                known_here = _bounds(before, after)
                bounds.append(known_here)
                views.append(_stage_view(self.settings.stages[index].name, before, after, known_here))
        known, token = way[-1], step.token
        probability = None if step.probability is None else _middle(step.probability)
        interval = None if step.interval is None or step.u is None else (_middle(step.interval[0]), _middle(step.interval[1]))
        shown = token if token is not None else chosen.token
        at = view.ids.index(shown)
        recorded = {one.name: getattr(view, one.name) for one in fields(view)}
        told = {"decided": token is not None, "probability": step.probability, "interval": step.interval}
        estimated = EstimatedStepView(**{**recorded, "stages": tuple(views)}, bounds=tuple(bounds), **told)
        event = replace(
            chosen,
            token=shown,
            log_probability=math.log(probability) if probability else None,
            raw_log_probability=None if view.raw[at] is None else view.raw[at] - view.log_sum_exp,
            rank=_rank(known, known.scores, at) if token is not None else None,
            raw_rank=_rank(way[0], way[0].scores, at),
            u=step.u,
            interval=interval,
            shown=None,
            stage_states=(),
            view=estimated,
        )
        return EstimatedView(event, estimated)


def _inside(u: float | None, interval: Interval) -> Literal["yes", "no", "maybe"]:
    """Whether a die hits an interval; at its very edge rounding may decide."""
    if u is None or min(abs(u - interval[0]), abs(u - interval[1])) < 1e-12:
        return "maybe"
    return "yes" if interval[0] <= u < interval[1] else "no"


def _candidates_left(view: StepView, stages_run: int) -> int:
    """How many candidates were alive after the first so many recorded stages."""
    dead = {index for index, score in enumerate(view.raw) if score is None}
    return len(view.ids) - len(dead.union(*(stage.masked for stage in view.stages[:stages_run])))


def _rank(known: Known, scores: Any, index: int) -> int | None:
    """How many tokens score higher, where that is certain."""
    if known.rest_high > scores[index]:
        return None
    return int((known.possible & (scores > scores[index])).sum())


def _middle(bounds: Interval) -> float:
    return (bounds[0] + bounds[1]) / 2 if math.isfinite(bounds[1]) else bounds[0]


def _bounds(before: Known, after: Known) -> StageBounds:
    """A stage's numbers, as far as they are known."""
    unsure = tuple(int(index) for index in (after.possible & ~after.sure).nonzero()[0])
    survivors = after.possible & before.possible
    moved = bool((before.scores != after.scores)[survivors].any())
    if moved or after is before:
        # New scores: what was removed besides are candidates, and of the rest at most as many tokens as are left fewer, each at its highest.
        gone = before.possible & ~after.possible
        mass = float(before.weights[gone].sum())
        fewer = max(before.rest_alive[1] - after.rest_alive[0], 0.0)
        more = min(fewer * math.exp(min(before.rest_high - before.ref, 0.0)), before.rest[1]) if fewer else 0.0
        removed = (mass / before.sum[1], min((mass + more) / before.sum[0], 1.0)) if before.sum[0] > 0 else (0.0, 1.0)
    else:
        scale = math.exp(min(after.ref - before.ref, 700.0))
        left = (after.sum[0] * scale / before.sum[1], after.sum[1] * scale / before.sum[0]) if before.sum[0] > 0 else (0.0, 1.0)
        removed = (min(max(1.0 - left[1], 0.0), 1.0), min(max(1.0 - left[0], 0.0), 1.0))
    return StageBounds(after.alive, after.entropy_bounds, after.log_normaliser, removed, unsure)


def _stage_view(name: str, before: Known, after: Known, bounds: StageBounds) -> StageView:
    masked = before.possible & ~after.possible
    moved = (before.scores != after.scores)[after.possible].any()
    scores = tuple(float(f"{score:.9g}") if alive else None for score, alive in zip(after.scores, after.possible, strict=True))
    return StageView(
        stage=name,
        alive=round(_middle(bounds.alive)),
        entropy=_middle(bounds.entropy),
        log_normaliser=_middle(bounds.log_normaliser),
        removed_mass=_middle(bounds.removed_mass),
        masked=tuple(int(index) for index in masked.nonzero()[0]),
        scores=scores if moved else None,
    )
