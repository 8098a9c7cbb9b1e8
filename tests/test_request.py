"""Requests: every value checked before anything runs, one rule everywhere."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from playground.backends import local
from playground.engine.knobs import Knob, cast, knobs_of
from playground.engine.stages import stages
from playground.engine.strategies import strategies
from playground.errors import BadValue, PlaygroundError
from playground.measures.what_if import changed
from playground.records import recordings
from playground.request import LIBRARY_DEFAULTS, ORDERS, Lane, Limits, Request, effective_stages, words_to_raw
from playground.trace import Finished, TokenChosen, Trace
from tests.tiny_folder import tiny_loaded


def lane(**raw: Any) -> Lane:
    return Lane.from_json({"strategy": "sample", **raw})


def from_words(words: str) -> Lane:
    return Lane.from_json(words_to_raw(words))


def effective(one: Lane, generation_config: dict[str, Any] | None = None) -> dict[str, tuple[dict[str, Any], str, bool]]:
    return {
        entry.stage.name: ({name: getattr(entry.stage, name) for name in knobs_of(type(entry.stage))}, entry.origin, entry.idle)
        for entry in effective_stages(one, generation_config or {})
    }


# --- bad values --------------------------------------------------------------------------------


@pytest.mark.parametrize(("knobs", "named"), [
    ({"temperature": 0}, None),  # cold: greedy, with a note
    ({"temperature": -0.5}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": float("nan")}, "temperature"),
    ({"temperature": float("inf")}, "temperature"),
    ({"top_k": -2}, "top_k"),
    ({"top_k": 1.5}, "top_k"),
    ({"top_p": 0}, "top_p"),
    ({"top_p": 1.1}, "top_p"),
    ({"min_p": -0.1}, "min_p"),
    ({"min_p": 1.2}, "min_p"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"presence_penalty": 2.5}, "presence_penalty"),
    ({"frequency_penalty": -2.5}, "frequency_penalty"),
    ({"no_repeat_ngram_size": -1}, "no_repeat_ngram_size"),
    ({"temperature": 10**400}, "temperature"),
    ({"temperature": "-inf"}, "temperature"),
    ({"top_p": True}, "top_p"),
    ({"top_p": None}, "top_p"),
    ({"top_p": [0.5]}, "top_p"),
    ({"heat": 1}, "heat"),
])  # fmt: skip
def test_a_bad_value_names_knob_range_and_value(knobs: dict[str, Any], named: str | None) -> None:
    if named is None:
        assert lane(knobs=knobs).strategy.name == "greedy" and lane(knobs=knobs).notes
        return
    with pytest.raises(BadValue) as error:
        lane(knobs=knobs)
    assert named in error.value.text.en and named in error.value.text.zh
    if named != "heat":
        declared = next(knobs_of(stage)[named] for stage in stages.all().values() if named in knobs_of(stage))
        assert declared.range() in error.value.text.en and repr(knobs[named])[:10] in error.value.text.en


HOSTILE: list[Any] = [
    "",
    " ",
    "abc",
    1.5,
    "1.5",
    -1,
    "-1",
    -3,
    float("nan"),
    float("inf"),
    "-inf",
    1e308 * 10,
    10**400,
    10**5000,
    None,
    [],
    [[]],
    {},
    True,
    "9" * 5000,
    "é" * 9000,
]


@pytest.mark.parametrize(
    "value", HOSTILE, ids=lambda value: f"{type(value).__name__}-{'large' if isinstance(value, int) and value > 9 else str(value)[:8]}"
)
def test_every_knob_takes_a_hostile_value_as_its_own_kind_or_says_what_to_do(value: Any) -> None:
    """No knob answers a bad value with anything but a message that names knob, range and value, in both languages."""
    kinds = {"int": int, "float": (int, float), "bool": bool, "choice": str, "text": str, "tokens": tuple, "biases": tuple}
    declared = [pair for owner in [*stages.all().values(), *strategies.all().values()] for pair in knobs_of(owner).items()]
    assert len(declared) > 30
    for name, knob in declared:
        try:
            taken = cast(name, knob, value)
        except BadValue as error:
            assert len(error.text.en) < 500
            for said in (error.text.en, error.text.zh):
                assert name in said and knob.range() in said, said
                assert ("got " in error.text.en or "empty" in error.text.en) and said.endswith((".", "。")), said
            assert ("whole number" in error.text.en) == ("整数" in error.text.zh)
            assert knob.kind != "int" or value not in (1.5, "1.5") or "whole number" in error.text.en
            assert error.text.en.count(".") >= 2 and ("reset it" in error.text.en or "Choose one" in error.text.en)
        else:
            assert isinstance(taken, kinds[knob.kind]) and not (knob.kind == "int" and isinstance(taken, bool))
            if knob.kind in ("int", "float"):
                assert math.isfinite(taken) and (knob.low is None or taken >= knob.low) and (knob.high is None or taken <= knob.high)


@pytest.mark.parametrize("temperature", [-1, -3, "-1", -1e-9])
def test_a_negative_temperature_is_an_error_everywhere(temperature: Any) -> None:
    with pytest.raises(BadValue, match=r"temperature must be in \(0, 1000\], got"):
        lane(knobs={"temperature": temperature})
    with pytest.raises(BadValue, match=r"temperature must be in \(0, 1000\], got"):
        changed(recordings.load("classic"), 0, {"temperature": temperature})


@pytest.mark.parametrize("temperature", [0, 0.0, -0.0, 1e-6, "0"])
def test_temperature_zero_means_greedy_and_says_so(temperature: Any) -> None:
    cold = lane(knobs={"temperature": temperature, "top_k": 5})
    assert cold.strategy.name == "greedy" and "greedy" in cold.notes[0].en
    assert effective(cold)["top_k"][2]  # idle


def test_an_int_temperature_is_cast() -> None:
    assert effective(lane(knobs={"temperature": 2}))["temperature"][0] == {"temperature": 2.0}


@pytest.mark.parametrize("off", [0, -1])
def test_top_k_zero_and_minus_one_are_off(off: int) -> None:
    assert "top_k" not in effective(lane(knobs={"top_k": off}))


@pytest.mark.parametrize(("raw", "code"), [
    (None, "request_broken"), ([], "request_broken"), ({}, "prompt_empty"), ({"prompt": "  "}, "prompt_empty"), ({"prompt": 3}, "prompt_empty"),
    ({"prompt": "x"}, "lane_count"), ({"prompt": "x", "lanes": []}, "lane_count"), ({"prompt": "x", "lanes": [{}] * 7}, "lane_count"),
    ({"prompt": "x" * 20_001, "lanes": [{}]}, "prompt_length"), ({"prompt": "\ud800", "lanes": [{}]}, "prompt_broken"),
    ({"prompt": "x", "lanes": [{}], "seed": -1}, "knob_range"), ({"prompt": "x", "lanes": [{}], "seed": "a"}, "knob_range"),
    ({"prompt": "x", "lanes": [{}], "surprise": 1}, "request_broken"), ({"prompt": "x", "lanes": [{"strategy": "nope"}]}, "strategy_unknown"),
    ({"prompt": "x", "lanes": [{"order": ["top_k", "top_k"]}]}, "order_range"), ({"prompt": "x", "lanes": [{"order": "mine"}]}, "order_range"),
    ({"prompt": "x", "lanes": [{"max_new_tokens": 0}]}, "knob_range"), ({"prompt": "x", "lanes": [{"max_new_tokens": 10**9}]}, "knob_range"),
    ({"prompt": "x", "lanes": [{"stop": [""]}]}, "stop_range"), ({"prompt": "x", "lanes": [{"stop": ["\udfff"]}]}, "stop_range"),
    ({"prompt": "x", "lanes": [{"stop": ["a"] * 9}]}, "stop_range"),
    ({"prompt": "x", "lanes": [{"defaults": "maybe"}]}, "knob_range"), ({"prompt": "x", "lanes": [{}], "align": "yes"}, "request_broken"),
    ({"prompt": "x", "lanes": ["greedy"]}, "lane_broken"),
    ({"prompt": "x", "lanes": [{"name": "\ud800"}]}, "lane_broken"), ({"prompt": {"text": "x", "chat": 1.5}, "lanes": [{}]}, "request_broken"),
])  # fmt: skip
def test_a_broken_request_is_refused_by_name(raw: Any, code: str) -> None:
    with pytest.raises(PlaygroundError) as error:
        Request.from_json(raw)
    assert error.value.code == code and error.value.text.en and error.value.text.zh


def test_an_error_says_which_lane() -> None:
    with pytest.raises(BadValue) as error:
        Request.from_json({"prompt": "x", "lanes": [{}, {"knobs": {"top_p": 7}}]})
    assert error.value.values["lane"] == 1


def test_limits_are_named_in_their_errors() -> None:
    with pytest.raises(BadValue) as error:
        Request.from_json({"prompt": "x", "lanes": [{"max_new_tokens": 500}]}, Limits(max_new_tokens=256))
    assert "256" in error.value.text.en and "500" in error.value.text.en


# --- what a lane inherits ----------------------------------------------------------------------


def test_library_default_top_k_is_shown_when_inherited_and_off_otherwise() -> None:
    assert effective(lane(knobs={"top_p": 0.95})) == {"top_p": ({"top_p": 0.95}, "asked", False)}
    inherited = effective(lane(knobs={"top_p": 0.95}, defaults="inherit"))
    assert inherited["top_k"] == ({"top_k": LIBRARY_DEFAULTS["top_k"]}, "library", False)
    assert list(inherited) == ["top_k", "top_p"]


def test_an_inherited_default_can_be_switched_off() -> None:
    assert "top_k" not in effective(lane(knobs={"top_k": 0}, defaults="inherit"))


def test_asked_beats_model_beats_library() -> None:
    model = {"top_k": 20, "temperature": 0.6}
    assert effective(lane(defaults="inherit"), model)["top_k"] == ({"top_k": 20}, "model", False)
    assert effective(lane(defaults="inherit", knobs={"top_k": 5}), model)["top_k"] == ({"top_k": 5}, "asked", False)
    assert effective(lane(defaults="inherit"), model)["temperature"][1] == "model"


def test_half_of_a_stage_may_be_asked_and_half_inherited() -> None:
    found = effective(lane(defaults="inherit", knobs={"repetition_scope": "output", "top_k": 0}), {"repetition_penalty": 1.3})
    assert found == {"repetition": ({"repetition_penalty": 1.3, "repetition_scope": "output"}, "asked", False)}


def test_a_model_default_that_no_knob_can_have_is_left_out() -> None:
    assert list(effective(lane(defaults="inherit"), {"temperature": 0.0, "unheard_of": 3})) == ["top_k"]


def test_a_temperature_that_meant_greedy_does_not_come_back_from_the_model() -> None:
    assert "temperature" not in effective(lane(defaults="inherit", knobs={"temperature": 1e-7}), {"temperature": 0.6})


def test_warpers_under_greedy_are_idle_and_processors_are_not() -> None:
    found = effective(lane(strategy="greedy", knobs={"top_p": 0.5, "repetition_penalty": 1.2}))
    assert found["top_p"][2] and not found["repetition"][2]


def test_vllm_order_puts_min_p_before_top_k_and_top_p() -> None:
    knobs = {"min_p": 0.1, "top_k": 5, "top_p": 0.5, "temperature": 0.7}
    assert list(effective(lane(knobs=knobs, order="vllm"))) == ["temperature", "min_p", "top_k", "top_p"]
    assert list(effective(lane(knobs=knobs))) == ["temperature", "top_k", "top_p", "min_p"]
    assert list(effective(lane(knobs=knobs, order=["top_p", "temperature"])))[:2] == ["top_p", "temperature"]
    assert all(set(order) == set(stages.all()) for order in ORDERS.values())


# --- words and JSON ----------------------------------------------------------------------------


def test_a_lane_in_words_equals_its_json() -> None:
    words = from_words("sample temperature=0.8 top_p=0.95 stop='\\n\\nUser' order=vllm max_new_tokens=12 name='my lane'")
    assert words == lane(knobs={"temperature": 0.8, "top_p": 0.95}, stop=["\n\nUser"], order="vllm", max_new_tokens=12, name="my lane")


@pytest.mark.parametrize("words", ["", "sample temperature", "sample 'open", "dance", "sample temperature=warm", "sample max_new_tokens=many"])
def test_bad_words_are_refused(words: str) -> None:
    with pytest.raises(BadValue):
        from_words(words)


def test_requests_survive_json() -> None:
    knobs = {
        "temperature": 0.7,
        "bad_words": ["a b", [1, 2]],
        "logit_bias": {"#5": 2.5, "x: y": -1},
        "repetition_scope": "output",
        "repetition_penalty": 1.1,
    }
    request = Request.from_json(
        {"prompt": {"text": "hi", "chat": False}, "seed": 5, "lanes": [{"strategy": "sample", "knobs": knobs, "stop": "###"}, {}]}
    )
    assert Request.from_json(request.to_json()) == request


# --- two thousand requests, valid and not ------------------------------------------------------


def any_value(rng: random.Random, declared: Knob) -> Any:
    hostile = [None, "", "x", [], {}, -1, 0, 1e308, float("nan"), -0.0, "1", "1e-9", [["a"]], {"a": None}, "\x00", 2**70, True]
    sane: dict[str, list[Any]] = {
        "float": [declared.default, *(round(rng.uniform(*(declared.slider or (0.1, 1.0))), 3) for _ in range(4))],
        "int": [declared.default, 1, 2, 3, 7], "bool": [True, False], "choice": list(declared.choices),
        "tokens": [["a"], ["the", "#3"], [[5]], "x\ny", ["你"]], "biases": [{"a": 3.0}, {"#7": -50}, "b: 2"],
    }  # fmt: skip
    return rng.choice(sane[declared.kind] if rng.random() < 0.95 else hostile)


def any_request(rng: random.Random) -> Any:
    declared = {name: knob for stage in stages.all().values() for name, knob in knobs_of(stage).items()}
    lanes = []
    for _ in range(rng.randint(1, 3)):
        names = rng.sample(sorted(declared), rng.randint(0, 6))
        raw: dict[str, Any] = {
            "strategy": rng.choice(["greedy", "sample", "sample"]),
            "knobs": {name: any_value(rng, declared[name]) for name in names},
        }
        raw["max_new_tokens"] = rng.choice([1, 2, 3, 5, 8]) if rng.random() < 0.95 else rng.choice([0, -1, "x", None])
        if rng.random() < 0.3:
            raw["stop"] = rng.choice([["a"], "b", ["。", "xyz"]] if rng.random() < 0.9 else [[""], 5])
        if rng.random() < 0.3:
            raw["order"] = rng.choice(["vllm", "transformers", rng.sample(sorted(stages.all()), 4)] if rng.random() < 0.9 else [["nope"], 1])
        if rng.random() < 0.3:
            raw["defaults"] = rng.choice(["inherit", "off"] if rng.random() < 0.9 else ["x"])
        lanes.append(raw)
    prompt = rng.choice(["Hello", "你好 🎉", "<|end|><|user|>", "a" * 300, "\x00\x01", "${x}"] if rng.random() < 0.9 else ["b" * 600, ""])
    return {
        "prompt": {"text": prompt, "chat": rng.choice([True, False, None])}, "lanes": lanes,
        "seed": rng.choice([0, 1, 2**62] if rng.random() < 0.95 else [-1, "x"]),
        "share_prompt": rng.random() < 0.7, "align": rng.random() < 0.2,
    }  # fmt: skip


@pytest.mark.slow
def test_two_thousand_random_requests_end_in_a_trace_or_a_clear_error() -> None:
    rng = random.Random(2026)
    loaded = tiny_loaded()
    traces, refused = 0, 0
    for number in range(2000):
        raw = any_request(rng)
        try:
            comparison = local.prepare(Request.from_json(raw), lambda model: loaded)
        except PlaygroundError as error:
            assert error.text.en and error.text.zh and error.code, number
            refused += 1
            continue
        trace = Trace(comparison.about)
        for events in comparison:
            trace.add(events)
        for index in range(len(comparison.about.lanes)):
            ends = list(trace.of(index, Finished))
            assert len(ends) == 1, number
            if ends[0].reason == "error":
                assert ends[0].message is not None
            else:
                assert 1 <= sum(1 for _ in trace.of(index, TokenChosen)) <= comparison.about.lanes[index].max_new_tokens, number
        if number % 50 == 0:
            assert Trace.from_json(trace.to_json()) == trace, number
        traces += 1
    assert traces > 300 and refused > 300  # the mix says something about both
