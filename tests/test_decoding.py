"""Greedy and sampling on our own loop, held against slow oracles and against `generate`."""

from __future__ import annotations

import gc
import time
import weakref
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import scipy.stats
import torch
from torch import Tensor

from playground.backends.local import TransformersModel
from playground.engine import task as task_module
from playground.engine.clock import Clock
from playground.engine.dice import Dice
from playground.engine.knobs import checked
from playground.engine.race import Race, Runner
from playground.engine.record import pend_view
from playground.engine.select import draw
from playground.engine.stages import BoundStage, Context, Stage, knob_owners, stages
from playground.engine.strategies import Strategy, strategies
from playground.engine.task import PROMPT_CHUNK_ON_CPU
from playground.request import TRANSFORMERS_ORDER
from playground.trace import Finished, PromptRead, StepTimed, TokenChosen
from tests.toy_model import ToyModel, run_alone, tokens_of, toy_task
from tests.toys import FAMILIES, ToyVocabulary, tiny_model

PROMPT = (5, 9, 4, 9, 4)
GREEDY: Strategy = strategies.get("greedy")()
SAMPLE: Strategy = strategies.get("sample")()


def stage(**knobs: Any) -> Stage:
    owner = knob_owners()[next(iter(knobs))]
    return checked(owner, knobs)


def in_order(*wanted: Stage) -> list[Stage]:
    return sorted(wanted, key=lambda one: TRANSFORMERS_ORDER.index(one.name))


# --- oracles -----------------------------------------------------------------------------------


def naive(model: Any, prompt: Sequence[int], wanted: Sequence[Stage], choose: Any, count: int, **limits: Any) -> list[int]:
    """Decoding without a cache, a task or a race: the whole row goes through the model at every step."""
    context = Context(tuple(prompt), (), count, ToyVocabulary(int(model.config.vocab_size)), torch.device("cpu"))
    bound: list[BoundStage] = [one.bind(context) for one in wanted]
    states = [one.start for one in bound]
    row = list(prompt)
    for position in range(count):
        with torch.inference_mode():
            scores: Tensor = model(torch.tensor([row])).logits[:, -1].float()  # [1, V]
            for one, state in zip(bound, states, strict=True):
                scores = one.apply(torch.tensor([row]), scores, [state])
        token = choose(scores[0], position)
        log_probability = float(scores[0].log_softmax(-1)[token])
        states = [one.advance(state, token, log_probability) for one, state in zip(bound, states, strict=True)]
        row.append(token)
    return row[len(prompt) :]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("knobs", [{}, {"repetition_penalty": 1.4}, {"no_repeat_ngram_size": 2}, {"min_new_tokens": 12}], ids=str)
def test_greedy_equals_generate(family: str, knobs: dict[str, Any]) -> None:
    model = tiny_model(family)
    eos = tuple(model.generation_config.eos_token_id)
    expected = model.generate(torch.tensor([PROMPT]), max_new_tokens=30, do_sample=False, **knobs)[0, len(PROMPT) :].tolist()
    wanted = [stage(**{name: value}) for name, value in knobs.items()]
    events = run_alone(toy_task(TransformersModel(model), PROMPT, wanted, max_new_tokens=30, eos=eos), GREEDY)
    assert tokens_of(events) == expected


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("knobs", [{}, {"temperature": 0.7, "top_k": 8}, {"top_p": 0.8, "min_p": 0.02}, {"mirostat_tau": 3.0}], ids=str)
def test_sampling_equals_the_cacheless_oracle(family: str, knobs: dict[str, Any]) -> None:
    model, dice = tiny_model(family), Dice(11)
    wanted = in_order(*(stage(**{name: value}) for name, value in knobs.items()))
    expected = naive(model, PROMPT, wanted, lambda scores, position: int(draw(scores.softmax(-1), dice.u(position)).token), 25)
    events = run_alone(toy_task(TransformersModel(model), PROMPT, wanted, seed=11, max_new_tokens=25), SAMPLE)
    assert tokens_of(events) == expected
    assert len(set(expected)) > 3  # a run that repeats one token would show nothing


def test_same_seed_same_tokens_and_another_seed_others() -> None:
    def run(seed: int) -> list[int]:
        return tokens_of(run_alone(toy_task(ToyModel(), seed=seed), SAMPLE))

    assert run(3) == run(3)
    assert run(3) != run(4)


def test_a_seed_means_nothing_to_greedy() -> None:
    assert tokens_of(run_alone(toy_task(ToyModel(), seed=1), GREEDY)) == tokens_of(run_alone(toy_task(ToyModel(), seed=2), GREEDY))


@pytest.mark.slow
def test_sampling_follows_the_exact_distribution() -> None:
    """G-test of the joint of the first two tokens against the model's own probabilities, 6,000 draws."""
    model, wanted, draws = ToyModel(size=6, spread=1.0), [stage(top_k=4)], 6000
    seen: Counter[tuple[int, ...]] = Counter()
    for seed in range(draws):
        seen[tuple(tokens_of(run_alone(toy_task(model.fork(), stages=wanted, seed=seed, max_new_tokens=2, record=False), SAMPLE)))] += 1
    expected = {}
    for first in range(6):
        for second in range(6):
            p = _top(model.distribution((1, 2)), 4)[first] * _top(model.distribution((2, first)), 4)[second]
            expected[first, second] = float(p) * draws
    assert all(expected[pair] > 0 for pair in seen), "a token outside the support was drawn"
    big = [pair for pair, count in expected.items() if count >= 5]
    rest = draws - sum(expected[pair] for pair in big)
    observed = [seen[pair] for pair in big] + ([draws - sum(seen[pair] for pair in big)] if rest > 1e-6 else [])
    wished = [expected[pair] for pair in big] + ([rest] if rest > 1e-6 else [])
    _, p_value = scipy.stats.power_divergence(observed, wished, lambda_="log-likelihood")
    assert p_value > 1e-3


def _top(p: Tensor, k: int) -> Tensor:
    kept = torch.where(p >= p.topk(k).values[-1], p, 0.0)
    return kept / kept.sum()


# --- what a step tells -------------------------------------------------------------------------


def test_events_of_a_lane_in_order() -> None:
    events = run_alone(toy_task(ToyModel(), max_new_tokens=3), SAMPLE)
    kinds = [type(event) for event in events]
    assert kinds == [PromptRead, TokenChosen, StepTimed, TokenChosen, StepTimed, TokenChosen, StepTimed, Finished]
    assert [event.position for event in events if isinstance(event, TokenChosen)] == [0, 1, 2]
    assert events[-1].reason == "length" and events[-1].detail == "max_new_tokens"


class SlowModel(ToyModel):
    """A toy whose forward takes 5 ms, so that there is something to measure."""

    def forward(self, tokens: Tensor, keep: int = 1, hidden: Sequence[int] = ()) -> Tensor:
        time.sleep(0.005)
        return super().forward(tokens, keep, hidden)

    def fork(self) -> SlowModel:
        return SlowModel(self.vocabulary_size, table=self.table)


def test_the_parts_of_a_step_are_the_time_it_took() -> None:
    events = run_alone(toy_task(SlowModel(), stages=[stage(top_k=3), stage(repetition_penalty=1.1)], max_new_tokens=8), SAMPLE)
    for event in [event for event in events if isinstance(event, StepTimed)][1:]:
        assert sum(event.parts.values()) == pytest.approx(event.seconds, rel=1e-9)
        assert event.parts["forward"] >= 0.005 and event.parts["other"] < 0.3 * event.seconds
        assert min(event.parts[name] for name in ("processors", "warpers", "select", "cache")) > 0


def test_recording_is_told_apart_and_is_not_in_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(*arguments: Any) -> Any:
        time.sleep(0.02)
        return pend_view(*arguments)

    monkeypatch.setattr(task_module, "pend_view", slow)
    for event in run_alone(toy_task(ToyModel(), max_new_tokens=5), SAMPLE):
        if isinstance(event, StepTimed):
            assert event.recording >= 0.02 and event.seconds < 0.02


def test_a_prompt_piece_includes_what_the_clock_waits_for() -> None:
    class Waiting(Clock):
        def lap(self) -> Any:
            time.sleep(0.01)
            return super().lap()

    for shared in (True, False):
        task = toy_task(ToyModel(), max_new_tokens=1)
        task.clock = Waiting(task.model.device)
        race = Race([Runner(0, task, GREEDY)], share_prompt=shared)
        reads = [event for batch in race for _, event in batch if isinstance(event, PromptRead) and not event.reused]
        assert reads and all(read.seconds >= 0.01 for read in reads)


@pytest.mark.parametrize("shared", [True, False])
def test_running_out_of_memory_ends_lanes_with_a_message(shared: bool) -> None:
    class Full(ToyModel):
        def forward(self, tokens: Tensor, keep: int = 1, hidden: Sequence[int] = ()) -> Tensor:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")

        def fork(self) -> Full:
            return Full(self.vocabulary_size, table=self.table)

    runners = [Runner(lane, toy_task(Full()), GREEDY) for lane in range(2)]
    ends = [event for batch in Race(runners, share_prompt=shared) for _, event in batch if isinstance(event, Finished)]
    assert [end.detail for end in ends] == ["out_of_memory"] * 2 and ends[0].message is not None


def test_a_finished_lane_gives_its_cache_back() -> None:
    short, long = (Runner(lane, toy_task(ToyModel(), max_new_tokens=tokens), GREEDY) for lane, tokens in enumerate((2, 40)))
    cache = weakref.ref(short.task)
    for batch in Race([short, long]):
        if any(lane == 0 and isinstance(event, Finished) for lane, event in batch):
            break
    gc.collect()
    assert cache() is None and long.task is not None


def test_the_die_lies_in_the_chosen_tokens_interval() -> None:
    for event in run_alone(toy_task(ToyModel(), stages=in_order(stage(temperature=1.5), stage(top_p=0.7)), max_new_tokens=15), SAMPLE):
        if isinstance(event, TokenChosen):
            assert event.interval is not None and event.u is not None and event.log_probability is not None
            assert event.interval[0] <= event.u < event.interval[1]
            assert event.interval[1] - event.interval[0] == pytest.approx(torch.tensor(event.log_probability).exp().item(), abs=1e-6)


def test_a_view_tells_what_every_stage_did() -> None:
    model = tiny_model("llama")
    wanted = in_order(stage(repetition_penalty=1.5), stage(temperature=0.5), stage(top_k=7), stage(top_p=0.9))
    task = toy_task(TransformersModel(model), PROMPT, wanted, seed=2, max_new_tokens=1)
    chosen = next(event for event in run_alone(task, SAMPLE) if isinstance(event, TokenChosen))
    view = chosen.view
    assert view is not None
    with torch.inference_mode():
        raw = model(torch.tensor([PROMPT])).logits[0, -1].float()
        after, scores = [], raw
        for _, _, bound in task.stages:
            scores = bound.apply(torch.tensor([PROMPT]), scores[None], [bound.start])[0]
            after.append(scores)
    assert list(view.raw) == pytest.approx(raw[list(view.ids)].tolist(), abs=1e-5)
    assert list(view.raw) == sorted(view.raw, reverse=True)
    assert view.log_sum_exp == pytest.approx(float(raw.logsumexp(0)), abs=1e-5)
    assert view.alive == raw.numel() and sum(view.rest) == raw.numel() - len(view.ids)
    assert [one.stage for one in view.stages] == ["repetition", "temperature", "top_k", "top_p"]
    held: list[float | None] = list(view.raw)
    before = raw
    for one, scores in zip(view.stages, after, strict=True):
        p = scores.softmax(-1).double()
        assert one.alive == int((p > 0).sum())
        assert one.entropy == pytest.approx(float(torch.special.entr(p).sum()), abs=1e-4)
        assert one.log_normaliser == pytest.approx(float(scores.logsumexp(0)), abs=1e-4)
        gone = (scores == -torch.inf) & (before > -torch.inf)
        assert one.removed_mass == pytest.approx(float(before.softmax(-1)[gone].sum()), abs=1e-5)
        held = list(one.scores) if one.scores is not None else held
        held = [None if index in one.masked else score for index, score in enumerate(held)]
        for token, score in zip(view.ids, held, strict=True):
            assert (score is None) == bool(scores[token] == -torch.inf)
            assert score is None or score == pytest.approx(float(scores[token]), abs=1e-5)
        before = scores
    assert view.stages[0].scores is not None and view.stages[2].scores is None  # top-k changes no survivor
    assert chosen.raw_rank == int((raw > raw[chosen.token]).sum()) and chosen.rank == int((after[-1] > after[-1][chosen.token]).sum())


# --- prompts, caches, races --------------------------------------------------------------------


def test_a_long_prompt_is_read_in_pieces() -> None:
    model = tiny_model("llama")
    prompt = tuple(int(token) for token in torch.randint(4, 99, (2 * PROMPT_CHUNK_ON_CPU + 40,), generator=torch.Generator().manual_seed(0)))
    events = run_alone(toy_task(TransformersModel(model), prompt, max_new_tokens=5), GREEDY)
    assert tokens_of(events) == naive(model, prompt, [], lambda scores, _: int(scores.argmax()), 5)
    race = Race([Runner(0, toy_task(TransformersModel(model), prompt, max_new_tokens=2), GREEDY)], share_prompt=False)
    reads = [event for batch in race for _, event in batch if isinstance(event, PromptRead)]
    assert [read.tokens for read in reads] == [PROMPT_CHUNK_ON_CPU, 2 * PROMPT_CHUNK_ON_CPU, len(prompt)]


def test_lanes_that_share_a_prompt_do_not_share_a_cache() -> None:
    model = tiny_model("qwen")
    alone = [tokens_of(run_alone(toy_task(TransformersModel(model), PROMPT, seed=seed, max_new_tokens=12), SAMPLE)) for seed in range(3)]
    runners = [Runner(seed, toy_task(TransformersModel(model), PROMPT, seed=seed, max_new_tokens=12), SAMPLE) for seed in range(3)]
    events = [pair for batch in Race(runners) for pair in batch]
    together = [[event.token for lane, event in events if lane == seed and isinstance(event, TokenChosen)] for seed in range(3)]
    assert together == alone
    assert sum(isinstance(event, PromptRead) and event.shared for _, event in events) == 1


def test_the_next_step_goes_to_the_lane_that_used_least_time() -> None:
    runners = [Runner(lane, toy_task(ToyModel(), seed=lane, max_new_tokens=30), SAMPLE) for lane in range(3)]
    race = Race(runners)
    used = {0: 0.0, 1: 0.0, 2: 0.0}
    ended: set[int] = set()
    for batch in race:
        for lane, event in batch:
            if isinstance(event, StepTimed):
                assert used[lane] == pytest.approx(min(seconds for other, seconds in used.items() if other not in ended))
                used[lane] = event.lane_seconds
            if isinstance(event, Finished):
                ended.add(lane)
    assert ended == {0, 1, 2}


def test_align_keeps_lanes_at_the_same_step() -> None:
    runners = [Runner(lane, toy_task(ToyModel(), seed=lane, max_new_tokens=10), SAMPLE) for lane in range(3)]
    counts = [0, 0, 0]
    for batch in Race(runners, align=True):
        for lane, event in batch:
            if isinstance(event, StepTimed):
                counts[lane] += 1
                assert max(counts) - min(counts) <= 1


def test_one_round_gives_every_lane_one_step() -> None:
    runners = [Runner(lane, toy_task(ToyModel(), seed=lane, max_new_tokens=50), SAMPLE) for lane in range(3)]
    race = Race(runners)
    steps = iter(race)
    for _ in range(20):
        next(steps)
    before = [runner.step for runner in runners]
    race.one_round()
    while race.owed:
        next(steps)
    assert [runner.step for runner in runners] == [step + 1 for step in before]


def test_one_round_is_one_step_each_even_if_prompts_are_still_read() -> None:
    runners = [Runner(lane, toy_task(ToyModel(), tuple([1, 2, 3] * 100), max_new_tokens=50), SAMPLE) for lane in range(3)]
    race = Race(runners, share_prompt=False)
    race.one_round()
    steps = iter(race)
    while race.owed:
        next(steps)
    assert [runner.step for runner in runners] == [1, 1, 1]


def test_stop_keeps_what_was_generated() -> None:
    race = Race([Runner(lane, toy_task(ToyModel(), max_new_tokens=1000), SAMPLE) for lane in range(2)])
    events = []
    for count, batch in enumerate(race):
        events += batch
        if count == 30:
            race.stop()
    ends = [event for _, event in events if isinstance(event, Finished)]
    assert [end.reason for end in ends] == ["cancelled", "cancelled"]
    assert sum(isinstance(event, TokenChosen) for _, event in events) > 10


def test_stop_string_cuts_the_text_and_keeps_the_tokens() -> None:
    tokens = tokens_of(run_alone(toy_task(ToyModel(), max_new_tokens=12), GREEDY))
    text = b"".join(ToyVocabulary(12).piece(token) for token in tokens).decode()
    stop = text[3:5]
    events = run_alone(toy_task(ToyModel(), max_new_tokens=12, stop=[stop]), GREEDY)
    assert tokens_of(events) == tokens[: text.find(stop) + 2]
    assert events[-1].detail == "stop_string" and events[-1].cut == text.find(stop)


def test_eos_of_a_list_stops_and_stays_in_the_tokens() -> None:
    tokens = tokens_of(run_alone(toy_task(ToyModel(), max_new_tokens=12), GREEDY))
    events = run_alone(toy_task(ToyModel(), max_new_tokens=12, eos=[tokens[4], 99]), GREEDY)
    assert tokens_of(events) == tokens[: tokens.index(tokens[4]) + 1]
    assert events[-1].reason == "stop" and events[-1].detail == "eos"


# --- scores that no token can be chosen from -----------------------------------------------------


@pytest.mark.parametrize("strategy", [GREEDY, SAMPLE], ids=lambda strategy: strategy.name)
def test_a_row_without_tokens_is_an_error_that_names_the_stage(strategy: Strategy) -> None:
    everything = stage(suppress_tokens=tuple((token,) for token in range(12)))
    events = run_alone(toy_task(ToyModel(), stages=[everything]), strategy)
    assert isinstance(events[-1], Finished) and events[-1].reason == "error" and events[-1].detail == "no_token_left"
    assert events[-1].message is not None and "suppress" in events[-1].message["en"]


@pytest.mark.parametrize("strategy", [GREEDY, SAMPLE], ids=lambda strategy: strategy.name)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_logit_that_is_no_number_is_an_error_that_names_the_model(strategy: Strategy, value: float) -> None:
    model = ToyModel()
    model.table = model.table.clone()
    model.table[1, 2, 5] = value
    model.weights = model.table
    events = run_alone(toy_task(model), strategy)
    assert isinstance(events[-1], Finished) and events[-1].detail == "scores_not_finite"
    assert events[-1].message is not None and "model" in events[-1].message["en"]


def test_every_stage_runs_in_the_loop() -> None:
    """Every registered stage, at its default and bound to a lane, leaves a run as it is."""
    plain = tokens_of(run_alone(toy_task(ToyModel(), seed=5), SAMPLE))
    for declaration in stages.all().values():
        assert tokens_of(run_alone(toy_task(ToyModel(), stages=[declaration()], seed=5), SAMPLE)) == plain, declaration.name
