"""Branches: a lane that begins with tokens somebody decided, and goes on from there by itself."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from playground.backends import local
from playground.backends.local import TransformersModel
from playground.engine.dice import Dice
from playground.engine.knobs import checked
from playground.engine.race import Race, Runner
from playground.engine.select import argmax, draw
from playground.engine.stages import Context, Stage, knob_owners
from playground.engine.strategies import strategies
from playground.engine.task import Task
from playground.errors import BadValue, PlaygroundError, Text
from playground.figures import Look, figures, get_figure
from playground.measures.divergence import first_divergence, reason, sentence
from playground.measures.latency import lane_meter
from playground.measures.text import output_text
from playground.measures.what_if import what_if
from playground.records.table import markdown
from playground.request import Lane, Limits, Request
from playground.trace import Finished, StepTimed, TokenChosen, Trace
from playground.ui.packets import Payloads, about_json
from playground.ui.service import Service, shortened
from tests.tiny_folder import tiny_folder, tiny_loaded
from tests.toy_model import ToyModel, run_alone, tokens_of, toy_task
from tests.toys import ToyVocabulary, tiny_model

PROMPT = (5, 9, 4, 9, 4)
SETTINGS: list[tuple[str, dict[str, Any]]] = [
    ("greedy", {}),
    ("greedy", {"repetition_penalty": 1.4}),
    ("sample", {}),
    ("sample", {"temperature": 0.7, "top_k": 8}),
    ("sample", {"mirostat_tau": 3.0}),
]


def stages_of(knobs: dict[str, Any]) -> list[Stage]:
    return [checked(knob_owners()[name], {name: value}) for name, value in knobs.items()]


def forced_task(tokens: Sequence[int], knobs: dict[str, Any], **more: Any) -> Task:
    task = toy_task(TransformersModel(tiny_model("llama")), PROMPT, stages_of(knobs), **{"seed": 11, "max_new_tokens": 25, **more})
    return replace(task, forced=tuple(tokens))


def from_scratch(prefix: Sequence[int], knobs: dict[str, Any], strategy: str, count: int) -> list[int]:
    """A cacheless oracle: the whole row through the model at every step, tokens of `prefix` taken, the others chosen."""
    model, dice = tiny_model("llama"), Dice(11)
    context = Context(PROMPT, (), count, ToyVocabulary(99), torch.device("cpu"))
    bound = [stage.bind(context) for stage in stages_of(knobs)]
    states, row = [one.start for one in bound], list(PROMPT)
    for position in range(count):
        with torch.inference_mode():
            scores = model(torch.tensor([row])).logits[:, -1].float()  # [1, V]
            for one, state in zip(bound, states, strict=True):
                scores = one.apply(torch.tensor([row]), scores, [state])
        own = argmax(scores[0]) if strategy == "greedy" else draw(scores[0].softmax(-1), dice.u(position)).token
        token = prefix[position] if position < len(prefix) else int(own)
        log_probability = float(scores[0].log_softmax(-1)[token])
        states = [one.advance(state, token, log_probability) for one, state in zip(bound, states, strict=True)]
        row.append(token)
    return row[len(PROMPT) :]


# --- the engine ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("strategy", "knobs"), SETTINGS, ids=str)
def test_forcing_what_the_lane_chose_anyway_changes_nothing(strategy: str, knobs: dict[str, Any]) -> None:
    own = [e for e in run_alone(forced_task((), knobs), strategies.get(strategy)()) if isinstance(e, TokenChosen)]
    again = [e for e in run_alone(forced_task([e.token for e in own[:9]], knobs), strategies.get(strategy)()) if isinstance(e, TokenChosen)]
    assert [e.token for e in again] == [e.token for e in own]
    assert [e.origin for e in again] == ["forced"] * 9 + [None] * 16
    for before, after in zip(own, again, strict=True):
        assert after.log_probability == pytest.approx(before.log_probability, abs=1e-4)
        assert after.rank == before.rank and dict(after.stage_states) == pytest.approx(dict(before.stage_states))
    assert [e.u for e in again[9:]] == [e.u for e in own[9:]] and all(e.u is None and e.interval is None for e in again[:9])


@pytest.mark.parametrize(("strategy", "knobs"), SETTINGS, ids=str)
def test_another_token_goes_on_as_a_run_from_scratch_would(strategy: str, knobs: dict[str, Any]) -> None:
    own = tokens_of(run_alone(forced_task((), knobs), strategies.get(strategy)()))
    prefix = [*own[:6], (own[6] + 17) % 99]
    branched = tokens_of(run_alone(forced_task(prefix, knobs), strategies.get(strategy)()))
    assert branched == from_scratch(prefix, knobs, strategy, 25)
    assert branched[7:] != own[7:]


def test_a_race_that_shares_the_prompt_forces_only_the_lane_that_was_branched() -> None:
    model = TransformersModel(tiny_model("llama"))
    tasks = [toy_task(model, PROMPT, seed=11), replace(toy_task(model, PROMPT, seed=11), forced=(7, 8))]
    found: list[list[int]] = [[], []]
    for batch in Race([Runner(lane, task, strategies.get("sample")()) for lane, task in enumerate(tasks)]):
        for lane, event in batch:
            if isinstance(event, TokenChosen):
                found[lane].append(event.token)
    assert found[0] == from_scratch((), {}, "sample", 20) and found[1] == from_scratch((7, 8), {}, "sample", 20)


def test_a_forced_end_ends_the_lane() -> None:
    for task, detail in (
        (replace(toy_task(ToyModel(), eos=(3,)), forced=(5, 3, 6)), "eos"),
        (replace(toy_task(ToyModel(), stop=("FD",)), forced=(4, 5, 3, 6)), "stop_string"),
        (replace(toy_task(ToyModel(), max_new_tokens=2), forced=(4, 5)), "max_new_tokens"),
    ):
        forced = task.forced
        events = run_alone(task, strategies.get("sample")())
        end = events[-1]
        assert isinstance(end, Finished) and end.detail == detail
        assert tuple(tokens_of(events)) == forced[: len(tokens_of(events))] and len(tokens_of(events)) >= 2
        assert detail != "stop_string" or end.cut == 1


@pytest.mark.parametrize("eta", [0.0, 0.1])
def test_a_token_that_the_stages_removed_can_be_forced(eta: float) -> None:
    """Its probability is none, not minus infinity, and mirostat's mu stays a number."""
    knobs = {"top_k": 1} | {"mirostat_tau": 3.0, "mirostat_eta": eta}
    by_stage: dict[Any, dict[str, Any]] = {}
    for name, value in knobs.items():
        by_stage.setdefault(knob_owners()[name], {})[name] = value
    stages = [checked(stage, values) for stage, values in by_stage.items()]
    own = tokens_of(run_alone(toy_task(ToyModel(), stages=stages), strategies.get("sample")()))
    other = (own[0] + 1) % 12
    task = replace(toy_task(ToyModel(), stages=stages), forced=(other,))
    events = [event for event in run_alone(task, strategies.get("sample")()) if isinstance(event, TokenChosen)]
    assert events[0].token == other and events[0].log_probability is None and events[0].raw_log_probability is not None
    assert events[0].view is not None and events[0].view.ids.index(other) in events[0].view.stages[0].masked
    assert all(math.isfinite(value) for event in events for _, value in event.stage_states) and len(events) == 20
    assert all(event.log_probability is not None for event in events[1:])


# --- the request ---------------------------------------------------------------------------------


def lane(**more: Any) -> dict[str, Any]:
    return {"name": "b", "strategy": "sample", "max_new_tokens": 12, **more}


def asked(*lanes: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"prompt": {"text": "Hello", "chat": True}, "lanes": list(lanes), "model": str(tiny_folder()), "seed": 3, **more}


def run_here(raw: dict[str, Any]) -> Trace:
    comparison = local.prepare(Request.from_json(raw), lambda _: tiny_loaded())
    trace = Trace(comparison.about)
    for events in comparison:
        trace.add(events)
    return trace


BRANCH = {"tokens": [72, 105, 33], "lane": "top-p", "position": 2, "model": None}


def test_a_branch_survives_json_and_makes_requests_differ() -> None:
    request = Request.from_json(asked(lane(branch=BRANCH), lane()))
    assert Request.from_json(json.loads(json.dumps(request.to_json()))) == request
    assert request.to_json()["lanes"][0]["branch"] == BRANCH and "branch" not in request.to_json()["lanes"][1]
    assert request != Request.from_json(asked(lane(), lane()))
    assert Lane.from_json(lane(branch=None)).branch is None


@pytest.mark.parametrize(("branch", "named"), [
    ("yes", "tokens"),
    ([1, 2], "tokens"),
    ({}, "tokens"),
    ({**BRANCH, "tokens": "12"}, "tokens"),
    ({**BRANCH, "tokens": [1, -1, 2]}, "from 0"),
    ({**BRANCH, "tokens": [1, 2.0, 3]}, "tokens"),
    ({**BRANCH, "tokens": [1, True, 3]}, "tokens"),
    ({**BRANCH, "tokens": [1, "2", 3]}, "tokens"),
    ({**BRANCH, "tokens": [1, 2, 10**30]}, "tokens"),
    ({**BRANCH, "tokens": []}, "got 0"),
    ({**BRANCH, "tokens": [1] * 13}, "got 13"),
    ({**BRANCH, "position": 3}, "0 to 2"),
    ({**BRANCH, "position": -1}, "0 to 2"),
    ({**BRANCH, "position": "1"}, "0 to 2"),
    ({**BRANCH, "lane": "x" * 61}, "short"),
    ({**BRANCH, "lane": ""}, "short"),
    ({**BRANCH, "lane": "\ud800"}, "short"),
    ({**BRANCH, "lane": 7}, "short"),
    ({**BRANCH, "model": "x" * 501}, "short"),
    ({**BRANCH, "model": ["gpt2"]}, "short"),
    ({**BRANCH, "colour": 1}, "colour"),
])  # fmt: skip
def test_a_bad_branch_is_refused_by_name(branch: Any, named: str) -> None:
    with pytest.raises(BadValue) as error:
        Lane.from_json(lane(branch=branch))
    assert named in error.value.text.en and error.value.text.zh != error.value.text.en


def test_ids_that_the_model_does_not_have_are_refused_with_the_range() -> None:
    with pytest.raises(PlaygroundError) as error:
        run_here(asked(lane(), lane(branch={**BRANCH, "tokens": [72, 105, 260]})))
    assert "259" in error.value.text.en and "260" in error.value.text.en and error.value.values["lane"] == 1


def test_another_models_tokens_are_refused_by_name_and_the_same_models_are_not() -> None:
    with pytest.raises(PlaygroundError) as error:
        run_here(asked(lane(branch={**BRANCH, "model": "gpt2@607a30d/cpu/float32"})))
    assert error.value.code == "branch_model" and "gpt2" in error.value.text.en and "gpt2" in error.value.text.zh
    elsewhere = tiny_loaded().key.rpartition("/")[0] + "/bfloat16"
    assert run_here(asked(lane(branch={**BRANCH, "model": elsewhere}))).about.lanes[0].branch["model"] == elsewhere


# --- who reads a branched trace ------------------------------------------------------------------


@pytest.fixture(scope="module")
def branched() -> Trace:
    """A lane, and a branch of it at its fourth token by one that top-k had removed; through JSON, as a file."""
    plain = lane(name="top-k", knobs={"top_k": 3})
    own = [e.token for e in run_here(asked(plain)).output(0)]
    branch = {"tokens": [*own[:3], (own[3] + 1) % 250], "lane": "top-k", "position": 3, "model": tiny_loaded().key}
    return Trace.from_json(run_here(asked(plain, {**plain, "name": "other", "branch": branch})).to_json())


def test_the_trace_tells_the_branch(branched: Trace) -> None:
    own, other = branched.output(0), branched.output(1)
    assert [e.token for e in other[:3]] == [e.token for e in own[:3]] and other[3].token != own[3].token
    assert [e.origin for e in other] == ["forced"] * 4 + [None] * (len(other) - 4)
    assert other[3].log_probability is None
    assert branched.about.lanes[1].branch["lane"] == "top-k" and branched.about.lanes[0].branch is None


def test_a_branch_is_the_cause_where_lanes_part(branched: Trace) -> None:
    found = first_divergence(branched, 0, 1)
    assert found is not None and found.position == 3 and found.cause.kind == "branch" and found.cause.certain and found.b.forced
    assert "was given" in sentence(found, branched.names(branched.about.lanes[0].model)).en and "branch" in reason(found, {}).en


def test_no_knob_flips_a_forced_token(branched: Trace) -> None:
    cold, hot = what_if(branched, 1, {"top_k": 1}), what_if(branched, 1, {"top_k": 0, "temperature": 3.0}, position=3)
    for answer in (cold, hot):
        assert [step.verdict for step in answer.steps[:4]] == ["same"] * 4
        assert [step.token for step in answer.steps[:4]] == [e.token for e in branched.output(1)[:4]]
    # What the knobs change is its probability: nothing removes it any more.
    low, high = hot.steps[3].probability
    assert 0 < low <= high < 1 and hot.selected is not None and hot.selected.chosen.log_probability == pytest.approx(math.log((low + high) / 2))
    assert cold.steps[3].probability is None


def test_forced_tokens_count_in_the_times_and_the_formulas_say_so(branched: Trace) -> None:
    plain, forced = lane_meter(branched, 0), lane_meter(branched, 1)
    steps = [event for event in branched.of(1, StepTimed)]
    assert len(forced.itl) == len(steps) - 1 and forced.decode_seconds == pytest.approx(sum(step.seconds for step in steps[1:]))
    for name in ("decode", "itl_p50", "itl_p95"):  # speed and TPOT are made of the decode time
        assert "forced" in forced.numbers()[name].formula_text.en and "forced" not in plain.numbers()[name].formula_text.en


def test_record_text_packets_and_figures_take_a_branch(branched: Trace) -> None:
    assert "branched from top-k at token 4 (4 tokens forced)" in markdown(branched)
    assert output_text(branched, 1)[:3] == output_text(branched, 0)[:3]
    assert about_json(branched.about)["lanes"][1]["branch"] == {"lane": "top-k", "position": 3}
    payloads = Payloads(branched)
    payloads.upto(len(branched.events))
    sent = [json.loads(line) for line in payloads.encoded if line]
    tokens = [payload for owner, kind, payload in sent if kind == "token" and owner == 1]
    assert tokens[3]["o"] == "forced" and tokens[3]["lp"] is None and tokens[4]["o"] is None
    (chosen,) = [candidate for candidate in tokens[3]["top"] if candidate[3]]
    assert chosen[4] == tokens[3]["t"] and chosen[2] is None
    look = Look(theme="light", language="en", narrow=False, recorded=False, stage_labels={"top_k": Text("top-k", "top-k")})
    for figure in figures().values():
        assert figure.spec(branched, 1, 3, look) and figure.describe(branched, 1, 3, look).en
    assert "was given" in get_figure("pipeline").describe(branched, 1, 3, look).en
    drawn = json.dumps(get_figure("pipeline").spec(branched, 1, 3, look))
    assert "which the stages had removed" in drawn and "argmax" not in drawn


# --- the service ---------------------------------------------------------------------------------


def test_the_page_hears_what_is_wrong_with_a_branch_before_it_runs() -> None:
    service = Service(Limits(max_new_tokens=40))
    service.load(str(tiny_folder()))
    bad = service.prepare(asked(lane(), lane(branch={**BRANCH, "model": "gpt2@1/cpu/float32"})))
    assert bad["lanes"][0]["error"] is None and bad["lanes"][1]["error"]["code"] == "branch_model"
    assert service.prepare(asked(lane(branch=BRANCH)))["lanes"][0]["error"] is None


def test_a_crowded_host_shortens_what_the_lane_writes_itself() -> None:
    short, note = shortened(Request.from_json(asked(lane(max_new_tokens=80), lane(max_new_tokens=80, branch={**BRANCH, "tokens": [1] * 70}))))
    assert [one.max_new_tokens for one in short.lanes] == [40, 80] and note is not None
    assert Request.from_json(short.to_json()) == short
