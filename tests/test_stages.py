"""Every stage: equal to transformers' where it has the class, to hand-computed numbers where it has not."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import LogitsProcessorList
from transformers.generation import logits_process as hf

from playground.engine.knobs import MOST_ENTRIES, Knob, cast, checked, knobs_of
from playground.engine.stages import ORDERS, TRANSFORMERS_ORDER, VLLM_ORDER, Context, Stage, knob_owners, stages
from playground.errors import BadValue, PlaygroundError, Text
from playground.request import Lane, effective_stages
from tests.toys import EOS, FAMILIES, ToyVocabulary, tiny_model

PROMPT = (5, 6, 7, 8, 5, 6, 7, 8, 5, 6)
NEW = 8
COMMON = {"temperature", "top_k", "top_p", "min_p", "repetition", "no_repeat_ngram"}


def stage_knobs() -> dict[str, Knob]:
    return {name: declared for stage in stages.all().values() for name, declared in knobs_of(stage).items()}


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Tensors this small are faster on one thread, above all where another process is busy."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def context(size: int = 99, prompt: tuple[int, ...] = PROMPT, eos: tuple[int, ...] = EOS, keep: int = 1) -> Context:
    return Context(prompt, eos, NEW, ToyVocabulary(size), torch.device("cpu"), min_tokens_to_keep=keep)


def asked(knobs: dict[str, Any]) -> list[Stage]:
    """The stages that raw knob values ask for, those that are off left out."""
    by_stage: dict[type[Stage], dict[str, Any]] = {}
    for name, value in knobs.items():
        by_stage.setdefault(knob_owners()[name], {})[name] = value
    return [stage for stage in (checked(owner, values) for owner, values in by_stage.items()) if not stage.is_off]


class Pipeline:
    """A lane's stages in order, as Task runs them, for rows whose states are given or still at their start."""

    def __init__(self, knobs: dict[str, Any], where: Context, order: tuple[str, ...] = TRANSFORMERS_ORDER) -> None:
        self.bound = [stage.bind(where) for stage in sorted(asked(knobs), key=lambda stage: order.index(stage.name))]

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        for bound in self.bound:
            scores = bound.apply(input_ids, scores, [bound.start] * len(scores))
        return scores


def scores_of(probabilities: list[float]) -> Tensor:
    """`[1, V]` scores whose softmax is `probabilities`, shifted: logits needn't be log-probabilities."""
    return torch.tensor([probabilities]).log() + 3.0


def kept(scores: Tensor) -> list[int]:
    """The ids that are alive in the first row."""
    return (scores[0] > -math.inf).nonzero().flatten().tolist()


def one(knobs: dict[str, Any], scores: Tensor, output: tuple[int, ...] = (), prompt: tuple[int, ...] = (0, 1), keep: int = 1) -> Tensor:
    """The scores after the one or more stages that `knobs` ask for."""
    pipeline = Pipeline(knobs, context(size=scores.shape[1], prompt=prompt, eos=(), keep=keep))
    return pipeline(torch.tensor([prompt + output]), scores)


# --- equal to transformers -------------------------------------------------------------------

PROCESSORS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"sequence_bias": [[[9], 2.5], [[5, 6], -4.0]]}, {"sequence_bias": [[[9], 2.5], [[5, 6], -4.0]]}),
    ({"sequence_bias": [[[5, 6, 7], 30.0], [[8], -30.0]]}, {"sequence_bias": [[[5, 6, 7], 30.0], [[8], -30.0]]}),
    ({"encoder_repetition_penalty": 1.6}, {"encoder_repetition_penalty": 1.6}),
    ({"encoder_repetition_penalty": 0.5}, {"encoder_repetition_penalty": 0.5}),
    ({"repetition_penalty": 1.3}, {"repetition_penalty": 1.3}),
    ({"repetition_penalty": 0.7}, {"repetition_penalty": 0.7}),
    ({"no_repeat_ngram_size": 1}, {"no_repeat_ngram_size": 1}),
    ({"no_repeat_ngram_size": 3}, {"no_repeat_ngram_size": 3}),
    ({"bad_words": ["J", [5, 6, 7], [2]]}, {"bad_words_ids": [[9], [5, 6, 7], [2]]}),
    ({"min_length": len(PROMPT) + 4}, {"min_length": len(PROMPT) + 4}),
    ({"min_new_tokens": 5}, {"min_new_tokens": 5}),
    ({"forced_eos": True, "min_new_tokens": NEW - 1}, {"forced_eos_token_id": list(EOS), "min_new_tokens": NEW - 1}),
    ({"decay_start": 0, "decay_factor": 1.2}, {"exponential_decay_length_penalty": (0, 1.2)}),
    (
        {"decay_start": 3, "decay_factor": 0.6, "suppress_tokens": [[2]]},
        {"exponential_decay_length_penalty": (3, 0.6), "suppress_tokens": [2]},
    ),
    ({"suppress_tokens": ["K", [11, 12]]}, {"suppress_tokens": [10, 11, 12]}),
    ({"begin_suppress_tokens": [[4, 5, 6, 7, 8]]}, {"begin_suppress_tokens": [4, 5, 6, 7, 8]}),
    (
        {
            "sequence_bias": [[[9], 3.0]], "encoder_repetition_penalty": 1.2, "repetition_penalty": 1.4, "no_repeat_ngram_size": 2,
            "bad_words": [[40]], "min_length": 12, "min_new_tokens": 4, "decay_start": 2, "decay_factor": 1.1,
            "suppress_tokens": [[41]], "begin_suppress_tokens": [[42]],
        },
        {
            "sequence_bias": [[[9], 3.0]], "encoder_repetition_penalty": 1.2, "repetition_penalty": 1.4, "no_repeat_ngram_size": 2,
            "bad_words_ids": [[40]], "min_length": 12, "min_new_tokens": 4, "exponential_decay_length_penalty": (2, 1.1),
            "suppress_tokens": [41], "begin_suppress_tokens": [42],
        },
    ),
]  # fmt: skip
WARPERS: list[dict[str, Any]] = [
    {"temperature": 0.7}, {"temperature": 2}, {"top_h": 0.4}, {"top_h": 1.0}, {"top_k": 1}, {"top_k": 20},
    {"top_p": 0.3}, {"top_p": 0.95}, {"min_p": 0.05}, {"min_p": 1.0}, {"typical_p": 0.2}, {"typical_p": 0.9},
    {"epsilon_cutoff": 0.02}, {"epsilon_cutoff": 0.9}, {"eta_cutoff": 0.03}, {"eta_cutoff": 0.9},
    {"temperature": 0.8, "top_k": 50, "top_p": 0.95},
    {"temperature": 1.5, "top_k": 40, "top_p": 0.9, "min_p": 0.02},
    {"temperature": 1.3, "top_h": 0.9, "top_k": 30, "top_p": 0.9, "min_p": 0.01, "typical_p": 0.9, "epsilon_cutoff": 0.01, "eta_cutoff": 0.02},
]  # fmt: skip
TOGETHER = [
    ({**ours, **warpers}, {**theirs, **warpers}) for (ours, theirs), warpers in zip([*PROCESSORS[4:8], PROCESSORS[-1]], WARPERS[-5:], strict=True)
]


def label(knobs: dict[str, Any]) -> str:
    return ",".join(f"{name}={value}" for name, value in knobs.items())[:60]


def along_generate(family: str, ours: dict[str, Any], theirs: dict[str, Any], sampling: bool, order: tuple[str, ...] = TRANSFORMERS_ORDER) -> None:
    """Our scores equal `generate`'s at every step of the tokens that it chose, and differ from the raw ones somewhere."""
    model = tiny_model(family)
    # `generate` has a top-k of 50 of its own when it samples, and refuses an integer temperature.
    arguments = {"top_k": 0, **theirs} if sampling else theirs
    if "temperature" in arguments:
        arguments = {**arguments, "temperature": float(arguments["temperature"])}
    telling = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        out = model.generate(torch.tensor([PROMPT]), do_sample=sampling, max_new_tokens=NEW, **telling, **arguments)
    pipeline = Pipeline(ours, context(model.config.vocab_size), order)
    changed = False
    for step, (raw, expected) in enumerate(zip(out.logits, out.scores, strict=True)):
        actual = pipeline(out.sequences[:, : len(PROMPT) + step], raw)
        torch.testing.assert_close(actual, expected, atol=1e-5, rtol=0)
        changed |= not torch.equal(actual, raw)
    assert changed, "the setting did nothing: this case shows nothing"


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("ours", "theirs"), PROCESSORS, ids=[label(ours) for ours, _ in PROCESSORS])
@pytest.mark.parametrize("sampling", [False, True], ids=["greedy", "sample"])
def test_processors_score_as_generate_does(family: str, ours: dict[str, Any], theirs: dict[str, Any], sampling: bool) -> None:
    along_generate(family, ours, theirs, sampling)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("knobs", WARPERS, ids=label)
def test_warpers_score_as_generate_does(family: str, knobs: dict[str, Any]) -> None:
    along_generate(family, knobs, knobs, sampling=True)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("ours", "theirs"), TOGETHER, ids=[label(ours) for ours, _ in TOGETHER])
def test_processors_and_warpers_together_score_as_generate_does(family: str, ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    along_generate(family, ours, theirs, sampling=True)


@pytest.mark.parametrize("family", FAMILIES)
def test_vllm_order_scores_as_generate_does_with_its_classes_in_that_order(family: str) -> None:
    theirs = LogitsProcessorList(
        [hf.TemperatureLogitsWarper(1.2), hf.MinPLogitsWarper(0.05), hf.TopKLogitsWarper(12), hf.TopPLogitsWarper(0.6), hf.TypicalLogitsWarper(0.8)]
    )
    ours = {"typical_p": 0.8, "top_p": 0.6, "top_k": 12, "min_p": 0.05, "temperature": 1.2}
    along_generate(family, ours, {"logits_processor": theirs}, sampling=True, order=VLLM_ORDER)


def by_hand(keep: int) -> dict[str, hf.LogitsProcessor]:
    """transformers' own objects, made by hand with the settings of `ALL_ON`."""
    prompt, eos = len(PROMPT), torch.tensor(EOS)
    return {
        "sequence_bias": hf.SequenceBiasLogitsProcessor([[[9], 2.0], [[6, 7], 5.0]]),
        "encoder_repetition": hf.EncoderRepetitionPenaltyLogitsProcessor(1.2, torch.tensor([PROMPT])),
        "repetition": hf.RepetitionPenaltyLogitsProcessor(1.3),
        "no_repeat_ngram": hf.NoRepeatNGramLogitsProcessor(2),
        "bad_words": hf.NoBadWordsLogitsProcessor([[40], [6, 41]], eos),
        "min_length": hf.MinLengthLogitsProcessor(12, eos),
        "min_new_tokens": hf.MinNewTokensLengthLogitsProcessor(prompt, 3, eos),
        "exponential_decay_length": hf.ExponentialDecayLengthPenalty((1, 1.5), eos, prompt),
        "suppress": hf.SuppressTokensLogitsProcessor([50, 51]),
        "begin_suppress": hf.SuppressTokensAtBeginLogitsProcessor([52], prompt),
        "temperature": hf.TemperatureLogitsWarper(1.4),
        "top_h": hf.TopHLogitsWarper(0.9),
        "top_k": hf.TopKLogitsWarper(40, min_tokens_to_keep=keep),
        "top_p": hf.TopPLogitsWarper(0.9, min_tokens_to_keep=keep),
        "min_p": hf.MinPLogitsWarper(0.02, min_tokens_to_keep=keep),
        "typical": hf.TypicalLogitsWarper(0.9, min_tokens_to_keep=keep),
        "epsilon": hf.EpsilonLogitsWarper(0.01, min_tokens_to_keep=keep),
        "eta": hf.EtaLogitsWarper(0.02, min_tokens_to_keep=keep),
    }


ALL_ON: dict[str, Any] = {
    "sequence_bias": [[[9], 2.0], [[6, 7], 5.0]], "encoder_repetition_penalty": 1.2, "repetition_penalty": 1.3, "no_repeat_ngram_size": 2,
    "bad_words": [[40], [6, 41]], "min_length": 12, "min_new_tokens": 3, "decay_start": 1, "decay_factor": 1.5,
    "suppress_tokens": [[50, 51]], "begin_suppress_tokens": [[52]], "temperature": 1.4, "top_h": 0.9, "top_k": 40, "top_p": 0.9,
    "min_p": 0.02, "typical_p": 0.9, "epsilon_cutoff": 0.01, "eta_cutoff": 0.02,
}  # fmt: skip


def shuffled(seed: int) -> tuple[str, ...]:
    names = list(TRANSFORMERS_ORDER)
    random.Random(seed).shuffle(names)
    return tuple(names)


@pytest.mark.parametrize("order", [TRANSFORMERS_ORDER, VLLM_ORDER, *map(shuffled, range(4))], ids=["transformers", "vllm", *map(str, range(4))])
@pytest.mark.parametrize("keep", [1, 3], ids=["one", "beams"])
@pytest.mark.parametrize("family", FAMILIES)
def test_any_order_on_several_rows_scores_as_the_same_classes_in_that_order(family: str, keep: int, order: tuple[str, ...]) -> None:
    model = tiny_model(family)
    hand = by_hand(keep)
    theirs = LogitsProcessorList([hand[name] for name in order if name in hand])
    ours = Pipeline(ALL_ON, context(model.config.vocab_size, keep=keep), order)
    assert len(ours.bound) == len(theirs)
    generator = torch.Generator().manual_seed(1)
    for new in (0, 1, 4):
        output = torch.randint(4, 60, (3, new), generator=generator)
        input_ids = torch.cat([torch.tensor([PROMPT] * 3), output], dim=1)  # [3, T]
        with torch.no_grad():
            scores = model(input_ids).logits[:, -1].log_softmax(-1)  # [3, V]
        torch.testing.assert_close(ours(input_ids, scores), theirs(input_ids, scores), atol=1e-5, rtol=0)


# --- our own stages, by hand -----------------------------------------------------------------

FIVE = torch.tensor([[1.0, 2.0, 3.0, -4.0, 5.0]])


def test_presence_penalty_is_taken_once_from_tokens_of_the_output_only() -> None:
    after = one({"presence_penalty": 0.5}, FIVE, prompt=(0, 1), output=(1, 1, 3))
    torch.testing.assert_close(after, torch.tensor([[1.0, 1.5, 3.0, -4.5, 5.0]]))


def test_frequency_penalty_is_taken_once_per_occurrence_in_the_output_only() -> None:
    after = one({"frequency_penalty": 0.5}, FIVE, prompt=(0, 1), output=(1, 1, 3))
    torch.testing.assert_close(after, torch.tensor([[1.0, 1.0, 3.0, -4.5, 5.0]]))


@pytest.mark.parametrize("knob_name", ["presence_penalty", "frequency_penalty"])
def test_a_negative_penalty_raises_tokens_and_none_falls_before_the_first_token(knob_name: str) -> None:
    torch.testing.assert_close(one({knob_name: -2}, FIVE, output=(4,)), torch.tensor([[1.0, 2.0, 3.0, -4.0, 7.0]]))
    assert torch.equal(one({knob_name: 2}, FIVE, prompt=(0, 1, 2, 3, 4)), FIVE)


def test_penalties_count_every_row_by_itself() -> None:
    pipeline = Pipeline({"frequency_penalty": 1.0}, context(5, prompt=(0,)))
    after = pipeline(torch.tensor([[0, 1, 1], [0, 2, 4]]), FIVE.repeat(2, 1))
    torch.testing.assert_close(after, torch.tensor([[1.0, 0.0, 3.0, -4.0, 5.0], [1.0, 2.0, 2.0, -4.0, 4.0]]))


def test_logit_bias_is_added_to_the_named_tokens() -> None:
    # "B" is id 1 of the toy vocabulary; a removed token stays removed.
    scores = FIVE.clone()
    scores[0, 4] = -math.inf
    after = one({"logit_bias": {"B": 2, "#3": -100, "#4 #0": 1.5}}, scores)
    torch.testing.assert_close(after, torch.tensor([[2.5, 4.0, 3.0, -104.0, -math.inf]]))


def test_mirostat_keeps_what_surprises_at_most_mu_and_moves_mu_by_the_error() -> None:
    scores = scores_of([0.5, 0.25, 0.125, 0.0625, 0.0625])  # surprise 1, 2, 3, 4, 4 bits
    (stage,) = asked({"mirostat_tau": 1.25, "mirostat_eta": 0.1})
    bound = stage.bind(context(5))
    assert bound.start == 2.5
    after = bound.apply(torch.tensor([[0]]), scores, [bound.start])
    assert kept(after) == [0, 1]
    # The chosen token has 1/3 of what is left: log2(3) = 1.585 bits, 0.335 above tau.
    log_probability = float(after.log_softmax(-1)[0, 1])
    assert log_probability == pytest.approx(math.log(1 / 3), abs=1e-6)
    state = bound.advance(bound.start, 1, log_probability)
    assert state == pytest.approx(2.5 - 0.1 * (math.log2(3) - 1.25), abs=1e-6)
    assert bound.numbers(state) == (("mu", state),)
    assert bound.start == 2.5, "the state is the row's, not the stage's"


def test_mirostat_gives_every_row_its_own_mu_and_always_leaves_a_token() -> None:
    (stage,) = asked({"mirostat_tau": 3})
    scores = scores_of([0.0625, 0.25, 0.125, 0.0625, 0.5]).repeat(4, 1)
    after = stage.bind(context(5)).apply(torch.zeros(4, 1, dtype=torch.long), scores, [-1.0, 0.5, 2.5, 3.5])
    assert [(row > -math.inf).nonzero().flatten().tolist() for row in after] == [[4], [4], [1, 4], [1, 2, 4]]
    beams = stage.bind(context(5, keep=2)).apply(torch.zeros(1, 1, dtype=torch.long), scores[:1], [-1.0])
    assert kept(beams) == [1, 4]


def test_mirostat_follows_a_plain_loop_of_the_paper() -> None:
    tau, eta = 2.0, 0.3
    (stage,) = asked({"mirostat_tau": tau, "mirostat_eta": eta})
    bound, generator = stage.bind(context(30)), torch.Generator().manual_seed(3)
    state, mu = bound.start, 2 * tau
    for _ in range(30):
        scores = torch.randn(1, 30, generator=generator, dtype=torch.float64) * 3
        after = bound.apply(torch.tensor([[0]]), scores, [state])
        exponentials = [math.exp(score) for score in scores[0].tolist()]
        surprises = {token: -math.log2(e / sum(exponentials)) for token, e in enumerate(exponentials)}
        alive = [token for token, surprise in surprises.items() if surprise <= mu] or [min(surprises, key=surprises.__getitem__)]
        assert kept(after) == alive
        token = int(torch.multinomial(after.softmax(-1)[0], 1, generator=generator))
        probability = exponentials[token] / sum(exponentials[other] for other in alive)
        mu -= eta * (-math.log2(probability) - tau)
        state = bound.advance(state, token, float(after.log_softmax(-1)[0, token]))
        assert state == pytest.approx(mu, abs=1e-9)


# --- numeric edges ---------------------------------------------------------------------------


def test_top_k_keeps_every_token_that_equals_the_kth() -> None:
    assert kept(one({"top_k": 2}, torch.tensor([[2.0, 1.0, 1.0, 1.0, 0.0]]))) == [0, 1, 2, 3]


def test_top_k_beyond_the_vocabulary_keeps_everything() -> None:
    assert torch.equal(one({"top_k": 100}, FIVE), FIVE)


@pytest.mark.parametrize("value", [0, -1, "0", -1.0])
def test_top_k_zero_or_minus_one_is_off_and_not_greedy(value: Any) -> None:
    stage = checked(stages.get("top_k"), {"top_k": value})
    assert stage.is_off
    assert torch.equal(stage.bind(context(5)).apply(torch.tensor([[0]]), FIVE, [None]), FIVE)


def test_top_p_keeps_the_token_that_reaches_p() -> None:
    scores = scores_of([0.1, 0.5, 0.15, 0.25])
    assert kept(one({"top_p": 0.6}, scores)) == [1, 3]
    assert kept(one({"top_p": 0.4}, scores)) == [1]
    assert kept(one({"top_p": 0.001}, scores)) == [1]


def test_top_p_on_equal_scores_keeps_the_last_two_as_transformers_does() -> None:
    assert kept(one({"top_p": 0.5}, torch.zeros(1, 4))) == [2, 3]


def test_min_p_one_keeps_the_likeliest_token_and_its_equals() -> None:
    assert kept(one({"min_p": 1.0}, torch.tensor([[1.0, 3.0, 3.0, 2.0]]))) == [1, 2]


@pytest.mark.parametrize(("order", "expected"), [(TRANSFORMERS_ORDER, [0.625, 0.375]), (VLLM_ORDER, [1.0])], ids=["transformers", "vllm"])
def test_min_p_before_or_after_top_p_gives_another_distribution(order: tuple[str, ...], expected: list[float]) -> None:
    pipeline = Pipeline({"min_p": 0.25, "top_p": 0.6}, context(5), order)
    probabilities = pipeline(torch.tensor([[0]]), scores_of([0.5, 0.3, 0.1, 0.06, 0.04])).softmax(-1)[0]
    torch.testing.assert_close(probabilities, torch.tensor(expected + [0.0] * (5 - len(expected))))


def test_typical_can_remove_the_likeliest_token() -> None:
    assert kept(one({"typical_p": 0.2}, scores_of([0.4, 0.15, 0.15, 0.15, 0.15]))) == [1, 2, 3, 4]


def test_min_tokens_to_keep_holds_for_warpers_that_have_it() -> None:
    scores = scores_of([0.9, 0.06, 0.03, 0.01])
    for knobs in ({"top_k": 1}, {"top_p": 0.1}, {"min_p": 1.0}, {"epsilon_cutoff": 0.99}, {"eta_cutoff": 0.99}):
        assert kept(one(knobs, scores, keep=2)) == [0, 1], knobs


@pytest.mark.parametrize("value", [1e-40, 1e-300, 1e-6])
def test_a_temperature_too_cold_to_divide_by_leaves_the_likeliest_token(value: float) -> None:
    scores = torch.tensor([[40.0, -3.0, 40.0, 39.0]])
    assert one({"temperature": value}, scores).softmax(-1)[0].tolist() == [0.5, 0.0, 0.5, 0.0]


def test_an_integer_temperature_is_cast() -> None:
    torch.testing.assert_close(one({"temperature": 2}, FIVE), FIVE / 2)
    torch.testing.assert_close(stages.get("temperature")(temperature=2).bind(context(5)).apply(torch.tensor([[0]]), FIVE, [None]), FIVE / 2)


@pytest.mark.parametrize("value", [0, 0.0, 1e-40, "1e-6"])
def test_temperature_zero_or_tiny_becomes_greedy_with_a_note(value: Any) -> None:
    lane = Lane.from_json({"strategy": "sample", "knobs": {"temperature": value, "top_k": 5}})
    assert lane.strategy.name == "greedy"
    assert len(lane.notes) == 1
    assert [stage.name for stage in lane.stages if not stage.is_off] == ["top_k"]


def test_nothing_is_on_that_was_not_asked_for() -> None:
    assert effective_stages(Lane.from_json({"strategy": "sample"}), {"temperature": 0.6, "top_k": 20}) == ()


def test_an_inherited_top_k_is_shown_with_its_origin_and_can_be_switched_off() -> None:
    inherits = {"strategy": "sample", "defaults": "inherit"}
    (found,) = effective_stages(Lane.from_json(inherits), {})
    assert (found.stage, found.origin) == (stages.get("top_k")(50), "library")
    assert effective_stages(Lane.from_json({**inherits, "knobs": {"top_k": 0}}), {}) == ()


def test_repetition_penalty_sees_the_prompt_or_the_output_only() -> None:
    prompt = ToyVocabulary(5).encode("ABAB")
    whole = one({"repetition_penalty": 2}, FIVE, prompt=prompt, output=(3,))
    torch.testing.assert_close(whole, torch.tensor([[0.5, 1.0, 3.0, -8.0, 5.0]]))
    output = one({"repetition_penalty": 2, "repetition_scope": "output"}, FIVE, prompt=prompt, output=(3,))
    torch.testing.assert_close(output, torch.tensor([[1.0, 2.0, 3.0, -8.0, 5.0]]))
    assert torch.equal(one({"repetition_penalty": 2, "repetition_scope": "output"}, FIVE, prompt=prompt), FIVE)


def test_exponential_decay_grows_without_overflowing() -> None:
    pipeline = Pipeline({"decay_factor": 10}, context(5, prompt=(0,), eos=(4,)))
    after = pipeline(torch.zeros(1, 2000, dtype=torch.long), FIVE)
    assert bool(after.isfinite().all())
    assert after.softmax(-1)[0].tolist() == [0.0, 0.0, 0.0, 0.0, 1.0]


@pytest.mark.parametrize("knobs", [*WARPERS, {"mirostat_tau": 3}], ids=label)
@pytest.mark.parametrize("bad", [-math.inf, math.nan])
def test_scores_that_are_no_distribution_pass_without_a_crash(knobs: dict[str, Any], bad: float) -> None:
    # Task says afterwards, by name, which stage they come from: nothing here may raise or make them look right.
    after = one(knobs, torch.full((1, 5), bad))
    assert not bool(after.isfinite().any())


# --- bad values ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("knob_name", "value", "range_"),
    [
        ("temperature", -0.1, "(0, 1000]"), ("temperature", "nan", "(0, 1000]"), ("top_k", -2, ">= -1"), ("top_k", 1.5, ">= -1"),
        ("top_p", 0, "(0, 1]"), ("top_p", 1.1, "(0, 1]"), ("min_p", 1.2, "[0, 1]"), ("min_p", -0.1, "[0, 1]"),
        ("typical_p", 0, "(0, 1]"), ("epsilon_cutoff", 1, "[0, 1)"), ("eta_cutoff", 1.0, "[0, 1)"), ("top_h", 1.5, "[0, 1]"),
        ("repetition_penalty", 0, "[0.01, 100]"), ("presence_penalty", 2.1, "[-2, 2]"), ("frequency_penalty", -2.1, "[-2, 2]"),
        ("no_repeat_ngram_size", -1, ">= 0"), ("min_new_tokens", "many", ">= 0"), ("repetition_scope", "prompt", "prompt+output | output"),
        ("forced_eos", "maybe", "true | false"), ("logit_bias", {"A": 101}, "[-100, 100]"), ("mirostat_tau", True, "[0, 20]"),
    ],
)  # fmt: skip
def test_a_bad_value_is_refused_with_knob_range_and_value(knob_name: str, value: Any, range_: str) -> None:
    with pytest.raises(BadValue) as caught:
        asked({knob_name: value})
    shown = repr(value["A"] if isinstance(value, dict) else value)
    for words in (caught.value.text.en, caught.value.text.zh):
        assert knob_name in words and range_ in words and shown in words


@pytest.mark.parametrize("knob_name", ["sequence_bias", "bad_words", "suppress_tokens", "begin_suppress_tokens", "logit_bias"])
def test_a_token_id_beyond_the_vocabulary_is_refused_when_the_stage_is_bound(knob_name: str) -> None:
    entry: Any = [[[5], 1.0]] if stage_knobs()[knob_name].kind == "biases" else [[5]]
    (stage,) = asked({knob_name: entry})
    stage.bind(context(6))
    with pytest.raises(BadValue, match=rf"{knob_name}.* 0 to 4, got 5"):
        stage.bind(context(5))


@pytest.mark.parametrize("knob_name", ["suppress_tokens", "begin_suppress_tokens", "logit_bias"])
def test_text_of_several_tokens_is_refused_where_single_tokens_are_meant(knob_name: str) -> None:
    (stage,) = asked({knob_name: {"AB": 1.0} if knob_name == "logit_bias" else ["AB"]})
    with pytest.raises(BadValue, match=rf"{knob_name}.*'AB' is 2 tokens.*#0 #1"):
        stage.bind(context(5))


def test_text_is_encoded_by_the_vocabulary_of_the_lane() -> None:
    forbidden = one({"bad_words": ["A", "CD"]}, FIVE, prompt=(0, 2))
    assert kept(forbidden) == [1, 2, 4]


def test_a_model_without_eos_needs_no_minimum_and_cannot_be_forced_to_end() -> None:
    without = context(5, eos=())
    for knobs in ({"min_length": 50}, {"min_new_tokens": 5}):
        assert torch.equal(Pipeline(knobs, without)(torch.tensor([PROMPT]) % 5, FIVE), FIVE)
    for knobs in ({"forced_eos": True}, {"decay_factor": 1.2}):
        (stage,) = asked(knobs)
        with pytest.raises(BadValue, match="has none"):
            stage.bind(without)


def test_a_list_of_forbidden_eos_tokens_forbids_nothing() -> None:
    assert torch.equal(Pipeline({"bad_words": [[2], [3]]}, context(5))(torch.tensor([[0]]), FIVE), FIVE)


# --- what a knob accepts ---------------------------------------------------------------------


def numbers(**rules: Any) -> Knob:
    return Knob("int", 0, Text("seed", "种子"), Text("A number.", "一个数。"), **rules)


@pytest.mark.parametrize("value", [2**63 - 1, 2**53 + 1, str(2**53 + 1)])
def test_a_large_seed_keeps_its_last_digit(value: Any) -> None:
    assert cast("seed", numbers(low=0, high=2**63 - 1), value) == int(value)


def test_whole_numbers_are_accepted_as_integers_however_they_are_written() -> None:
    assert [cast("seed", numbers(), value) for value in (2.0, "2.0", "1e3", " 7 ")] == [2, 2, 1000, 7]


def test_lists_of_tokens_are_read_from_text_json_and_back() -> None:
    tokens = stage_knobs()["bad_words"]
    assert cast("bad_words", tokens, "cat\n#12 #34\n #") == ("cat", (12, 34), " #")
    assert cast("bad_words", tokens, [7, "cat", [1, 2]]) == ((7,), "cat", (1, 2))
    biases = stage_knobs()["logit_bias"]
    assert cast("logit_bias", biases, "a:b: 2\n#5: -1.5") == (("a:b", 2.0), ((5,), -1.5))
    assert cast("logit_bias", biases, [["a", 1], [[5], 2]]) == (("a", 1.0), ((5,), 2.0))


@pytest.mark.parametrize(
    "value", [["x"] * (MOST_ENTRIES + 1), ["x" * (MOST_ENTRIES + 1)], ["\ud800"], [""], [[]], [-1], [True], [[1.5]], "a" * 300, 5, None]
)
def test_lists_of_tokens_that_no_tokenizer_could_take_are_refused(value: Any) -> None:
    with pytest.raises(BadValue):
        cast("bad_words", stage_knobs()["bad_words"], value)


# --- the catalog of stages -------------------------------------------------------------------

#: A value that switches each stage on, by stage.
_OURS = {"forced_eos": True, "presence_penalty": 1, "frequency_penalty": 1, "logit_bias": {"#9": 2}, "mirostat_tau": 2}
ON: dict[str, dict[str, Any]] = {
    name: {knob: value for knob, value in {**ALL_ON, **_OURS}.items() if knob in knobs_of(stage)} for name, stage in stages.all().items()
}


@pytest.mark.parametrize("name", TRANSFORMERS_ORDER)
def test_no_stage_edits_its_input_in_place(name: str) -> None:
    (stage,) = asked(ON[name])
    bound = stage.bind(context(99))
    for new in range(NEW):
        input_ids = torch.tensor([PROMPT + (4, 4, 9, 6, 7, 8, 9)[:new]] * 2)
        scores = torch.randn(2, 99, generator=torch.Generator().manual_seed(new))
        scores[0, 30:60] = -math.inf
        before, ids_before = scores.clone(), input_ids.clone()
        bound.apply(input_ids, scores, [bound.start] * 2)
        assert torch.equal(scores, before)
        assert torch.equal(input_ids, ids_before)


def test_knob_names_are_unique_over_all_stages() -> None:
    names = [name for stage in stages.all().values() for name in knobs_of(stage)]
    assert len(names) == len(set(names)) == len(stage_knobs())


@pytest.mark.parametrize("order", ORDERS)
def test_every_stage_stands_once_in_every_order(order: str) -> None:
    assert sorted(ORDERS[order]) == sorted(stages.all())


@pytest.mark.parametrize("name", TRANSFORMERS_ORDER)
def test_every_default_is_off_and_changes_nothing(name: str) -> None:
    stage = stages.get(name)()
    assert stage.is_off
    assert not checked(type(stage), ON[name]).is_off
    for new in (0, NEW - 1):
        bound = stage.bind(context(99))
        after = bound.apply(torch.tensor([PROMPT + (9,) * new]), scores := torch.randn(1, 99), [bound.start])
        assert torch.equal(after, scores)


@pytest.mark.parametrize("name", TRANSFORMERS_ORDER)
def test_every_declaration_is_complete_in_both_languages(name: str) -> None:
    stage = stages.get(name)
    assert stage.kind in ("processor", "warper") and stage.acts_on in ("history", "logits", "probabilities")
    assert stage.common == (name in COMMON)
    texts = [stage.label, stage.summary]
    for declared in knobs_of(stage).values():
        texts += [declared.label, declared.help]
        assert set(dict(declared.names)) <= {"transformers", "vllm", "openai", "llama.cpp"}
        if declared.kind in ("int", "float"):
            assert declared.slider is not None and declared.step, "a number needs a slider"
            low, high = declared.slider
            assert cast(name, declared, low) < cast(name, declared, high), "a slider stays in the range"
            assert low <= declared.default <= high
    for text in texts:
        assert text.en.strip() and text.zh.strip()
        assert "quality" not in text.en.lower() and "质量" not in text.zh


def test_stages_are_declared_in_the_order_of_transformers_processors_first() -> None:
    assert tuple(stages.all()) == TRANSFORMERS_ORDER
    kinds = [stages.get(name).kind for name in TRANSFORMERS_ORDER]
    assert kinds == sorted(kinds)


# --- properties ------------------------------------------------------------------------------

SIZE = 40


def values_of(declared: Knob) -> st.SearchStrategy[Any]:
    """Valid raw values of a knob, made from its declaration."""
    tokens = st.one_of(st.integers(0, SIZE - 1), st.lists(st.integers(0, SIZE - 1), min_size=1, max_size=4))
    kinds: dict[str, Callable[[], st.SearchStrategy[Any]]] = {
        "bool": st.booleans,
        "choice": lambda: st.sampled_from(declared.choices),
        "tokens": lambda: st.lists(tokens, max_size=4),
        "biases": lambda: st.lists(st.tuples(tokens, st.floats(declared.low, declared.high)), max_size=4),
        "int": lambda: st.integers(int(declared.low or 0), 60),
        "float": lambda: st.floats(declared.low, declared.high, exclude_min=declared.low_open, exclude_max=declared.high_open),
    }
    return kinds[declared.kind]()


def random_knobs(kind: str) -> st.SearchStrategy[dict[str, Any]]:
    declared = {name: knob for stage in stages.all().values() if stage.kind == kind for name, knob in knobs_of(stage).items()}
    return st.lists(st.sampled_from(sorted(declared)), min_size=1, max_size=5, unique=True).flatmap(
        lambda names: st.fixed_dictionaries({name: values_of(declared[name]) for name in names})
    )


rows = st.lists(
    st.lists(st.one_of(st.floats(-60, 60, width=32), st.just(-math.inf)), min_size=SIZE, max_size=SIZE).filter(lambda row: max(row) > -math.inf),
    min_size=1, max_size=3,
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(knobs=random_knobs("warper"), scores=rows, order=st.permutations(TRANSFORMERS_ORDER), keep=st.integers(1, 3))
def test_warpers_always_leave_a_token_and_never_revive_one(knobs: dict[str, Any], scores: list[list[float]], order: list[str], keep: int) -> None:
    before = torch.tensor(scores)
    untouched = before.clone()
    after = Pipeline(knobs, context(SIZE, keep=keep), tuple(order))(torch.zeros(len(scores), 3, dtype=torch.long), before)
    assert torch.equal(before, untouched)
    assert not bool(after.isnan().any()) and bool((after < math.inf).all())
    assert bool((after > -math.inf).any(dim=-1).all())
    assert not bool(((after > -math.inf) & (before == -math.inf)).any())
    assert bool(after.softmax(-1).isfinite().all())


@settings(max_examples=200, deadline=None)
@given(
    knobs=random_knobs("processor"), scores=rows, order=st.permutations(TRANSFORMERS_ORDER),
    output=st.lists(st.integers(0, SIZE - 1), max_size=60), eos=st.sampled_from([(), (2,), EOS]),
)  # fmt: skip
def test_processors_never_crash_and_never_make_a_score_infinite(
    knobs: dict[str, Any], scores: list[list[float]], order: list[str], output: list[int], eos: tuple[int, ...]
) -> None:
    before = torch.tensor(scores)
    untouched = before.clone()
    try:
        pipeline = Pipeline(knobs, context(SIZE, eos=eos), tuple(order))
    except PlaygroundError as error:
        assert error.code == "no_eos" and eos == ()
        return
    after = pipeline(torch.tensor([[*PROMPT, *output]] * len(scores)), before)
    assert torch.equal(before, untouched)
    assert not bool(after.isnan().any()) and bool((after < math.inf).all())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("knobs", [{"temperature": 0.7}, {"top_k": 20}, {"top_p": 0.9}, {"min_p": 0.05}], ids=label)
def test_the_common_warpers_never_make_the_host_wait_for_the_device(knobs: dict[str, Any]) -> None:
    device = torch.device("cuda")
    (stage,) = asked(knobs)
    bound = stage.bind(Context(PROMPT, EOS, NEW, ToyVocabulary(99), device))
    input_ids, scores = torch.tensor([PROMPT], device=device), torch.randn(1, 99, device=device)
    torch.cuda.set_sync_debug_mode("error")
    try:
        bound.apply(input_ids, scores, [bound.start])
    finally:
        torch.cuda.set_sync_debug_mode("default")
