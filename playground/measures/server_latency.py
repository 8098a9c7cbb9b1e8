"""How long a server took, by the definitions of `vllm bench serve`, on this client's clock.

- TTFT: from sending the request to the first chunk that holds something.
- chunk gap: the time between two chunks. A chunk may hold several tokens (speculation, a slow reader), so a gap is no
  time per token; it is what `vllm bench serve` calls ITL.
- amortised token latency: a chunk's gap divided by its tokens, counted once for each of them.
- E2E: from sending to the last chunk; the usage that follows is no part of it.
- decode time = E2E - TTFT: from the first chunk to the last.
- TPOT = decode time / (n - 1), and tokens/s = (n - 1) / decode time, n being the server's own count where it gives one, else ours.

What the server says by itself stands beside that, marked as reported: its clock starts elsewhere.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from dataclasses import dataclass, field, replace

from playground.errors import Text
from playground.measures import Quantity
from playground.measures.formula import Formula
from playground.measures.percentiles import percentile
from playground.trace import ChunkArrived, Event, ServerReported

_E2E = Text("E2E", "端到端")
_TTFT = Text("TTFT", "首词元时间")
_DECODE_TIME = Text("decode time", "解码时间")
_TOKEN_P50 = Text("amortised token latency, median", "摊销词元延迟中位数")
_TOKEN_P95 = Text("amortised token latency, p95", "摊销词元延迟 p95")
_GAP_P50 = Text("chunk gap, median", "数据块间隔中位数")
_GAP_P95 = Text("chunk gap, p95", "数据块间隔 p95")
_PER_CHUNK = Text("tokens per chunk", "每块词元数")
_TPOT = Text("TPOT", "每词元时间")
_SPEED = Text("tokens/s", "词元/秒")
_TOKENS = Text("tokens", "词元数")
_KV = Text("KV cache", "KV 缓存")
_PEAK = Text("peak memory of the whole process", "整个进程的峰值内存")

#: Each names the measures beside it that give it: whoever shows it puts in what is shown of those.
PER_TOKEN = Formula(Text("decode time / (tokens − 1)", "解码时间 / (词元数 − 1)"), "{decode} / ({tokens} − 1)")
PER_SECOND = Formula(Text("(tokens − 1) / decode time", "(词元数 − 1) / 解码时间"), "({tokens} − 1) / {decode}")

FIRST_TO_LAST = Text("E2E − TTFT: first chunk to last", "端到端 − 首词元时间：从首块到末块")
SHARE = Text("chunk gap / tokens in the chunk, once per token", "数据块间隔 / 块内词元数，每词元计一次")

REPORTED_TTFT = {
    "scheduling": Text("TTFT by the server, from scheduling", "服务器报告的首词元时间（自调度起）"),
    "arrival": Text("TTFT by the server, from arrival", "服务器报告的首词元时间（自到达起）"),
}
_QUEUE = Text("queue, by the server", "服务器报告的排队时间")
_PREFILL = Text("prefill, by the server", "服务器报告的预填充时间")
_DECODE = Text("decode, by the server", "服务器报告的解码时间")
_MEAN_ITL = Text("mean ITL, by the server", "服务器报告的平均词元间隔")
_SERVER_SPEED = Text("tokens/s, by the server", "服务器报告的词元/秒")


@dataclass
class ServerMeter:
    """The numbers of one server lane, kept up to date chunk by chunk; seconds."""

    ttft: float | None = None
    e2e: float | None = None
    chunks: int = 0
    tokens: int | None = 0
    per_chunk: Counter[int] = field(default_factory=Counter)
    gaps: list[float] = field(default_factory=list)
    reported: ServerReported | None = None
    _ordered_gaps: list[float] = field(default_factory=list)
    _ordered_tokens: list[float] = field(default_factory=list)

    def add(self, event: Event) -> None:
        """Take in the next event of this lane, in order."""
        if isinstance(event, ServerReported):
            self.reported = event
        elif isinstance(event, ChunkArrived):
            self._chunk(event)

    def _chunk(self, chunk: ChunkArrived) -> None:
        if self.e2e is None:
            self.ttft = chunk.seconds
        else:
            gap = max(chunk.seconds - self.e2e, 0.0)
            self.gaps.append(gap)
            insort(self._ordered_gaps, gap)
            for _ in range(chunk.tokens or 0):
                insort(self._ordered_tokens, gap / (chunk.tokens or 1))
        self.e2e = chunk.seconds
        self.chunks += 1
        self.tokens = None if self.tokens is None or chunk.tokens is None else self.tokens + chunk.tokens
        if chunk.tokens is not None:
            self.per_chunk[chunk.tokens] += 1

    @property
    def amortised(self) -> list[float]:
        """Seconds per token in ascending order, each token with its share of its chunk's gap; empty where chunks aren't counted in tokens."""
        return self._ordered_tokens if self.tokens is not None else []

    @property
    def output_tokens(self) -> int | None:
        """How many tokens were written: the server's count, else ours."""
        return self.reported.completion_tokens if self.reported is not None and self.reported.completion_tokens is not None else self.tokens

    @property
    def decode(self) -> float | None:
        """E2E - TTFT: from the first chunk to the last; None until there is one."""
        return self.e2e - self.ttft if self.e2e is not None and self.ttft is not None else None

    @property
    def tpot(self) -> float | None:
        """decode time / (n - 1); None for a single token, or where nobody counts them."""
        count = self.output_tokens
        return self.decode / (count - 1) if count is not None and count > 1 and self.decode is not None else None

    def numbers(self, stop: Quantity) -> dict[str, Quantity]:
        """The numbers line of a server lane, under the names that local lanes use where they mean the same."""
        reported = self.reported or ServerReported("")
        told_by_server = reported.completion_tokens is not None
        whose = Text("usage.completion_tokens", "usage.completion_tokens") if told_by_server else Text("our count of tokens", "我们数得的词元数")
        counted = self.chunks and self.tokens is not None
        tpot = self.tpot
        found = {
            "ttft": Quantity(self.ttft, "s", "measured", _TTFT, Text("first chunk − request sent", "首块 − 请求发出")),
            "decode": Quantity(self.decode, "s", "derived", _DECODE_TIME, FIRST_TO_LAST),
            "e2e": Quantity(self.e2e, "s", "measured", _E2E, Text("last chunk − request sent", "末块 − 请求发出")),
            "itl_p50": Quantity(percentile(self.amortised, 50), "s", "derived", _TOKEN_P50, Text(f"median of {SHARE.en}", f"中位数：{SHARE.zh}")),
            "itl_p95": Quantity(percentile(self.amortised, 95), "s", "derived", _TOKEN_P95, Text(f"p95 of {SHARE.en}", f"p95：{SHARE.zh}")),
            "tpot": Quantity(tpot, "s", "derived", _TPOT, replace(PER_TOKEN, words=_by(PER_TOKEN.words, whose))),
            "tokens_per_second": Quantity(
                1 / tpot if tpot else None,
                "1/s",
                "derived",
                _SPEED,
                replace(PER_SECOND, words=_by(PER_SECOND.words, whose)),
            ),
            "tokens": Quantity(self.output_tokens, "tokens", "reported" if told_by_server else "measured", _TOKENS),
            "chunk_gap_p50": Quantity(percentile(self._ordered_gaps, 50), "s", "measured", _GAP_P50),
            "chunk_gap_p95": Quantity(percentile(self._ordered_gaps, 95), "s", "measured", _GAP_P95),
            "tokens_per_chunk": Quantity(
                (self.tokens or 0) / self.chunks if counted else None, "tokens", "derived", _PER_CHUNK, Text("tokens / chunks", "词元 / 块数")
            ),
            "kv_bytes": Quantity(None, "B", "reported", _KV),
            "peak_memory": Quantity(None, "B", "reported", _PEAK),
        }
        told = {
            "server_queue": (reported.queue, "s", _QUEUE),
            "server_ttft": (reported.ttft, "s", REPORTED_TTFT[reported.ttft_from or "arrival"]),
            "server_prefill": (reported.prefill, "s", _PREFILL),
            "server_decode": (reported.decode, "s", _DECODE),
            "server_itl": (reported.mean_itl, "s", _MEAN_ITL),
            "server_tokens_per_second": (reported.tokens_per_second, "1/s", _SERVER_SPEED),
        }
        found |= {name: Quantity(value, unit, "reported", label, reported.source) for name, (value, unit, label) in told.items() if value is not None}
        return {**found, "stop": stop}


def _by(formula: Text, whose: Text) -> Text:
    """A formula, and whose count of tokens it takes."""
    return Text(f"{formula.en}, tokens: {whose.en}", f"{formula.zh}，词元数：{whose.zh}")
