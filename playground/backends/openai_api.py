"""A lane on a vLLM, llama.cpp or other OpenAI-compatible server, as a stream of the same events that local lanes give.

The official `openai` client sends the request; the reply is read from its raw bytes, because the client's own stream has
no bounds, and because times are wanted for each piece as it arrives.
"""

from __future__ import annotations

import json
import logging
import math
import re
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import httpx2
import openai

from playground.backends import guarded_http
from playground.backends.finish_reasons import Ending, ending
from playground.backends.guarded_http import Bounds, Wire, error_words, failure, malformed, refusal, server_sent_events
from playground.backends.server_request import ServerRequest
from playground.backends.servers import Capabilities, ServerEntry
from playground.errors import PlaygroundError, Text
from playground.request import Lane
from playground.trace import (
    ChunkArrived,
    Event,
    Finished,
    MetricsRead,
    ServerReported,
    SpeculationReported,
    StepView,
    TokenChosen,
    TokenName,
    TokensNamed,
)  # fmt: skip

#: At or below this a log-probability stands for "impossible": JSON has no -inf, and vLLM writes -9999.
IMPOSSIBLE = -9000.0
#: How far probabilities may add up to more than 1: servers compute them in float32 from bfloat16 scores.
SLACK = 1e-3
#: How many tokens more than asked for a server may send before its stream counts as endless.
SURPLUS = 16
#: Metrics are updated shortly after a reply ended: looked at again so often, so many seconds apart.
LOOKS, BETWEEN_LOOKS = 5, 0.2

#: The metrics that are kept of a snapshot, by name without vllm: or llamacpp:, besides those of speculation.
KEPT_METRICS = frozenset({
    "num_requests_running", "num_requests_waiting", "requests_processing", "requests_deferred", "generation_tokens_total", "prompt_tokens_total",
    "tokens_predicted_total", "kv_cache_usage_perc", "gpu_cache_usage_perc", "kv_cache_usage_ratio", "num_preemptions_total",
    "prefix_cache_queries_total", "prefix_cache_hits_total", "request_success_total", "iteration_tokens_total_count", "n_decode_total",
    "process_start_time_seconds",
})  # fmt: skip

DEFAULT_BOUNDS = Bounds()
#: How much a reply may grow, in bytes and seconds, with every token that it may have.
BYTES_PER_TOKEN, SECONDS_PER_TOKEN = 8_000, 1.0

UNREADABLE = Text("The server's reply can't be read; the reason is in this app's log.", "无法读取服务器的回复；原因在本应用的日志中。")

log = logging.getLogger(__name__)


def bounds_for(lane: Lane) -> Bounds:
    """How long and how large the reply to a lane may be."""
    return replace(
        DEFAULT_BOUNDS,
        bytes=DEFAULT_BOUNDS.bytes + BYTES_PER_TOKEN * lane.max_new_tokens,
        seconds=DEFAULT_BOUNDS.seconds + SECONDS_PER_TOKEN * lane.max_new_tokens,
    )


@dataclass(frozen=True)
class Told:
    """One token as a server tells it: its id where given, its bytes, its log-probability, and the likeliest tokens of its step."""

    id: int | None
    piece: bytes
    log_probability: float | None = None
    candidates: tuple[tuple[int | None, bytes, float], ...] = ()


@dataclass
class Pieces:
    """Which id stands for which bytes in one vocabulary: the server's where it gives one, else negative ones of our own.

    A server that shows the same token as different texts (parts of a character) gets one of ours for each further text.
    Shared by the lanes of one model, which run in threads of their own.
    """

    key: str
    _pieces: dict[int, bytes] = field(default_factory=dict)
    _own: dict[bytes, int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def identify(self, told: Iterable[tuple[int | None, bytes]]) -> list[int]:
        """The ids of tokens that a server names together: those of one step."""
        with self._lock:
            return [
                token if token is not None and self._pieces.setdefault(token, piece) == piece else self._own.setdefault(piece, -1 - len(self._own))
                for token, piece in told
            ]


@contextmanager
def opened(
    entry: ServerEntry, chat: bool, body: dict[str, Any], wire: Wire | None = None, bounds: Bounds = DEFAULT_BOUNDS
) -> Iterator[Iterator[bytes]]:
    """Send a request through the `openai` client, and give the reply's body as it arrives. Raises `PlaygroundError`."""
    http = guarded_http.client(entry.private, entry.key, bounds, wire)
    api = openai.OpenAI(base_url=entry.api, api_key=entry.key or "none", http_client=http, max_retries=0)
    first = {"messages": body["messages"]} if chat else {"prompt": body["prompt"]}
    rest = {name: value for name, value in body.items() if name not in ("model", "messages", "prompt", "stream")}
    path: Any = api.chat.completions if chat else api.completions
    try:
        with path.with_streaming_response.create(model=body["model"], stream=body.get("stream", False), extra_body=rest, **first) as response:
            yield response.iter_bytes()
    except openai.APIStatusError as error:
        raise _refused(error, entry.name) from error
    except openai.APIConnectionError as error:
        raise failure(error.__cause__ if isinstance(error.__cause__, Exception) else error, entry.name, bounds) from error
    except httpx2.HTTPError as error:
        raise failure(error, entry.name, bounds) from error
    finally:
        http.close()


def _refused(error: openai.APIStatusError, name: str) -> PlaygroundError:
    words = error_words({"error": error.body})
    return refusal(error.status_code, words or error.message, name, error.response.headers.get("location"))


def chunks(pieces: Iterator[bytes], name: str, silence: float) -> Iterator[tuple[dict[str, Any], float]]:
    """The JSON objects of a stream and when each was here, up to its [DONE]; an error that a server sends as one is raised."""
    for data, arrived in server_sent_events(pieces, silence):
        if data.strip() == b"[DONE]":
            return
        try:
            chunk = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise malformed(f"no JSON: {data[:60]!r}") from error
        if not isinstance(chunk, dict):
            raise malformed(f"no object: {data[:60]!r}")
        if (words := error_words(chunk)) is not None:
            raise refusal(_status(chunk), words, name)
        yield chunk, arrived


def _status(chunk: dict[str, Any]) -> int:
    """The HTTP status that an error in a stream would have had, as far as it says; else the stream's own."""
    held = chunk["error"] if isinstance(chunk.get("error"), dict) else chunk
    return next((code for name in ("code", "status") if (code := _whole(held.get(name))) is not None and 400 <= code < 600), 200)


@dataclass
class StreamReader:
    """Makes events of a reply's chunks; every field of a chunk may be missing or of the wrong type."""

    lane: Lane
    pieces: Pieces
    can: Capabilities
    race_started: float
    wire: Wire
    position: int = 0
    text: str = ""
    joined: bytearray = field(default_factory=bytearray)
    finish: Ending | None = None
    stop_reason: Any = None
    knows_reason: bool = False
    #: Text came after a reason to end: where such a reply really ends, only its [DONE] says.
    went_on: bool = False
    reported: ServerReported | None = None
    speculation: SpeculationReported | None = None
    prompt_ids: tuple[int, ...] = ()
    _named: set[int] = field(default_factory=set)
    _tells: bool = False
    _counted: int = 0
    _usage: int | None = None

    def read(self, chunk: dict[str, Any], arrived: float) -> list[tuple[bool, Event]]:
        """The events of one chunk; True marks those that concern the vocabulary and no single lane."""
        self._read_figures(chunk)
        choices = chunk.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else None
        if choice is None:
            return []
        text = _text_of(choice)
        if ids := _ids(choice.get("prompt_token_ids")) or _ids(chunk.get("prompt_token_ids")):  # a completion's, a chat's
            self.prompt_ids = ids
        self.text += text
        self.went_on |= self.finish is not None and bool(text)
        if (finish := ending(choice.get("finish_reason"))) is not None:
            self.finish, self.stop_reason = finish, choice.get("stop_reason")
            self.knows_reason = "stop_reason" in choice or not self.lane.stop
        ids = _ids(choice.get("token_ids"))
        told = _told(choice.get("logprobs"), ids)
        self._tells = self._tells or bool(told)
        count = self._count(ids, told)
        if not text and not count and not told:
            return []  # it names the role, or says why it ends
        if not self._tells and text:  # else it is text of tokens that were named before: a server holds it back while a stop string may begin
            told = [Told(ids[0] if len(ids) == 1 else None, text.encode())]
        self._counted += count or 0
        if max(self._counted, self.position + len(told)) > self.lane.max_new_tokens + SURPLUS:
            raise malformed(f"more than the {self.lane.max_new_tokens} tokens asked for")
        since, at = arrived - (self.wire.sent or self.race_started), arrived - self.race_started
        events: list[tuple[bool, Event]] = [(False, ChunkArrived(text, count, since, at))]
        for number, token in enumerate(told, 1):
            events += self._token(token, last=number == len(told))
        return events

    def _count(self, ids: tuple[int, ...], told: list[Told]) -> int | None:
        """How many tokens a chunk holds: by ids, by log-probabilities, or by how far the running usage has moved."""
        if ids or told:
            return len(ids) or len(told)
        if self._usage is not None and self._usage >= self._counted:
            return self._usage - self._counted
        return 0 if self._tells else None

    def _token(self, token: Told, last: bool) -> list[tuple[bool, Event]]:
        # A server may name the chosen token among the likeliest without the id that it gave it.
        rivals = [(token.id if piece == token.piece and id_ is None else id_, piece) for id_, piece, _ in token.candidates]
        chosen, *ids = self.pieces.identify([(token.id, token.piece), *rivals])
        # The end of the text is named by its token, which adds nothing to it.
        by_token = last and self._ended_by() == "eos"
        special = by_token and not self.text.encode().endswith(token.piece)
        view = self._view(chosen, ids, token)
        fresh = {} if chosen in self._named else {chosen: TokenName(chosen, token.piece, special and bool(token.piece))}
        if view is not None:
            for id_, (_, piece, _) in zip(ids, token.candidates, strict=True):
                if id_ not in self._named and id_ not in fresh:
                    fresh[id_] = TokenName(id_, piece)
        self._named.update(fresh)
        events: list[tuple[bool, Event]] = [(True, TokensNamed(self.pieces.key, tuple(fresh.values())))] if fresh else []
        trusted = view is None or view.doubt is None
        number = token.log_probability if trusted and token.log_probability is not None and token.log_probability > IMPOSSIBLE else None
        processed = self.can.scale == "processed_log_probability"
        rank = _rank(view, chosen, min(len(token.candidates), self.can.logprobs)) if view is not None and trusted else None
        events.append((False, TokenChosen(
            self.position, chosen, log_probability=number if processed else None, raw_log_probability=None if processed else number,
            rank=rank if processed else None, raw_rank=None if processed else rank, view=view,
        )))  # fmt: skip
        self.position += 1
        if not special:
            self.joined += token.piece
        return events

    def _view(self, chosen: int, ids: list[int], token: Told) -> StepView | None:
        """The likeliest tokens of one step, checked before anybody draws them; `ids` are its candidates'."""
        if token.log_probability is None or self.can.scale is None:
            return None
        scores = {chosen: token.log_probability}
        for id_, (_, _, log_probability) in zip(ids, token.candidates, strict=True):
            scores.setdefault(id_, log_probability)
        ordered = sorted(scores.items(), key=lambda pair: -pair[1])
        return StepView(
            ids=tuple(token for token, _ in ordered),
            raw=tuple(score if score > IMPOSSIBLE else None for _, score in ordered),
            log_sum_exp=0.0,
            entropy=None,
            alive=None,
            rest_top=None,
            rest=(),
            scale=self.can.scale,
            doubt=doubt([score for _, score in ordered], self.can.scale),
        )

    def _read_figures(self, chunk: dict[str, Any]) -> None:
        """What the server says by itself: usage, and its own times and speculation figures, wherever it puts them."""
        usage, metrics, timings = (chunk.get(name) if isinstance(chunk.get(name), dict) else {} for name in ("usage", "metrics", "timings"))
        assert usage is not None and metrics is not None and timings is not None
        if (count := _whole(usage.get("completion_tokens"))) is not None:
            self._usage = count
        if usage or metrics or timings:
            self.reported = _server_figures(usage, metrics, timings, self.reported)
        extra = chunk.get("sglext")
        spoken = _vllm_speculation(metrics) or _llama_cpp_speculation(timings) or _sglang_speculation(extra if isinstance(extra, dict) else {})
        self.speculation = spoken or self.speculation

    def failed(self, why: Text, code: str, at: float) -> Finished:
        """The end of a reply that is not whole: what came of it stays, and is said to be incomplete."""
        incomplete = Text(f"{why.en} What came is kept; it is incomplete.", f"{why.zh}已收到的内容保留，但不完整。")
        return Finished("error", code, at, message=(incomplete if self.text else why).to_json())

    def ended(self) -> list[tuple[bool, Event]]:
        """The end of a reply that came whole: the server's own figures, then why it ended."""
        events: list[tuple[bool, Event]] = []
        if self.reported is not None or self.prompt_ids:
            figures = self.reported or ServerReported("token ids")
            events.append((False, ServerReported(**{**_fields(figures), "prompt_ids": self.prompt_ids})))
        if self.speculation is not None:
            events.append((False, self.speculation))
        at = time.perf_counter() - self.race_started
        if self.finish is None:
            told = Text("The stream ended without saying why.", "流在未说明原因的情况下结束。")
            return [*events, (False, self.failed(told, "server_broke_off", at))]
        if self.finish.reason is None:
            return [*events, (False, self.failed(*self.finish.failure, at))]
        if self.finish.reason == "length":
            return [*events, (False, Finished("length", self.finish.detail or self._limit(), at))]
        whole = self.text.encode()
        cut = len(whole) if self.lane.stop and len(self.joined) > len(whole) and bytes(self.joined).startswith(whole) else None
        detail = "stop_string" if cut is not None else self._ended_by() or "server_stop"
        return [*events, (False, Finished("stop", detail, at, cut=cut))]

    @property
    def whole(self) -> bool:
        """Whether the text has come to a normal end, whatever becomes of the figures after it."""
        return self.finish is not None and self.finish.reason is not None and not self.went_on

    def _ended_by(self) -> Literal["eos", "stop_string", "context"] | None:
        """What ended a text that stopped by itself; None where the server leaves that open."""
        if self.finish is None or self.finish.reason != "stop":
            return None
        if isinstance(self.stop_reason, str):
            return "stop_string"
        return self.finish.detail or ("eos" if self.knows_reason else None)

    def _limit(self) -> str:
        """Whose limit a reply came to: ours, unless the server says that it wrote fewer tokens."""
        return "server_length" if self._usage is not None and self._usage < self.lane.max_new_tokens else "max_new_tokens"


def doubt(scores: list[float], scale: str) -> Any:
    """Why a step's log-probabilities can't be right, or None: `StepView.doubt`.

    Under speculation some servers give 0.0 (certain) for every token, and others the numbers of another position.
    """
    if any(score > 1e-6 for score in scores):
        return "above_zero"
    if math.fsum(math.exp(score) for score in scores if score > IMPOSSIBLE) > 1 + SLACK:
        return "sum_above_one"
    rivals = [score for score in scores[1:] if score > IMPOSSIBLE]
    if scale == "raw_log_probability" and scores[0] == 0.0 and not rivals:
        return "certain_without_rival"  # no softmax over a vocabulary leaves nothing for all other tokens
    return None


def _rank(view: StepView, chosen: int, complete: int) -> int | None:
    """How many tokens are likelier than the chosen one; unknown where it was not among the likeliest that were told."""
    index = view.ids.index(chosen)
    own = view.raw[index]
    rank = sum(score is not None and own is not None and score > own for score in view.raw)
    return rank if own is not None and rank < complete else None


# --- what stands in a chunk -----------------------------------------------------------------------


def _text_of(choice: dict[str, Any]) -> str:
    """The text of a completion's or a chat's chunk; what a model thinks aloud is text too."""
    delta = choice.get("delta") if isinstance(choice.get("delta"), dict) else choice.get("message")
    held = delta if isinstance(delta, dict) else choice
    found = [held.get(name) for name in ("reasoning_content", "reasoning", "content", "text")]
    text = "".join(dict.fromkeys(part for part in found if isinstance(part, str)))
    return text.encode("utf-8", "replace").decode()


def _told(raw: Any, ids: tuple[int, ...]) -> list[Told]:
    """The tokens of a chunk's log-probabilities, in either of the two shapes that servers use."""
    if not isinstance(raw, dict):
        return []
    told = [*_from_content(raw["content"])] if isinstance(raw.get("content"), list) else [*_from_lists(raw)]
    if ids and len(ids) == len(told):
        told = [Told(token, entry.piece, entry.log_probability, entry.candidates) for token, entry in zip(ids, told, strict=True)]
    return told


def _from_content(content: list[Any]) -> Iterator[Told]:
    """The shape of chats: an object per token, its rivals as a list."""
    for entry in content:
        if isinstance(entry, dict):
            token, piece, number = _named(entry)
            rivals = entry.get("top_logprobs")
            named = [_named(rival) for rival in rivals if isinstance(rival, dict)] if isinstance(rivals, list) else []
            yield Told(token, piece, number, tuple((i, p, n) for i, p, n in named if n is not None))


def _from_lists(raw: dict[str, Any]) -> Iterator[Told]:
    """The shape of completions: parallel lists, the rivals of a token as an object from text to number."""
    tokens, numbers, tops = (raw.get(name) if isinstance(raw.get(name), list) else [] for name in ("tokens", "token_logprobs", "top_logprobs"))
    assert tokens is not None and numbers is not None and tops is not None
    for index, token in enumerate(tokens):
        top = tops[index] if index < len(tops) and isinstance(tops[index], dict) else {}
        rivals = ((None, _bytes(text), _number(number)) for text, number in top.items())
        number = _number(numbers[index]) if index < len(numbers) else None
        yield Told(None, _bytes(token), number, tuple((i, p, n) for i, p, n in rivals if n is not None))


def _named(entry: dict[str, Any]) -> tuple[int | None, bytes, float | None]:
    raw = entry.get("bytes")
    is_bytes = isinstance(raw, list) and all(isinstance(byte, int) and 0 <= byte < 256 for byte in raw)
    return _whole(entry.get("id")), bytes(raw) if is_bytes and raw else _bytes(entry.get("token")), _number(entry.get("logprob"))  # type: ignore[arg-type]


def _bytes(text: Any) -> bytes:
    return text.encode("utf-8", "replace") if isinstance(text, str) else b""


def _ids(raw: Any) -> tuple[int, ...]:
    return tuple(raw) if isinstance(raw, list) and all(_whole(token) is not None for token in raw) else ()


def _whole(raw: Any) -> int | None:
    return raw if isinstance(raw, int) and not isinstance(raw, bool) and 0 <= raw < 2**53 else None


def _number(raw: Any) -> float | None:
    """A finite number; -inf is the number that stands for impossible."""
    if isinstance(raw, bool) or not isinstance(raw, (int, float)) or raw != raw or raw >= 1e300 or raw <= -1e300:
        return -9999.0 if raw == -math.inf else None
    return float(raw)


def _seconds(raw: Any) -> float | None:
    number = _number(raw)
    return number / 1000 if number is not None and number >= 0 else None


def _fields(event: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(event).items() if name != "kind"}


def _server_figures(usage: dict[str, Any], metrics: dict[str, Any], timings: dict[str, Any], known: ServerReported | None) -> ServerReported:
    """Usage and times in one, whichever of vLLM's `metrics` and llama.cpp's `timings` a server sends; later chunks complete earlier ones."""
    details = usage.get("prompt_tokens_details")
    found: dict[str, Any] = {
        "prompt_tokens": _whole(usage.get("prompt_tokens")),
        "completion_tokens": _whole(usage.get("completion_tokens")),
        "cached_tokens": _whole(details.get("cached_tokens")) if isinstance(details, dict) else None,
    }
    sources = ["usage"] if usage else []
    if metrics:
        sources.append("metrics")
        ttft = _seconds(metrics.get("time_to_first_token_ms"))
        found |= {
            "ttft": ttft, "ttft_from": "scheduling" if ttft is not None else None, "queue": _seconds(metrics.get("queue_time_ms")),
            "prefill": ttft, "decode": _seconds(metrics.get("generation_time_ms")), "mean_itl": _seconds(metrics.get("mean_itl_ms")),
            "tokens_per_second": _number(metrics.get("tokens_per_second")),
        }  # fmt: skip
    if timings:
        sources.append("timings")
        cached = _whole(timings.get("cache_n"))
        found |= {
            "prefill": _seconds(timings.get("prompt_ms")), "decode": _seconds(timings.get("predicted_ms")),
            "tokens_per_second": _number(timings.get("predicted_per_second")), "mean_itl": _seconds(timings.get("predicted_per_token_ms")),
            "cached_tokens": cached if cached is not None else found["cached_tokens"],
            "completion_tokens": found["completion_tokens"] if usage else _whole(timings.get("predicted_n")),
        }  # fmt: skip
    before = _fields(known) if known is not None else {}
    old = [source for source in str(before.get("source", "")).split(", ") if source]
    merged = {**before, **{name: value for name, value in found.items() if value is not None}}
    return ServerReported(**{**merged, "source": ", ".join(dict.fromkeys([*old, *sources]))})


def _counts(raw: Any) -> tuple[int, ...] | None:
    return _ids(raw) if isinstance(raw, list) and (_ids(raw) or not raw) else None


def _vllm_speculation(metrics: dict[str, Any]) -> SpeculationReported | None:
    raw = metrics.get("speculative_decoding")
    if not isinstance(raw, dict):
        return None
    return SpeculationReported(
        "metrics.speculative_decoding",
        steps=_whole(raw.get("num_spec_steps")),
        drafted=_whole(raw.get("num_draft_tokens")),
        accepted=_whole(raw.get("num_accepted_draft_tokens")),
        most=_whole(raw.get("num_spec_tokens")),
        histogram=_counts(raw.get("acceptance_histogram")),
        mean_acceptance_length=_number(raw.get("mean_acceptance_length")),
        per_step_accepted=_counts(raw.get("per_step_accepted")),
        per_step_drafted=_counts(raw.get("per_step_drafted")),
    )


def _llama_cpp_speculation(timings: dict[str, Any]) -> SpeculationReported | None:
    drafted = _whole(timings.get("draft_n"))
    if drafted is None:
        return None
    return SpeculationReported("timings", drafted=drafted, accepted=_whole(timings.get("draft_n_accepted")))


def _sglang_speculation(extra: dict[str, Any]) -> SpeculationReported | None:
    raw = extra.get("spec_tokens_details")
    if not isinstance(raw, dict):
        return None
    return SpeculationReported(
        "sglext.spec_tokens_details",
        steps=_whole(raw.get("spec_verify_ct")),
        drafted=_whole(raw.get("spec_num_proposed_drafts")),
        accepted=_whole(raw.get("spec_num_correct_drafts")),
        histogram=_counts(raw.get("spec_correct_drafts_histogram")),
        mean_acceptance_length=_number(raw.get("spec_accept_length")),
    )


# --- a lane ---------------------------------------------------------------------------------------


@dataclass
class ServerLane:
    """One lane on a server: iterate to send its request and read the reply; `stop`, from any thread, hangs up."""

    index: int
    lane: Lane
    entry: ServerEntry
    can: Capabilities
    asked: ServerRequest
    pieces: Pieces
    race_started: float
    bounds: Bounds = DEFAULT_BOUNDS
    wire: Wire = field(default_factory=Wire)
    _stopped: threading.Event = field(default_factory=threading.Event)

    def stop(self) -> None:
        self._stopped.set()
        self.wire.hang_up()

    def __iter__(self) -> Iterator[list[tuple[int | None, Event]]]:
        """Batches of events, one per chunk; the last event is the lane's end, whatever happens."""
        reader = StreamReader(self.lane, self.pieces, self.can, self.race_started, self.wire)
        counters = self.can.metrics and not self.can.request_speculation and self.can.speculation is not False
        try:
            before = self._metrics() if counters else None
            if before is not None:
                yield [(self.index, before)]
            if self._stopped.is_set():
                yield [self._end("cancelled", "stopped")]
                return
            yield from self._stream(reader)
            ending = self._owned(reader.ended())
            if before is not None and (after := self._metrics_after(before)) is not None:
                ending.insert(0, (self.index, after))
            yield ending
        except PlaygroundError as error:
            if self._stopped.is_set():
                yield [self._end("cancelled", "stopped")]
            elif reader.whole:  # only its figures got lost
                yield self._owned(reader.ended())
            else:
                yield [(self.index, reader.failed(error.text, error.code, time.perf_counter() - self.race_started))]
        except Exception:
            log.exception("a reply of %s could not be read", self.entry.name)
            yield [(self.index, reader.failed(UNREADABLE, "server_malformed", time.perf_counter() - self.race_started))]

    def _stream(self, reader: StreamReader) -> Iterator[list[tuple[int | None, Event]]]:
        with opened(self.entry, self.asked.chat, self.asked.body, self.wire, self.bounds) as pieces:
            for chunk, arrived in chunks(pieces, self.entry.name, self.bounds.silence):
                if events := reader.read(chunk, arrived):
                    yield self._owned(events)

    def _owned(self, events: list[tuple[bool, Event]]) -> list[tuple[int | None, Event]]:
        return [(None if for_all else self.index, event) for for_all, event in events]

    def _end(self, reason: Any, detail: str) -> tuple[int | None, Event]:
        return self.index, Finished(reason, detail, time.perf_counter() - self.race_started)

    def _metrics(self) -> MetricsRead | None:
        text = metrics_text(self.entry)
        return None if text is None else MetricsRead(time.perf_counter() - self.race_started, kept_metrics(text))

    def _metrics_after(self, before: MetricsRead) -> MetricsRead | None:
        """A snapshot in which the reply is counted, as far as waiting for it is worth it."""
        for _ in range(LOOKS):
            after = self._metrics()
            if after is None or after.text != before.text:
                return after
            self._stopped.wait(BETWEEN_LOOKS)
        return after


def metrics_text(entry: ServerEntry) -> str | None:
    """The server's `/metrics`, None where it has none or doesn't answer."""
    same = entry.metrics.startswith(f"{entry.root}/")
    with guarded_http.client(entry.private, entry.key if same else None, Bounds(silence=5.0, seconds=10.0)) as http:
        try:
            reply = http.get(entry.metrics)
        except (httpx2.HTTPError, PlaygroundError):
            return None
    return reply.text if reply.status_code == 200 else None


def kept_metrics(text: str) -> str:
    """The lines of a snapshot that tell of load and speculation, creation times left out."""

    def is_kept(line: str) -> bool:
        name = re.split(r"[{ ]", line, maxsplit=1)[0].rpartition(":")[2]
        return name in KEPT_METRICS or (name.startswith("spec_decode") and not name.endswith("_created"))

    return "\n".join(filter(is_kept, text.splitlines()))
