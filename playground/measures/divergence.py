"""Where two lanes part, and why: found by deciding one lane's step again with the other's settings, changing one thing at a time."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from playground.errors import Text
from playground.measures.distribution import distributions
from playground.measures.text import display_name
from playground.measures.what_if import CHOOSERS, Redecided, Settings, chooses_as, redecide
from playground.trace import ModelAbout, StageAbout, StepView, TokenChosen, TokenName, Trace

Kind = Literal["branch", "stage", "order", "die", "strategy", "search", "drafts", "server", "model", "prompt", "numerics", "unknown"]


@dataclass(frozen=True)
class Cause:
    """Why two lanes part. `stage` names the stage; `more` names the other differences of settings without which it wouldn't have sufficed.

    `certain` says that deciding the step again with only this changed gives the other lane's token, by bounds that leave no doubt.
    """

    kind: Kind
    stage: str | None = None
    more: tuple[str, ...] = ()
    certain: bool = True


@dataclass(frozen=True)
class Side:
    """One lane at the position where they part.

    `token` is the lane's own, `other` the other lane's. Probabilities are pairs (own token, other token), before the stages (`raw`) and
    after them (`final`), None for what was not recorded. `margin` is the raw score of the likeliest token minus that of the next.
    """

    lane: int
    name: str
    token: int
    other: int
    raw: tuple[float | None, float | None]
    final: tuple[float | None, float | None]
    u: float | None
    margin: float | None
    removed_by: str | None = None  # the stage that removed the other lane's token here
    forced: bool = False  # the token was given, not chosen


@dataclass(frozen=True)
class Divergence:
    """The first position at which two lanes' tokens differ."""

    position: int
    a: Side
    b: Side
    cause: Cause


def first_divergence(trace: Trace, a: int, b: int, other: Trace | None = None) -> Divergence | None:
    """Where lane `a` and lane `b` (of `other`, if given: another run) part; None if one is the beginning of the other."""
    other = trace if other is None else other
    first, second = trace.output(a), other.output(b)
    same = _same_token(trace, a, other, b)
    pair = next(((x, y) for x, y in zip(first, second, strict=False) if not same(x.token, y.token)), None)
    if pair is None:
        return None
    sides = _side(trace, a, pair[0], pair[1].token), _side(other, b, pair[1], pair[0].token)
    return Divergence(pair[0].position, *sides, cause=_cause((trace, a, pair[0]), (other, b, pair[1])))


def _same_token(trace: Trace, a: int, other: Trace, b: int) -> Callable[[int, int], bool]:
    """Whether an id of lane `a` and one of lane `b` are the same token: by id in one vocabulary, by their bytes in two.

    A server may give no ids; the trace's own then stand for bytes.
    """
    keys = trace.about.lanes[a].model, other.about.lanes[b].model
    if keys[0] == keys[1]:
        return operator.eq
    first, second = trace.names(keys[0]), other.names(keys[1])

    def same(x: int, y: int) -> bool:
        one, two = first.get(x), second.get(y)
        return x == y if one is None or two is None else (one.piece, one.special) == (two.piece, two.special)

    return same


def _side(trace: Trace, lane: int, chosen: TokenChosen, other: int) -> Side:
    view = chosen.view
    raw, final = (_exp(chosen.raw_log_probability), None), (_exp(chosen.log_probability), None)
    removed_by = None
    if view is not None and other in view.ids:
        index, way = view.ids.index(other), distributions(view)
        raw, final = (raw[0], way[0].probabilities[index]), (final[0], way[-1].probabilities[index])
        removed_by = next((step.stage for step in way if index in step.masked), None)
    name, forced = trace.about.lanes[lane].name, chosen.origin == "forced"
    return Side(lane, name, chosen.token, other, raw, final, chosen.u, _margin(view), removed_by, forced)


def _exp(log_probability: float | None) -> float | None:
    return None if log_probability is None else math.exp(log_probability)


def _margin(view: StepView | None) -> float | None:
    """The gap between the two highest raw scores; candidates stand by raw score descending."""
    if view is None or len(view.raw) < 2 or view.raw[0] is None or view.raw[1] is None:
        return None
    return view.raw[0] - view.raw[1]


# --- the cause ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Difference:
    """One thing in which two lanes' settings differ: what it is, and how to make it as it is in the other."""

    kind: Literal["stage", "order", "die", "strategy"]
    stage: str | None = None

    @property
    def name(self) -> str:
        return self.stage or self.kind


@dataclass(frozen=True)
class _Way:
    """How a lane chooses at one position, as something that can be mixed with another lane's."""

    strategy: str
    stages: tuple[StageAbout, ...]
    u: float | None
    seed: int

    def with_(self, difference: _Difference, other: _Way) -> _Way:
        """As it is, but in this one thing like the other."""
        if difference.kind == "strategy":
            # The argmax rolls no die: who starts to draw takes the other's.
            return replace(self, strategy=other.strategy, u=self.u if self.u is not None else other.u)
        if difference.kind == "die":
            return replace(self, u=other.u)
        if difference.kind == "order":
            place = {entry.stage: index for index, entry in enumerate(other.stages)}
            return replace(self, stages=tuple(sorted(self.stages, key=lambda entry: place.get(entry.stage, len(place)))))
        return replace(self, stages=_mixed(self.stages, other.stages, difference.stage))


def _mixed(own: Sequence[StageAbout], other: Sequence[StageAbout], stage: str | None) -> tuple[StageAbout, ...]:
    """Own stages, but one of them as the other lane has it, standing where it stands there."""
    taken = next((entry for entry in other if entry.stage == stage), None)
    kept = [entry for entry in own if entry.stage != stage]
    if taken is None:
        return tuple(kept)
    if any(entry.stage == stage for entry in own):
        return tuple(taken if entry.stage == stage else entry for entry in own)
    before = {entry.stage for entry in other[: list(other).index(taken)]}
    at = max((index + 1 for index, entry in enumerate(kept) if entry.stage in before), default=0)
    return (*kept[:at], taken, *kept[at:])


def _drawn_guess(trace: Trace, lane: int, chosen: TokenChosen) -> bool:
    """Whether a drafter rolled dice for this token: it has the plain lane's law, but not its die."""
    return trace.about.lanes[lane].strategy == "speculative_sample" and chosen.u is None and chosen.origin in ("accepted", "resampled")


def _way(trace: Trace, lane: int, chosen: TokenChosen) -> _Way:
    about = trace.about.lanes[lane]
    return _Way(chooses_as(about.strategy), about.stages, chosen.u, int(trace.about.request.get("seed", 0)))


def _differences(a: _Way, b: _Way) -> list[_Difference]:
    found: list[_Difference] = []
    if a.strategy != b.strategy:
        found.append(_Difference("strategy"))
    if a.u is not None and b.u is not None and a.u != b.u:
        found.append(_Difference("die"))
    ours, theirs = ({entry.stage: entry.knobs for entry in way.stages} for way in (a, b))
    names = dict.fromkeys([*(entry.stage for entry in a.stages), *(entry.stage for entry in b.stages)])
    found += [_Difference("stage", name) for name in names if ours.get(name) != theirs.get(name)]
    shared = [name for name in ours if name in theirs]
    if shared != [name for name in theirs if name in ours]:
        found.append(_Difference("order"))
    return found


_Place = tuple[Trace, int, TokenChosen]


def _cause(a: _Place, b: _Place) -> Cause:
    """The one difference that makes one lane's step choose the other's token."""
    if "forced" in (a[2].origin, b[2].origin):
        return Cause("branch")
    if _server(a) != _server(b):
        # What a server calls its model doesn't say which it is. Other settings may be the cause as well, and nothing here can tell.
        return Cause("server", certain=not _differences(_way(*a), _way(*b)))
    models = _model(a), _model(b)
    if (models[0].name, models[0].revision) != (models[1].name, models[1].revision):
        return Cause("model")
    if a[0].about.lanes[a[1]].prompt_ids != b[0].about.lanes[b[1]].prompt_ids:
        return Cause("prompt")
    ways = _way(*a), _way(*b)
    if _drawn_guess(*a) != _drawn_guess(*b):
        return Cause("drafts", certain=ways[0].stages == ways[1].stages)
    if any(way.strategy not in CHOOSERS for way in ways):
        # Beams are kept for their whole text: one step's record can't tell what another strategy would have taken.
        return Cause("search", certain=ways[0].stages == ways[1].stages) if ways[0].strategy != ways[1].strategy else Cause("unknown", certain=False)
    differences = _differences(*ways)
    if not differences:
        return Cause("numerics")
    # One thing alone that makes either lane choose as the other did. The strategy comes first: an argmax and a die part by nature.
    for difference in differences:
        for (here, own), (there, other) in (((a, ways[0]), (b, ways[1])), ((b, ways[1]), (a, ways[0]))):
            if _decided(here, own.with_(difference, other)) == there[2].token:
                return Cause(difference.kind, difference.stage)
    whole = _decided(a, ways[1]), _decided(b, ways[0])
    if a[2].token == whole[0] and b[2].token == whole[1]:
        return Cause("numerics")  # the other's settings change nothing on either record
    for steps in _together(a, b, ways, differences):
        return Cause(steps[0].kind, steps[0].stage, more=tuple(step.name for step in steps[1:]))
    guess = differences[0]
    return Cause(guess.kind, guess.stage, more=tuple(difference.name for difference in differences[1:]), certain=False)


def _together(a: _Place, b: _Place, ways: tuple[_Way, _Way], differences: Sequence[_Difference]) -> Iterator[list[_Difference]]:
    """Sets of differences, as small as leaving out one after another makes them, that only together bring the other lane's token."""
    for (here, own), (there, other) in (((a, ways[0]), (b, ways[1])), ((b, ways[1]), (a, ways[0]))):

        def suffices(some: Sequence[_Difference]) -> bool:
            mixed = own  # noqa: B023  (asked only while the loop stands here)
            for difference in some:
                mixed = mixed.with_(difference, other)  # noqa: B023
            return _decided(here, mixed) == there[2].token  # noqa: B023

        if not suffices(differences):
            continue
        needed = list(differences)
        for difference in differences:
            fewer = [one for one in needed if one != difference]
            if fewer and suffices(fewer):
                needed = fewer
        yield needed


def _decided(place: _Place, way: _Way) -> int | None:
    """The token of a lane's step under other settings, if it is certain."""
    trace, lane, chosen = place
    settings = Settings.of_stages(way.strategy, way.stages, way.seed)
    step: Redecided = redecide(trace, lane, settings, only=chosen.position, die=way.u).steps[0]
    return step.token


def _server(place: _Place) -> str | None:
    """The server that wrote a lane; None for this machine."""
    trace, lane, _ = place
    return trace.about.lanes[lane].server


def _model(place: _Place) -> ModelAbout:
    trace, lane, _ = place
    return next(model for model in trace.about.models if model.key == trace.about.lanes[lane].model)


# --- words ----------------------------------------------------------------------------------------

PART = Text("Token {position}: they part. {a}; {b}.", "第 {position} 个词元：从此分开。{a}；{b}。")
TOOK = Text("{lane} took “{token}”{probability}", "{lane} 选了“{token}”{probability}")
GIVEN = Text("{lane} was given “{token}”{probability}", "{lane} 被指定了“{token}”{probability}")
HIT = Text("{lane}'s die {u} hit “{token}”{probability}", "{lane} 的骰子 {u} 落在“{token}”{probability}")

CAUSES: dict[Kind, Text] = {
    "branch": Text("The cause is the branch: here one lane was given its token.", "原因是分支：其中一条通道在此处被指定了词元。"),
    "stage": Text("The cause is {stage}.", "原因是 {stage}。"),
    "order": Text("The cause is the order of the stages.", "原因是各阶段的顺序。"),
    "die": Text("The cause is the die: the seeds differ.", "原因是骰子：种子不同。"),
    "strategy": Text(
        "The cause is the strategy: one takes the likeliest token, the other rolls a die.", "原因是策略：一个取最可能的词元，另一个掷骰子。"
    ),
    "search": Text(
        "The cause is the strategy: beam search keeps what makes the whole text likelier, the other lane decides token by token.",
        "原因是策略：束搜索保留使整段文本更可能的选择，另一条通道逐个词元决定。",
    ),
    "drafts": Text(
        "The cause is the drafter's dice: the distribution is the same, but a drawn guess is judged by dice of its own.",
        "原因是起草器的骰子：分布相同，但抽取的猜测由另外的骰子裁定。",
    ),
    "server": Text(
        "The lanes ran in different places: other kernels, another precision, perhaps another model.",
        "两条通道在不同的地方运行：算子或精度不同，也可能模型不同。",
    ),
    "model": Text("The cause is the model: they are different ones.", "原因是模型：两者不同。"),
    "prompt": Text("The cause is the prompt: the tokens that were read differ.", "原因是提示词：读入的词元不同。"),
    "numerics": Text(
        "The settings and the die are the same: the numbers were rounded differently (top-2 margin {margin}).",
        "设置和骰子都相同：是数值舍入不同（前两名分差 {margin}）。",
    ),
    "unknown": Text("The record can't tell the cause.", "记录无法说明原因。"),
}
#: What differs besides stages, as part of a list.
SETTINGS = {"strategy": Text("the strategy", "策略"), "die": Text("the die", "骰子"), "order": Text("the order of the stages", "阶段顺序")}
UNCERTAIN = Text("{cause} The record can't tell for certain.", "{cause}记录不足以确定。")
TOGETHER = Text("The cause is several settings together: {names}.", "原因是几项设置共同作用：{names}。")


def sentence(divergence: Divergence, names: Mapping[int, TokenName], other_names: Mapping[int, TokenName] | None = None) -> Text:
    """Where they part, with both tokens, their probabilities and the die; tokens are counted from 1 here, as on the screen."""
    a, b = _said(divergence.a, names), _said(divergence.b, names if other_names is None else other_names)
    position = divergence.position + 1
    return Text(PART.en.format(position=position, a=a.en, b=b.en), PART.zh.format(position=position, a=a.zh, b=b.zh))


def _said(side: Side, names: Mapping[int, TokenName]) -> Text:
    probability = side.final[0] if side.u is not None else side.raw[0]
    values = {"lane": side.name, "token": display_name(names.get(side.token))}
    shown = "" if probability is None else f" ({_probability(probability)})"
    shown_zh = "" if probability is None else f"（{_probability(probability)}）"
    if side.u is None:
        words = GIVEN if side.forced else TOOK
        return Text(words.en.format(**values, probability=shown), words.zh.format(**values, probability=shown_zh))
    die = f"{side.u:.2f}"
    return Text(HIT.en.format(**values, u=die, probability=shown), HIT.zh.format(**values, u=die, probability=shown_zh))


def _probability(p: float) -> str:
    return f"{p:.2f}" if p >= 0.01 else f"{p:.1g}"


def reason(divergence: Divergence, labels: Mapping[str, Text]) -> Text:
    """The cause in words; `labels` are the stages' names."""
    cause = divergence.cause
    label = labels.get(cause.stage or "", Text(cause.stage or "", cause.stage or ""))
    margin = divergence.a.margin
    values: dict[str, Any] = {"margin": "?" if margin is None else f"{margin:.2g}"}
    text = Text(CAUSES[cause.kind].en.format(stage=label.en, **values), CAUSES[cause.kind].zh.format(stage=label.zh, **values))
    if cause.more and cause.certain:
        whole = [cause.stage or cause.kind, *cause.more]
        named = [labels.get(name, SETTINGS.get(name, Text(name, name))) for name in whole]
        text = Text(TOGETHER.en.format(names=", ".join(n.en for n in named)), TOGETHER.zh.format(names="、".join(n.zh for n in named)))
    if not cause.certain and cause.kind != "unknown":
        text = Text(UNCERTAIN.en.format(cause=text.en), UNCERTAIN.zh.format(cause=text.zh))
    return text
