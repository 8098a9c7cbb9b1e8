"""All that a strategy is given: the model, the stages, the dice and the clock behind a few verbs."""

from __future__ import annotations

import math
import sys
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from playground.engine.clock import Clock
from playground.engine.dice import Dice
from playground.engine.model import LanguageModel, Vocabulary
from playground.engine.record import Packed, Scale, StepRecord, pend_view
from playground.engine.select import Drawn, argmax, draw
from playground.engine.stages import BoundStage
from playground.engine.stop import ContextLimit, EndOfSequence, MaxNewTokens, Stopped, StopRule, StopStrings
from playground.errors import PlaygroundError, Text
from playground.trace import Event, PromptRead, StepView, TokenChosen

#: Prompts are read in pieces of this many tokens, and Stop is looked at between them: on a CPU a piece deep in a long
#: prompt takes a good part of a second.
PROMPT_CHUNK = 128
PROMPT_CHUNK_ON_CPU = 64


def prompt_pieces(tokens: Sequence[int], model: LanguageModel) -> list[Sequence[int]]:
    """The pieces in which a prompt is read by this model, on its device."""
    if not model.reads_in_pieces:
        return [tokens]
    size = PROMPT_CHUNK_ON_CPU if model.device.type == "cpu" else PROMPT_CHUNK
    return [tokens[first : first + size] for first in range(0, len(tokens), size)]


@dataclass(frozen=True)
class Row:
    """One sequence being written: its ids, and the state that stages and stop rules keep for it.

    A row is a value: `Task.append` returns the next one, so beams fork and drafts roll back by
    keeping the row that they started from.
    """

    ids: Tensor  # [T] prompt and output
    output: tuple[int, ...]
    stage_states: tuple[Any, ...]
    stop_states: tuple[Any, ...]
    stopped: Stopped | None = None

    @property
    def position(self) -> int:
        """Where the next output token goes, counted from 0."""
        return len(self.output)


@dataclass(frozen=True)
class Scored:
    """Scores of `[B, V]` after the stages, with what each stage left on the way."""

    scores: Tensor
    raw: Tensor  # [B, V] before the first stage
    records: tuple[StepRecord | None, ...]

    def probabilities(self) -> Tensor:
        """Softmax over the vocabulary, `[B, V]`, float32."""
        return self.scores.softmax(dim=-1)


@dataclass(frozen=True)
class Choice:
    """A token, and how it was chosen: what `TokenChosen` will tell."""

    token: int
    log_probability: float
    raw_log_probability: float
    rank: int | None = None
    raw_rank: int | None = None
    u: float | None = None
    interval: tuple[float, float] | None = None
    view: StepView | None = None


@dataclass
class Task:
    """One lane at work. Every strategy gets scores, tokens and rows here and nowhere else."""

    model: LanguageModel
    prompt: tuple[int, ...]
    stages: tuple[tuple[str, str, BoundStage], ...]  # (name, kind, bound), in order
    stop_rules: tuple[StopRule, ...]
    dice: Dice
    clock: Clock
    record: bool = True
    prompt_logits: Tensor | None = None
    #: What writes guesses for speculative decoding, with its own KV cache, where the strategy wants one.
    draft_model: LanguageModel | None = None
    #: How many ids, from 0 on, mean the same token to the draft model; None: all of them.
    shared_ids: int | None = None
    #: Prompt and output of earlier finished runs of this model, newest last; never those of this race.
    earlier: tuple[tuple[int, ...], ...] = ()
    #: Turns a recorded text into ids.
    vocabulary: Vocabulary | None = None
    #: Whether to measure what verifying costs here before a lane that speculates begins.
    calibrate: bool = False
    #: Output tokens that the visitor has decided already: the lane continues behind them.
    forced: tuple[int, ...] = ()
    start: Row = field(init=False)
    #: Why the lane ended, once it has: the race looks here after every step.
    ending: Stopped | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.start = Row(
            ids=torch.tensor(self.prompt, dtype=torch.long, device=self.model.device),
            output=(),
            stage_states=tuple(stage.start for _, _, stage in self.stages),
            stop_states=tuple(rule.start for rule in self.stop_rules),
        )

    @property
    def ends(self) -> int:
        """How many token ids end a text."""
        return sum(len(rule.ids) for rule in self.stop_rules if isinstance(rule, EndOfSequence))

    def insert(self, behind: str, name: str, processor: BoundStage) -> None:
        """Put a processor of the strategy's own behind the named stage, or first where the lane hasn't got that."""
        place = next((index + 1 for index, (stage, _, _) in enumerate(self.stages) if stage == behind), 0)
        self.stages = (*self.stages[:place], (name, "processor", processor), *self.stages[place:])
        states = self.start.stage_states
        self.start = replace(self.start, stage_states=(*states[:place], processor.start, *states[place:]))

    # --- the model ---------------------------------------------------------------------------

    def begin(self) -> Generator[tuple[Event, ...], None, tuple[Row, Tensor]]:
        """Prefill, then the forced tokens one by one: the row to go on from, and the logits `[1, V]` behind it.

        Every strategy starts here. A row that the forced tokens end (`row.stopped`) is not gone on from.
        """
        row, logits = self.start, (yield from self.read_prompt())
        for token in self.forced:
            scored = self.score(logits, [row])
            row, chosen = self.append(row, self.take(scored, token))
            yield (replace(chosen, origin="forced"),)
            if row.stopped:
                break
            logits = self.forward([[token]])[:, -1]
        return row, logits

    def read_prompt(self) -> Generator[tuple[Event, ...], None, Tensor]:
        """Prefill: the logits `[1, V]` that follow the prompt, from the race's copy if it made one."""
        if self.prompt_logits is not None:
            return self.prompt_logits
        logits = None
        for piece in prompt_pieces(self.prompt, self.model):
            logits = self.forward([piece])[:, -1]
            yield (PromptRead(tokens=self.model.length, total=len(self.prompt), seconds=0.0, cache_bytes=self.model.cache_bytes),)
        assert logits is not None, "a prompt has at least one token"
        return logits

    def forward(self, tokens: Sequence[Sequence[int]], keep: int = 1) -> Tensor:
        """Logits `[B, keep, V]` after `tokens` `[B, T]`; the KV cache grows by T."""
        with self.clock.part("forward"):
            batch = torch.tensor(tokens, dtype=torch.long)
            logits = self.model.forward(batch.to(self.model.device, non_blocking=True), keep)
        assert isinstance(logits, Tensor)
        return logits

    def rollback(self, length: int) -> None:
        """Forget what the cache holds after its first `length` tokens."""
        with self.clock.part("cache"):
            self.model.truncate(length)

    def select_rows(self, rows: Sequence[int]) -> None:
        """Make the cache's rows the given ones, in that order: beams fork and end."""
        with self.clock.part("cache"):
            self.model.select_rows(rows)

    def room(self, row: Row) -> tuple[int, Literal["context", "max_new_tokens"]]:
        """How many more tokens the row can take, and which limit says so."""
        rooms: list[tuple[int, Literal["context", "max_new_tokens"]]] = []
        for rule in self.stop_rules:
            if isinstance(rule, MaxNewTokens):
                rooms.append((rule.limit - row.position, "max_new_tokens"))
            elif isinstance(rule, ContextLimit):
                rooms.append((rule.context - rule.prompt - row.position, "context"))
        return min(rooms, default=(sys.maxsize, "max_new_tokens"))

    # --- from logits to a token --------------------------------------------------------------

    def score(self, scores: Tensor, rows: Sequence[Row], views: Sequence[int] | None = None, scale: Scale = "logit") -> Scored:
        """Send scores `[B, V]` through every processor and warper in the lane's order.

        The rows have equal length. `views` names the rows whose way is recorded (default: all), `scale` what the scores are.
        """
        input_ids = torch.stack([row.ids for row in rows])  # [B, T]
        raw, taken = scores, []
        for index, (name, kind, stage) in enumerate(self.stages):
            with self.clock.part("processors" if kind == "processor" else "warpers"), one_thread(scores.device):
                scores = stage.apply(input_ids, scores, [row.stage_states[index] for row in rows])
            taken.append((name, scores))
        wanted = set(range(len(rows)) if views is None else views) if self.record else set()
        return Scored(
            scores=scores,
            raw=raw,
            records=tuple(
                StepRecord(raw[b], tuple((name, after[b]) for name, after in taken), scale) if b in wanted else None for b in range(len(rows))
            ),
        )

    def distribution(self, logits: Tensor, rows: Sequence[Row]) -> Tensor:
        """Probabilities `[B, V]`: `score`, then softmax. The one path for target and draft alike."""
        return self.score(logits, rows).probabilities()

    def most_likely(self, scored: Scored, b: int = 0) -> Choice:
        """The argmax of row b: no die is rolled."""
        with self.clock.part("select"), one_thread(scored.scores.device):
            token = argmax(scored.scores[b])
        return self._choice(scored, b, token, None, None)

    def draw(self, scored: Scored, u: float, b: int = 0) -> Choice:
        """The token of row b that the die `u` hits on the cumulative bar."""
        with self.clock.part("select"), one_thread(scored.scores.device):
            drawn = draw(scored.scores[b].softmax(-1), u)
        return self._choice(scored, b, drawn.token, u, drawn)

    def take(self, scored: Scored, token: int, b: int = 0) -> Choice:
        """A token of row b that was decided elsewhere: a forced one, or the one that a beam goes on with."""
        return self._choice(scored, b, torch.tensor(token, device=scored.scores.device), None, None, decided=True)

    def _choice(self, scored: Scored, b: int, token: Tensor, u: float | None, drawn: Drawn | None, decided: bool = False) -> Choice:
        """Fetch the token and everything recorded about it, with one synchronisation."""
        record = scored.records[b]
        final = scored.scores[b]
        packed = Packed()
        with self.clock.part("recording"), one_thread(final.device):
            raw = scored.raw[b]
            numbers = packed.put(torch.stack([token, (final > final[token]).sum(), (raw > raw[token]).sum()]))
            logs = packed.put(torch.stack([final[token] - final.logsumexp(0), raw[token] - raw.logsumexp(0)]))
            interval = packed.put(torch.stack([drawn.low, drawn.high])) if drawn is not None else None
            pending = pend_view(record, token, packed) if record is not None else None
        fetched = packed.fetch()  # the host waits for the device here, once per step
        removed = decided and fetched[logs][0] == -math.inf  # whoever decided may take what the stages removed
        if not removed and not math.isfinite(fetched[logs][0]):
            raise self.no_distribution(scored, b)
        with self.clock.host_part("recording"):
            view = pending.finish(fetched) if pending is not None else None
        return Choice(
            token=int(fetched[numbers][0]),
            log_probability=fetched[logs][0],
            raw_log_probability=fetched[logs][1],
            rank=int(fetched[numbers][1]),
            raw_rank=int(fetched[numbers][2]),
            u=u,
            interval=(fetched[interval][0], fetched[interval][1]) if interval is not None else None,
            view=view,
        )

    def no_distribution(self, scored: Scored, b: int) -> PlaygroundError:
        """What to tell when no token can be chosen: a NaN from the model, or stages that removed everything."""
        record = scored.records[b]
        steps = [("model", scored.raw[b]), *(record.stages if record is not None else [("the stages", scored.scores[b])])]
        alive, removing = scored.raw.shape[-1], []  # who removed any: where stages contradict each other, each of them can be loosened
        for name, scores in steps:
            left = int((scores > -float("inf")).sum())
            removing, alive = [*removing, *([name] if left < alive else [])], left
            if bool(scores.isnan().any()) or bool((scores == float("inf")).any()):
                return PlaygroundError(
                    "scores_not_finite",
                    Text("The scores after {stage} are not numbers (NaN or infinite).", "{stage} 之后的分数不是有效数字（NaN 或无穷大）。"),
                    stage=name,
                )  # fmt: skip
            if not left and len(removing) > 1:
                told = Text(
                    "No token is left after {stage}: it removed those that {others} had left. Loosen one of them.",
                    "{stage} 之后没有剩下任何词元：它移除了 {others} 留下的全部词元。请放宽其中之一。",
                )
                return PlaygroundError("no_token_left", told, stage=name, others=", ".join(removing[:-1]))
            if not left:
                told = Text(
                    "No token is left after {stage}: every one was removed. Loosen it.", "{stage} 之后没有剩下任何词元：全部被移除。请放宽它。"
                )
                return PlaygroundError("no_token_left", told, stage=name)
        return PlaygroundError("no_token_left", Text("No token is left to choose from.", "没有可选的词元。"))

    # --- rows --------------------------------------------------------------------------------

    def append(self, row: Row, choice: Choice) -> tuple[Row, TokenChosen]:
        """The row with the chosen token at its end, and the event that tells of it."""
        with self.clock.part("cache"):
            after = self.extend(row, choice.token, choice.log_probability)
        self.ending = after.stopped
        return after, self.told(row, after, choice)

    def told(self, row: Row, after: Row, choice: Choice) -> TokenChosen:
        """The event that tells how `row` became `after`."""
        shown = next(
            (StopStrings.shown(state) for rule, state in zip(self.stop_rules, after.stop_states, strict=True) if isinstance(rule, StopStrings)), None
        )
        numbers = tuple(
            (f"{name}.{key}", value)
            for (name, _, stage), state in zip(self.stages, row.stage_states, strict=True)
            for key, value in stage.numbers(state)
        )
        return TokenChosen(
            position=row.position,
            token=choice.token,
            log_probability=choice.log_probability if choice.log_probability > -math.inf else None,
            raw_log_probability=choice.raw_log_probability,
            rank=choice.rank,
            raw_rank=choice.raw_rank,
            u=choice.u,
            interval=choice.interval,
            shown=shown,
            stage_states=numbers,
            view=choice.view,
        )

    def extend(self, row: Row, token: int, log_probability: float) -> Row:
        """The row after `token`: the states of stages and stop rules move on with it."""
        stop_states, ends = [], []
        for rule, state in zip(self.stop_rules, row.stop_states, strict=True):
            state, stopped = rule.check(state, token, row.position)
            stop_states.append(state)
            ends.append(stopped)
        appended = torch.tensor([token], dtype=torch.long).to(row.ids.device, non_blocking=True)
        return replace(
            row,
            ids=torch.cat([row.ids, appended]),
            output=(*row.output, token),
            stage_states=tuple(
                stage.advance(state, token, log_probability) for (_, _, stage), state in zip(self.stages, row.stage_states, strict=True)
            ),
            stop_states=tuple(stop_states),
            stopped=next((end for end in ends if end is not None), None),
        )


class one_thread:
    """Run what works on one row of scores on one CPU thread: with another process busy, two wait for each other."""

    def __init__(self, device: torch.device | str) -> None:
        self._cpu = torch.device(device).type == "cpu"

    def __enter__(self) -> None:
        if self._cpu:
            self._threads = torch.get_num_threads()
            torch.set_num_threads(1)

    def __exit__(self, *error: object) -> None:
        if self._cpu:
            torch.set_num_threads(self._threads)
