"""Speculative decoding on real caches: the plain lane's tokens, the end inside a block, rollbacks, refusals, and the record."""

from __future__ import annotations

import copy
import dataclasses
from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from playground.backends.local import TransformersModel
from playground.engine.drafters import Draft, drafters
from playground.engine.drafters.chain import Chain
from playground.engine.knobs import checked, knobs_of, values_of
from playground.engine.race import Race, Runner
from playground.engine.stages import Stage, knob_owners
from playground.engine.stop import ContextLimit
from playground.engine.strategies import strategies
from playground.engine.strategies.speculative import Pace, Speculative
from playground.engine.task import Task
from playground.errors import BadValue, PlaygroundError, Text
from playground.request import TRANSFORMERS_ORDER, Lane
from playground.trace import About, DraftJudged, Finished, PromptRead, StepTimed, TokenChosen, Trace, VerifyCalibrated
from tests.toy_model import ToyModel, run_alone, tokens_of, toy_task
from tests.toys import FAMILIES, tiny_model

BASES = ("greedy", "sample")


def lane(name: str, **knobs: Any) -> Any:
    made = checked(strategies.get(name), knobs)
    made.check()
    return made


def stage(**knobs: Any) -> Stage:
    return checked(knob_owners()[next(iter(knobs))], knobs)


def in_order(*wanted: Stage) -> list[Stage]:
    return sorted(wanted, key=lambda one: TRANSFORMERS_ORDER.index(one.name))


def prompt_of(family: str, seed: int = 1) -> tuple[int, ...]:
    """A few random tokens, twice over, so that there is something to look up."""
    size = tiny_model(family).config.vocab_size
    return tuple(torch.randint(4, size, (6,), generator=torch.Generator().manual_seed(seed)).tolist()) * 2


@cache
def rough_model(family: str) -> Any:
    """A tiny model with noise on its weights: a drafter that is often right."""
    model = copy.deepcopy(tiny_model(family))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for _, weight in model.named_parameters():
            weight.add_(torch.randn(weight.shape, generator=generator) * 0.08 * weight.std())
    return model


def run(family: str, strategy: Any, *wanted: Stage, tokens: int = 40, seed: int = 1, record: bool = False, **limits: Any) -> list[Any]:
    task = toy_task(TransformersModel(tiny_model(family)), prompt_of(family), wanted, seed=seed, max_new_tokens=tokens, record=record, **limits)
    task.draft_model = TransformersModel(rough_model(family))
    return run_alone(task, strategy)


def judged(events: Sequence[Any]) -> list[DraftJudged]:
    return [event for event in events if isinstance(event, DraftJudged)]


def states(events: Sequence[Any]) -> Counter[str]:
    return Counter(guess.state for event in judged(events) for guess in event.guesses)


# --- token for token ------------------------------------------------------------------------------

#: Every drafter that rolls no die; a recorded answer is made of the plain one, with a token missing here and there.
DETERMINISTIC: dict[str, dict[str, Any]] = {
    "ngram": {},
    "suffix": {"suffix_min": 1},
    "recorded": {},
    "early_exit": {"exit_layer": 1},
    "draft_model": {},
}


def test_every_drafter_is_compared_with_the_plain_lane() -> None:
    assert set(DETERMINISTIC) == set(drafters.all())


@pytest.mark.parametrize("drafter", DETERMINISTIC)
@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("family", FAMILIES)
def test_without_dice_the_tokens_are_the_plain_lanes(family: str, base: str, drafter: str) -> None:
    wanted = [stage(temperature=0.3)] if base == "sample" else []
    plain = tokens_of(run(family, lane(base), *wanted))
    knobs = {"recorded": {"recorded": " ".join(f"#{token}" for at, token in enumerate(plain) if at % 7 != 3)}}.get(drafter, DETERMINISTIC[drafter])
    for k in range(1, 9):
        events = run(family, lane(f"speculative_{base}", drafter=drafter, k=k, schedule="fixed", **knobs), *wanted)
        assert tokens_of(events) == plain, f"k = {k}"
        seen = states(events)
        assert seen["accepted"] > 0 and seen["rejected"] > 0, f"k = {k}: nothing was shown by {dict(seen)}"


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("schedule", ["adaptive", "confidence"])
def test_other_schedules_change_no_token(base: str, schedule: str) -> None:
    wanted = [stage(temperature=0.3)] if base == "sample" else []
    events = run("llama", lane(f"speculative_{base}", drafter="draft_model", k=6, schedule=schedule), *wanted)
    assert tokens_of(events) == tokens_of(run("llama", lane(base), *wanted))
    assert states(events)["accepted"] and states(events)["rejected"]
    assert len({len(event.guesses) for event in judged(events)}) > 1


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "knobs",
    [
        {"repetition_penalty": 1.4},
        {"no_repeat_ngram_size": 2},
        {"min_new_tokens": 25},
        {"mirostat_tau": 3.0},
        {"temperature": 0.4, "min_p": 0.2},
        {"logit_bias": ((("#7"), 3.0),), "temperature": 0.4},
    ],
    ids=lambda knobs: "+".join(knobs),
)  # fmt: skip
def test_every_stage_sees_the_guesses_before_each_position(family: str, knobs: dict[str, Any]) -> None:
    """Also min-p and logit bias, which some servers skip on verified tokens."""
    wanted = in_order(*(stage(**{name: value}) for name, value in knobs.items()))
    plain = run(family, lane("sample"), *wanted, eos=(2, 3), record=True)
    events = run(family, lane("speculative_sample", drafter="draft_model", k=5, schedule="fixed"), *wanted, eos=(2, 3), record=True)
    assert tokens_of(events) == tokens_of(plain) and states(events)["accepted"] > 0
    for ours, theirs in zip(chosen(events), chosen(plain), strict=True):
        assert (ours.position, ours.u, ours.rank, ours.raw_rank) == (theirs.position, theirs.u, theirs.rank, theirs.raw_rank)
        assert ours.log_probability == pytest.approx(theirs.log_probability, abs=1e-4)
        assert ours.raw_log_probability == pytest.approx(theirs.raw_log_probability, abs=1e-4)
        assert ours.view is not None and theirs.view is not None
        assert [one.stage for one in ours.view.stages] == [one.stage for one in theirs.view.stages]
        assert ours.view.raw[:20] == pytest.approx(theirs.view.raw[:20], abs=1e-4)
        for mine, other in zip(ours.stage_states, theirs.stage_states, strict=True):
            assert mine[0] == other[0] and mine[1] == pytest.approx(other[1], abs=1e-4)


def chosen(events: Sequence[Any]) -> list[TokenChosen]:
    return [event for event in events if isinstance(event, TokenChosen)]


def test_a_prompt_of_one_token() -> None:
    def of(strategy: Any) -> list[int]:
        return tokens_of(run_alone(toy_task(TransformersModel(tiny_model("gpt2")), (10,), max_new_tokens=12), strategy))

    for drafter in ("ngram", "suffix", "early_exit"):
        knobs = {"exit_layer": 1} if drafter == "early_exit" else {}
        assert of(lane("speculative_greedy", drafter=drafter, **knobs)) == of(lane("greedy"))


def test_drawn_guesses_follow_the_seed() -> None:
    strategy = lane("speculative_sample", drafter="draft_model", drafting="probabilistic", schedule="fixed")
    assert tokens_of(run("llama", strategy, seed=3)) == tokens_of(run("llama", strategy, seed=3)) != tokens_of(run("llama", strategy, seed=4))
    seen = states(run("llama", strategy, seed=3))
    assert seen["accepted"] and seen["rejected"]


# --- caches ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("drafter", ["ngram", "early_exit", "draft_model"])
def test_after_every_rollback_the_logits_equal_a_fresh_forward(monkeypatch: pytest.MonkeyPatch, family: str, drafter: str) -> None:
    compared: list[int] = []
    rollback = Task.rollback

    def audited(task: Task, length: int) -> None:
        surplus = task.model.length - length
        rollback(task, length)
        ids = torch.tensor([held[:length]])
        fresh = TransformersModel(tiny_model(family)).forward(torch.cat([ids, torch.tensor([[7]])], dim=1))
        torch.testing.assert_close(task.model.fork().forward(torch.tensor([[7]])), fresh, atol=1e-4, rtol=1e-4)
        compared.append(surplus)

    held: list[int] = []
    verify = Speculative.verify

    def noted(self: Any, task: Task, row: Any, logits: Tensor, draft: Draft, round: int) -> Any:
        after = verify(self, task, row, logits, draft, round)
        held[:] = after[0].ids.tolist()
        assert task.model.length == row.ids.shape[0] + len(draft.tokens)
        return after

    monkeypatch.setattr(Task, "rollback", audited)
    monkeypatch.setattr(Speculative, "verify", noted)
    events = run(family, lane("speculative_greedy", drafter=drafter, k=4, schedule="fixed", **({"exit_layer": 1} if drafter == "early_exit" else {})))
    assert max(compared) > 0 and min(compared) == 0
    steps = [event for event in events if isinstance(event, StepTimed)]
    total = len(prompt_of(family))
    assert [step.cache_length for step in steps] == [total + sum(step.tokens for step in steps[: n + 1]) - 1 for n in range(len(steps))]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_draft_models_cache_follows_the_row(monkeypatch: pytest.MonkeyPatch, family: str) -> None:
    """What the draft model says after a rejection is what it says to the same text read afresh."""
    scores, seen = Chain._scores, [0]

    def compared(self: Chain, unread: Sequence[int], row: Any) -> Tensor:
        ours = scores(self, unread, row)
        fresh = TransformersModel(rough_model(family)).forward(row.ids[None])[:, -1]
        torch.testing.assert_close(ours, fresh[0], atol=1e-4, rtol=1e-4)
        seen[0] += 1
        return ours

    monkeypatch.setattr(Chain, "_scores", compared)
    events = run(family, lane("speculative_greedy", drafter="draft_model", k=4, schedule="fixed"), tokens=25)
    assert states(events)["rejected"] > 1 and seen[0] > 10


class Recurrent(ToyModel):
    """A model whose state can't be rolled back."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.can_roll_back = False


def test_a_cache_that_cannot_be_rolled_back_is_refused_by_name() -> None:
    with pytest.raises(PlaygroundError) as refused:
        lane("speculative_greedy").check_models(toy_task(Recurrent()))
    assert refused.value.code == "cache_not_croppable" and "rolled back" in refused.value.text.en
    task = toy_task(ToyModel())
    task.draft_model = Recurrent()
    with pytest.raises(PlaygroundError, match="draft model's KV cache"):
        lane("speculative_greedy", drafter="draft_model").check_models(task)


def test_an_error_in_mid_draft_leaves_the_model_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("llama")
    before = tokens_of(run("llama", lane("greedy")))
    layers, config = model.config.num_hidden_layers, model.config
    calls = [0]
    scores = Chain._scores

    def failing(self: Chain, *arguments: Any) -> Tensor:
        calls[0] += 1
        if calls[0] == 6:
            raise PlaygroundError("planted", Text("broken", "坏了"))
        return scores(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Chain, "_scores", failing)
        events = run("llama", lane("speculative_greedy", drafter="early_exit", exit_layer=1, k=4, schedule="fixed"))
    assert isinstance(events[-1], Finished) and events[-1].detail == "planted"
    assert 0 < len(tokens_of(events)) < 40 and tokens_of(events) == before[: len(tokens_of(events))]
    assert model.config is config and model.config.num_hidden_layers == layers == len(model.model.layers)
    assert tokens_of(run("llama", lane("greedy"))) == before
    assert tokens_of(run("llama", lane("speculative_greedy", drafter="early_exit", exit_layer=1, k=4))) == before


def test_stop_in_the_middle_of_a_race_leaves_the_next_one_untouched() -> None:
    strategy = lane("speculative_greedy", drafter="early_exit", exit_layer=1, k=4)
    before = tokens_of(run("gpt2", strategy))
    race = Race([Runner(0, toy_task(TransformersModel(tiny_model("gpt2")), prompt_of("gpt2"), max_new_tokens=40), strategy)])
    steps = iter(race)
    for _ in range(6):
        next(steps)
    race.stop()
    assert [event.reason for events in steps for _, event in events if isinstance(event, Finished)] == ["cancelled"]
    assert tokens_of(run("gpt2", strategy)) == before


# --- the end of the text, inside a block ------------------------------------------------------------


class NextLetter(ToyModel):
    """After A comes B, after B comes C…; the alphabet goes round."""

    def __init__(self, rows: list[list[int]] | None = None, table: Tensor | None = None, size: int = 26) -> None:
        letters = torch.full((size, size, size), -20.0)
        for letter in range(size):
            letters[:, letter, (letter + 1) % size] = 0.0
        super().__init__(size, rows=rows, table=letters)


ALPHABET = (*range(12), 0, 1)  # ABCDEFGHIJKLAB


@pytest.mark.parametrize("drafter", ["ngram", "suffix", "recorded"])
@pytest.mark.parametrize(("stop", "eos"), [(["E"], ()), ([], (4,))], ids=["stop string", "eos"])
def test_the_text_ends_inside_an_accepted_block(drafter: str, stop: list[str], eos: tuple[int, ...]) -> None:
    knobs = {"recorded": "CDEFGHIJ"} if drafter == "recorded" else {}
    plain = run_alone(toy_task(NextLetter(), ALPHABET, stop=stop, eos=eos, max_new_tokens=16), lane("greedy"))
    task = toy_task(NextLetter(), ALPHABET, stop=stop, eos=eos, max_new_tokens=16)
    events = run_alone(task, lane("speculative_greedy", drafter=drafter, k=6, schedule="fixed", **knobs))
    assert tokens_of(events) == [2, 3, 4] == tokens_of(plain)
    assert events[-1].reason == "stop" and events[-1].cut == (2 if stop else None)
    (last,) = judged(events)
    assert [guess.state for guess in last.guesses] == ["accepted", "accepted", "cut", "cut", "cut", "cut"]
    assert last.extra is None and last.extra_origin is None


@pytest.mark.parametrize("stop", ["DE", "CDE", "EF"])
def test_a_stop_string_across_the_border_of_a_block_is_found(stop: str) -> None:
    for k in (1, 2, 3, 5):
        task = toy_task(NextLetter(), ALPHABET, stop=[stop], max_new_tokens=16)
        events = run_alone(task, lane("speculative_greedy", drafter="ngram", k=k, schedule="fixed"))
        text = "CDEFGHIJKL"
        assert tokens_of(events) == [ord(letter) - ord("A") for letter in text[: text.index(stop) + len(stop)]]
        assert events[-1].cut == text.index(stop)


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 7])
def test_max_new_tokens_is_kept_and_no_guess_is_wasted_on_it(limit: int) -> None:
    events = run_alone(toy_task(NextLetter(), ALPHABET, max_new_tokens=limit), lane("speculative_greedy", drafter="ngram", k=6, schedule="fixed"))
    assert tokens_of(events) == [(2 + n) % 26 for n in range(limit)]
    assert events[-1].detail == "max_new_tokens"
    for event in judged(events):
        assert event.position + len(event.guesses) + 1 <= limit  # the target's own token needs a place
        assert event.wanted == 6 and event.limit == "max_new_tokens"


def test_guesses_stay_inside_the_context() -> None:
    task = toy_task(NextLetter(), ALPHABET, max_new_tokens=50)
    task = dataclasses.replace(task, stop_rules=(*task.stop_rules, ContextLimit(len(ALPHABET) + 6, len(ALPHABET))))
    events = run_alone(task, lane("speculative_greedy", drafter="ngram", k=9, schedule="fixed"))
    assert len(tokens_of(events)) == 6 and events[-1].detail == "context"
    assert judged(events)[0].limit == "context"


def test_counts_at_an_end_tell_accepted_and_emitted_apart() -> None:
    """[d1, d2, EOS, d4, d5] all right: five would have stood, three are written."""
    events = run_alone(
        toy_task(NextLetter(), ALPHABET, eos=(5,), max_new_tokens=30), lane("speculative_greedy", drafter="ngram", k=5, schedule="fixed")
    )
    (last,) = judged(events)
    assert Counter(guess.state for guess in last.guesses) == {"accepted": 3, "cut": 2}
    assert len(tokens_of(events)) == 1 + 3


def test_the_first_guess_is_verified_like_every_other() -> None:
    """Prompt 1 1 1: the lookup guesses 1, the target says otherwise."""
    table = torch.full((5, 5, 5), -9.0)
    table[:, 1, 2] = table[:, 2, 1] = 0.0
    events = run_alone(toy_task(ToyModel(5, table=table), (1, 1, 1), max_new_tokens=8), lane("speculative_greedy", drafter="ngram", schedule="fixed"))
    assert tokens_of(events) == [2, 1, 2, 1, 2, 1, 2, 1]
    assert judged(events)[1].guesses[0].state in ("rejected", "accepted") and states(events)["rejected"] > 0


def test_behind_the_end_no_stage_can_fail_the_lane() -> None:
    """A stage that leaves nothing behind an EOS is not asked of, since the plain lane never gets there."""
    wanted = stage(bad_words=tuple((4, token) for token in range(26)))  # after E nothing is allowed
    task = toy_task(NextLetter(), ALPHABET, [wanted], eos=(4,), max_new_tokens=16)
    events = run_alone(task, lane("speculative_greedy", drafter="ngram", k=6, schedule="fixed"))
    assert events[-1].reason == "stop" and tokens_of(events) == [2, 3, 4]
    assert [guess.state for guess in judged(events)[-1].guesses][2:] == ["never_judged"] * 4


# --- how many to guess ------------------------------------------------------------------------------


@pytest.mark.parametrize("drafter", ["ngram", "draft_model", "early_exit"])
@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("schedule", ["fixed", "adaptive"])
def test_k_is_an_upper_bound_at_every_step(drafter: str, k: int, schedule: str) -> None:
    knobs = {"exit_layer": 1} if drafter == "early_exit" else {}
    events = run("qwen", lane("speculative_greedy", drafter=drafter, k=k, schedule=schedule, **knobs))
    counts = [len(event.guesses) for event in judged(events)]
    assert max(counts) <= k and all(event.wanted == k for event in judged(events))
    if drafter != "ngram" and schedule == "fixed":
        assert set(counts[:-3]) == {k}


def test_an_adaptive_pace_rises_falls_pauses_and_tries_again() -> None:
    pace = Pace(8, adaptive=True)
    assert pace.wanted == 8
    pace.after(8, 2)
    assert pace.wanted == 5
    pace.after(5, 5)
    assert pace.wanted == 8  # all of them stood: k again, never more
    pace.after(8, 2)
    pace.after(5, 0)
    assert pace.wanted == 2
    pace.after(2, 0)
    assert pace.wanted == 0
    for _ in range(8):
        assert pace.wanted == 0
        pace.after(0, 0)
    assert pace.wanted == 1  # tries again, with one guess
    pace.after(0, 0)
    assert pace.wanted == 1  # nothing was found: nothing is learned
    pace.after(1, 0)
    assert [pace.after(0, 0) or pace.wanted for _ in range(16)] == [0] * 15 + [1]  # twice as long
    pace.after(1, 1)
    assert pace.wanted == 8


def test_a_fixed_pace_stays() -> None:
    pace = Pace(5, adaptive=False)
    for accepted in (0, 0, 0, 5):
        pace.after(5, accepted)
        assert pace.wanted == 5


def test_a_doubtful_guess_is_the_last_and_stays_in() -> None:
    strategy = lane("speculative_greedy", drafter="draft_model", drafting="probabilistic", k=6, schedule="confidence", confidence=0.5)
    doubtful = [event for event in judged(run("llama", strategy, stage(repetition_penalty=1.1))) if event.limit == "confidence"]
    assert doubtful
    for event in doubtful:
        assert event.guesses[-1].q < 0.5 and all(guess.q >= 0.5 for guess in event.guesses[:-1])


# --- what is refused, what is asked -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("knobs", "named"),
    [
        ({"drafter": "ngram", "ngram_min": 5, "ngram_max": 2}, "ngram_min"),
        ({"drafter": "ngram", "schedule": "confidence"}, "schedule"),
        ({"k": 0}, "k must be"),
        ({"k": 17}, "k must be"),
        ({"drafter": "medusa"}, "drafter must be"),
        ({"drafter": "recorded", "recorded": "x" * 20_001}, "recorded"),
        ({"drafter": "recorded", "recorded": "\ud800"}, "recorded"),
        ({"exit_layer": 0, "drafter": "early_exit"}, "exit_layer"),
    ],
)
def test_bad_knobs_are_refused_by_name(knobs: dict[str, Any], named: str) -> None:
    with pytest.raises(BadValue, match=named):
        Lane.from_json({"strategy": "speculative_greedy", "knobs": knobs})


@pytest.mark.parametrize(
    ("knobs", "named"),
    [
        ({"drafter": "early_exit", "exit_layer": 2}, "2 layers"),
        ({"drafter": "recorded", "recorded": "#100000"}, "98"),
        ({"drafter": "recorded"}, "no recorded answer"),
        ({"drafter": "draft_model"}, "no draft model"),
    ],
)
def test_what_cannot_work_on_the_model_is_refused_before_the_run(knobs: dict[str, Any], named: str) -> None:
    with pytest.raises(PlaygroundError, match=named):
        lane("speculative_greedy", **knobs).check_models(toy_task(TransformersModel(tiny_model("llama"))))


def test_a_lane_keeps_its_drafters_knobs_and_forgets_those_of_others() -> None:
    raw = {"strategy": "speculative_sample", "knobs": {"drafter": "ngram", "ngram_max": "5", "exit_layer": 3, "temperature": 0.7, "k": 6.0}}
    made = Lane.from_json(raw)
    assert values_of(made.strategy) == {"drafter": "ngram", "k": 6, "schedule": "adaptive", "ngram_max": 5, "ngram_min": 1}
    assert Lane.from_json(made.to_json()) == made
    for name, drafter in drafters.all().items():
        for own in knobs_of(drafter):
            assert name in knobs_of(strategies.get("speculative_greedy"))[own].only[1]  # type: ignore[index]


def test_a_cold_speculative_lane_is_greedy_with_the_same_drafter() -> None:
    made = Lane.from_json({"strategy": "speculative_sample", "knobs": {"temperature": 0, "drafter": "suffix", "k": 7, "suffix_min": 3}})
    assert values_of(made.strategy) == values_of(lane("speculative_greedy", drafter="suffix", k=7, suffix_min=3))
    assert made.strategy.name == "speculative_greedy" and not made.strategy.warps and made.notes


# --- the draft model's vocabulary -------------------------------------------------------------------


@pytest.mark.parametrize("drafting", ["greedy", "probabilistic"])
@pytest.mark.parametrize("size", [6, 14])
def test_only_ids_that_both_models_share_are_guessed(size: int, drafting: str) -> None:
    """A draft model with fewer or more ids than the target's ten, of which eight are the same."""
    task = toy_task(ToyModel(10, spread=0.5), max_new_tokens=60)
    task.draft_model, task.shared_ids = ToyModel(size, seed=1, spread=0.5), 8
    events = run_alone(task, lane("speculative_sample", drafter="draft_model", drafting=drafting, schedule="fixed"))
    guessed = {guess.token for event in judged(events) for guess in event.guesses}
    assert guessed and max(guessed) < min(size, 8)
    assert max(tokens_of(events)) == 9  # the target writes the others all the same


# --- the record -------------------------------------------------------------------------------------


def test_a_round_adds_up() -> None:
    events = run("gpt2", lane("speculative_sample", drafter="draft_model", drafting="probabilistic", k=3, schedule="fixed"), stage(temperature=0.5))
    tokens, at = chosen(events), 1
    assert tokens[0].origin == "plain" and tokens[0].position == 0
    for number, event in enumerate(judged(events)):
        accepted = [guess.token for guess in event.guesses if guess.state == "accepted"]
        written = tokens[at : at + len(accepted) + (event.extra is not None)]
        assert event.round == number and event.position == at == written[0].position
        assert [token.token for token in written] == [*accepted, *([event.extra] if event.extra is not None else [])]
        assert [token.origin for token in written] == ["accepted"] * len(accepted) + [event.extra_origin] * (event.extra is not None)
        for guess in event.guesses:
            if guess.state == "never_judged":
                assert guess.p is guess.u is guess.accept is None
            else:
                assert guess.p is not None and guess.u is not None and guess.accept == min(1.0, guess.p / guess.q)
                assert (guess.state == "accepted") == (guess.u * guess.q < guess.p)
        assert event.extra_origin == ("resampled" if any(guess.state == "rejected" for guess in event.guesses) else "bonus")
        at += len(written)
    assert at == len(tokens) == 40


def test_a_guess_without_a_die_stands_where_the_plain_die_falls() -> None:
    events = run("gpt2", lane("speculative_sample", drafter="early_exit", exit_layer=1, k=2, schedule="fixed"), stage(temperature=0.5))
    by_position = {token.position: token for token in chosen(events)}
    for event in judged(events):
        for offset, guess in enumerate(event.guesses):
            if guess.state in ("accepted", "rejected"):
                token = by_position[event.position + offset]
                assert guess.q == 1.0 and guess.u == token.u and (token.token == guess.token) == (guess.state == "accepted")
                assert guess.accept == guess.p
                if guess.state == "accepted":
                    assert torch.tensor(token.log_probability).exp().item() == pytest.approx(guess.p, abs=1e-5)


def test_steps_without_a_guess_are_rounds_too() -> None:
    events = run_alone(toy_task(ToyModel(12), max_new_tokens=20), lane("speculative_sample", drafter="ngram", ngram_min=3))
    empty = [event for event in judged(events) if not event.guesses]
    assert empty and all(event.extra_origin == "plain" and event.limit in ("no_match", "adaptive", "max_new_tokens") for event in empty)
    assert len(chosen(events)) == 20 and {token.origin for token in chosen(events)} >= {"plain"}


def test_time_of_a_round_is_told_by_part_and_is_the_steps() -> None:
    events = run("llama", lane("speculative_greedy", drafter="draft_model", k=4, schedule="fixed"))
    steps = [event for event in events if isinstance(event, StepTimed)][1:]
    for event, step in zip(judged(events), steps, strict=True):
        assert step.tokens == len([guess for guess in event.guesses if guess.state == "accepted"]) + (event.extra is not None)
        assert event.seconds["verify"] == step.parts["forward"] > 0 and event.seconds["rollback"] == step.parts["cache"]
        assert event.seconds["draft"] == step.parts.get("draft", 0.0)
        assert (event.seconds["draft"] > 0) == bool(event.guesses)
        assert sum(step.parts.values()) == pytest.approx(step.seconds, rel=1e-6)
    first = judged(events)[0]
    assert first.target_length == steps[0].cache_length and first.draft_length and first.draft_bytes


def test_the_draft_model_reads_the_prompt_before_the_lane_or_in_it() -> None:
    def events(shared: bool) -> list[Any]:
        task = toy_task(TransformersModel(tiny_model("llama")), prompt_of("llama"), max_new_tokens=6)
        task.draft_model = TransformersModel(rough_model("llama"))
        race = Race([Runner(0, task, lane("speculative_greedy", drafter="draft_model"))], share_prompt=shared)
        return [event for batch in race for _, event in batch]

    together, apart = events(True), events(False)
    assert tokens_of(together) == tokens_of(apart)
    assert [read.shared for read in together if isinstance(read, PromptRead)] == [True, False]
    assert len([read for read in apart if isinstance(read, PromptRead)]) == 2  # the target's, then the drafter's


@pytest.mark.parametrize("knobs", [{"drafter": "draft_model"}, {"drafter": "early_exit", "exit_layer": 1}], ids=lambda knobs: knobs["drafter"])
def test_calibration_changes_nothing_and_is_not_the_lanes_time(knobs: dict[str, Any]) -> None:
    def events(calibrate: bool) -> list[Any]:
        task = toy_task(TransformersModel(tiny_model("qwen")), prompt_of("qwen"), max_new_tokens=12)
        task.draft_model, task.calibrate = TransformersModel(rough_model("qwen")), calibrate
        return run_alone(task, lane("speculative_sample", drafting="probabilistic", k=5, schedule="fixed", **knobs))

    with_it, without = events(True), events(False)
    assert tokens_of(with_it) == tokens_of(without)
    (measured,) = [event for event in with_it if isinstance(event, VerifyCalibrated)]
    assert [count for count, _ in measured.verify] == [1, 2, 3, 5, 6] and all(seconds > 0 for _, seconds in measured.verify)
    assert measured.draft is not None and measured.draft > 0 and measured.length == len(prompt_of("qwen"))
    assert not any(isinstance(event, VerifyCalibrated) for event in without)
    steps = [event for event in with_it if isinstance(event, StepTimed)]
    assert steps[0].step == 0 and steps[0].lane_seconds == pytest.approx(steps[0].seconds, abs=0.05)


def test_rounds_survive_a_file() -> None:
    about = About({}, (), (), {}, "toy", "2026-01-01T00:00:00+00:00", True)
    events = run("llama", lane("speculative_greedy", drafter="draft_model", k=3))
    trace = Trace(about, [(0, event) for event in events])
    assert Trace.from_json(trace.to_json()) == trace
