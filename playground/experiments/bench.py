"""How fast a fully recorded lane is beside transformers' own untraced `generate`, on the default model.

Timings on a shared machine drift, so the two run in turn (A B, then B A), every pair gives one
ratio, and the median of the ratios is what is quoted. Slow machines make fewer pairs than were asked for.
"""

from __future__ import annotations

import copy
import dataclasses
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from playground.backends import catalog, local
from playground.backends.cores import threads
from playground.experiments.bounded import Budget
from playground.presets import CLASSIC_PROMPT
from playground.request import Request
from playground.trace import StepTimed, Trace

#: A run that only warms up is this short.
WARM_UP_TOKENS = 8

SETTINGS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "greedy": ({"strategy": "greedy"}, {"do_sample": False}),
    "top-k + top-p sampling": (
        {"strategy": "sample", "knobs": {"temperature": 0.8, "top_k": 50, "top_p": 0.95}},
        {"do_sample": True, "temperature": 0.8, "top_k": 50, "top_p": 0.95},
    ),
    "beam 4": ({"strategy": "beam", "knobs": {"num_beams": 4}}, {"do_sample": False, "num_beams": 4}),
}


def spread(values: list[float]) -> dict[str, float]:
    """Median with the smallest and largest value beside it."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def run(pairs: int, tokens: int, say: Callable[[str], None], device: str = "auto", dtype: str = "auto") -> dict[str, Any]:
    """Measure every setting on the default model; `say` gets one line per finding."""
    budget = Budget()
    loaded = catalog.Catalog().get(catalog.DEFAULT, device, dtype)
    bandwidth = read_bandwidth(loaded.device)
    figures: dict[str, Any] = {"machine": local.machine(loaded.device), "versions": local.versions(), "read_bandwidth": bandwidth}
    say(f"{figures['machine']} · read bandwidth {bandwidth / 1e9:.1f} GB/s · {tokens} tokens, up to {pairs} pairs")
    for number, (name, (lane, arguments)) in enumerate(SETTINGS.items()):
        own = budget.share(len(SETTINGS) - number)
        figures[name] = found = against_generate(loaded, lane, arguments, pairs, tokens, bandwidth, own)
        say(
            f"{name}: recorded lane {found['recorded']['median']:.1f} tokens/s, generate {found['generate']['median']:.1f} tokens/s, "
            f"ratio {found['ratio']['median']:.3f} (min {found['ratio']['min']:.3f}, max {found['ratio']['max']:.3f}, {found['pairs']} pairs); "
            f"step {found['step_seconds'] * 1e3:.1f} ms + recording {found['recording_seconds'] * 1e3:.2f} ms; "
            f"{found['bandwidth_share']:.0%} of the memory-bandwidth limit; "
            f"most KV cache held: {found['cache_bytes'] / 1e6:.1f} MB, generate {found['generate_cache_bytes'] / 1e6:.1f} MB"
        )
    return figures


def against_generate(
    loaded: catalog.LoadedModel, lane: dict[str, Any], arguments: dict[str, Any], pairs: int, tokens: int, bandwidth: float, budget: Budget
) -> dict[str, Any]:
    """Tokens per second of wall time, prompt included, of both; neither may end early."""
    endless = dataclasses.replace(loaded, eos_ids=())
    recorded, generated, ratios = [], [], []
    trace: Trace | None = None
    recorded_run(endless, lane, min(tokens, WARM_UP_TOKENS))
    generate_run(loaded, arguments, min(tokens, WARM_UP_TOKENS))
    for pair in budget.turns(pairs):
        if pair % 2:
            b, held = generate_run(loaded, arguments, tokens)
            a, trace = recorded_run(endless, lane, tokens)
        else:
            a, trace = recorded_run(endless, lane, tokens)
            b, held = generate_run(loaded, arguments, tokens)
        recorded.append(tokens / a)
        generated.append(tokens / b)
        ratios.append(b / a)
    assert trace is not None
    steps = [event for event in trace.of(0, StepTimed)][1:]  # the first step has no forward of its own
    seconds = statistics.median(step.seconds for step in steps)
    moved = trace.about.models[0].weight_bytes + statistics.median(step.cache_bytes for step in steps)
    return {
        "pairs": len(ratios),
        "recorded": spread(recorded),
        "generate": spread(generated),
        "ratio": spread(ratios),
        "step_seconds": seconds,
        "recording_seconds": statistics.median(step.recording for step in steps),
        "bandwidth_share": moved / seconds / bandwidth,
        "cache_bytes": max(step.cache_bytes for step in steps),
        "generate_cache_bytes": held,
    }


def recorded_run(loaded: catalog.LoadedModel, lane: dict[str, Any], tokens: int) -> tuple[float, Trace]:
    """Wall seconds of one lane with everything recorded, and its trace."""
    request = Request.from_json({"prompt": CLASSIC_PROMPT, "lanes": [{**lane, "max_new_tokens": tokens}]})
    comparison = local.prepare(request, lambda model: loaded)
    trace = Trace(comparison.about)
    started = time.perf_counter()
    for events in comparison:
        trace.add(events)
    return time.perf_counter() - started, trace


def generate_run(loaded: catalog.LoadedModel, arguments: dict[str, Any], tokens: int) -> tuple[float, int]:
    """Wall seconds of transformers' `generate` for the same prompt and number of tokens, and the bytes of its KV cache at the end."""
    ids = torch.tensor([catalog.render(loaded, CLASSIC_PROMPT, None, None).ids], device=loaded.device)
    model = copy.copy(loaded.model)  # the same weights; an EOS of the model's own defaults would come back for one that is None in a call
    model.generation_config = endless_config(loaded.model.generation_config)
    threads().use_all()  # as it comes: our lanes may have left fewer
    started = time.perf_counter()
    with torch.inference_mode():
        output = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, return_dict_in_generate=True, **arguments
        )  # fmt: skip
    if loaded.device.type == "cuda":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - started
    assert output.sequences.shape[1] == ids.shape[1] + tokens
    return seconds, sum(layer.keys.nbytes + layer.values.nbytes for layer in output.cache.layers)


def endless_config(config: Any) -> Any:
    """The model's generation config without an end, so that both sides write the same number of tokens."""
    endless = type(config).from_dict(config.to_dict())
    endless.eos_token_id = None
    return endless


def read_bandwidth(device: torch.device) -> float:
    """Bytes per second at which this device reads memory: a sum over 512 MB, median of 9."""
    block = torch.ones(128 * 2**20, device=device)
    seconds = []
    for _ in range(10):
        started = time.perf_counter()
        block.sum()
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    return block.nbytes / statistics.median(seconds[1:])
