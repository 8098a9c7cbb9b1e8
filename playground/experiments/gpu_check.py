"""What only a CUDA machine can show, in under four minutes and without a network: `make gpu-check`.

Random weights in the shape of a 1B Llama, bf16. It reports a recorded lane ÷ untraced `generate`,
the share of the memory-bandwidth limit, host synchronisations per step, whether the parts add up to
the step, and whether greedy equals `generate` in float32. Exit status 1 if a check fails.
"""

from __future__ import annotations

import dataclasses
import statistics
import sys
import time
import warnings
from typing import Any

import torch
import transformers

from playground.backends.local import TransformersModel, machine
from playground.engine.clock import Clock
from playground.engine.dice import Dice
from playground.engine.knobs import checked
from playground.engine.race import Race, Runner
from playground.engine.stages import Context, knob_owners
from playground.engine.stop import MaxNewTokens
from playground.engine.strategies import Strategy, strategies
from playground.engine.task import Task
from playground.experiments.bench import read_bandwidth
from playground.terminal import say
from playground.trace import PromptRead, StepTimed, TokenChosen

TOKENS = 64
PAIRS = 10
PROMPT = tuple(range(100, 164))


def one_b_llama(dtype: torch.dtype, layers: int = 16) -> Any:
    """A Llama of 1.2B parameters (the shape of Llama-3.2-1B) with random weights on the GPU."""
    config = transformers.LlamaConfig(
        vocab_size=128256, hidden_size=2048, intermediate_size=8192, num_hidden_layers=layers, num_attention_heads=32, num_key_value_heads=8,
        head_dim=64, max_position_embeddings=8192, tie_word_embeddings=True, eos_token_id=None, bos_token_id=1, pad_token_id=0, dtype=dtype,
    )  # fmt: skip
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = transformers.LlamaForCausalLM(config)
    return model.to(dtype).eval().requires_grad_(False)


class Ids:
    """A vocabulary that has no text: the check speaks in ids only."""

    size = 128256

    def piece(self, token: int) -> bytes:
        return b""

    def is_special(self, token: int) -> bool:
        return False

    def encode(self, text: str) -> tuple[int, ...]:
        return ()


def task_for(model: Any, knobs: dict[str, Any]) -> Task:
    """One recorded lane over the model."""
    lane_model = TransformersModel(model)
    context = Context(PROMPT, (), TOKENS, Ids(), lane_model.device)
    owners = knob_owners()
    stages = [checked(owners[name], {name: value}) for name, value in knobs.items()]
    return Task(
        model=lane_model,
        prompt=PROMPT,
        stages=tuple((stage.name, stage.kind, stage.bind(context)) for stage in stages),
        stop_rules=(MaxNewTokens(TOKENS),),
        dice=Dice(0),
        clock=Clock(lane_model.device),
    )


def recorded(model: Any, strategy: Strategy, knobs: dict[str, Any]) -> tuple[float, list[Any]]:
    """Wall seconds and events of one recorded lane."""
    race = Race([Runner(0, task_for(model, knobs), strategy)], share_prompt=False)
    torch.cuda.synchronize()
    started = time.perf_counter()
    events = [event for batch in race for _, event in batch]
    torch.cuda.synchronize()
    return time.perf_counter() - started, events


def generated(model: Any, knobs: dict[str, Any]) -> tuple[float, list[int]]:
    """Wall seconds and tokens of `generate`."""
    ids = torch.tensor([PROMPT], device="cuda")
    torch.cuda.synchronize()
    started = time.perf_counter()
    with torch.inference_mode():
        output = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=TOKENS, do_sample=bool(knobs), **knobs)
    torch.cuda.synchronize()
    return time.perf_counter() - started, output[0, len(PROMPT) :].tolist()


def syncs_per_step(model: Any, strategy: Strategy, knobs: dict[str, Any]) -> float:
    """Host synchronisations that torch itself reports, per decode step after the first."""
    race = iter(Race([Runner(0, task_for(model, knobs), strategy)], share_prompt=False))
    for batch in race:
        if any(isinstance(event, TokenChosen) for _, event in batch):
            break
    counts: list[int] = []
    torch.cuda.set_sync_debug_mode("warn")
    for _ in range(20):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            next(race)
        counts.append(sum("synchroniz" in str(warning.message) for warning in caught))
    torch.cuda.set_sync_debug_mode("default")
    return statistics.mean(counts)


def prompt_seconds(model: Any, strategy: Strategy) -> tuple[float, float]:
    """Seconds that `PromptRead` tells of a long prompt, and the wall seconds until it was read."""
    told, measured = 0.0, 0.0
    for _ in range(2):  # the first one warms up
        task = dataclasses.replace(task_for(model, {}), prompt=tuple(range(100, 2148)))
        torch.cuda.synchronize()
        started, told = time.perf_counter(), 0.0
        for batch in Race([Runner(0, task, strategy)], share_prompt=False):
            told += sum(event.seconds for _, event in batch if isinstance(event, PromptRead))
            if any(isinstance(event, PromptRead) and event.tokens == event.total for _, event in batch):
                break
        torch.cuda.synchronize()
        measured = time.perf_counter() - started
    return told, measured


def main() -> int:
    """Run every check; print one line each."""
    if not torch.cuda.is_available():
        print("gpu-check: there is no CUDA device here; nothing was checked.", file=sys.stderr)
        return 2
    failures = 0

    def tell(passed: bool | None, line: str) -> None:
        nonlocal failures
        failures += passed is False
        say({True: "ok    ", False: "FAIL  ", None: "      "}[passed] + line)

    greedy, sample = strategies.get("greedy")(), strategies.get("sample")()
    sampling = {"temperature": 0.8, "top_k": 50, "top_p": 0.95}
    print(f"{machine(torch.device('cuda'))} · torch {torch.__version__} · transformers {transformers.__version__}")

    exact = one_b_llama(torch.float32, layers=4)
    ours = [event.token for event in recorded(exact, greedy, {})[1] if isinstance(event, TokenChosen)]
    tell(ours == generated(exact, {})[1], "greedy equals generate token for token in float32")
    del exact
    torch.cuda.empty_cache()

    model = one_b_llama(torch.bfloat16)
    reading, wall = prompt_seconds(model, greedy)
    tell(reading >= 0.9 * wall, f"reading 2,048 prompt tokens: {reading * 1e3:.1f} ms told, {wall * 1e3:.1f} ms measured")
    bandwidth = read_bandwidth(torch.device("cuda"))
    weight_bytes = sum(parameter.nbytes for parameter in model.parameters())
    for name, strategy, knobs in (("greedy", greedy, {}), ("top-k + top-p sampling", sample, sampling)):
        recorded(model, strategy, knobs)
        generated(model, knobs)
        ratios, events = [], []
        for pair in range(PAIRS):
            if pair % 2:
                b = generated(model, knobs)[0]
                a, events = recorded(model, strategy, knobs)
            else:
                a, events = recorded(model, strategy, knobs)
                b = generated(model, knobs)[0]
            ratios.append(b / a)
        steps = [event for event in events if isinstance(event, StepTimed)][1:]
        seconds = statistics.median(step.seconds for step in steps)
        moved = weight_bytes + statistics.median(step.cache_bytes for step in steps)
        tell(
            statistics.median(ratios) >= 1.0, f"{name}: recorded ÷ generate {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
        )
        tell(
            None, f"{name}: step {seconds * 1e3:.2f} ms, {moved / seconds / bandwidth:.0%} of the memory-bandwidth limit ({bandwidth / 1e9:.0f} GB/s)"
        )
        rest = statistics.median(step.parts["other"] / step.seconds for step in steps)
        tell(rest < 0.1, f"{name}: the parts explain {1 - rest:.1%} of a step (median)")
        syncs = syncs_per_step(model, strategy, knobs)
        tell(syncs <= 1.0, f"{name}: {syncs:.2f} host synchronisations per step")
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
