"""A beam search over a random table, slow and plain, that writes the record a beam lane would: no model, no tokenizer, any size."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field, replace
from typing import Any

from playground.trace import (
    About,
    BeamCandidate,
    BeamsAdvanced,
    BeamsRanked,
    Finished,
    Hypothesis,
    LaneAbout,
    LaneEvent,
    ModelAbout,
    PromptRead,
    StepTimed,
    StepView,
    TokenChosen,
    TokenName,
    TokensNamed,
    Trace,
)  # fmt: skip

WORDS = " the cache of a model keeps keys and values so that each new token is cheap to read again when it grows in memory for every layer".split(" ")
END = 0
NAMES = (TokenName(END, b"<|im_end|>", special=True), *(TokenName(n, f" {word}".encode()) for n, word in enumerate(WORDS) if n))
PROMPT = 20
PER_TOKEN = 100


@dataclass
class Table:
    """Log-probabilities of the next token, fixed by the last two tokens."""

    seed: int = 0
    end: float = 0.02
    known: dict[tuple[int, int], list[float]] = field(default_factory=dict)

    def after(self, tokens: tuple[int, ...]) -> list[float]:
        last = (*(0, 0), *tokens)[-2:]
        if last not in self.known:
            dice = random.Random(f"{self.seed} {last}")
            weights = [math.exp(2.2 * dice.gauss(0, 1)) for _ in NAMES]
            rest = sum(weights[1:])
            self.known[last] = [math.log(self.end), *(math.log(weight / rest * (1 - self.end)) for weight in weights[1:])]
        return self.known[last]


@dataclass
class Beam:
    tokens: tuple[int, ...] = ()
    score: float = 0.0
    logs: tuple[float, ...] = ()


def beam_events(table: Table, beams: int, steps: int, penalty: float, early: str, clock: float = 0.05) -> list[Any]:
    """The events of one beam lane, by the rules of transformers."""
    living, pool, events, shown, at = [Beam()], [], [], (), 0.0  # type: ignore[var-annotated]
    ending = "length"
    for step in range(steps):
        made = [(one.score + log, slot, token, log) for slot, one in enumerate(living) for token, log in enumerate(table.after(one.tokens))]
        top = sorted(made, key=lambda entry: -entry[0])[: 2 * beams]
        last = step == steps - 1
        ended = [("eos" if token == END else "max_new_tokens" if last else None) for _, _, token, _ in top]
        ranked = [score / (step + 1) ** penalty for score, *_ in top]
        closed = early == "true" and len(pool) == beams
        ends = [(ranked[index], (step, index)) for index in range(beams) if ended[index] and not closed]
        pool = sorted([*pool, *ends], key=lambda entry: -entry[0])[:beams]
        kept = [index for index in range(len(top)) if not ended[index]][:beams]
        rows = []
        for index, (score, slot, token, log) in enumerate(top):
            fate, reason, by, gap = "dropped", None, None, None
            if index in kept:
                fate = "kept"
            elif any(key == (step, index) for _, key in pool):
                fate = "finished"
            elif ended[index] and index >= beams:
                reason, by, gap = "ended_too_low", beams - 1, top[beams - 1][0] - score
            elif ended[index]:
                reason, gap = ("early_stop", None) if closed else ("worse_than_finished", pool[-1][0] - ranked[index])
            else:
                reason, by, gap = "beaten", kept[-1], top[kept[-1]][0] - score
            rows.append(BeamCandidate(slot, token, log, score, ranked[index], fate, reason, by, gap, ended=ended[index]))
        parents = living
        living = [Beam((*parents[top[i][1]].tokens, top[i][2]), top[i][0], (*parents[top[i][1]].logs, top[i][3])) for i in kept]
        events.append(BeamsAdvanced(step, tuple(rows), tuple(kept), tuple(key for _, key in pool), 0 if living else None))
        full = len(pool) == beams
        stop = (
            bool(living)
            and full
            and (early == "true" or living[0].score / (steps if early == "never" and penalty > 0 else step + 1) ** penalty <= pool[-1][0])
        )
        best = living[0] if living and not stop else _text(events, pool[0][1])
        if stop or not living:
            over = [replace(one, fate="dropped", reason="early_stop") if one.fate == "kept" else one for one in rows]
            events[-1] = BeamsAdvanced(step, tuple(over), (), tuple(key for _, key in pool), None)
        same = next((n for n, (one, two) in enumerate(zip(shown, best.tokens, strict=False)) if one != two), min(len(shown), len(best.tokens)))
        for position in range(min(same, len(best.tokens) - 1), len(best.tokens)):
            logs = table.after(best.tokens[:position])
            events.append(_chosen(position, best.tokens[position], logs))
        shown = best.tokens
        at += clock
        grown = max(0, step)
        events.append(
            StepTimed(step, 1, clock, {"forward": clock}, 0.001, at, at, len(parents), PROMPT + grown, len(parents) * PER_TOKEN * (PROMPT + grown))
        )
        if stop or not living:
            ending = "length" if not living else "early_stop" if early == "true" else "no_better"
            break
    hypotheses = tuple(
        Hypothesis(key[0], key[1], text.tokens, text.score, value, "eos" if text.tokens[-1] == END else "max_new_tokens", text.logs)
        for value, key in pool
        for text in [_text(events, key)]
    )
    return [
        *events,
        BeamsRanked(hypotheses, 1, ending),
        Finished("stop" if ending != "length" else "length", "eos" if ending != "length" else "max_new_tokens", at),
    ]  # type: ignore[arg-type]


def _text(events: list[Any], key: tuple[int, int]) -> Beam:
    steps = [event for event in events if isinstance(event, BeamsAdvanced)]
    rows = []
    step, index = key
    while True:
        rows.append(steps[step].candidates[index])
        if step == 0:
            break
        index = steps[step - 1].living[rows[-1].beam]
        step -= 1
    rows.reverse()
    return Beam(tuple(one.token for one in rows), rows[-1].score, tuple(one.log_probability for one in rows))


def _chosen(position: int, token: int, logs: list[float]) -> TokenChosen:
    order = sorted(range(len(logs)), key=lambda one: -logs[one])
    entropy = -sum(math.exp(log) * log for log in logs)
    view = StepView(tuple(order), tuple(logs[one] for one in order), 0.0, entropy, len(logs), 0.0, (0,) * 64, scale="raw_log_probability")
    return TokenChosen(position, token, logs[token], logs[token], order.index(token), order.index(token), view=view)


def greedy_events(table: Table, steps: int, clock: float = 0.03) -> list[Any]:
    """The events of a greedy lane over the same table."""
    tokens: tuple[int, ...] = ()
    events: list[Any] = []
    for step in range(steps):
        logs = table.after(tokens)
        tokens = (*tokens, max(range(len(logs)), key=lambda one: logs[one]))
        length, at = PROMPT + step, clock * (step + 1)
        events += [_chosen(step, tokens[-1], logs), StepTimed(step, 1, clock, {"forward": clock}, 0.001, at, at, 1, length, PER_TOKEN * length)]
        if tokens[-1] == END:
            break
    ended = tokens[-1] == END
    return [*events, Finished("stop" if ended else "length", "eos" if ended else "max_new_tokens", clock * len(tokens))]


def interleaved(*lanes: list[Any]) -> list[LaneEvent]:
    """The lanes' events as a race gives them: step by step, by the clock."""
    batches: list[tuple[float, int, list[LaneEvent]]] = []
    for lane, events in enumerate(lanes):
        batch: list[LaneEvent] = []
        for event in events:
            batch.append((lane, event))
            if isinstance(event, StepTimed | Finished):
                batches.append((event.at, lane, batch))
                batch = []
    return [event for _, _, batch in sorted(batches, key=lambda entry: entry[:2]) for event in batch]


def beam_trace(
    beams: int = 4, steps: int = 12, seed: int = 0, penalty: float = 1.0, early: str = "false", end: float = 0.02, recorded_as: str = "beam"
) -> Trace:
    """A race of a beam lane (0) and a greedy lane (1) over one table."""
    table = Table(seed, end)
    events: list[LaneEvent] = [(None, TokensNamed("toy", NAMES)), (None, PromptRead(PROMPT, PROMPT, 0.1, PER_TOKEN * PROMPT, shared=True))]
    events += [(lane, PromptRead(PROMPT, PROMPT, 0.0, PER_TOKEN * PROMPT, reused=True)) for lane in (0, 1)]
    events += interleaved(beam_events(table, beams, steps, penalty, early), greedy_events(table, steps))
    knobs = {"num_beams": beams, "length_penalty": penalty, "early_stopping": early}
    lanes = [
        LaneAbout(name, "toy", strategy, asked, (), steps, (), (END,), tuple(range(PROMPT)), "prompt")
        for name, strategy, asked in ((f"beam {beams}", recorded_as, knobs), ("greedy", "greedy", {}))
    ]
    model = ModelAbout("toy", "toy", None, "float32", "cpu", 1, 4, 2, len(NAMES), None, PER_TOKEN, "2 × 50 B")
    request = {
        "prompt": {"text": "How does a cache help?", "chat": True, "system": None}, "seed": 0, "model": None, "share_prompt": True, "align": False,
        "lanes": [{"name": lane.name, "strategy": lane.strategy, "knobs": lane.knobs, "max_new_tokens": steps, "stop": []} for lane in lanes],
    }  # fmt: skip
    return Trace(About(request, (model,), tuple(lanes), {}, "a toy", "2026-01-02T03:04:05", warm=True), events)
