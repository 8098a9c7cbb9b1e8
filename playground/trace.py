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

#: Begins the `detail` of a lane that its server ended for a reason of its own; the server's word follows.
SERVER_SAID = "server:"

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

    A server tells its top candidates and nothing of the rest: `scale` then says whether these are
    log-probabilities before or after its temperature and filters, `log_sum_exp` is 0, and entropy,
    alive and rest are unknown. `doubt` says why such numbers can't be what they claim to be.
    """

    ids: tuple[int, ...]
    raw: tuple[float | None, ...]
    log_sum_exp: float
    entropy: float | None
    alive: int | None
    rest_top: float | None
    rest: tuple[int, ...]
    stages: tuple[StageView, ...] = ()
    scale: Literal["logit", "raw_log_probability", "processed_log_probability"] = "logit"
    doubt: Literal["sum_above_one", "above_zero", "certain_without_rival"] | None = None


REST_BIN = 0.25
REST_BINS = 64

#: forced: the visitor branched here; the others are what speculative decoding made of a draft.
Origin = Literal["forced", "accepted", "resampled", "bonus", "plain"]


@_plain
@dataclass(frozen=True)
class TokenChosen:
    """A token was chosen and joined the output; `position` counts output tokens from 0.

    `log_probability` is under the distribution that was drawn from (after every stage),
    `raw_log_probability` under the model's own. `rank` and `raw_rank` count from 0. `u` is the die
    in [0, 1) and `interval` the chosen token's part of the cumulative bar, tokens standing there by
    probability descending; both are None where nothing was drawn. `shown` is the length, in bytes,
    of the output text that may be shown so far: a stop string may be starting in the rest.

    A token at a position that the lane has filled already replaces what stood there and everything
    after it: that is how a beam search tells that another beam is the best one now. `origin` says
    where a token comes from if not from the strategy's ordinary step.
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
    origin: Origin | None = None
    kind: Literal["token_chosen"] = "token_chosen"


@_plain
@dataclass(frozen=True)
class BeamCandidate:
    """One way in which a living beam could go on at a step of beam search.

    `beam` is the slot of the living beam that it extends: a slot of the step before's `living`, 0 at
    the first step. `log_probability` is the token's after the processors, not renormalised; `score`
    the sum over the output so far with this token; `ranked` what it would count as a finished
    hypothesis: score / length ** length_penalty. A candidate is kept (lives on), finished (entered
    the pool of finished hypotheses) or dropped. A dropped one says why: beaten (`by` is the
    candidate, by its index in the step, that took the last place), ended_too_low (an end that was not
    among the best `num_beams` candidates), worse_than_finished (an end that ranks below the worst
    hypothesis of a full pool) or early_stop (the search was over); `gap` is by how much, in units of what was compared.
    `penalty` is what diverse beam search took off the score for being chosen by an earlier group.
    """

    beam: int
    token: int
    log_probability: float
    score: float
    ranked: float
    fate: Literal["kept", "finished", "dropped"]
    reason: Literal["beaten", "ended_too_low", "worse_than_finished", "early_stop"] | None = None
    by: int | None = None
    gap: float | None = None
    group: int = 0
    penalty: float = 0.0
    ended: Literal["eos", "stop_string", "max_new_tokens", "context"] | None = None


@_plain
@dataclass(frozen=True)
class BeamsAdvanced:
    """Beam search took a step: every candidate, and what became of it.

    `candidates` stand by score descending within their group. `living` names the kept ones by index,
    in the order of their slots, best first. `pool` names the finished hypotheses after the step, best
    first, as (step, index of the candidate there). `best` is the slot of the living beam that the
    lane's text shows, None where a finished hypothesis is shown.
    """

    step: int
    candidates: tuple[BeamCandidate, ...]
    living: tuple[int, ...]
    pool: tuple[tuple[int, int], ...] = ()
    best: int | None = 0
    kind: Literal["beams_advanced"] = "beams_advanced"


@_plain
@dataclass(frozen=True)
class Hypothesis:
    """A text that beam search returns or could have returned: where it ended, its tokens and its scores."""

    step: int
    candidate: int
    tokens: tuple[int, ...]
    score: float
    ranked: float
    ended: str
    log_probabilities: tuple[float, ...] = ()


@_plain
@dataclass(frozen=True)
class BeamsRanked:
    """Beam search ended: its hypotheses, best first; the first `returned` of them are the answer."""

    hypotheses: tuple[Hypothesis, ...]
    returned: int
    ending: Literal["early_stop", "no_better", "length", "context"]
    kind: Literal["beams_ranked"] = "beams_ranked"


@_plain
@dataclass(frozen=True)
class Guess:
    """One drafted token and what the target made of it.

    `p` and `q` are its probabilities under the target's and the drafter's final distributions: q is 1
    for a drafter that doesn't roll dice, p 0 or 1 under a greedy target. `accept` is min(1, p / q),
    `u` the die: one of its own, under which the guess stands if u·q < p; or, where q is 1, the plain
    lane's die at that position, and the guess stands if it is what that die draws from p (None:
    greedy, no die). A guess behind the first rejection was never judged: p, accept and u are None.
    One that was accepted, but stands behind the end of the lane's text, is cut.
    """

    token: int
    q: float
    state: Literal["accepted", "rejected", "never_judged", "cut"]
    p: float | None = None
    accept: float | None = None
    u: float | None = None


@_plain
@dataclass(frozen=True)
class DraftJudged:
    """A round of speculative decoding: k guesses, one forward of the target, and the verdict.

    `position` is the output position of the first guess; `wanted` is k before it was clipped, and
    `limit` says what clipped it. `extra` is the token that the target gave on top: resampled after a
    rejection, bonus after full acceptance, plain where there was no draft; None where the text ended
    inside the draft. `seconds` are by part: draft, verify (the forward), select (stages and choice) and
    rollback (of the cache, and adding to the row). Where a lookup found the guesses, `source` says in what
    (prompt, output, earlier_run, recorded) and `matched` by how many tokens. The lane's first token comes
    from the prompt's own forward and is no round.
    """

    round: int
    position: int
    drafter: str
    guesses: tuple[Guess, ...]
    wanted: int
    extra: int | None
    extra_origin: Literal["resampled", "bonus", "plain"] | None
    seconds: dict[str, float]
    target_length: int
    draft_length: int | None = None
    draft_bytes: int | None = None
    limit: Literal["adaptive", "confidence", "context", "max_new_tokens", "no_match"] | None = None
    source: str | None = None
    matched: int | None = None
    kind: Literal["draft_judged"] = "draft_judged"


@_plain
@dataclass(frozen=True)
class VerifyCalibrated:
    """What a forward of so many positions costs on this lane's model and cache: medians in seconds.

    `verify` pairs the number of positions (1 is a plain step) with seconds; `draft` is one token of
    the drafter, None where it has no forward of its own.
    """

    verify: tuple[tuple[int, float], ...]
    draft: float | None
    length: int
    repeats: int
    kind: Literal["verify_calibrated"] = "verify_calibrated"


@_plain
@dataclass(frozen=True)
class StepTimed:
    """A step of a lane ended: one forward of the target, and everything around it.

    `tokens` counts the positions by which the output grew. `parts` are seconds by name (forward,
    processors, warpers, select, cache, draft, other) and add up to `seconds`; `recording` is ours and
    is not in it. `at` is when the step ended, in seconds of the race's wall clock; `lane_seconds` is
    the time that the lane has used by itself. `peak_memory` is the highest that this process's memory
    was seen after any of the lane's steps.
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
class ChunkArrived:
    """A piece of a server's stream arrived; it may hold several tokens, or none that is whole.

    `tokens` counts them by ids, by log-probabilities or by running usage, and is None where the
    server gives none of these. `seconds` is the time since the request was sent, `at` the same moment
    in seconds of the race's wall clock. An opening piece that only names the role is none.
    """

    text: str
    tokens: int | None
    seconds: float
    at: float
    kind: Literal["chunk_arrived"] = "chunk_arrived"


@_plain
@dataclass(frozen=True)
class ServerReported:
    """What a server says of one request by itself; None is what it doesn't say.

    Seconds are the server's: `ttft` from `ttft_from` to its first token, `queue` before it was
    scheduled, `prefill` until the first token, `decode` from there to the last, `mean_itl` its mean
    time between tokens. `source` names the fields that they come from.
    """

    source: str
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    ttft: float | None = None
    ttft_from: Literal["arrival", "scheduling"] | None = None
    queue: float | None = None
    prefill: float | None = None
    decode: float | None = None
    mean_itl: float | None = None
    tokens_per_second: float | None = None
    prompt_ids: tuple[int, ...] = ()
    kind: Literal["server_reported"] = "server_reported"


@_plain
@dataclass(frozen=True)
class SpeculationReported:
    """What a server says of its speculative decoding in one request; None is what it doesn't say.

    `steps` are those that had a draft, `drafted` and `accepted` count tokens, accepted ones before
    the end of the text cut any off. `histogram` counts steps by the number accepted; the per-step
    lists have one entry per step. `most` is k. `source` names the fields that they come from.
    """

    source: str
    steps: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    most: int | None = None
    histogram: tuple[int, ...] | None = None
    mean_acceptance_length: float | None = None
    per_step_accepted: tuple[int, ...] | None = None
    per_step_drafted: tuple[int, ...] | None = None
    kind: Literal["speculation_reported"] = "speculation_reported"


@_plain
@dataclass(frozen=True)
class MetricsRead:
    """A snapshot of a server's `/metrics`: the lines on load and speculation, as the server wrote them.

    The counters are the whole server's: two snapshots around a request tell of it alone only if
    nobody else asked meanwhile. `at` is in seconds of the race's wall clock.
    """

    at: float
    text: str
    kind: Literal["metrics_read"] = "metrics_read"


@_plain
@dataclass(frozen=True)
class Finished:
    """A lane ended. `cut` is the byte offset in the output text at which a stop string begins.

    `detail` names the cause; where a server's word for it is no normal end, it is `SERVER_SAID` and that word.
    """

    reason: Literal["stop", "length", "cancelled", "error"]
    detail: str
    at: float
    cut: int | None = None
    message: dict[str, str] | None = None
    kind: Literal["finished"] = "finished"


Event = Annotated[
    TokensNamed
    | PromptRead
    | TokenChosen
    | BeamsAdvanced
    | BeamsRanked
    | DraftJudged
    | VerifyCalibrated
    | StepTimed
    | DeviceSampled
    | ChunkArrived
    | ServerReported
    | SpeculationReported
    | MetricsRead
    | Finished,
    Field(discriminator="kind"),
]
LaneEvent = tuple[int | None, Event]


def number_format(weights: str | None, dtype: str | None) -> Text | None:
    """How a model's numbers are named wherever the model is: those of its file, and those that it computes with."""
    if dtype is None:
        return None if weights is None else Text(weights, weights)
    if weights == dtype:
        return Text(dtype, dtype)
    computed = Text("computed in {dtype}", "以 {dtype} 计算").filled(dtype=dtype)
    return computed if weights is None else Text(f"{weights}, {computed.en}", f"{weights}，{computed.zh}")


@_plain
@dataclass(frozen=True)
class ModelAbout:
    """Which weights ran, as what, and where. `key` is what lanes and vocabularies refer to; what a server doesn't tell is None."""

    key: str
    name: str
    revision: str | None
    dtype: str | None
    device: str
    parameters: int | None
    weight_bytes: int | None
    layers: int | None
    vocabulary: int | None
    context: int | None
    cache_bytes_per_token: int | None
    cache_formula: str | None
    #: The number format of the weights in their file ("Q4_1"); `dtype` is what they were computed in.
    weights: str | None = None

    @property
    def number_format(self) -> Text | None:
        """The number format of the weights and, if it is another one, of the arithmetic; None where neither is known."""
        return number_format(self.weights, self.dtype)


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
    #: Tokens that were forced at the beginning of the output, and where they come from.
    branch: dict[str, Any] | None = None
    #: The key of the model that writes guesses for the lane.
    draft_model: str | None = None
    #: The server that wrote this lane, by name, and the whole request as it was sent there.
    server: str | None = None
    sent: dict[str, Any] | None = None


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

    def output(self, lane: int) -> list[TokenChosen]:
        """The tokens that stand in a lane's text at the end, by position: replaced ones are gone."""
        return standing(self.of(lane, TokenChosen))

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


def standing(chosen: Iterable[TokenChosen]) -> list[TokenChosen]:
    """What is left of a lane's tokens when each replaces the one at its position and all behind it."""
    output: list[TokenChosen] = []
    for event in chosen:
        del output[event.position :]
        output.append(event)
    return output


@cache
def _adapter() -> TypeAdapter[Trace]:
    return TypeAdapter(Trace)
