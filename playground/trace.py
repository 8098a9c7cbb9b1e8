"""What happened: the events of a comparison, and the Trace that collects them.

Events are frozen dataclasses of plain Python values, named in the past tense. Probabilities lie in
[0, 1], log-probabilities are natural, times are seconds, sizes are bytes, positions count from 0.
A score of -inf (a token that a stage removed) is None. Every event travels as `(lane, event)`;
the lane is None for what concerns the whole race.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, with_config

from playground import TRACE_VERSION
from playground.errors import PlaygroundError, Text

_plain = with_config(ConfigDict(extra="forbid", val_json_bytes="base64", ser_json_bytes="base64", ser_json_inf_nan="null"))


@_plain
@dataclass(frozen=True)
class TokenName:
    """The bytes that a token id adds to the text; a special token adds none, and `piece` holds its display name."""

    id: int
    piece: bytes
    special: bool = False


@_plain
@dataclass(frozen=True)
class TokensNamed:
    """Token ids that a trace mentions for the first time, named once per vocabulary."""

    vocabulary: str
    names: tuple[TokenName, ...]
    kind: Literal["tokens_named"] = "tokens_named"


@_plain
@dataclass(frozen=True)
class PromptRead:
    """A piece of the prompt went through the model and into the KV cache (prefill).

    `tokens` of `total` are read so far; `seconds` is the time of this piece alone. `shared` says
    that the race read it once for all lanes; `reused` that this lane got a copy of that cache.
    """

    tokens: int
    total: int
    seconds: float
    cache_bytes: int
    shared: bool = False
    reused: bool = False
    kind: Literal["prompt_read"] = "prompt_read"


@_plain
@dataclass(frozen=True)
class StageView:
    """What one stage did to one row of scores.

    `masked` and `scores` speak of the view's candidates, by their index there: `masked` lists those
    that this stage removed; `scores` holds all of them anew if the stage changed any surviving score,
    else it is None. `alive`, `entropy` (nats) and `log_normaliser` describe the whole vocabulary
    after the stage; `removed_mass` is the probability, just before the stage, of what it removed.
    """

    stage: str
    alive: int
    entropy: float
    log_normaliser: float
    removed_mass: float
    masked: tuple[int, ...] = ()
    scores: tuple[float | None, ...] | None = None


@_plain
@dataclass(frozen=True)
class StepView:
    """One step's distribution, before and after every stage, for the tokens that matter.

    `ids` are the candidates: the top 50 by raw score, the top 20 after the stages and the chosen
    token, by raw score descending; `raw` are their scores on the given `scale`. `log_sum_exp` spans
    the whole vocabulary. `rest` is a histogram of every token that is no candidate: counts in bins
    of `REST_BIN` below `rest_top`, the last bin holding all that lies lower. `entropy` is of the raw
    distribution, in nats.
    """

    ids: tuple[int, ...]
    raw: tuple[float | None, ...]
    log_sum_exp: float
    entropy: float
    alive: int
    rest_top: float
    rest: tuple[int, ...]
    stages: tuple[StageView, ...] = ()
    scale: Literal["logit", "raw_log_probability", "processed_log_probability"] = "logit"


REST_BIN = 0.25
REST_BINS = 64


@_plain
@dataclass(frozen=True)
class TokenChosen:
    """A token was chosen and joined the output; `position` counts output tokens from 0.

    `log_probability` is under the distribution that was drawn from (after every stage),
    `raw_log_probability` under the model's own. `rank` and `raw_rank` count from 0. `u` is the die
    in [0, 1) and `interval` the chosen token's part of the cumulative bar, tokens standing there by
    probability descending; both are None where nothing was drawn. `shown` is the length, in bytes,
    of the output text that may be shown so far: a stop string may be starting in the rest.
    """

    position: int
    token: int
    log_probability: float | None = None
    raw_log_probability: float | None = None
    rank: int | None = None
    raw_rank: int | None = None
    u: float | None = None
    interval: tuple[float, float] | None = None
    shown: int | None = None
    stage_states: tuple[tuple[str, float], ...] = ()
    view: StepView | None = None
    kind: Literal["token_chosen"] = "token_chosen"


@_plain
@dataclass(frozen=True)
class StepTimed:
    """A step of a lane ended: one forward of the target, and everything around it.

    `parts` are seconds by name (forward, processors, warpers, select, cache, other) and add up to
    `seconds`; `recording` is ours and is not in it. `at` is when the step ended, in seconds of the
    race's wall clock; `lane_seconds` is the time that the lane has used by itself. `peak_memory` is
    the highest that this process's memory was seen after any of the lane's steps.
    """

    step: int
    tokens: int
    seconds: float
    parts: dict[str, float]
    recording: float
    at: float
    lane_seconds: float
    rows: int
    cache_length: int
    cache_bytes: int
    peak_memory: int | None = None
    kind: Literal["step_timed"] = "step_timed"


@_plain
@dataclass(frozen=True)
class DeviceSampled:
    """How busy the GPU was, and how full: the whole device, whoever uses it, as its driver tells it.

    `utilisation` is the share of the driver's last sampling period in which any kernel ran, in [0, 1];
    `at` is in seconds of the race's wall clock. What the driver can't tell is None.
    """

    at: float
    utilisation: float | None
    memory_bytes: int | None
    memory_total: int | None
    device: str
    kind: Literal["device_sampled"] = "device_sampled"


@_plain
@dataclass(frozen=True)
class Finished:
    """A lane ended. `cut` is the byte offset in the output text at which a stop string begins."""

    reason: Literal["stop", "length", "cancelled", "error"]
    detail: str
    at: float
    cut: int | None = None
    message: dict[str, str] | None = None
    kind: Literal["finished"] = "finished"


Event = Annotated[TokensNamed | PromptRead | TokenChosen | StepTimed | DeviceSampled | Finished, Field(discriminator="kind")]
LaneEvent = tuple[int | None, Event]


@_plain
@dataclass(frozen=True)
class ModelAbout:
    """Which weights ran, as what, and where. `key` is what lanes and vocabularies refer to."""

    key: str
    name: str
    revision: str | None
    dtype: str
    device: str
    parameters: int
    weight_bytes: int
    layers: int
    vocabulary: int
    context: int | None
    cache_bytes_per_token: int | None
    cache_formula: str | None


@_plain
@dataclass(frozen=True)
class StageAbout:
    """One stage of a lane as it ran: `origin` says who asked for it, `idle` that greedy skips it."""

    stage: str
    kind: Literal["processor", "warper"]
    knobs: dict[str, Any]
    origin: Literal["asked", "model", "library"]
    idle: bool = False


@_plain
@dataclass(frozen=True)
class LaneAbout:
    """One lane as it ran: the effective configuration and the prompt in tokens."""

    name: str
    model: str
    strategy: str
    knobs: dict[str, Any]
    stages: tuple[StageAbout, ...]
    max_new_tokens: int
    stop: tuple[str, ...]
    eos: tuple[int, ...]
    prompt_ids: tuple[int, ...]
    rendered: str
    notes: tuple[dict[str, str], ...] = ()


@_plain
@dataclass(frozen=True)
class About:
    """Where a trace comes from: the request as it was asked, the machine, the versions."""

    request: dict[str, Any]
    models: tuple[ModelAbout, ...]
    lanes: tuple[LaneAbout, ...]
    versions: dict[str, str]
    machine: str
    created: str
    warm: bool
    version: int = TRACE_VERSION


@_plain
@dataclass
class Trace:
    """A comparison from beginning to end: what was asked, of whom, and every event in order."""

    about: About
    events: list[LaneEvent] = field(default_factory=list)

    def add(self, events: Iterable[LaneEvent]) -> None:
        self.events.extend(events)

    def of(self, lane: int | None, *kinds: type) -> Iterator[Any]:
        """The events of one lane, in order, of the given classes only."""
        return (event for owner, event in self.events if owner == lane and (not kinds or isinstance(event, kinds)))

    def names(self, vocabulary: str) -> dict[int, TokenName]:
        """Every token id that the trace mentions in one vocabulary."""
        return {
            name.id: name for _, event in self.events if isinstance(event, TokensNamed) and event.vocabulary == vocabulary for name in event.names
        }

    def to_json(self) -> str:
        return _adapter().dump_json(self).decode()

    @staticmethod
    def from_json(text: str | bytes) -> Trace:
        """Read a trace that somebody gives: anything but a trace of this version is refused."""
        try:
            head = json.loads(text)
            version = head["about"]["version"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise PlaygroundError("trace_broken", Text("This file is not a trace.", "这个文件不是解码记录。")) from error
        if version != TRACE_VERSION:
            raise PlaygroundError(
                "trace_version",
                Text("This trace has version {version}; this app reads version {known}.", "记录版本为 {version}；此应用只能读版本 {known}。"),
                version=str(version)[:20], known=TRACE_VERSION,
            )  # fmt: skip
        try:
            return _adapter().validate_json(text)
        except ValidationError as error:
            where = " → ".join(str(part) for part in error.errors()[0]["loc"])[:120]
            raise PlaygroundError("trace_broken", Text("This trace is broken at {where}.", "记录在 {where} 处损坏。"), where=where) from error


@cache
def _adapter() -> TypeAdapter[Trace]:
    return TypeAdapter(Trace)
