"""Beam search on our own loop, held against `generate`, against enumeration and against a slow search without cache or task."""

from __future__ import annotations

import copy
import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import RepetitionPenaltyLogitsProcessor, SequenceBiasLogitsProcessor

from playground.backends.local import TransformersModel
from playground.engine.dice import Dice
from playground.engine.knobs import checked
from playground.engine.stages import Stage, knob_owners
from playground.engine.stop import ContextLimit
from playground.engine.strategies import Strategy, strategies
from playground.engine.strategies.beam import BeamSearch, seating
from playground.errors import BadValue
from playground.request import Lane, effective_stages
from playground.trace import BeamsAdvanced, BeamsRanked, Finished, Hypothesis, StepTimed, TokenChosen, standing
from tests.test_decoding import in_order
from tests.toy_model import ToyModel, run_alone, tokens_of, toy_task
from tests.toys import FAMILIES, ToyVocabulary, tiny_model

PROMPT = (5, 9, 4, 9, 4)
PAD = 0
#: EOS ids of each tiny model that some of its texts reach early, some late and some not at all.
EOS = {"llama": (58, 2), "gpt2": (23, 2), "qwen": (8, 2)}
GREEDY: Strategy = strategies.get("greedy")()


def beam(**knobs: Any) -> Strategy:
    return checked(BeamSearch, knobs)


def staged(knobs: dict[str, Any]) -> list[Stage]:
    by_stage: dict[type[Stage], dict[str, Any]] = {}
    for name, value in knobs.items():
        by_stage.setdefault(knob_owners()[name], {})[name] = value
    return in_order(*(checked(owner, values) for owner, values in by_stage.items()))


def search(model: Any, strategy: Strategy, knobs: dict[str, Any] | None = None, prompt: Sequence[int] = PROMPT, **more: Any) -> list[Any]:
    return run_alone(toy_task(model, prompt, staged(knobs or {}), **more), strategy)


def ranking(events: Sequence[Any]) -> BeamsRanked:
    (ranked,) = (event for event in events if isinstance(event, BeamsRanked))
    return ranked


def answers(events: Sequence[Any]) -> tuple[Hypothesis, ...]:
    ranked = ranking(events)
    return ranked.hypotheses[: ranked.returned]


def steps_of(events: Sequence[Any]) -> list[BeamsAdvanced]:
    return [event for event in events if isinstance(event, BeamsAdvanced)]


def shown(events: Sequence[Any]) -> tuple[int, ...]:
    return tuple(event.token for event in standing(event for event in events if isinstance(event, TokenChosen)))


# --- against generate ----------------------------------------------------------------------------


def generated(family: str, prompt: Sequence[int], eos: Sequence[int], **arguments: Any) -> Any:
    model = copy.copy(tiny_model(family))  # the same weights with other defaults
    model.generation_config = copy.deepcopy(model.generation_config)
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = list(eos) or None, PAD
    return model.generate(torch.tensor([list(prompt)]), do_sample=False, output_scores=True, return_dict_in_generate=True, **arguments)


def assert_equal(ours: Sequence[Hypothesis], theirs: Any, scored: bool = True) -> None:
    """Every returned text, token for token and score for score."""
    assert len(ours) == len(theirs.sequences)
    for index, hypothesis in enumerate(ours):
        expected = theirs.sequences[index, len(PROMPT) :].tolist()
        length = len(hypothesis.tokens)
        assert list(hypothesis.tokens) == expected[:length]
        assert set(expected[length:]) <= {PAD, *(eos[0] for eos in EOS.values())}  # what fills the row: an id of 0 counts as none there
        if scored:
            assert hypothesis.ranked == pytest.approx(float(theirs.sequences_scores[index]), abs=1e-4)


@pytest.mark.parametrize("endless", [False, True], ids=["eos", "endless"])
@pytest.mark.parametrize("family", FAMILIES)
def test_equals_generate(family: str, endless: bool) -> None:
    eos, ended = () if endless else EOS[family], set()
    for penalty, stopping, ngram in itertools.product((-1.0, 0.0, 1.0, 2.0), ("false", "true", "never"), (0, 2)):
        knobs = {"num_beams": 3, "length_penalty": penalty, "num_return_sequences": 3}
        early = {"true": True, "false": False}.get(stopping, stopping)
        theirs = generated(family, PROMPT, eos, max_new_tokens=12, early_stopping=early, no_repeat_ngram_size=ngram or None, **knobs)
        stages = {"no_repeat_ngram_size": ngram} if ngram else {}
        ours = answers(search(TransformersModel(tiny_model(family)), beam(early_stopping=stopping, **knobs), stages, max_new_tokens=12, eos=eos))
        assert_equal(ours, theirs)
        ended |= {hypothesis.ended for hypothesis in ours}
    assert ended == ({"eos", "max_new_tokens"} if eos else {"max_new_tokens"})


@pytest.mark.parametrize("beams", [1, 2, 5, 11, 16])
@pytest.mark.parametrize("family", FAMILIES)
def test_equals_generate_at_every_width(family: str, beams: int) -> None:
    """Above 10 too, where servers run out of log-probabilities to ask for (vllm#10792)."""
    for returned in sorted({1, beams}):
        theirs = generated(family, PROMPT, EOS[family], max_new_tokens=15, num_beams=beams, num_return_sequences=returned)
        model = TransformersModel(tiny_model(family))
        ours = answers(search(model, beam(num_beams=beams, num_return_sequences=returned), max_new_tokens=15, eos=EOS[family]))
        assert_equal(ours, theirs, scored=beams > 1)


@pytest.mark.parametrize("beams", [1, 4])
@pytest.mark.parametrize(
    ("knobs", "arguments"),
    [
        ({"repetition_penalty": 1.4}, {}),
        ({"encoder_repetition_penalty": 0.7}, {}),
        ({"min_new_tokens": 9}, {}),
        ({"suppress_tokens": [9, 4, 11]}, {"suppress_tokens": [9, 4, 11]}),
        ({"sequence_bias": [[[9], 2.0], [[4, 7], -3.0]]}, {"sequence_bias": [[[9], 2.0], [[4, 7], -3.0]]}),
        ({"forced_eos": True}, {}),
        ({"decay_start": 2, "decay_factor": 1.5}, {"exponential_decay_length_penalty": (2, 1.5)}),
        ({"repetition_penalty": 0.8, "no_repeat_ngram_size": 3, "min_new_tokens": 4}, {}),
    ],
    ids=str,
)
def test_processors_see_log_probabilities_as_in_generate(knobs: dict[str, Any], arguments: dict[str, Any], beams: int) -> None:
    """And nothing is renormalised afterwards. One beam is greedy decoding, where they see logits."""
    for family in FAMILIES:
        eos = EOS[family][:1]  # several ends at once would tie where one is forced
        if "forced_eos" in knobs:
            arguments = {"forced_eos_token_id": eos[0]}
        theirs = generated(family, PROMPT, eos, max_new_tokens=12, num_beams=beams, num_return_sequences=beams, **(arguments or knobs))
        model = TransformersModel(tiny_model(family))
        ours = answers(search(model, beam(num_beams=beams, num_return_sequences=beams), knobs, max_new_tokens=12, eos=eos))
        assert_equal(ours, theirs, scored=beams > 1)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_forced_beginning_counts_as_prompt(family: str) -> None:
    forced = (7, 11, 12)
    for penalty, stopping in itertools.product((0.0, 1.0, 2.0), ("false", "never")):
        knobs = {"num_beams": 4, "length_penalty": penalty, "early_stopping": stopping, "num_return_sequences": 4}
        task = toy_task(TransformersModel(tiny_model(family)), PROMPT, max_new_tokens=13, eos=EOS[family])
        task.forced = forced
        events = run_alone(task, beam(**knobs))
        theirs = generated(family, (*PROMPT, *forced), EOS[family], max_new_tokens=10, **knobs | {"early_stopping": stopping == "never" and stopping})
        assert_equal(answers(events), theirs)
        assert shown(events) == answers(events)[0].tokens and shown(events)[:3] == forced


def test_what_may_still_come_counts_from_the_forced_beginning() -> None:
    """`early_stopping` "never" looks at the longest text that is possible."""
    strategy = beam(num_beams=2, length_penalty=0.5, early_stopping="never")
    for seed in range(30):
        task = toy_task(ToyModel(seed=seed, spread=1.0), (1, 2), max_new_tokens=12, eos=(3, 4))
        task.forced = (5, 6, 7, 5, 6, 7)
        forced = run_alone(task, strategy)
        whole = search(ToyModel(seed=seed, spread=1.0), strategy, prompt=(1, 2, *task.forced), max_new_tokens=6, eos=(3, 4))
        assert len(steps_of(forced)) == len(steps_of(whole))
        assert [one.tokens[6:] for one in ranking(forced).hypotheses] == [one.tokens for one in ranking(whole).hypotheses]


def test_a_forced_end_ends_the_lane_without_a_search() -> None:
    task = toy_task(ToyModel(), PROMPT, max_new_tokens=10, eos=(3,))
    task.forced = (5, 3)
    events = run_alone(task, beam())
    assert tokens_of(events) == [5, 3] and not steps_of(events)
    assert events[-1].detail == "eos"


@pytest.mark.parametrize("knobs", [{}, {"no_repeat_ngram_size": 2}, {"repetition_penalty": 1.3}], ids=str)
@pytest.mark.parametrize("stopping", ["false", "true", "never"])
def test_one_beam_is_greedy(stopping: str, knobs: dict[str, Any]) -> None:
    for family in FAMILIES:
        lanes = [
            search(TransformersModel(tiny_model(family)), strategy, knobs, max_new_tokens=25, eos=EOS[family])
            for strategy in (GREEDY, beam(num_beams=1, early_stopping=stopping, length_penalty=-1.0))
        ]
        greedy, one = ([event for event in lane if isinstance(event, TokenChosen)] for lane in lanes)
        assert [event.token for event in one] == [event.token for event in greedy]
        assert [event.log_probability for event in one] == pytest.approx([event.log_probability for event in greedy], abs=1e-5)
        assert lanes[0][-1].detail == lanes[1][-1].detail


# --- against enumeration -------------------------------------------------------------------------


def every_text(model: ToyModel, prompt: Sequence[int], most: int, eos: Sequence[int]) -> dict[tuple[int, ...], float]:
    """The log-probability of every text that can be written."""
    texts: dict[tuple[int, ...], float] = {}
    unfinished: dict[tuple[int, ...], float] = {(): 0.0}
    for length in range(1, most + 1):
        longer = {
            (*text, token): score + float(model.distribution((*prompt, *text)).log()[token])
            for text, score in unfinished.items()
            for token in range(model.vocabulary_size)
        }
        texts |= {text: score for text, score in longer.items() if text[-1] in eos or length == most}
        unfinished = {text: score for text, score in longer.items() if text not in texts}
    return texts


@pytest.mark.parametrize("penalty", [-1.0, 0.0, 1.0, 2.0])
def test_enough_beams_find_the_best_text_of_all(penalty: float) -> None:
    better_than_greedy = 0
    for seed in range(12):
        model = ToyModel(size=4, seed=seed, spread=1.0)
        texts = every_text(model, (1, 2), 3, eos=(3,))
        expected = sorted(((score / len(text) ** penalty, text) for text, score in texts.items()), reverse=True)
        found = ranking(
            search(model.fork(), BeamSearch(num_beams=4**3, length_penalty=penalty), prompt=(1, 2), max_new_tokens=3, eos=(3,))
        ).hypotheses
        assert [hypothesis.tokens for hypothesis in found] == [text for _, text in expected]
        assert [hypothesis.ranked for hypothesis in found] == pytest.approx([ranked for ranked, _ in expected], abs=1e-4)
        greedy = tuple(tokens_of(search(model.fork(), GREEDY, prompt=(1, 2), max_new_tokens=3, eos=(3,))))
        better_than_greedy += greedy != expected[0][1]
    assert better_than_greedy >= 3  # else a search that looks at one beginning only would pass


# --- against a slow search -----------------------------------------------------------------------

Process = Callable[[list[int], Tensor, Counter[int]], Tensor]


def slow_search(
    scores_after: Callable[[list[int]], Tensor],
    prompt: Sequence[int],
    beams: int,
    most: int,
    groups: int = 1,
    penalty: float = 1.0,
    eos: Sequence[int] = (),
    ends: Callable[[list[int]], bool] = lambda output: False,
    process: Process = lambda ids, scores, taken: scores,
) -> list[tuple[float, list[int]]]:
    """(Diverse) beam search in plain Python, early_stopping False: no cache, no tensors kept, every sequence read anew at every step."""
    size = beams // groups
    pools: list[list[tuple[float, list[int]]]] = [[] for _ in range(groups)]
    living: list[list[tuple[float, list[int]]]] = [[(0.0, [])] for _ in range(groups)]
    for length in range(1, most + 1):
        taken: Counter[int] = Counter()
        for group in range(groups):
            candidates = []
            for score, output in living[group]:
                ids = [*prompt, *output]
                added = process(ids, scores_after(ids), taken)
                candidates += [(score + float(added[token]), [*output, token]) for token in range(len(added))]
            candidates = sorted(candidates, key=lambda one: -one[0])[: max(2, 1 + len(eos)) * size]
            finished = [one[1][-1] in eos or ends(one[1]) or length == most for one in candidates]
            new = [(score / length**penalty, output) for (score, output), end in zip(candidates[:size], finished[:size], strict=True) if end]
            pools[group] = sorted([*pools[group], *new], key=lambda one: -one[0])[:size]
            living[group] = [one for one, end in zip(candidates, finished, strict=True) if not end][:size]
            full = len(pools[group]) == size
            if full and living[group] and living[group][0][0] / length**penalty <= pools[group][-1][0]:
                living[group] = []
            taken.update(output[-1] for _, output in living[group])
    return sorted((one for pool in pools for one in pool), key=lambda one: -one[0])


def tiny_scores(family: str) -> Callable[[list[int]], Tensor]:
    def scores_after(ids: list[int]) -> Tensor:
        with torch.inference_mode():
            return tiny_model(family)(torch.tensor([ids])).logits[0, -1].double().log_softmax(-1)

    return scores_after


def test_ends_cannot_crowd_out_the_beams_that_go_on() -> None:
    """Two tokens end a text and are the likeliest of all: only max(2, 1 + 2) candidates a beam leave any that goes on."""
    for seed in range(4):
        model = ToyModel(size=8, seed=seed)
        model.table[:, :, [3, 4]] += 8.0
        expected = slow_search(lambda ids, model=model: model.distribution(ids).log(), (1, 2), 3, 5, penalty=3.0, eos=(3, 4))
        events = search(model.fork(), beam(num_beams=3, length_penalty=3.0), prompt=(1, 2), max_new_tokens=5, eos=(3, 4))
        assert [list(hypothesis.tokens) for hypothesis in ranking(events).hypotheses] == [output for _, output in expected]
        first, second, *_ = steps_of(events)
        assert len(first.candidates) == 8 and len(second.candidates) == 9  # all 8 tokens after one beam, 3 · 3 after three
        assert sum(candidate.ended is None for candidate in second.candidates) == 3


@pytest.mark.parametrize(("beams", "groups"), [(4, 2), (4, 4), (6, 3), (6, 1)])
@pytest.mark.parametrize("family", FAMILIES)
def test_diverse_beam_search_equals_a_slow_one(family: str, beams: int, groups: int) -> None:
    bias = SequenceBiasLogitsProcessor([[[9], 1.5], [[11], -1.0]])
    repetition = RepetitionPenaltyLogitsProcessor(1.3)
    for diversity in (0.4, 3.0) if groups > 1 else (0.0,):

        def process(ids: list[int], scores: Tensor, taken: Counter[int], diversity: float = diversity) -> Tensor:
            row = torch.tensor([ids])
            scores = bias(row, scores[None].float())
            scores = scores - diversity * torch.tensor([taken[token] for token in range(scores.shape[-1])])
            return repetition(row, scores)[0]

        expected = slow_search(tiny_scores(family), PROMPT, beams, 8, groups, penalty=0.7, eos=EOS[family], process=process)
        strategy = beam(num_beams=beams, num_beam_groups=groups, diversity_penalty=diversity, length_penalty=0.7, num_return_sequences=beams)
        knobs = {"sequence_bias": [[[9], 1.5], [[11], -1.0]], "repetition_penalty": 1.3}
        events = search(TransformersModel(tiny_model(family)), strategy, knobs, max_new_tokens=8, eos=EOS[family])
        found = ranking(events).hypotheses
        assert [list(hypothesis.tokens) for hypothesis in found] == [output for _, output in expected]
        assert [hypothesis.ranked for hypothesis in found] == pytest.approx([ranked for ranked, _ in expected], abs=1e-4)


def test_groups_take_different_tokens_where_the_penalty_is_high() -> None:
    for seed in range(5):
        strategy = beam(num_beams=4, num_beam_groups=4, diversity_penalty=50.0)
        for step in steps_of(search(ToyModel(seed=seed), strategy, max_new_tokens=8))[:-1]:
            assert len({step.candidates[index].token for index in step.living}) == 4


def test_a_candidate_says_what_it_lost_to_earlier_groups() -> None:
    for step in steps_of(search(ToyModel(size=4), beam(num_beams=3, num_beam_groups=3, diversity_penalty=0.5), prompt=(1, 2), max_new_tokens=6))[:-1]:
        taken: Counter[int] = Counter()
        for group in range(3):
            own = [candidate for candidate in step.candidates if candidate.group == group]
            assert own and all(candidate.penalty == 0.5 * taken[candidate.token] for candidate in own)
            taken.update(candidate.token for candidate in own if candidate.fate == "kept")


def test_a_stop_string_ends_a_hypothesis() -> None:
    vocabulary, ended = ToyVocabulary(12), set()
    for seed in range(6):
        model = ToyModel(seed=seed, spread=1.0)
        expected = slow_search(
            lambda ids, model=model: model.distribution(ids).log(), PROMPT, 3, 7,
            ends=lambda output: any(stop in "".join(map(vocabulary.character, output)) for stop in ("CD", "G")),
        )  # fmt: skip
        events = search(model.fork(), beam(num_beams=3), max_new_tokens=7, stop=["CD", "G"])
        found = ranking(events).hypotheses
        assert [list(hypothesis.tokens) for hypothesis in found] == [output for _, output in expected]
        ended |= {hypothesis.ended for hypothesis in found}
        if found[0].ended == "stop_string":
            text = "".join(map(vocabulary.character, found[0].tokens))
            assert events[-1].detail == "stop_string" and events[-1].cut == min(text.find(stop) for stop in ("CD", "G") if stop in text)
    assert ended == {"stop_string", "max_new_tokens"}


def test_the_context_is_a_limit_like_any_other() -> None:
    task = toy_task(ToyModel(), PROMPT, max_new_tokens=50)
    task.stop_rules = (*task.stop_rules, ContextLimit(len(PROMPT) + 4, len(PROMPT)))
    task.start = replace(task.start, stop_states=(*task.start.stop_states, None))
    events = run_alone(task, beam(num_beams=3, early_stopping="never"))
    assert ranking(events).ending == "context" and events[-1].detail == "context"
    plain = ranking(search(ToyModel(), beam(num_beams=3, early_stopping="never"), max_new_tokens=4))
    assert [one.tokens for one in ranking(events).hypotheses] == [one.tokens for one in plain.hypotheses]


# --- beam sampling -------------------------------------------------------------------------------


def inclusion(weights: Sequence[float], draws: int) -> list[float]:
    """The probability of each item to be among `draws` drawn one after another without replacement, by enumeration."""
    included = [0.0] * len(weights)
    for order in itertools.permutations(range(len(weights)), draws):
        probability, left = 1.0, sum(weights)
        for item in order:
            probability *= weights[item] / left
            left -= weights[item]
        for item in order:
            included[item] += probability
    return included


@pytest.mark.parametrize("knobs", [{}, {"temperature": 2.0, "top_k": 6}], ids=str)
def test_candidates_are_drawn_without_replacement(knobs: dict[str, Any]) -> None:
    model, runs = ToyModel(size=7, spread=1.5), 1500
    logits = model.table[1, 2].double() / knobs.get("temperature", 1.0)
    kept = logits.topk(knobs.get("top_k", 7)).indices.tolist()
    expected = dict.fromkeys(range(7), 0.0) | dict(zip(kept, inclusion([math.exp(logits[token]) for token in kept], 4), strict=True))
    seen: Counter[int] = Counter()
    for seed in range(runs):
        task = toy_task(model.fork(), (1, 2), staged(knobs), seed=seed, max_new_tokens=1, record=False)
        (step,) = steps_of(run_alone(task, beam(num_beams=2, do_sample=True)))
        tokens = [candidate.token for candidate in step.candidates]
        assert len(set(tokens)) == 4
        seen.update(tokens)
    for token, probability in expected.items():
        spread = math.sqrt(max(probability * (1 - probability), 1e-12) / runs)
        assert abs(seen[token] / runs - probability) < 4.5 * spread + 1e-9, token


@dataclass(frozen=True)
class OtherSecondStep(Dice):
    """Dice of seed 3 at the first position, of `seed` behind it."""

    def uniforms(self, position: int, purpose: Any, count: int) -> NDArray[np.float64]:
        return Dice(self.seed if position else 3).uniforms(position, purpose, count)


def test_the_second_step_draws_from_the_scores_of_all_beams_together() -> None:
    model, runs = ToyModel(size=4, spread=1.0), 1500
    seen: Counter[tuple[int, int]] = Counter()
    for seed in range(runs):
        task = toy_task(model.fork(), (1, 2), max_new_tokens=2, record=False)
        task.dice = OtherSecondStep(seed)
        first, second = steps_of(run_alone(task, beam(num_beams=2, do_sample=True)))
        seen.update((candidate.beam, candidate.token) for candidate in second.candidates)
    living = [first.candidates[index] for index in first.living]
    pairs = [(slot, token) for slot in range(2) for token in range(4)]
    weights = [math.exp(living[slot].score) * float(model.distribution((2, living[slot].token))[token]) for slot, token in pairs]
    for pair, probability in zip(pairs, inclusion(weights, 4), strict=True):
        assert abs(seen[pair] / runs - probability) < 4.5 * math.sqrt(probability * (1 - probability) / runs), pair


def test_beam_sampling_is_a_function_of_the_seed() -> None:
    def drawn(seed: int) -> list[tuple[int, ...]]:
        return [one.tokens for one in ranking(search(ToyModel(), beam(do_sample=True), seed=seed, max_new_tokens=8)).hypotheses]

    assert drawn(5) == drawn(5)
    assert len({tuple(drawn(seed)) for seed in range(6)}) > 3


@pytest.mark.parametrize("knobs", [{"temperature": 0.01}, {"temperature": 0.00002}, {"top_k": 1}, {"top_p": 0.01}], ids=str)
def test_beam_sampling_stays_a_number_where_hardly_anything_is_left(knobs: dict[str, Any]) -> None:
    """HF#22914, #11267: a small temperature leaves fewer tokens above 0 than are to be drawn."""
    for family in FAMILIES:
        events = search(TransformersModel(tiny_model(family)), beam(do_sample=True), knobs, max_new_tokens=12, eos=EOS[family])
        assert all(math.isfinite(candidate.score) for step in steps_of(events) for candidate in step.candidates)
        assert events[-1].reason in ("stop", "length")


# --- what the events say -------------------------------------------------------------------------


def assert_consistent(events: Sequence[Any], beams: int, penalty: float, eos: Sequence[int] = ()) -> None:
    """Everything that a record of a beam search promises."""
    steps, ranked = steps_of(events), ranking(events)
    paths: list[list[tuple[float, tuple[int, ...], tuple[float, ...]]]] = []  # of every candidate: score, tokens, log-probabilities
    living: list[tuple[float, tuple[int, ...], tuple[float, ...]]] = [(0.0, (), ())]
    text: list[TokenChosen] = []
    for number, step in enumerate(steps):
        assert step.step == number
        assert len(step.candidates) <= max(2, 1 + len(eos)) * beams
        paths.append([])
        for candidate in step.candidates:
            score, tokens, logs = living[candidate.beam]
            assert candidate.score == pytest.approx(score + candidate.log_probability, abs=1e-4)
            assert candidate.ranked == pytest.approx(candidate.score / (number + 1) ** penalty, rel=1e-9)
            paths[-1].append((candidate.score, (*tokens, candidate.token), (*logs, candidate.log_probability)))
        for group in {candidate.group for candidate in step.candidates}:
            own = [candidate.score for candidate in step.candidates if candidate.group == group]
            assert own == sorted(own, reverse=True)
        kept = [index for index, candidate in enumerate(step.candidates) if candidate.fate == "kept"]
        assert list(step.living) == kept and len(kept) <= beams
        finished = [index for index, candidate in enumerate(step.candidates) if candidate.fate == "finished"]
        assert {place for place in step.pool if place[0] == number} == {(number, index) for index in finished}
        ranks = [steps[at].candidates[index].ranked for at, index in step.pool]
        assert ranks == sorted(ranks, reverse=True) and len(ranks) <= beams
        for candidate in step.candidates:
            assert (candidate.reason is None) == (candidate.fate != "dropped")
            assert (candidate.by is not None) == (candidate.reason in ("beaten", "ended_too_low"))
            if candidate.by is not None:
                rival = step.candidates[candidate.by]
                assert rival.group == candidate.group and candidate.gap == pytest.approx(rival.score - candidate.score) and candidate.gap >= 0
            if candidate.reason == "beaten":
                assert candidate.ended is None and rival.ended is None
            if candidate.reason in ("ended_too_low", "worse_than_finished") or candidate.fate == "finished":
                assert candidate.ended is not None
            if candidate.reason == "worse_than_finished":
                assert candidate.gap is not None and candidate.gap >= 0
        living = [paths[-1][index] for index in step.living]
        if step.living:
            assert step.best is not None and living[step.best][0] == max(score for score, *_ in living)
        else:
            assert step.best is None and number == len(steps) - 1
    for hypothesis in ranked.hypotheses:
        score, tokens, logs = paths[hypothesis.step][hypothesis.candidate]
        assert (hypothesis.score, hypothesis.tokens, hypothesis.log_probabilities) == (score, tokens, logs)
        assert sum(logs) == pytest.approx(score, abs=1e-4)
    assert [(one.step, one.candidate) for one in ranked.hypotheses] == list(steps[-1].pool)
    # The lane shows the best living beam after every step, and the winner at the end.
    at = 0
    for event in events:
        if isinstance(event, BeamsAdvanced):
            at = event.step
        elif isinstance(event, TokenChosen):
            text = standing([*text, event])
        elif isinstance(event, StepTimed):
            step = steps[at]
            expected = ranked.hypotheses[0].tokens if step.best is None else paths[at][step.living[step.best]][1]
            assert tuple(one.token for one in text) == expected
            assert event.tokens == 1
            assert step.best is None or (event.rows == len(step.living) and text[-1].view is not None)
    end = events[-1]
    assert isinstance(end, Finished) and end.detail == ranked.hypotheses[0].ended


@pytest.mark.parametrize("stopping", ["false", "true", "never"])
@pytest.mark.parametrize(
    ("knobs", "stages"),
    [
        ({"num_beams": 4, "length_penalty": 1.0}, {}),
        ({"num_beams": 5, "length_penalty": -1.0}, {"no_repeat_ngram_size": 2}),
        ({"num_beams": 6, "length_penalty": 2.0, "num_beam_groups": 3, "diversity_penalty": 1.0}, {"repetition_penalty": 1.2}),
        ({"num_beams": 4, "length_penalty": 0.5, "do_sample": True}, {"temperature": 1.5, "top_k": 20}),
        ({"num_beams": 1, "length_penalty": 1.0}, {}),
    ],
    ids=["plain", "no repeats", "diverse", "sampled", "one"],
)
def test_the_record_of_a_search_is_consistent(knobs: dict[str, Any], stages: dict[str, Any], stopping: str) -> None:
    reasons: Counter[str | None] = Counter()
    replaced = 0
    for family in FAMILIES:
        events = search(TransformersModel(tiny_model(family)), beam(early_stopping=stopping, **knobs), stages, max_new_tokens=20, eos=EOS[family])
        assert_consistent(events, knobs["num_beams"], knobs["length_penalty"], EOS[family])
        reasons.update(candidate.reason for step in steps_of(events) for candidate in step.candidates)
        chosen = [event.position for event in events if isinstance(event, TokenChosen)]
        replaced += len(chosen) - len(set(chosen))
    if knobs["num_beams"] > 1:
        assert reasons["beaten"] and replaced  # the best beam switched somewhere, or the test shows little


def test_every_reason_to_drop_a_candidate_occurs() -> None:
    reasons: Counter[str | None] = Counter()
    for seed in range(8):
        for stopping in ("false", "true"):
            events = search(ToyModel(seed=seed, spread=1.0), beam(num_beams=3, early_stopping=stopping), max_new_tokens=9, eos=(3, 4))
            assert_consistent(events, 3, 1.0, (3, 4))
            reasons.update(candidate.reason for step in steps_of(events) for candidate in step.candidates)
    assert all(reasons[reason] for reason in ("beaten", "ended_too_low", "worse_than_finished", "early_stop"))


def test_views_are_of_log_probabilities_before_and_after_the_processors() -> None:
    model = TransformersModel(tiny_model("llama"))
    events = search(model, beam(num_beams=4), {"no_repeat_ngram_size": 2}, max_new_tokens=10)
    logits_after = tiny_scores("llama")
    text: list[TokenChosen] = []
    for event in (event for event in events if isinstance(event, TokenChosen)):
        text = standing([*text, event])
        if event.view is None:
            continue
        expected = logits_after([*PROMPT, *(one.token for one in text[:-1])])
        assert event.view.scale == "raw_log_probability" and event.view.log_sum_exp == pytest.approx(0, abs=1e-5)
        assert event.raw_log_probability == pytest.approx(float(expected[event.token]), abs=1e-4)
        for token, raw in zip(event.view.ids, event.view.raw, strict=True):
            assert raw == pytest.approx(float(expected[token]), abs=1e-4)
    assert sum(event.view is not None for event in text) >= 5


def test_length_counts_generated_tokens_only() -> None:
    """vllm#2606, HF#26624: a long prompt must not weaken the penalty."""
    for prompt in (PROMPT, PROMPT * 20):
        ranked = ranking(search(TransformersModel(tiny_model("qwen")), beam(num_beams=4), prompt=prompt, max_new_tokens=9, eos=EOS["qwen"]))
        for hypothesis in ranked.hypotheses:
            assert hypothesis.ranked == pytest.approx(hypothesis.score / len(hypothesis.tokens))


def test_a_model_that_says_nan_ends_the_lane_and_names_it() -> None:
    class Broken(ToyModel):
        def forward(self, tokens: Tensor, keep: int = 1, hidden: Sequence[int] = ()) -> Tensor:
            logits = super().forward(tokens, keep)
            return logits.index_fill(-1, torch.tensor([4]), math.nan) if self.rows > 1 else logits

        def fork(self) -> Broken:
            return Broken(self.vocabulary_size, table=self.table, rows=copy.deepcopy(self._rows))

    for strategy in (beam(), beam(do_sample=True)):
        end = search(Broken(), strategy)[-1]
        assert (end.reason, end.detail) == ("error", "scores_not_finite")


def test_processors_that_remove_everything_end_the_lane() -> None:
    end = search(ToyModel(size=4), beam(num_beams=2), {"suppress_tokens": [0, 1, 2, 3]}, prompt=(1, 2))[-1]
    assert (end.reason, end.detail) == ("error", "no_token_left")


def test_fewer_tokens_than_candidates_are_no_error() -> None:
    events = search(ToyModel(size=4), beam(num_beams=8), {"suppress_tokens": [0, 1]}, prompt=(1, 2), max_new_tokens=4, eos=(3,))
    assert len(steps_of(events)[0].candidates) == 2
    assert_consistent(events, 8, 1.0, (3,))


# --- the cache -----------------------------------------------------------------------------------


def test_children_stay_in_their_parents_row_where_they_can() -> None:
    assert seating([0, 1, 2, 3]) == [0, 1, 2, 3]
    assert seating([2, 0, 3, 1]) == [2, 0, 3, 1]
    assert seating([2, 2, 0, 1]) == [2, 3, 0, 1]
    assert seating([0, 0, 0]) == [0, 1, 2]
    assert seating([3, 1]) == [0, 1]
    for parents in itertools.product(range(4), repeat=3):
        seats = seating(parents)
        assert sorted(seats) == [0, 1, 2]
        staying = sum(seat == parent for seat, parent in zip(seats, parents, strict=True))
        assert staying == len({parent for parent in parents if parent < 3})


@pytest.mark.parametrize("family", FAMILIES)
def test_reordered_rows_are_the_ones_that_were_asked_for(family: str) -> None:
    """In place, with forks and ends, against a cache that is filled afresh."""
    rows = [[5, 9, 4, 7], [1, 2, 3, 4], [8, 8, 6, 1], [7, 3, 2, 9]]
    with torch.inference_mode():
        for order in ([0, 1, 2, 3], [1, 0, 3, 2], [0, 0, 2, 3], [3, 3, 3, 0], [2, 1], [1, 0, 0, 0, 3, 2]):
            model, fresh = TransformersModel(tiny_model(family)), TransformersModel(tiny_model(family))
            model.forward(torch.tensor(rows))
            model.select_rows(order)
            model.forward(torch.tensor([[6]] * len(order)))
            model.select_rows(order[::-1] if len(order) == 4 else range(len(order)))
            again = [rows[row] for row in (([order[place] for place in order[::-1]]) if len(order) == 4 else order)]
            fresh.forward(torch.tensor([[*row, 6] for row in again]))
            last = torch.tensor([[place + 1] for place in range(len(order))])
            torch.testing.assert_close(model.forward(last), fresh.forward(last), atol=1e-5, rtol=1e-5)
            assert model.cache_bytes == fresh.cache_bytes


def test_a_fork_keeps_its_rows_when_the_other_side_selects() -> None:
    with torch.inference_mode():
        model = TransformersModel(tiny_model("llama"))
        model.forward(torch.tensor([[5, 9, 4], [1, 2, 3]]))
        fork = model.fork()
        fork.select_rows([1, 0])
        fork.select_rows([1, 0])
        fork.select_rows([1, 1])
        fresh = TransformersModel(tiny_model("llama"))
        fresh.forward(torch.tensor([[5, 9, 4], [1, 2, 3]]))
        last = torch.tensor([[7], [8]])
        torch.testing.assert_close(model.forward(last), fresh.forward(last), atol=1e-5, rtol=1e-5)


# --- what may be asked ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("knobs", "code", "words"),
    [
        ({"num_beams": 0}, "knob_range", "num_beams must be in [1, 16], got 0"),
        ({"num_beams": 17}, "knob_range", "num_beams must be in [1, 16], got 17"),
        ({"num_beams": 2.5}, "knob_range", "num_beams"),
        ({"num_return_sequences": 0}, "knob_range", "num_return_sequences"),
        ({"num_beams": 2, "num_return_sequences": 3}, "beams_returned", "num_return_sequences (3) must not be above num_beams (2)"),
        ({"num_beams": 4, "num_beam_groups": 3, "diversity_penalty": 1}, "beam_groups", "num_beam_groups (3) must divide num_beams (4)"),
        ({"diversity_penalty": 1.0}, "beam_diversity", "diversity_penalty (1.0)"),
        ({"num_beam_groups": 2}, "beam_diversity", "num_beam_groups (2)"),
        ({"diversity_penalty": -1.0}, "knob_range", "diversity_penalty"),
        ({"early_stopping": "maybe"}, "knob_range", "false | true | never"),
        ({"do_sample": True, "num_beams": 1}, "beam_sampling", "do_sample needs num_beams of at least 2"),
        ({"do_sample": True, "num_beam_groups": 2, "diversity_penalty": 1.0}, "beam_sampling", "num_beam_groups 1"),
    ],
    ids=str,
)
def test_what_does_not_go_together_is_refused_with_its_rule(knobs: dict[str, Any], code: str, words: str) -> None:
    with pytest.raises(BadValue) as caught:
        Lane.from_json({"strategy": "beam", "knobs": knobs})
    assert caught.value.code == code and words in caught.value.text.en
    assert "{" not in caught.value.text.zh


def test_early_stopping_takes_the_values_that_transformers_takes() -> None:
    for given, value in ((True, "true"), (False, "false"), ("never", "never"), ("true", "true")):
        assert Lane.from_json({"strategy": "beam", "knobs": {"early_stopping": given}}).strategy == beam(early_stopping=value)


def test_warpers_apply_only_where_candidates_are_drawn() -> None:
    for draws in (False, True):
        lane = Lane.from_json({"strategy": "beam", "knobs": {"do_sample": draws, "top_p": 0.9, "repetition_penalty": 1.2}})
        assert [(entry.stage.name, entry.idle) for entry in effective_stages(lane, {})] == [("repetition", False), ("top_p", not draws)]


def test_a_temperature_of_0_means_that_nothing_is_drawn() -> None:
    plain = Lane.from_json({"strategy": "beam", "knobs": {"num_beams": 3, "temperature": 0}})
    assert plain.strategy == beam(num_beams=3) and not plain.notes
    drawn = Lane.from_json({"strategy": "beam", "knobs": {"num_beams": 3, "temperature": 0, "do_sample": True}})
    assert drawn.strategy == beam(num_beams=3) and "no die" in drawn.notes[0].en
