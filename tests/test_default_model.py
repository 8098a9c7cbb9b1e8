"""The real default model: what a visitor sees is what transformers' `generate` would have said."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from playground.backends import catalog, local
from playground.backends.catalog import LoadedModel
from playground.errors import BadValue
from playground.measures.text import output_text
from playground.presets import CLASSIC_PROMPT
from playground.request import Request
from playground.trace import BeamsAdvanced, BeamsRanked, DraftJudged, StepTimed, TokenChosen, Trace

pytestmark = pytest.mark.slow


def run(loaded: LoadedModel, *lanes: dict[str, Any], prompt: Any = CLASSIC_PROMPT, **more: Any) -> Trace:
    comparison = local.prepare(Request.from_json({"prompt": prompt, "lanes": list(lanes), **more}), lambda model: loaded)
    trace = Trace(comparison.about)
    for events in comparison:
        trace.add(events)
    return trace


def tokens(trace: Trace, lane: int = 0) -> list[int]:
    return [event.token for event in trace.of(lane, TokenChosen)]


@pytest.mark.parametrize("prompt", [CLASSIC_PROMPT, "用中文写一句话。🎉", "Count from 1 to 30: 1, 2, 3,"])
def test_greedy_equals_generate_token_for_token(default_model: LoadedModel, prompt: str) -> None:
    ids = torch.tensor([catalog.render(default_model, prompt).ids])
    expected = default_model.model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=60, do_sample=False)[0, ids.shape[1] :]
    trace = run(default_model, {"strategy": "greedy", "max_new_tokens": 60}, prompt=prompt)
    assert tokens(trace) == expected.tolist()
    decoded = default_model.tokenizer.decode(expected, skip_special_tokens=True)
    assert output_text(trace, 0) == decoded.removesuffix("\ufffd") or output_text(trace, 0) == decoded


def test_scores_after_the_stages_equal_generates_along_the_same_tokens(default_model: LoadedModel) -> None:
    knobs = {"repetition_penalty": 1.2, "no_repeat_ngram_size": 3, "temperature": 0.8, "top_k": 50, "top_p": 0.95, "min_p": 0.02}
    ids = torch.tensor([catalog.render(default_model, CLASSIC_PROMPT).ids])
    torch.manual_seed(0)
    theirs = default_model.model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=True, output_scores=True, return_dict_in_generate=True, **knobs
    )  # fmt: skip
    chosen = theirs.sequences[0, ids.shape[1] :].tolist()
    request = Request.from_json({"prompt": CLASSIC_PROMPT, "lanes": [{"strategy": "sample", "knobs": knobs}]})
    task = local.make_task(request, local.prepare_lane(request, request.lanes[0], default_model))
    with torch.inference_mode():
        row, logits = task.start, task.forward([task.prompt])[:, -1]
        for token, expected in zip(chosen, theirs.scores, strict=True):
            torch.testing.assert_close(task.score(logits, [row]).scores, expected, atol=1e-4, rtol=1e-5)
            row = task.extend(row, token, 0.0)
            logits = task.forward([[token]])[:, -1]


def test_lanes_of_one_race_equal_lanes_alone(default_model: LoadedModel) -> None:
    lanes = [{"strategy": "sample", "knobs": {"temperature": t, "top_p": 0.95}, "max_new_tokens": 12} for t in (0.7, 1.1)]
    together = run(default_model, *lanes, seed=5)
    assert [tokens(together, lane) for lane in (0, 1)] == [tokens(run(default_model, lane, seed=5)) for lane in lanes]


def test_kv_bytes_are_what_the_formula_says(default_model: LoadedModel) -> None:
    trace = run(default_model, {"strategy": "greedy", "max_new_tokens": 5})
    per_token = trace.about.models[0].cache_bytes_per_token
    assert per_token == 2 * 30 * 3 * 64 * 4
    assert all(step.cache_bytes == step.cache_length * per_token for step in trace.of(0, StepTimed))


def test_a_stop_string_in_chinese_is_found_across_byte_tokens(default_model: LoadedModel) -> None:
    prompt: dict[str, Any] = {"text": "你好。再见。" * 6, "chat": False}
    free = output_text(run(default_model, {"strategy": "greedy", "max_new_tokens": 40}, prompt=prompt), 0)
    split = next(character for character in free if len(default_model.vocabulary.encode(character)) > 1)
    stopped = run(default_model, {"strategy": "greedy", "max_new_tokens": 40, "stop": [split]}, prompt=prompt)
    assert output_text(stopped, 0) == free[: free.index(split)]


@pytest.mark.parametrize(
    ("prompt", "knobs", "most"),
    [
        (CLASSIC_PROMPT, {"num_beams": 4}, 30),
        ("Name three colours.", {"num_beams": 3, "length_penalty": 2.0, "early_stopping": "never", "num_return_sequences": 3}, 20),
    ],
)
def test_beam_search_equals_generate_token_for_token_and_score_for_score(
    default_model: LoadedModel, prompt: str, knobs: dict[str, Any], most: int
) -> None:
    ids = torch.tensor([catalog.render(default_model, prompt).ids])
    theirs = default_model.model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=most, do_sample=False, output_scores=True, return_dict_in_generate=True, **knobs
    )
    trace = run(default_model, {"strategy": "beam", "knobs": knobs, "max_new_tokens": most}, prompt=prompt)
    (ranked,) = trace.of(0, BeamsRanked)
    assert ranked.returned == len(theirs.sequences)
    for hypothesis, sequence, score in zip(ranked.hypotheses, theirs.sequences, theirs.sequences_scores, strict=False):
        expected = sequence[ids.shape[1] :].tolist()
        assert list(hypothesis.tokens) == expected[: len(hypothesis.tokens)]
        assert set(expected[len(hypothesis.tokens) :]) <= {default_model.tokenizer.pad_token_id}
        assert hypothesis.ranked == pytest.approx(float(score), abs=1e-4)
    assert [chosen.token for chosen in trace.output(0)] == list(ranked.hypotheses[0].tokens)
    assert Trace.from_json(trace.to_json()) == trace
    known = trace.names(trace.about.models[0].key)
    assert all(candidate.token in known for step in trace.of(0, BeamsAdvanced) for candidate in step.candidates)


def test_beams_hold_a_row_of_the_cache_each(default_model: LoadedModel) -> None:
    trace = run(default_model, {"strategy": "beam", "knobs": {"num_beams": 4}, "max_new_tokens": 6})
    per_token = trace.about.models[0].cache_bytes_per_token
    *steps, last = trace.of(0, StepTimed)
    assert per_token is not None and steps and all(step.rows == 4 for step in steps)
    assert all(step.cache_bytes == 4 * step.cache_length * per_token for step in (*steps, last))


def test_more_rows_than_memory_holds_are_refused_with_the_sum(default_model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    lane = {"strategy": "beam", "knobs": {"num_beams": 16}, "max_new_tokens": 1000}
    monkeypatch.setattr(local, "free_memory", lambda device: 10**9)
    with pytest.raises(BadValue) as caught:
        run(default_model, lane)
    assert caught.value.code == "beams_memory" and "16 beams × " in caught.value.text.en and "1.00 GB of memory are free" in caught.value.text.en
    assert caught.value.values["lane"] == 0


#: Half of what follows can be looked up.
COPYING: dict[str, Any] = {
    "text": "Day 1: Anna ate an apple. Day 2: Ben ate a banana. Day 3: Carl ate an apple. Day 4: Dora ate a banana. Day 5:",
    "chat": False,
}


@pytest.mark.parametrize("drafter", ["ngram", "suffix", "recorded", "early_exit", "draft_model"])
@pytest.mark.parametrize("base", ["greedy", "sample"])
def test_speculation_without_dice_writes_the_plain_lanes_tokens(default_model: LoadedModel, base: str, drafter: str) -> None:
    """Also where a forward of several positions rounds otherwise than one of a single position: no near-tie lies on these ways."""
    knobs = {"temperature": 0.4} if base == "sample" else {}
    plain = tokens(run(default_model, {"strategy": base, "knobs": knobs, "max_new_tokens": 40}, prompt=COPYING, seed=1))
    own: dict[str, Any] = {
        "suffix": {"suffix_min": 1, "earlier_runs": False},  # the plain lane is an earlier run: nothing would be rejected
        "recorded": {"recorded": " ".join(f"#{token}" for at, token in enumerate(plain) if at % 9 != 4)},
        "early_exit": {"exit_layer": 29},
        "draft_model": {"draft_model": catalog.DEFAULT},
    }
    lanes = [
        {
            "strategy": f"speculative_{base}",
            "max_new_tokens": 40,
            "knobs": {**knobs, "drafter": drafter, "k": k, "schedule": "fixed", **own.get(drafter, {})},
        }
        for k in (1, 8)
    ]
    trace = run(default_model, *lanes, prompt=COPYING, seed=1)
    for index in range(len(lanes)):
        assert tokens(trace, index) == plain
        states = {guess.state for event in trace.of(index, DraftJudged) for guess in event.guesses}
        assert "accepted" in states and (drafter == "draft_model" or "rejected" in states)  # a model that drafts for itself is always right
