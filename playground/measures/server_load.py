"""A load experiment's result: every request of two servers under the same load, and the numbers that follow from it.

Requests are kept as they were measured (times on this client's clock, by `vllm bench serve`'s definitions) and everything
else is computed from them, so a saved result can be looked at again under another service level.

- seconds per token = sum of (E2E - TTFT) / sum of (n - 1) over a cell's requests: the mean TPOT, every token counting alike
- speed-up = the baseline's seconds per token / the speculative server's, both from the same repeat
- a spread is the smallest and the largest of the repeats, beside their median
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, with_config

from playground.errors import PlaygroundError, Text
from playground.measures import How, Quantity
from playground.measures.formula import Formula
from playground.measures.percentiles import percentile
from playground.measures.server_speculation import Counters, SpeculationRecord, between, counters, difference, record_of_request
from playground.trace import DeviceSampled, SpeculationReported

RESULT_VERSION = 1
#: Larger than any result that the limits of an experiment allow.
MOST_BYTES = 100_000_000
#: Of all requests together; each of them is a latency to be looked at.
MOST_TOKENS = 20_000_000

Side = Literal["baseline", "speculative"]
SIDES: tuple[Side, ...] = ("baseline", "speculative")

Seconds = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=0, lt=2**53)]

_plain = with_config(ConfigDict(extra="forbid", allow_inf_nan=False))


@_plain
@dataclass(frozen=True)
class Level:
    """One load: so many streams at once, or so many requests per second whether or not earlier ones have ended."""

    concurrency: Annotated[int, Field(ge=1, le=4096)] | None = None
    rate: Annotated[float, Field(gt=0, le=1e6)] | None = None

    @property
    def text(self) -> Text:
        if self.concurrency is None:
            return Text(f"{self.rate:g} requests/s", f"{self.rate:g} 请求/秒")
        return Text(f"{self.concurrency} stream{'s' if self.concurrency > 1 else ''}", f"{self.concurrency} 路并发")


@_plain
@dataclass(frozen=True)
class LoadedRequest:
    """One request of the experiment, as this client saw it; what isn't known is None.

    `at` is when it was sent, in seconds of its cell. `gaps` are the seconds between its chunks, `chunk_tokens` the tokens
    of every chunk, the first included. `tokens` is the server's own count where it gives one, else ours.
    """

    prompt: Count
    at: Seconds
    ttft: Seconds | None
    e2e: Seconds | None
    tokens: Count | None
    counted: Literal["reported", "measured"] | None
    gaps: tuple[Seconds, ...]
    chunk_tokens: tuple[Count | None, ...]
    ended: Literal["stop", "length", "cancelled", "error"]
    error: dict[str, str] | None = None
    code: str | None = None
    prompt_tokens: Count | None = None
    cached_tokens: Count | None = None
    queue: Seconds | None = None
    speculation: SpeculationReported | None = None

    @property
    def whole(self) -> bool:
        return self.ended in ("stop", "length")

    @property
    def tpot(self) -> float | None:
        """(E2E - TTFT) / (n - 1); None for a single token, or where nobody counts them."""
        if self.tokens is None or self.tokens < 2 or self.e2e is None or self.ttft is None:
            return None
        return max(self.e2e - self.ttft, 0.0) / (self.tokens - 1)

    @property
    def token_latencies(self) -> list[float]:
        """A chunk's gap divided by its tokens, once for each of them; empty where chunks aren't counted in tokens."""
        if any(count is None for count in self.chunk_tokens):
            return []
        return [gap / count for gap, count in zip(self.gaps, self.chunk_tokens[1:], strict=False) if count for _ in range(count)]

    @property
    def record(self) -> SpeculationRecord | None:
        return None if self.speculation is None else record_of_request(self.speculation, self.tokens)


@_plain
@dataclass(frozen=True)
class ServerSample:
    """A server's gauges and counters at a moment of a cell; counters since the cell began. `kv_usage` is a share."""

    at: Seconds
    running: Seconds | None = None
    waiting: Seconds | None = None
    kv_usage: Seconds | None = None
    preemptions: Seconds | None = None
    prefix_queries: Seconds | None = None
    prefix_hits: Seconds | None = None
    tokens: Seconds | None = None


@_plain
@dataclass(frozen=True)
class Cell:
    """One server under one load, once: its requests, and what was sampled meanwhile.

    `order` is its place in the experiment, `seconds` from its beginning to its last reply. `before` and `after` are the lines
    of the server's `/metrics` around it that tell of load and speculation. `gpu` is of this host; empty where the server
    is on another.
    """

    side: Side
    level: Annotated[int, Field(ge=0, lt=100)]
    repeat: Annotated[int, Field(ge=0, lt=100)]
    order: Count
    seconds: Seconds
    requests: tuple[LoadedRequest, ...]
    samples: tuple[ServerSample, ...] = ()
    gpu: tuple[DeviceSampled, ...] = ()
    before: str | None = None
    after: str | None = None

    @cached_property
    def whole(self) -> list[LoadedRequest]:
        """The requests that were answered to the end; the numbers are theirs."""
        return [request for request in self.requests if request.whole]

    @cached_property
    def moved(self) -> Counters | None:
        """What the server counted in the cell; None where it has no `/metrics`, or was started anew."""
        if self.before is None or self.after is None:
            return None
        try:
            return difference(counters(self.before), counters(self.after))
        except PlaygroundError:
            return None

    @cached_property
    def speculation(self) -> SpeculationRecord:
        """What speculation did in the cell: by request where the server tells it, else by its counters, which are the whole server's."""
        records = [request.record for request in self.whole]
        if records and all(record is not None for record in records):
            return pooled([record for record in records if record is not None])
        if self.before is None or self.after is None:
            return SpeculationRecord("unknown")
        known = [request.tokens for request in self.whole]
        own = sum(count for count in known if count is not None) if all(count is not None for count in known) else None
        try:
            return between(self.before, self.after, own)
        except PlaygroundError:
            return SpeculationRecord("unknown")

    @property
    def decode(self) -> tuple[float, int] | None:
        """Seconds after the first tokens, and how many tokens came in them; None where nobody counts tokens."""
        timed = [request for request in self.whole if request.tpot is not None]
        if not timed:
            return None
        count = sum(request.tokens - 1 for request in timed if request.tokens is not None)
        return sum(request.e2e - request.ttft for request in timed if request.e2e is not None and request.ttft is not None), count

    @property
    def seconds_per_token(self) -> float | None:
        decode = self.decode
        return decode[0] / decode[1] if decode is not None and decode[0] > 0 else None


@_plain
@dataclass(frozen=True)
class ServerAbout:
    """One of the two servers, as it answered when it was asked what it can do; `here` says that it runs on this client's host."""

    name: str
    kind: str
    version: str | None
    model: str
    speculation: bool | None
    here: bool = False


@_plain
@dataclass(frozen=True)
class Slo:
    """What a request must meet to count for goodput; seconds, None where nothing is asked."""

    ttft: Annotated[float, Field(gt=0)] | None = None
    tpot: Annotated[float, Field(gt=0)] | None = None

    def met(self, request: LoadedRequest) -> bool:
        """Whether it was met; a single token has no TPOT and counts as 0, as in `vllm bench serve`."""
        if self.ttft is not None and (request.ttft is None or request.ttft > self.ttft):
            return False
        if self.tpot is None or request.tokens == 1:
            return True
        return request.tpot is not None and request.tpot <= self.tpot


@_plain
@dataclass(frozen=True)
class LoadSetup:
    """What was asked of both servers.

    `order` says whether the servers took turns or one was measured after the other. `prompts` names the set and
    `prompts_sha256` its content. `run` stands in every prompt's first line where `unique_prefixes` is on.
    """

    levels: tuple[Level, ...]
    repeats: Annotated[int, Field(ge=1, le=100)]
    requests: Count
    max_new_tokens: Count
    strategy: str
    knobs: dict[str, Any]
    seed: int
    prompts: str
    prompts_sha256: str
    prompt_count: Count
    unique_prefixes: bool
    warm_up: Count
    order: Literal["alternating", "restarted"]
    run: str
    ignore_eos: bool = False


@_plain
@dataclass(frozen=True)
class Expectation:
    """What an earlier result made expect at one load: `k` guesses (0 is off there), and the speed-up with its interval."""

    level: Annotated[int, Field(ge=0, lt=100)]
    k: Annotated[int, Field(ge=0, le=1000)]
    speed_up: Seconds
    low: Seconds
    high: Seconds


@_plain
@dataclass(frozen=True)
class Confirmation:
    """The earlier result whose answer is put to the test: when it was made, its setting for the server, and what to expect of it."""

    created: str
    config: dict[str, Any]
    expected: tuple[Expectation, ...]


@_plain
@dataclass(frozen=True)
class LoadResult:
    """A whole experiment; `complete` is False where it was stopped. Cells are those that ran to their end.

    With `confirms` the baseline's cells are those of the earlier result, and only the speculative server was measured again.
    """

    setup: LoadSetup
    servers: dict[Side, ServerAbout]
    cells: tuple[Cell, ...]
    created: str
    versions: dict[str, str]
    machine: str
    complete: bool = True
    slo: Slo = Slo()
    notes: tuple[dict[str, str], ...] = ()
    confirms: Confirmation | None = None
    version: Literal[1] = RESULT_VERSION

    def cells_of(self, side: Side, level: int) -> list[Cell]:
        return sorted((cell for cell in self.cells if cell.side == side and cell.level == level), key=lambda cell: cell.repeat)

    def to_json(self) -> str:
        return _adapter().dump_json(self).decode()

    @staticmethod
    def from_json(text: str | bytes) -> LoadResult:
        """Read a result that somebody gives: anything but a result of this version is refused."""
        broken = Text("This file is not a load result.", "这个文件不是负载实验结果。")
        if len(text) > MOST_BYTES:
            raise PlaygroundError("load_broken", broken)
        try:
            version = json.loads(text)["version"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise PlaygroundError("load_broken", broken) from error
        if version != RESULT_VERSION:
            raise PlaygroundError(
                "load_version",
                Text("This load result has version {version}; this app reads {known}.", "负载结果版本为 {version}；此应用只能读版本 {known}。"),
                version=str(version)[:20], known=RESULT_VERSION,
            )  # fmt: skip
        try:
            result = _adapter().validate_json(text)
        except ValidationError as error:
            where = " → ".join(str(part) for part in error.errors()[0]["loc"])[:120]
            raise _broken_at(where) from error
        if set(result.servers) != set(SIDES):
            raise _broken_at("servers")
        places = [(cell.side, cell.level, cell.repeat) for cell in result.cells]
        if any(level >= len(result.setup.levels) or repeat >= result.setup.repeats for _, level, repeat in places) or len(set(places)) < len(places):
            raise _broken_at("cells")
        if result.confirms is not None and any(one.level >= len(result.setup.levels) for one in result.confirms.expected):
            raise _broken_at("confirms")
        if sum(count or 0 for cell in result.cells for request in cell.requests for count in request.chunk_tokens) > MOST_TOKENS:
            raise _broken_at("chunk_tokens")
        return result


def _broken_at(where: str) -> PlaygroundError:
    text = Text("This load result is broken at {where}.", "负载结果在 {where} 处损坏。")
    return PlaygroundError("load_broken", text, where=where)


@cache
def _adapter() -> TypeAdapter[LoadResult]:
    return TypeAdapter(LoadResult)


_ADDED_UP = Text("forwards of each request, added up", "各请求的前向次数，相加")


def pooled(records: Sequence[SpeculationRecord]) -> SpeculationRecord:
    """The ledgers of several requests as one: counts are added, and are unknown where one of them is."""

    def added(values: Iterable[int | None]) -> int | None:
        known = list(values)
        return None if any(value is None for value in known) else sum(value for value in known if value is not None)

    def added_up(rows: Sequence[tuple[int, ...] | None]) -> tuple[int, ...] | None:
        known = [row for row in rows if row is not None]
        if len(known) < len(rows) or not known:
            return None
        return tuple(sum(row[i] for row in known if i < len(row)) for i in range(max(map(len, known))))

    formulas = {record.forwards_formula for record in records}
    return SpeculationRecord(
        source="request",
        fields=records[0].fields,
        steps=added(record.steps for record in records),
        drafted=added(record.drafted for record in records),
        accepted=added(record.accepted for record in records),
        most=max((record.most for record in records if record.most is not None), default=None),
        by_position=added_up([record.by_position for record in records]),
        histogram=added_up([record.histogram for record in records]),
        tokens=added(record.tokens for record in records),
        forwards=added(record.forwards for record in records),
        forwards_formula=next(iter(formulas)) if len(formulas) == 1 else _ADDED_UP,
    )


# --- numbers --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Spread:
    """A number with its smallest and largest value over the repeats; both are None where there was one repeat."""

    quantity: Quantity
    low: float | None
    high: float | None
    repeats: int

    @property
    def value(self) -> float | None:
        return self.quantity.value if isinstance(self.quantity.value, (int, float)) else None

    def to_json(self) -> dict[str, Any]:
        return {**self.quantity.to_json(), "low": self.low, "high": self.high, "repeats": self.repeats}


#: name → unit, how, label, formula. Times are in seconds.
_NUMBERS: dict[str, tuple[str, How, Text, Text | None]] = {
    "requests": ("requests", "measured", Text("requests answered", "已完成请求"), None),
    "failed": ("requests", "measured", Text("requests failed", "失败请求"), None),
    "seconds_per_token": ("s", "derived", Text("seconds per token", "每词元秒数"), Text("Σ (E2E − TTFT) / Σ (n − 1)", "Σ (E2E − TTFT) / Σ (n − 1)")),
    "throughput": (
        "1/s",
        "derived",
        Text("output tokens/s, all streams", "输出词元/秒（全部并发）"),
        Text("tokens of all requests / seconds of the cell", "所有请求的词元 / 单元秒数"),
    ),
    "request_rate": ("1/s", "derived", Text("requests/s", "请求/秒"), Text("requests answered / seconds of the cell", "完成的请求 / 单元秒数")),
    "goodput": (
        "1/s",
        "derived",
        Text("goodput, requests/s", "有效吞吐（请求/秒）"),
        Text("requests that met the service level / seconds of the cell", "满足服务水平的请求 / 单元秒数"),
    ),
    "acceptance": ("1", "derived", Text("acceptance rate", "接受率"), Text("accepted / drafted", "接受 / 草稿")),
    "acceptance_length": (
        "tokens",
        "derived",
        Text("mean acceptance length", "平均接受长度"),
        Text("1 + accepted / steps with a draft", "1 + 接受 / 有草稿的步数"),
    ),
    "tokens_per_forward": (
        "tokens",
        "derived",
        Text("tokens per target forward", "每次目标前向的词元数"),
        Text("tokens / forwards", "词元 / 前向次数"),
    ),
    "tokens_per_chunk": ("tokens", "derived", Text("tokens per chunk", "每块词元数"), Text("tokens / chunks", "词元 / 块数")),
    "running": ("requests", "reported", Text("requests running, most", "运行中请求（最多）"), Text("/metrics", "/metrics")),
    "waiting": ("requests", "reported", Text("requests waiting, most", "等待中请求（最多）"), Text("/metrics", "/metrics")),
    "kv_usage": ("1", "reported", Text("KV cache used, most", "KV 缓存占用（最高）"), Text("/metrics", "/metrics")),
    "preemptions": ("times", "reported", Text("preemptions", "抢占次数"), Text("/metrics", "/metrics")),
    "prefix_hits": (
        "1",
        "derived",
        Text("prefix-cache hit rate", "前缀缓存命中率"),
        Text("Δ hits / Δ queries, in tokens, by /metrics", "Δ 命中 / Δ 查询，按词元，来自 /metrics"),
    ),
    "gpu_utilisation": (
        "1",
        "measured",
        Text("GPU busy, mean", "GPU 占用（平均）"),
        Text("mean of NVML samples, all GPUs of this host", "NVML 采样平均，本机所有 GPU"),
    ),
    "gpu_memory": ("B", "measured", Text("GPU memory, most", "显存（最高）"), Text("NVML, all GPUs of this host", "NVML，本机所有 GPU")),
}

_TIMES: dict[str, tuple[How, Text, Text]] = {
    "ttft": ("measured", Text("TTFT", "首词元时间"), Text("first chunk − request sent", "首块 − 请求发出")),
    "itl": (
        "derived",
        Text("ITL, amortised", "词元间隔（摊销）"),
        Text("chunk gap / tokens in the chunk, once per token", "数据块间隔 / 块内词元数，每词元计一次"),
    ),
    "chunk_gap": (
        "measured",
        Text("chunk gap", "数据块间隔"),
        Text("between two chunks: `vllm bench serve` calls it ITL", "相邻两块之间：`vllm bench serve` 称之为 ITL"),
    ),
    "tpot": ("derived", Text("TPOT", "每词元时间"), Text("(E2E − TTFT) / (n − 1) of each request", "各请求的 (E2E − TTFT) / (n − 1)")),
    "e2e": ("measured", Text("E2E", "端到端"), Text("last chunk − request sent", "末块 − 请求发出")),
}
PERCENTILES = {"p50": 50, "p95": 95, "p99": 99}

SPEED_UP = Text("speed-up", "加速比")
THROUGHPUT_RATIO = Text("throughput ratio", "吞吐比")
_SECONDS_RATIO = Text("baseline seconds per token / speculative seconds per token", "基线每词元秒数 / 推测每词元秒数")
_SPEED_RATIO = Text("speculative output tokens/s / baseline output tokens/s", "推测输出词元每秒 / 基线输出词元每秒")
_MEDIAN = Text("median of {count} repeats", "{count} 次重复的中位数")


def cell_numbers(cell: Cell, slo: Slo = Slo()) -> dict[str, Quantity]:
    """Every number of one cell, by name; times also by percentile (`tpot_p95`)."""
    whole, seconds, record = cell.whole, cell.seconds or None, cell.speculation
    counted = [request.tokens for request in whole if request.tokens is not None]
    chunks = [count for request in whole for count in request.chunk_tokens]
    moved = cell.moved or Counters()
    busy = [sample.utilisation for sample in cell.gpu if sample.utilisation is not None]
    values: dict[str, float | None] = {
        "requests": len(whole),
        "failed": len(cell.requests) - len(whole),
        "seconds_per_token": cell.seconds_per_token,
        "throughput": sum(counted) / seconds if seconds and len(counted) == len(whole) and whole else None,
        "request_rate": len(whole) / seconds if seconds else None,
        "goodput": sum(map(slo.met, whole)) / seconds if seconds and slo != Slo() else None,
        "acceptance": _value(record.acceptance_rate),
        "acceptance_length": _value(record.mean_acceptance_length),
        "tokens_per_forward": _value(record.tokens_per_forward),
        "tokens_per_chunk": sum(chunks) / len(chunks) if chunks and all(count is not None for count in chunks) else None,  # type: ignore[arg-type]
        "running": _most(sample.running for sample in cell.samples),
        "waiting": _most(sample.waiting for sample in cell.samples),
        "kv_usage": _most(sample.kv_usage for sample in cell.samples),
        "preemptions": moved.preemptions,
        "prefix_hits": moved.prefix_hits / moved.prefix_queries if moved.prefix_hits is not None and moved.prefix_queries else None,
        "gpu_utilisation": statistics.fmean(busy) if busy else None,
        "gpu_memory": _most(sum(group) for group in _memory_by_moment(cell.gpu)),
    }
    found = {}
    for name, (unit, how, label, formula) in _NUMBERS.items():
        said = {"tokens_per_forward": record.tokens_per_forward.formula, "acceptance": record.acceptance_rate.formula,
                "acceptance_length": record.mean_acceptance_length.formula}.get(name) or formula  # fmt: skip
        found[name] = Quantity(values[name], unit, how, label, said)
    lists = {
        "ttft": [request.ttft for request in whole if request.ttft is not None],
        "itl": [latency for request in whole for latency in request.token_latencies],
        "chunk_gap": [gap for request in whole for gap in request.gaps],
        "tpot": [request.tpot for request in whole if request.tpot is not None],
        "e2e": [request.e2e for request in whole if request.e2e is not None],
    }
    for name, (how, label, formula) in _TIMES.items():
        ordered = sorted(lists[name])
        for suffix, q in PERCENTILES.items():
            found[f"{name}_{suffix}"] = Quantity(percentile(ordered, q), "s", how, Text(f"{label.en} {suffix}", f"{label.zh} {suffix}"), formula)
    return found


def side_numbers(result: LoadResult, side: Side, level: int, slo: Slo | None = None) -> dict[str, Spread]:
    """A server's numbers under one load: the median over the repeats, with the smallest and the largest."""
    found = [cell_numbers(cell, slo or result.slo) for cell in result.cells_of(side, level)]
    return {name: _spread([numbers[name] for numbers in found]) for name in (found[0] if found else ())}


def ratios(result: LoadResult, level: int, name: str) -> list[float]:
    """Baseline / speculative of one number, repeat by repeat; repeats that lack it on one side are left out."""
    pairs = {side: {cell.repeat: _value(cell_numbers(cell)[name]) for cell in result.cells_of(side, level)} for side in SIDES}
    both = [(pairs["baseline"][repeat], pairs["speculative"].get(repeat)) for repeat in pairs["baseline"]]
    return [a / b for a, b in both if a and b]


def speed_up(result: LoadResult, level: int) -> Spread:
    """How many times faster the speculative server writes a token of one stream."""
    found = ratios(result, level, "seconds_per_token")
    return _spread([Quantity(ratio, "x", "derived", SPEED_UP, _SECONDS_RATIO) for ratio in found], SPEED_UP)


def throughput_ratio(result: LoadResult, level: int) -> Spread:
    """How many times more tokens per second the speculative server writes in all; prompts included, and no use at a given rate."""
    found = [1 / ratio for ratio in ratios(result, level, "throughput")]
    return _spread([Quantity(ratio, "x", "derived", THROUGHPUT_RATIO, _SPEED_RATIO) for ratio in found], THROUGHPUT_RATIO)


@dataclass(frozen=True)
class LevelSummary:
    """One load: the numbers of both servers, and how they compare."""

    level: Level
    baseline: dict[str, Spread]
    speculative: dict[str, Spread]
    speed_up: Spread
    throughput_ratio: Spread

    def to_json(self) -> dict[str, Any]:
        sides = {side: {name: spread.to_json() for name, spread in getattr(self, side).items()} for side in SIDES}
        level = {**asdict(self.level), "text": self.level.text.to_json()}
        return {"level": level, **sides, "speed_up": self.speed_up.to_json(), "throughput_ratio": self.throughput_ratio.to_json()}


def summary(result: LoadResult, slo: Slo | None = None) -> list[LevelSummary]:
    """Every load of the experiment that at least one server went through, in the order asked."""
    return [
        LevelSummary(
            level,
            side_numbers(result, "baseline", index, slo),
            side_numbers(result, "speculative", index, slo),
            speed_up(result, index),
            throughput_ratio(result, index),
        )
        for index, level in enumerate(result.setup.levels)
        if any(cell.level == index for cell in result.cells)
    ]


def _spread(quantities: Sequence[Quantity], label: Text | None = None) -> Spread:
    known = [quantity.value for quantity in quantities if isinstance(quantity.value, (int, float))]
    model = quantities[0] if quantities else Quantity(None, "x", "derived", label or Text("", ""))
    value = statistics.median(known) if known else None
    several = len(known) > 1
    # The operands of one repeat don't give the median of several.
    said = model.formula.words if several and isinstance(model.formula, Formula) else model.formula_text
    parts = [part for part in (said, _MEDIAN.filled(count=len(known)) if several else None) if part is not None]
    formula = Text(" · ".join(part.en for part in parts), " · ".join(part.zh for part in parts)) if parts else None
    quantity = Quantity(value, model.unit, model.how, model.label, formula)
    return Spread(quantity, min(known) if several else None, max(known) if several else None, len(known))


def _value(quantity: Quantity) -> float | None:
    return quantity.value if isinstance(quantity.value, (int, float)) else None


def _most(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _memory_by_moment(samples: Sequence[DeviceSampled]) -> list[list[int]]:
    moments: dict[float, list[int]] = {}
    for sample in samples:
        if sample.memory_bytes is not None:
            moments.setdefault(sample.at, []).append(sample.memory_bytes)
    return list(moments.values())
