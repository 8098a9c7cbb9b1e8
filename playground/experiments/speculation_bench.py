"""What guessing ahead is worth here: n-gram speculation beside the same lane without it, and beside transformers' prompt lookup.

As in `bench`, runs are interleaved and every round gives one ratio. The recording is left out on
both sides of "÷ plain" (a lane's own seconds), and nothing is recorded beside `generate`.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import torch

from playground import presets
from playground.backends import catalog, local
from playground.backends.cores import threads
from playground.experiments.bench import WARM_UP_TOKENS, endless_config, spread
from playground.experiments.bounded import Budget
from playground.request import Request
from playground.trace import DraftJudged, StepTimed, Trace, VerifyCalibrated

#: Both sides get the same k and the same longest n-gram.
K, NGRAM = 10, 3

LANES: dict[str, dict[str, Any]] = {
    "plain": {"strategy": "greedy"},
    "fixed": {"strategy": "speculative_greedy", "knobs": {"drafter": "ngram", "k": K, "ngram_max": NGRAM, "schedule": "fixed"}},
    "adaptive": {"strategy": "speculative_greedy", "knobs": {"drafter": "ngram", "k": K, "ngram_max": NGRAM, "schedule": "adaptive"}},
}


def run(pairs: int, tokens: int, say: Callable[[str], None], device: str = "auto", dtype: str = "auto") -> dict[str, Any]:
    """Measure a prompt that is copied and one that isn't; `say` gets one line per finding."""
    budget = Budget()
    loaded = dataclasses.replace(catalog.Catalog().get(catalog.DEFAULT, device, dtype), eos_ids=())
    figures: dict[str, Any] = {"machine": local.machine(loaded.device), "versions": local.versions()}
    for number, (name, (_, prompt)) in enumerate(presets.PAIRS.items()):
        figures[name] = found = _on(loaded, prompt, pairs, tokens, budget.share(len(presets.PAIRS) - number))
        for schedule in ("fixed", "adaptive"):
            one = found[schedule]
            say(
                f"{name}, n-gram {schedule} k {K}: {_ratio(one['plain'])} × plain, {_ratio(one['generate'])} × generate with prompt lookup; "
                f"accepted {one['accepted']} of {one['drafted']} guesses, {one['tokens_per_forward']:.2f} tokens per target forward; "
                f"{found['rounds']} rounds"
            )
        say(f"{name}, a forward of so many positions ÷ one: " + ", ".join(f"{n}: {cost:.2f}" for n, cost in found["verify"].items()))
    return figures


def _ratio(found: dict[str, float]) -> str:
    return f"{found['median']:.2f} ({found['min']:.2f} to {found['max']:.2f})"


def _on(loaded: catalog.LoadedModel, prompt: str, pairs: int, tokens: int, budget: Budget) -> dict[str, Any]:
    names = (*LANES, "generate")
    for name in names:
        _measured(loaded, prompt, name, min(tokens, WARM_UP_TOKENS))
    lanes: dict[str, list[Trace]] = {name: [] for name in LANES}
    walls: dict[str, list[float]] = {name: [] for name in names}
    for turn in budget.turns(pairs):
        for name in names if turn % 2 else reversed(names):
            seconds, trace = _measured(loaded, prompt, name, tokens)
            walls[name].append(seconds)
            if trace is not None:
                lanes[name].append(trace)
    found: dict[str, Any] = {"rounds": len(walls["generate"]), "verify": _verify(lanes["fixed"][-1])}
    for name in ("fixed", "adaptive"):
        rounds = list(lanes[name][-1].of(0, DraftJudged))
        states = [guess.state for judged in rounds for guess in judged.guesses]
        steps = list(lanes[name][-1].of(0, StepTimed))
        found[name] = {
            "plain": spread([_seconds(plain) / _seconds(own) for plain, own in zip(lanes["plain"], lanes[name], strict=True)]),
            "generate": spread([theirs / own for theirs, own in zip(walls["generate"], walls[name], strict=True)]),
            "drafted": len(states), "accepted": sum(state in ("accepted", "cut") for state in states),
            "tokens_per_forward": sum(step.tokens for step in steps[1:]) / len(steps[1:]),
        }  # fmt: skip
    return found


def _measured(loaded: catalog.LoadedModel, prompt: str, name: str, tokens: int) -> tuple[float, Trace | None]:
    """Wall seconds of one of the lanes without recording and its trace with it; or `generate`'s seconds alone."""
    if name == "generate":
        return _generate(loaded, prompt, tokens), None
    trace = _lane(loaded, prompt, LANES[name], tokens, record=True)[1]
    return _lane(loaded, prompt, LANES[name], tokens, record=False)[0], trace


def _seconds(trace: Trace) -> float:
    """The lane's own time behind the prompt, recording left out."""
    return list(trace.of(0, StepTimed))[-1].lane_seconds


def _verify(trace: Trace) -> dict[int, float]:
    calibrated = next(iter(trace.of(0, VerifyCalibrated)))
    return {positions: seconds / calibrated.verify[0][1] for positions, seconds in calibrated.verify}


def _lane(loaded: catalog.LoadedModel, prompt: str, lane: dict[str, Any], tokens: int, record: bool) -> tuple[float, Trace]:
    """Wall seconds of one lane, prompt included, and its trace."""
    request = Request.from_json({"prompt": prompt, "lanes": [{**lane, "max_new_tokens": tokens}]})
    comparison = local.prepare(request, lambda model: loaded, record=record, calibrate=record)
    trace = Trace(comparison.about)
    started = time.perf_counter()
    for events in comparison:
        trace.add(events)
    return time.perf_counter() - started, trace


def _generate(loaded: catalog.LoadedModel, prompt: str, tokens: int) -> float:
    """Wall seconds of transformers' own prompt lookup, for the same prompt, k, n and number of tokens."""
    ids = torch.tensor([catalog.render(loaded, prompt, None, None).ids], device=loaded.device)
    config = endless_config(loaded.model.generation_config)
    threads().use_all()
    started = time.perf_counter()
    with torch.inference_mode():
        output = loaded.model.generate(
            ids, attention_mask=torch.ones_like(ids), generation_config=config, max_new_tokens=tokens, do_sample=False,
            prompt_lookup_num_tokens=K, max_matching_ngram_size=NGRAM,
        )  # fmt: skip
    if loaded.device.type == "cuda":
        torch.cuda.synchronize()
    assert output.shape[1] == ids.shape[1] + tokens
    return time.perf_counter() - started
