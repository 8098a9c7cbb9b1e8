"""Where two lanes part and why, on runs whose cause is known because it was made."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from playground.backends.local import TransformersModel
from playground.engine.dice import Dice
from playground.engine.stages import stages
from playground.measures.divergence import CAUSES, Divergence, first_divergence, reason, sentence
from playground.trace import TokenChosen, Trace
from tests.toy_trace import ToyLane, WideModel, toy_trace
from tests.toys import tiny_model

LABELS = {name: stage.label for name, stage in stages.all().items()}


def pair(a: ToyLane, b: ToyLane, family: str = "qwen", tokens: int = 40) -> Trace:
    model = TransformersModel(tiny_model(family))
    return toy_trace([(family, model), (family, model)], [replace(a, name="left"), replace(b, name="right")], tokens)


def parted(trace: Trace, other: Trace | None = None) -> Divergence:
    divergence = first_divergence(trace, 0, 1 if other is None else 0, other)
    assert divergence is not None
    return divergence


def tokens_of(trace: Trace, lane: int) -> list[int]:
    return [event.token for event in trace.of(lane, TokenChosen)]


@pytest.mark.parametrize(
    ("a", "b", "kind", "stage"),
    [
        (ToyLane("greedy"), ToyLane(seed=3), "strategy", None),
        (ToyLane("greedy"), ToyLane("greedy", {"repetition_penalty": 1.5}), "stage", "repetition"),
        (ToyLane(seed=3), ToyLane(knobs={"top_k": 3}, seed=3), "stage", "top_k"),
        (ToyLane(knobs={"temperature": 0.5}, seed=3), ToyLane(knobs={"temperature": 1.5}, seed=3), "stage", "temperature"),
        (ToyLane(knobs={"top_p": 0.9, "temperature": 0.9}, seed=3), ToyLane(knobs={"top_p": 0.4, "temperature": 0.9}, seed=3), "stage", "top_p"),
        (ToyLane(seed=1), ToyLane(seed=2), "die", None),
        (ToyLane(seed=1), ToyLane(seed=1, prompt=(5, 9, 4, 9, 5)), "prompt", None),
    ],
    ids=lambda value: str(value) if isinstance(value, str) else None,
)  # fmt: skip
@pytest.mark.parametrize("turned", [False, True])
def test_a_cause_that_was_made_is_found(a: ToyLane, b: ToyLane, kind: str, stage: str | None, turned: bool) -> None:
    divergence = parted(pair(b, a) if turned else pair(a, b))
    assert (divergence.cause.kind, divergence.cause.stage, divergence.cause.certain) == (kind, stage, True)
    assert divergence.cause.more == ()


@pytest.mark.parametrize("turned", [False, True])
def test_beams_part_from_other_lanes_by_the_search(turned: bool) -> None:
    beam, greedy = ToyLane("beam"), ToyLane("greedy")
    divergence = parted(pair(greedy, beam) if turned else pair(beam, greedy))
    assert divergence.cause.kind == "search" and divergence.cause.certain


def test_guesses_drawn_by_a_drafter_part_from_the_plain_lane_by_their_dice() -> None:
    trace = pair(ToyLane(seed=3), ToyLane(seed=3))
    trace.about = replace(trace.about, lanes=(trace.about.lanes[0], replace(trace.about.lanes[1], strategy="speculative_sample")))
    events = list(trace.events)
    at = next(i for i, (lane, event) in enumerate(events) if lane == 1 and isinstance(event, TokenChosen) and event.position == 5)
    lane, chosen = events[at]
    assert isinstance(chosen, TokenChosen)
    events[at] = (lane, replace(chosen, token=chosen.token + 1, u=None, interval=None, origin="accepted"))
    cause = parted(replace(trace, events=events)).cause
    assert cause.kind == "drafts" and cause.certain


def test_the_numbers_are_those_of_the_step() -> None:
    trace = pair(ToyLane("greedy"), ToyLane(knobs={"top_k": 9}, seed=3))
    first, second = tokens_of(trace, 0), tokens_of(trace, 1)
    position = next(i for i, (x, y) in enumerate(zip(first, second, strict=False)) if x != y)
    divergence = parted(trace)
    assert divergence.position == position
    assert (divergence.a.token, divergence.b.token) == (first[position], second[position]) == (divergence.b.other, divergence.a.other)
    model = TransformersModel(tiny_model("qwen"))
    with torch.inference_mode():
        logits = model.forward(torch.tensor([[*trace.about.lanes[0].prompt_ids, *first[:position]]]))[0, -1]
    p = logits.softmax(-1)
    assert divergence.a.raw == pytest.approx((float(p[first[position]]), float(p[second[position]])), rel=1e-4)
    kept = logits.topk(9)
    final = dict(zip(kept.indices.tolist(), kept.values.softmax(-1).tolist(), strict=True))
    assert divergence.b.final == pytest.approx((final[second[position]], final.get(first[position], 0.0)), rel=1e-4)
    assert divergence.a.margin == pytest.approx(float(kept.values[0] - kept.values[1]), abs=1e-5)
    assert divergence.a.u is None and divergence.b.u == Dice(3).u(position)


def test_a_token_that_a_stage_removed_is_told() -> None:
    traces = (pair(ToyLane(seed=seed), ToyLane(knobs={"top_k": 2}, seed=seed)) for seed in range(9))
    divergence = next(d for d in map(parted, traces) if d.b.final[1] is not None)  # the other's token was recorded here
    assert divergence.b.removed_by == "top_k" and divergence.b.final[1] == 0.0 and (divergence.b.raw[1] or 0.0) > 0.0


@pytest.mark.slow
def test_several_settings_together_are_the_cause_where_none_is_alone() -> None:
    """Of many pairs of lanes that differ in two stages, each cause holds: with all of it the other's token comes out."""
    found: list[Divergence] = []
    for seed in range(25):
        trace = pair(
            ToyLane(knobs={"temperature": 0.8, "min_p": 0.01}, seed=seed), ToyLane(knobs={"temperature": 1.05, "min_p": 0.04}, seed=seed), tokens=60
        )
        divergence = first_divergence(trace, 0, 1)
        if divergence is not None:
            found.append(divergence)
    sure = [divergence for divergence in found if divergence.cause.certain]
    print(len(found), len(sure))
    assert len(sure) > 15
    kinds = {(divergence.cause.stage, *divergence.cause.more) for divergence in sure}
    assert ("temperature",) in kinds and kinds <= {("temperature",), ("min_p",), ("temperature", "min_p")}


def test_equal_settings_and_other_tokens_are_numerics() -> None:
    """The same lane on a model that rounds its logits: no setting differs, only numbers do."""
    exact, rounded = WideModel(size=60, spread=1.0), WideModel(size=60, spread=1.0, half=True)
    lane = ToyLane(seed=4)
    one, two = (toy_trace([("wide", model)], [lane], 200) for model in (exact, rounded))
    divergence = parted(one, two)
    assert divergence.cause.kind == "numerics" and divergence.cause.certain
    assert "rounded" in reason(divergence, LABELS).en


def test_another_run_with_another_seed_parts_by_the_die() -> None:
    model = TransformersModel(tiny_model("llama"))
    one, two = (toy_trace([("llama", model)], [ToyLane(seed=seed)], 30) for seed in (1, 2))
    assert parted(one, two).cause.kind == "die"


def test_a_lane_that_reproduces_itself_does_not_part() -> None:
    lane = ToyLane(knobs={"temperature": 0.9}, seed=6)
    assert first_divergence(pair(lane, lane), 0, 1) is None
    trace = pair(lane, lane)
    shorter = Trace(trace.about, [pair for pair in trace.events if pair[0] != 1 or not isinstance(pair[1], TokenChosen) or pair[1].position < 9])
    assert first_divergence(shorter, 0, 1) is None  # one is the beginning of the other


def test_lanes_of_different_models_part_by_the_model() -> None:
    models: list[tuple[str, Any]] = [("llama", TransformersModel(tiny_model("llama"))), ("qwen", TransformersModel(tiny_model("qwen")))]
    assert parted(toy_trace(models, [ToyLane(seed=3), ToyLane(seed=3)], 20)).cause.kind == "model"


def test_the_sentence_names_tokens_probabilities_and_the_die() -> None:
    trace = pair(ToyLane("greedy"), ToyLane(seed=3))
    divergence = parted(trace)
    text = sentence(divergence, trace.names("qwen"))
    a, b = divergence.a, divergence.b
    assert text.en.startswith(f"Token {divergence.position + 1}: they part. left took “") and f"({a.raw[0]:.2f})" in text.en
    assert f"right's die {b.u:.2f} hit “" in text.en and text.en.endswith(".")
    assert text.zh.startswith(f"第 {divergence.position + 1} 个词元") and "骰子" in text.zh
    assert "{" not in text.en + text.zh


@pytest.mark.parametrize("kind", CAUSES)
@pytest.mark.parametrize("certain", [True, False])
@pytest.mark.parametrize("more", [(), ("top_p", "die")])
def test_every_cause_can_be_said(kind: Any, certain: bool, more: tuple[str, ...]) -> None:
    divergence = parted(pair(ToyLane("greedy"), ToyLane(seed=3)))
    cause = replace(
        divergence.cause, kind=kind, stage="temperature" if kind == "stage" else None, certain=certain, more=more if kind == "stage" else ()
    )
    text = reason(replace(divergence, cause=cause), LABELS)
    assert text.en and text.zh and "{" not in text.en + text.zh
    assert ("can't tell" in text.en) == (not certain or kind == "unknown")
