"""A race of a plain lane and one that speculates, made by hand: seven rounds whose every number can be added up on paper."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from playground.trace import (
    About,
    DraftJudged,
    Finished,
    Guess,
    LaneAbout,
    LaneEvent,
    ModelAbout,
    PromptRead,
    StageAbout,
    StepTimed,
    TokenChosen,
    TokenName,
    TokensNamed,
    Trace,
    VerifyCalibrated,
)  # fmt: skip

#: A word per position of the output; every token is the id of its word.
WORDS = "the cat sat on a mat and the cat sat on a hat and slept all day long there".split(" ")
ACCEPTED, REJECTED, NEVER, CUT = "accepted", "rejected", "never_judged", "cut"

#: The rounds: the states of the guesses, what came on top, and why there were fewer guesses than wanted.
ROUNDS: tuple[tuple[tuple[str, ...], str | None, str | None], ...] = (
    ((ACCEPTED, ACCEPTED, ACCEPTED), "bonus", None),
    ((ACCEPTED, REJECTED, NEVER), "resampled", None),
    ((), "plain", "no_match"),
    ((REJECTED, NEVER, NEVER), "resampled", None),
    ((), "plain", "adaptive"),
    ((ACCEPTED, ACCEPTED), "bonus", "adaptive"),
    ((ACCEPTED, ACCEPTED, CUT), None, None),
)
PLAIN_STEP, ROUND, EMPTY_ROUND = 0.040, 0.070, 0.045
STAGE = StageAbout("temperature", "warper", {"temperature": 0.8}, "asked")


def draft_events(rounds: Sequence[tuple[tuple[str, ...], str | None, str | None]] = ROUNDS, k: int = 3, seconds: float = ROUND) -> list[Any]:
    """The events of the speculating lane: its first token, then a step per round."""
    events: list[Any] = [VerifyCalibrated(((1, 0.04), (2, 0.044), (4, 0.060)), None, 5, 3)]
    events += [TokenChosen(0, 0, -0.5, -0.5, 0, 0, origin="plain"), _timed(0, 1, 0.002, {"select": 0.002}, 5)]
    position = 1
    for number, (states, extra, limit) in enumerate(rounds):
        guesses = []
        for i, state in enumerate(states):
            token = (position + i) % len(WORDS) if state in (ACCEPTED, CUT) else (position + i + 3) % len(WORDS)
            p = None if state == NEVER else 0.5 if state == REJECTED else 0.9
            guesses.append(Guess(token, 1.0, state, p, p, None if p is None else 0.25))  # type: ignore[arg-type]
        written = [("accepted", guess.token) for guess in guesses if guess.state == ACCEPTED]
        if extra is not None:
            written.append((extra, (position + len(written)) % len(WORDS)))
        for i, (origin, token) in enumerate(written):
            events.append(TokenChosen(position + i, token, -0.1, -0.2, 0, 0, u=0.25, interval=(0.0, 0.9), origin=origin))  # type: ignore[arg-type]
        took = seconds if states else EMPTY_ROUND
        parts = {"draft": 0.001 * len(states), "verify": took - 0.010, "select": 0.004, "rollback": 0.002}
        last = written[-1][1] if extra is not None else None
        length = 5 + position + len(written) - 1
        events.append(DraftJudged(number, position, "ngram", tuple(guesses), k, last, extra, parts, length, limit=limit))  # type: ignore[arg-type]
        events.append(_timed(number + 1, len(written), took, {"forward": took - 0.010}, length))
        position += len(written)
    return [*events, Finished("length", "max_new_tokens", 1.0)]


def _timed(step: int, tokens: int, seconds: float, parts: dict[str, float], length: int) -> StepTimed:
    return StepTimed(step, tokens, seconds, parts, 0.001, 0.1 * step, 0.1 * step, 1, length, 10 * length)


def draft_trace(
    spec: list[Any] | None = None, plain: bool = True, stages: tuple[StageAbout, ...] = (), strategy: str = "speculative_greedy"
) -> Trace:
    """The plain lane first, if there is one, then the one that speculates."""
    spec = draft_events() if spec is None else spec
    tokens = [event for event in spec if isinstance(event, TokenChosen)]
    model = ModelAbout("toy", "toy", None, "float32", "cpu", 1, 400, 2, 30, 64, 10, "2 × 5 B")

    def lane(name: str, strategy: str) -> LaneAbout:
        knobs = {"drafter": "ngram", "k": 3} if strategy.startswith("spec") else {}
        return LaneAbout(name, "toy", strategy, knobs, stages, 20, (), (), (20, 21, 22, 23, 24), "a prompt")

    lanes = [lane("plain", "greedy" if strategy == "speculative_greedy" else "sample")] if plain else []
    lanes.append(lane("speculative", strategy))
    names = tuple(TokenName(n, f" {word}".encode()) for n, word in enumerate(WORDS))
    events: list[LaneEvent] = [(None, TokensNamed("toy", names)), (None, PromptRead(3, 5, 0.1, 30, shared=True))]
    events += [(None, PromptRead(5, 5, 0.1, 50, shared=True)), *((n, PromptRead(5, 5, 0.0, 50, reused=True)) for n in range(len(lanes)))]
    if plain:
        for event in tokens:
            took = PLAIN_STEP if event.position else 0.002
            chosen = TokenChosen(event.position, event.token, -0.1, -0.2, 0, 0)
            events += [(0, chosen), (0, _timed(event.position, 1, took, {"forward": took}, 5 + event.position))]
        events.append((0, Finished("length", "max_new_tokens", 1.0)))
    events += [(len(lanes) - 1, event) for event in spec]
    events = [(lane, replace(event, at=0.01 * n) if isinstance(event, StepTimed | Finished) else event) for n, (lane, event) in enumerate(events)]
    asked = [{"name": one.name, "strategy": one.strategy, "knobs": dict(one.knobs), "max_new_tokens": 20} for one in lanes]
    request = {"prompt": {"text": "a prompt"}, "lanes": asked, "seed": 1}
    about = About(request, (model,), tuple(lanes), {}, "a machine", "2026-01-02T03:04:05+00:00", warm=True)
    return Trace.from_json(Trace(about, events).to_json())
