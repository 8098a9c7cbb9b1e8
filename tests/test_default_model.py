"""The real default model: what a visitor sees is what transformers' `generate` would have said."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from playground.backends import catalog, local
from playground.backends.catalog import LoadedModel
from playground.measures.text import output_text
from playground.presets import CLASSIC_PROMPT
from playground.request import Request
from playground.trace import StepTimed, TokenChosen, Trace

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
