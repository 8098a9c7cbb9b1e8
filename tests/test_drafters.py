"""What each drafter guesses from a text, by itself: no model, no verification."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from playground.engine.drafters import Draft, Drafting, drafters
from playground.engine.knobs import checked
from playground.engine.race import Race, Runner
from playground.engine.strategies import strategies
from playground.engine.task import Task
from playground.trace import DraftJudged, TokenChosen
from tests.toy_model import ToyModel, run_alone, tokens_of, toy_task

SETTINGS: dict[str, dict[str, Any]] = {"recorded": {"recorded": "#5 #6 #7 #8 #5 #6 #9"}, "early_exit": {"exit_layer": 1}}


class TwoLayers(ToyModel):
    """A toy whose early exit is the toy itself, over the same rows."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.layers = 2

    def fork(self) -> TwoLayers:
        return TwoLayers(self.vocabulary_size, table=self.table, rows=[list(row) for row in self._rows])


def task_of(prompt: tuple[int, ...], **more: Any) -> Task:
    task = toy_task(TwoLayers(), prompt)
    task.draft_model = ToyModel(seed=1)
    for name, value in more.items():
        setattr(task, name, value)
    return task


def start(name: str, task: Task, **knobs: Any) -> Drafting:
    steps = checked(drafters.get(name), knobs).start(task)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def guess(name: str, prompt: tuple[int, ...], output: tuple[int, ...], k: int = 4, task: Task | None = None, **knobs: Any) -> Draft:
    """The first guess behind prompt and output; the target has read all but the last token."""
    task = task or task_of(prompt)
    row = task.start
    for token in output:
        row = task.extend(row, token, -1.0)
    with torch.inference_mode():
        if not task.model.length:
            task.model.forward(row.ids[None, :-1])
        return start(name, task, **knobs).guess(row, k, 0)


# --- the contract ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", drafters.all())
def test_every_drafter_keeps_the_contract(name: str) -> None:
    """At most k known tokens, a q that adds up to one for each or none at all, and the same again when asked again."""
    for drafting in ("greedy", "probabilistic") if drafters.get(name).doubts else ("",):
        knobs = SETTINGS.get(name, {}) | ({"drafting": drafting} if drafting else {})
        task = task_of((5, 6, 7, 8))
        task.model.forward(torch.tensor([[5, 6, 7, 8]]))
        drafter = start(name, task, **knobs)
        row = task.extend(task.start, 5, -1.0)
        for k in (1, 3, 6):
            length = task.model.length
            draft = drafter.guess(row, k, 0)
            assert len(draft.tokens) <= k and all(0 <= token < 12 for token in draft.tokens)
            assert drafter.guess(row, k, 0).tokens == draft.tokens
            assert task.model.length == length, "the target's cache is left as it was"
            if draft.q is not None:
                assert drafting == "probabilistic" and len(draft.q) == len(draft.tokens)
                assert all(q.dtype == torch.float64 and float(q.sum()) == pytest.approx(1.0, abs=1e-12) for q in draft.q)
                assert all(float(q[token]) > 0 for q, token in zip(draft.q, draft.tokens, strict=True))


@pytest.mark.parametrize("name", drafters.all())
def test_every_drafter_says_what_it_is_in_both_languages(name: str) -> None:
    drafter = drafters.get(name)
    for text in (drafter.label, drafter.summary):
        assert text.en and any("\u4e00" <= character <= "\u9fff" for character in text.zh)


# --- n-gram lookup ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "output", "knobs", "expected", "source", "matched"),
    [
        ((1, 2, 3, 4, 5, 6), (2, 3), {}, (4, 5, 6, 2), "prompt", 2),
        ((1, 2, 3, 9, 2, 3, 4), (1, 2, 3), {"ngram_max": 3}, (9, 2, 3, 4), "prompt", 3),  # the longest match wins
        ((7, 3, 1, 2, 3, 5), (2, 3), {"ngram_max": 2}, (5, 2, 3), "prompt", 2),
        ((7, 3, 1, 2, 3, 5), (2, 3), {"ngram_max": 1}, (1, 2, 3, 5), "prompt", 1),  # of one length, the left-most
        ((1, 2), (3, 4, 5, 3), {}, (4, 5, 3), "output", 1),
        ((1, 2, 3, 4), (3,), {"ngram_min": 2}, (), None, None),
        ((1, 2, 3, 4), (5,), {}, (), None, None),
        ((1, 1), (1,), {"ngram_max": 3}, (1,), "output", 2),
    ],
)  # fmt: skip
def test_ngram_lookup(prompt: Any, output: Any, knobs: Any, expected: Any, source: Any, matched: Any) -> None:
    draft = guess("ngram", prompt, output, **knobs)
    assert (draft.tokens, draft.source, draft.matched) == (expected, source, matched)
    assert draft.limit == (None if expected else "no_match") and draft.q is None


def test_ngram_lookup_grown_with_the_row_equals_one_from_scratch() -> None:
    generator = torch.Generator().manual_seed(0)
    output = tuple(torch.randint(4, (60,), generator=generator).tolist())
    task = task_of((1, 2, 3, 0))
    grown = start("ngram", task)
    row = task.start
    for count, token in enumerate(output, 1):
        row = task.extend(row, token, -1.0)
        if count % 3 == 0:
            assert grown.guess(row, 5, 0) == guess("ngram", (1, 2, 3, 0), output[:count], k=5)


# --- suffix lookup ---------------------------------------------------------------------------------


def test_suffix_lookup_takes_the_longest_match_and_the_most_frequent_continuation() -> None:
    prompt = (1, 2, 3, 7, 2, 3, 8, 9, 2, 3, 8, 5)
    assert guess("suffix", prompt, (2, 3), k=1, suffix_min=2).tokens == (8,)  # twice 8, once 7
    longer = guess("suffix", prompt, (1, 2, 3), k=1, suffix_min=2)
    assert longer.tokens == (7,) and longer.matched == 3 and longer.source == "prompt"
    assert guess("suffix", prompt, (2, 3), suffix_min=3).limit == "no_match"


def test_earlier_runs_are_looked_up_and_labelled() -> None:
    earlier = ((1, 4, 5, 6, 7), (4, 5, 9, 9))
    draft = guess("suffix", (1, 2), (4, 5), task=task_of((1, 2), earlier=earlier), k=2)
    assert draft.source == "earlier_run" and draft.tokens in ((6, 7), (9, 9))
    assert guess("suffix", (1, 2), (4, 5), task=task_of((1, 2), earlier=earlier), earlier_runs=False).limit == "no_match"
    own = guess("suffix", (4, 5, 8, 1), (4, 5), task=task_of((4, 5, 8, 1), earlier=((4, 5, 8, 3),)), k=1)
    assert own.tokens == (8,) and own.source == "prompt"


def test_no_lane_looks_at_another_lane_of_its_race() -> None:
    """The other lane writes the same text first, and this one finds nothing to copy in it."""
    alone = run_alone(toy_task(ToyModel(12, seed=3), seed=2), lane := checked(strategies.get("speculative_sample"), {"drafter": "suffix"}))
    runners = [
        Runner(0, toy_task(ToyModel(12, seed=3), seed=2), strategies.get("sample")()),
        Runner(1, toy_task(ToyModel(12, seed=3), seed=2), lane),
    ]
    events = [pair for batch in Race(runners) for pair in batch]
    ours = [event for owner, event in events if owner == 1]
    assert tokens_of(ours) == tokens_of([event for owner, event in events if owner == 0 and isinstance(event, TokenChosen)])
    assert [event.guesses for event in ours if isinstance(event, DraftJudged)] == [event.guesses for event in alone if isinstance(event, DraftJudged)]


# --- a recorded answer -----------------------------------------------------------------------------


def test_a_recorded_answer_is_followed_and_found_again_after_a_rejection() -> None:
    recorded = {"recorded": "#1 #2 #3 #4 #5 #6 #7 #8 #9"}
    task = task_of((0, 0))
    drafter = start("recorded", task, **recorded)
    row = task.extend(task.start, 1, -1.0)
    assert drafter.guess(row, 3, 0).tokens == (2, 3, 4)
    for token in (2, 3, 11):  # 4 was rejected, something else stands there
        row = task.extend(row, token, -1.0)
    lost = drafter.guess(row, 3, 0)
    assert lost.tokens == () and lost.limit == "no_match"
    row = task.extend(row, 5, -1.0)
    found = drafter.guess(row, 3, 0)
    assert found.tokens == (6, 7, 8) and found.matched == 1 and found.source == "recorded"
    for token in (6, 7, 8, 9):
        row = task.extend(row, token, -1.0)
    assert drafter.guess(row, 3, 0).limit == "no_match"  # the recording is over


def test_of_several_places_in_a_recording_the_nearest_is_taken() -> None:
    task = task_of((0,))
    drafter = start("recorded", task, recorded="#1 #2 #3 #1 #2 #4 #1 #2 #5")
    row = task.start
    for token in (1, 2, 3, 1):
        row = task.extend(row, token, -1.0)
    assert drafter.guess(row, 2, 0).tokens == (2, 4)
    for token in (2, 11, 1, 2):
        row = task.extend(row, token, -1.0)
    assert drafter.guess(row, 1, 0).tokens == (4,)


def test_a_recorded_text_is_read_with_the_lanes_vocabulary() -> None:
    assert guess("recorded", (0,), (2,), recorded="CDEF").tokens == (3, 4, 5)


# --- with a model ----------------------------------------------------------------------------------


def test_a_draft_model_beyond_its_context_guesses_nothing() -> None:
    task = task_of((1, 2, 3, 4))
    assert task.draft_model is not None
    task.draft_model.context = 6
    assert len(guess("draft_model", (1, 2, 3, 4), (5,), task=task, k=4).tokens) == 2
    task = task_of((1, 2, 3, 4))
    assert task.draft_model is not None
    task.draft_model.context = 4
    assert guess("draft_model", (1, 2, 3, 4), (5,), task=task).limit == "context"


def test_dice_of_guesses_depend_on_the_round() -> None:
    task = task_of((1, 2))
    drafter = start("draft_model", task, drafting="probabilistic")
    row = task.extend(task.start, 3, -1.0)
    drafts = {drafter.guess(row, 4, round).tokens for round in range(12)}
    assert len(drafts) > 3
