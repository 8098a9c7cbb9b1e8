"""The page "Parameters": every knob has its entry in both languages, what it says of ranges is so, and its drawings are the stages'."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from transformers import GenerationConfig

from playground.engine import example
from playground.engine.knobs import Knob, cast, knobs_of
from playground.engine.parameters import ALIVE, PARAMETERS, Parameter
from playground.engine.stages import TRANSFORMERS_ORDER, VLLM_ORDER, Context, RecordedVocabulary, knob_owners, stages
from playground.engine.strategies import strategies
from playground.errors import BadValue, Text
from playground.ui.parameters import LIBRARIES, parameters

OWNERS = [*stages.all().values(), *strategies.all().values()]
KNOBS: dict[str, Knob] = {name: declared for owner in OWNERS for name, declared in knobs_of(owner).items()}
RAW = torch.tensor(example.PROBABILITIES, dtype=torch.float64)

numbers = pytest.mark.parametrize("name", [name for name, declared in KNOBS.items() if declared.kind in ("int", "float")])


def entry(name: str) -> dict[str, Any]:
    """A knob's entry as the page gets it."""
    (found,) = (entry for entry in parameters()["entries"] if entry["name"] == name)
    return found


def texts(parameter: Parameter) -> list[Text]:
    return [parameter.larger, parameter.why, parameter.cost, parameter.mistake, *parameter.differences.values()]


def test_every_knob_has_its_entry_and_every_entry_its_knob() -> None:
    assert set(PARAMETERS) == set(KNOBS)


@pytest.mark.parametrize("name", sorted(PARAMETERS))
def test_an_entry_is_complete_in_both_languages(name: str) -> None:
    parameter = PARAMETERS[name]
    assert parameter.alive in ALIVE
    for text in texts(parameter):
        assert len(text.en) > 4 and len(text.zh) > 1 and text.en != text.zh
        assert any("\u4e00" <= character <= "\u9fff" for character in text.zh)
        assert not any("\u4e00" <= character <= "\u9fff" for character in text.en)
        assert text.en.endswith((".", "?")) and text.zh.endswith(("。", "？"))


@pytest.mark.parametrize("name", sorted(KNOBS))
def test_an_entry_names_every_library_that_is_compared(name: str) -> None:
    named = [one["library"] for one in entry(name)["libraries"]]
    assert named[:3] == list(LIBRARIES) and len(set(named)) == len(named)
    # A difference is told of a library that is shown.
    assert set(PARAMETERS[name].differences) <= set(named)
    assert {one["library"]: one["name"] for one in entry(name)["libraries"] if one["name"]} == dict(KNOBS[name].names)


def test_no_name_is_claimed_that_openai_does_not_have() -> None:
    claimed = {one["name"] for entry in parameters()["entries"] for one in entry["libraries"] if one["library"] == "openai"} - {None}
    assert claimed == {"temperature", "top_p", "presence_penalty", "frequency_penalty", "logit_bias"}


def test_names_in_transformers_are_parameters_of_generate() -> None:
    known = {*vars(GenerationConfig()), "assistant_model"}
    gone = {"num_beam_groups", "diversity_penalty"}  # their entries say that they left
    named = {
        one["name"].partition("[")[0]
        for entry in parameters()["entries"]
        for one in entry["libraries"]
        if one["library"] == "transformers" and one["name"]
    }
    assert named - known <= gone
    for name in gone & set(KNOBS):
        assert "no longer" in PARAMETERS[name].differences["transformers"].en


@numbers
def test_the_ends_of_a_range_are_where_cast_draws_the_line(name: str) -> None:
    declared = KNOBS[name]
    shown = entry(name)["knob"]
    step = 1 if declared.kind == "int" else 1e-9
    for bound, is_open, outwards in ((shown["low"], shown["lowOpen"], -step), (shown["high"], shown["highOpen"], step)):
        if bound is None:
            assert math.isfinite(cast(name, declared, 10**9 * math.copysign(1, outwards)))
            continue
        with pytest.raises(BadValue):
            cast(name, declared, bound + outwards)
        if is_open:
            with pytest.raises(BadValue):
                cast(name, declared, bound)
        else:
            assert cast(name, declared, bound) == bound


@numbers
def test_a_range_reads_as_its_ends(name: str) -> None:
    shown = entry(name)["knob"]
    if shown["high"] is None and shown["low"] is not None:
        assert shown["range"] == f"{'>' if shown['lowOpen'] else '>='} {shown['low']:g}"
    elif shown["low"] is not None:
        assert shown["range"] == f"{'(' if shown['lowOpen'] else '['}{shown['low']:g}, {shown['high']:g}{')' if shown['highOpen'] else ']'}"


@pytest.mark.parametrize("name", sorted(KNOBS))
def test_default_and_off_value_are_in_the_range(name: str) -> None:
    declared = KNOBS[name]
    assert cast(name, declared, declared.default) == declared.default
    if declared.off is not None:
        assert cast(name, declared, declared.off) == declared.off


# --- the drawings ---------------------------------------------------------------------------------


def test_the_example_is_a_distribution_in_which_the_order_of_ids_is_that_of_probabilities() -> None:
    assert sum(example.PROBABILITIES) == pytest.approx(1) and list(example.PROBABILITIES) == sorted(example.PROBABILITIES, reverse=True)
    assert len(example.WORDS) == len(example.PROBABILITIES)
    assert example.words(example.PROMPT + example.OUTPUT) == " the cat sat on the mat and the cat slept and the cat"
    assert bool((example.scores() > 0).any()) and bool((example.scores() < 0).any())


@pytest.mark.parametrize("name", sorted(knob_owners()))
def test_every_stage_knob_is_drawn_at_two_or_three_settings_that_differ(name: str) -> None:
    drawings = entry(name)["drawings"]
    assert 2 <= len(drawings) <= 3
    assert len({tuple(drawing["p"]) for drawing in drawings}) == len(drawings)
    assert len({drawing["title"]["en"] for drawing in drawings}) == len(drawings)


@pytest.mark.parametrize("name", sorted(knob_owners()))
def test_a_drawing_is_what_the_stage_gives(name: str) -> None:
    parameter, owner = PARAMETERS[name], knob_owners()[name]
    output = () if parameter.at_start else example.OUTPUT
    where = Context(example.PROMPT, (example.EOS,), example.MAX_NEW_TOKENS, RecordedVocabulary(len(example.WORDS)), torch.device("cpu"))
    for knobs, drawing in zip(parameter.examples, entry(name)["drawings"], strict=True):
        bound = owner(**knobs).bind(where)
        state = bound.start
        for token in output:
            state = bound.advance(state, token, math.log(example.PROBABILITIES[token]))
        after = bound.apply(torch.tensor([[*example.PROMPT, *output]]), example.scores(), [state])
        probabilities = after[0].double().softmax(-1)
        assert drawing["p"] == pytest.approx(probabilities.tolist(), rel=1e-4)
        assert drawing["alive"] == int(after.isfinite().sum())
        assert drawing["entropy"] == pytest.approx(-sum(p * math.log(p) for p in probabilities.tolist() if p), rel=1e-4, abs=1e-9)


def renormalised(kept: int) -> list[float]:
    """The example with its first `kept` words left, by hand."""
    total = sum(example.PROBABILITIES[:kept])
    return [p / total if index < kept else 0.0 for index, p in enumerate(example.PROBABILITIES)]


@pytest.mark.parametrize(
    ("name", "kept"), [("top_k", (1, 3, 6)), ("top_p", (3, 5, 9)), ("min_p", (9, 5, 2)), ("epsilon_cutoff", (9, 8, 3)), ("eta_cutoff", (9, 8, 5))]
)
def test_cut_offs_leave_what_they_leave_by_hand(name: str, kept: tuple[int, ...]) -> None:
    for count, drawing in zip(kept, entry(name)["drawings"], strict=True):
        assert drawing["alive"] == count
        assert drawing["p"] == pytest.approx(renormalised(count), abs=1e-4)


def test_temperature_by_hand() -> None:
    for knobs, drawing in zip(PARAMETERS["temperature"].examples, entry("temperature")["drawings"], strict=True):
        powers = RAW ** (1 / knobs["temperature"])
        assert drawing["p"] == pytest.approx((powers / powers.sum()).tolist(), abs=1e-4)


def test_penalties_by_hand() -> None:
    counts = torch.tensor([example.OUTPUT.count(token) for token in range(len(example.WORDS))])
    for name, weight in (("presence_penalty", (counts > 0).double()), ("frequency_penalty", counts.double())):
        for knobs, drawing in zip(PARAMETERS[name].examples, entry(name)["drawings"], strict=True):
            expected = (RAW.log() - knobs[name] * weight).softmax(-1)
            assert drawing["p"] == pytest.approx(expected.tolist(), abs=1e-4)


@pytest.mark.parametrize("name", sorted(name for name in knob_owners() if KNOBS[name].kind in ("int", "float")))
def test_the_drawings_bear_out_what_is_said_of_the_number_alive(name: str) -> None:
    alive = [drawing["alive"] for drawing in entry(name)["drawings"]]
    said = PARAMETERS[name].alive
    if said == "more":
        assert alive == sorted(alive) and alive[0] < alive[-1]
    elif said == "fewer":
        assert alive == sorted(alive, reverse=True) and alive[0] > alive[-1]
    elif said == "unchanged":
        assert set(alive) == {len(example.WORDS)}


# --- what the page gets ---------------------------------------------------------------------------


def test_entries_come_as_the_stages_run_and_orders_name_every_stage() -> None:
    owners = [entry["owners"][0]["name"] for entry in parameters()["entries"] if entry["group"] != "strategy"]
    assert list(dict.fromkeys(owners)) == list(TRANSFORMERS_ORDER)
    assert parameters()["orders"] == {"transformers": TRANSFORMERS_ORDER, "vllm": VLLM_ORDER}


def test_a_knob_that_strategies_share_is_told_once() -> None:
    names = [entry["name"] for entry in parameters()["entries"]]
    assert len(names) == len(set(names)) == len(KNOBS)
    for strategy in strategies.all().values():
        for name in knobs_of(strategy):
            assert strategy.name in [owner["name"] for owner in entry(name)["owners"]]
