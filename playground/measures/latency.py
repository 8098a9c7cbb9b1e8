"""How long a lane took, by the definitions of `vllm bench serve`, on the lane's own time.

Lanes take turns on one device, so wall time would charge a lane for its neighbours. A lane's own
time is the sum of its steps' seconds: waiting for other lanes and our recording are left out.

- TTFT: from the start of the lane to its first token: reading the prompt, then the first choice.
- decode time: from the first token to the last one, n - 1 tokens later.
- E2E = TTFT + decode time: from the start of the lane to its last token.
- ITL: the time between two tokens. The first token has none. A step that brings several tokens
  gives each of them the gap divided by their number (amortised, as nobody saw them apart).
- TPOT = decode time / (n - 1), and tokens/s = (n - 1) / decode time: the first token is the prompt's.

Where the prompt was read once for the whole race, that time belongs to no lane: TTFT is then given
for the race, and the lane's own TTFT and E2E are unknown. Its decode time is known all the same.

Tokens that a branch forces are no choice of the lane's, but go through the model and the stages one
by one like any other and take as long: they count in every number, and its formula says so.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass, field

from playground.errors import Text
from playground.measures import Quantity
from playground.measures.formula import Formula
from playground.measures.percentiles import percentile
from playground.measures.server_latency import PER_SECOND, PER_TOKEN, ServerMeter
from playground.trace import ChunkArrived, Event, Finished, LaneEvent, PromptRead, ServerReported, StepTimed, TokenChosen, Trace

_E2E = Text("E2E", "端到端")
_TTFT = Text("TTFT", "首词元时间")
_DECODE = Text("decode time", "解码时间")
_ITL_P50 = Text("ITL median", "词元间隔中位数")
_ITL_P95 = Text("ITL p95", "词元间隔 p95")
_TPOT = Text("TPOT", "每词元时间")
_SPEED = Text("tokens/s", "词元/秒")
_TOKENS = Text("tokens", "词元数")
_KV = Text("KV cache", "KV 缓存")
_PEAK = Text("peak memory of the whole process", "整个进程的峰值内存")
_STOP = Text("stopped by", "停止原因")

TTFT_AND_DECODE = Formula(Text("TTFT + decode time", "首词元时间 + 解码时间"), "{ttft} + {decode}")

OF_STEPS = Text("first token to last: Σ steps behind the first", "从首词元到末词元：Σ 首步之后的各步")
NOT_IN_IT = Text("{formula}; the prompt, read once for the race, is not in it", "{formula}；提示词由整场共读一次，不计入")
OWN_TTFT = Text("Σ prompt pieces + first step", "Σ 提示词分段 + 第一步")
RACE_TTFT = Text("Σ pieces of the shared prompt + first step of the lane that stepped first", "Σ 共享提示词分段 + 最先走步的通道的第一步")
MEDIAN_ITL = Text("median of ITL, linear between neighbours", "ITL 的中位数，相邻值间线性插值")
P95_ITL = Text("95th percentile of ITL, linear between neighbours", "ITL 的第 95 百分位，相邻值间线性插值")
WITH_FORCED = Text("{formula}; forced tokens are in it: they take the same forward", "{formula}；含指定的词元：它们同样需要一次前向")

STOP_REASONS = {
    "eos": Text("end of sequence", "遇到结束符"),
    "stop_string": Text("stop string", "遇到停止字符串"),
    "max_new_tokens": Text("token limit", "达到词元上限"),
    "context": Text("context full", "上下文已满"),
    "stopped": Text("stopped by hand", "手动停止"),
    "out_of_memory": Text("out of memory", "内存不足"),
    "server_stop": Text("stopped by the server", "由服务器停止"),
    "server_length": Text("a length limit of the server's", "服务器的长度上限"),
}


@dataclass
class LaneMeter:
    """The numbers of one lane, kept up to date event by event: `add` is cheap, `numbers` too.

    `itl` holds seconds per token from the second token on. A lane whose text came in chunks has the numbers of `server`.
    """

    prompt_seconds: float = 0.0
    reads_itself: bool = False
    reused: bool = False
    first_step: float | None = None
    step_seconds: float = 0.0
    timed_tokens: int = 0
    tokens: int = 0
    forced: bool = False
    itl: list[float] = field(default_factory=list)
    finished: Finished | None = None
    last: StepTimed | None = None
    server: ServerMeter | None = None
    _ordered: list[float] = field(default_factory=list)
    _waiting: float = 0.0

    def add(self, event: Event) -> None:
        """Take in the next event of this lane, in order."""
        if isinstance(event, TokenChosen):
            self.tokens = event.position + 1  # a token at a filled position replaces all from there on
            self.forced = self.forced or event.origin == "forced"
        elif isinstance(event, StepTimed):
            self._step(event)
        elif isinstance(event, PromptRead):
            if event.reused:
                self.reused = True
            else:
                self.reads_itself = True
                self.prompt_seconds += event.seconds
        elif isinstance(event, Finished):
            self.finished = event
        elif isinstance(event, ChunkArrived | ServerReported):
            self.server = self.server or ServerMeter()
            self.server.add(event)

    def _step(self, step: StepTimed) -> None:
        self.last = step
        self.step_seconds += step.seconds
        # A step may bring no token (beams that have only moved on): its time belongs to the next token.
        self._waiting += step.seconds
        if not step.tokens:
            return
        if self.timed_tokens:
            gap = self._waiting / step.tokens
            for _ in range(step.tokens):
                self.itl.append(gap)
                insort(self._ordered, gap)
        else:
            self.first_step = self._waiting
        self.timed_tokens += step.tokens
        self._waiting = 0.0

    @property
    def ttft_seconds(self) -> float | None:
        """Seconds to the first token, known only to a lane that read its prompt itself."""
        return self.prompt_seconds + self.first_step if self.reads_itself and self.first_step is not None else None

    @property
    def decode_seconds(self) -> float | None:
        """From the first token to the last, whoever read the prompt; None until a second token is there."""
        if self.first_step is None or self.timed_tokens < 2:
            return None
        return self.step_seconds - self._waiting - self.first_step

    @property
    def e2e_seconds(self) -> float | None:
        """From the start of the lane to its last token, known only to a lane that read its prompt itself."""
        return None if self.ttft_seconds is None else self.ttft_seconds + (self.decode_seconds or 0.0)

    def itl_percentile(self, q: float) -> float | None:
        return percentile(self._ordered, q)

    def numbers(self) -> dict[str, Quantity]:
        """The numbers line of a lane, by name, in the order in which it is shown."""
        if self.server is not None:
            return self.server.numbers(self._stop())
        later, decode = self.timed_tokens - 1, self.decode_seconds
        last = self.last
        of_steps = OF_STEPS if self.reads_itself else filled(NOT_IN_IT, OF_STEPS)
        return {
            "ttft": Quantity(self.ttft_seconds, "s", "derived", _TTFT, OWN_TTFT if self.reads_itself else None),
            "decode": Quantity(decode, "s", "derived", _DECODE, self._said(of_steps)),
            "e2e": Quantity(self.e2e_seconds, "s", "derived", _E2E, TTFT_AND_DECODE if self.reads_itself else None),
            "itl_p50": Quantity(self.itl_percentile(50), "s", "derived", _ITL_P50, self._said(MEDIAN_ITL)),
            "itl_p95": Quantity(self.itl_percentile(95), "s", "derived", _ITL_P95, self._said(P95_ITL)),
            "tpot": Quantity(decode / later if decode is not None else None, "s", "derived", _TPOT, PER_TOKEN),
            "tokens_per_second": Quantity(later / decode if decode else None, "1/s", "derived", _SPEED, PER_SECOND),
            "tokens": Quantity(self.tokens, "tokens", "measured", _TOKENS),
            "kv_bytes": Quantity(last.cache_bytes if last else None, "B", "measured", _KV),
            "peak_memory": Quantity(last.peak_memory if last else None, "B", "measured", _PEAK),
            "stop": self._stop(),
        }

    def _said(self, formula: Text) -> Text:
        return filled(WITH_FORCED, formula) if self.forced else formula

    def _stop(self) -> Quantity:
        if self.finished is None:
            return Quantity(None, "", "measured", _STOP)
        return Quantity(self.finished.reason, "", "measured", stop_text(self.finished))


def filled(around: Text, formula: Text) -> Text:
    """A formula with what is to be said of it."""
    return Text(around.en.format(formula=formula.en), around.zh.format(formula=formula.zh))


def stop_text(finished: Finished) -> Text:
    """Why a lane ended, in words."""
    if finished.message is not None and finished.reason == "error":
        return Text(finished.message["en"], finished.message["zh"])
    return STOP_REASONS.get(finished.detail, Text(finished.detail, finished.detail))


def lane_meter(trace: Trace, lane: int) -> LaneMeter:
    """A meter that has seen all events of one lane."""
    meter = LaneMeter()
    for event in trace.of(lane):
        meter.add(event)
    return meter


def lane_numbers(trace: Trace, lane: int) -> dict[str, Quantity]:
    """The numbers line of one lane; during a run keep a `LaneMeter` instead of asking anew."""
    return lane_meter(trace, lane).numbers()


@dataclass
class SharedRead:
    """One prompt that was read once for several lanes: its seconds, and who got a copy."""

    seconds: float = 0.0
    tokens: int = 0
    lanes: list[int] = field(default_factory=list)
    first_step: float | None = None

    @property
    def ttft(self) -> Quantity:
        """TTFT of the race: the shared reading, then the first choice of whichever lane came first."""
        known = self.seconds + self.first_step if self.first_step is not None else None
        return Quantity(known, "s", "derived", _TTFT, RACE_TTFT)


@dataclass
class RaceMeter:
    """A meter per lane, and the prompts that were read once for several of them.

    Fed with events as they come: `add` takes the `(lane, event)` pairs of a trace in order.
    """

    lanes: dict[int, LaneMeter] = field(default_factory=dict)
    shared: list[SharedRead] = field(default_factory=list)

    @property
    def ttft(self) -> Quantity | None:
        """TTFT of a race that read one prompt for its lanes; with several prompts, or none shared, there is no single one."""
        return self.shared[0].ttft if len(self.shared) == 1 else None

    def add(self, lane: int | None, event: Event) -> None:
        if lane is None:
            if isinstance(event, PromptRead) and event.shared:
                # Lanes of another model or prompt have their own shared reading: it begins after the copies.
                if not self.shared or self.shared[-1].lanes:
                    self.shared.append(SharedRead())
                self.shared[-1].seconds += event.seconds
                self.shared[-1].tokens = event.tokens
            return
        if isinstance(event, PromptRead) and event.reused and self.shared:
            self.shared[-1].lanes.append(lane)
        meter = self.lanes.setdefault(lane, LaneMeter())
        stepped = meter.first_step
        meter.add(event)
        if stepped is None and meter.first_step is not None:
            for reading in self.shared:
                if lane in reading.lanes and reading.first_step is None:
                    reading.first_step = meter.first_step


def race_meter(events: Sequence[LaneEvent]) -> RaceMeter:
    """A meter that has seen all events of a race."""
    meter = RaceMeter()
    for lane, event in events:
        meter.add(lane, event)
    return meter
