"""A stand-in for vLLM with known timing: chunks of so many tokens every so many seconds, counters that move, and speculation told per request."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.recorded_server import NOT_FOUND, Ask, Reply, as_json, recorded, recorded_error, text

K = 4


@dataclass
class PacedServer:
    """Answers like vLLM 0.32: `accepted` guesses of four stand in every step, which takes `step` seconds; none: no speculation.

    `ends` are the finish reasons of its replies, in turns.
    `tells` is whether replies carry their own figures on speculation; the counters of `/metrics` always do.
    """

    step: float = 0.01
    accepted: int | None = None
    tells: bool = True
    metrics: bool = True
    broken: bool = False
    ends: tuple[str, ...] = ("length",)
    started: float = 1.0
    counts: dict[str, int] = field(default_factory=lambda: {"tokens": 0, "requests": 0, "drafts": 0, "queries": 0})
    prompts: list[str] = field(default_factory=list)
    open_streams: int = 0
    most_streams: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, ask: Ask) -> Reply:
        if ask.path == "/v1/models":
            return as_json({"object": "list", "data": [{"id": "smol", "object": "model", "owned_by": "vllm", "max_model_len": 2048}]})
        if ask.path == "/version":
            return as_json({"version": "0.32.0"})
        if ask.path == "/metrics" and self.metrics:
            return text(self.page(), kind="text/plain")
        if ask.path == "/v1/completions":
            if self.broken:
                return as_json({"error": {"message": "the engine is dead", "code": 500}}, 500)
            if self.accepted is not None and (ask.body.get("min_p") or ask.body.get("logit_bias")):
                return recorded_error("chat_sampled")
            if ask.body.get("use_beam_search"):
                return recorded("beam")
            if ask.body.get("stream"):
                self.prompts.append(ask.body["prompt"])
                return Reply(self.stream(ask.body["max_tokens"], self.ends[(len(self.prompts) - 1) % len(self.ends)]))
            return recorded("completions_ngram_greedy_nostream")
        return NOT_FOUND

    def stream(self, tokens: int, ends: str) -> Iterator[tuple[float, bytes]]:
        with self._lock:
            self.open_streams += 1
            self.most_streams = max(self.most_streams, self.open_streams)
        sizes = [1]
        while (left := tokens - sum(sizes)) > 0:
            sizes.append(min(1 + (self.accepted or 0), left))
        for number, size in enumerate(sizes):
            end = ends if number == len(sizes) - 1 else None
            chunk = {"choices": [{"index": 0, "text": " a" * size, "token_ids": [5] * size, "finish_reason": end}]}
            yield self.step, f"data: {json.dumps(chunk)}\n\n".encode()
        steps = len(sizes) - 1
        with self._lock:
            self.open_streams -= 1
            for name, more in (("tokens", tokens), ("requests", 1), ("drafts", steps), ("queries", 20)):
                self.counts[name] += more
        last: dict[str, object] = {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": tokens, "total_tokens": 9 + tokens}}
        if self.accepted is not None and self.tells:
            last["metrics"] = {"speculative_decoding": {
                "num_spec_steps": steps, "num_draft_tokens": K * steps, "num_accepted_draft_tokens": self.accepted * steps, "num_spec_tokens": K,
                "acceptance_histogram": [steps * (i == self.accepted) for i in range(K + 1)],
            }}  # fmt: skip
        yield 0.0, f"data: {json.dumps(last)}\n\n".encode()
        yield 0.0, b"data: [DONE]\n\n"

    def page(self) -> str:
        """`/metrics`, with the counters as they stand now."""
        with self._lock:
            counts, running = dict(self.counts), self.open_streams
        label = '{engine="0",model_name="smol"}'
        lines = [
            f"process_start_time_seconds {self.started}", f"vllm:generation_tokens_total{label} {counts['tokens']}",
            f"vllm:request_success_total{label} {counts['requests']}", f"vllm:num_requests_running{label} {running}",
            f"vllm:num_requests_waiting{label} 0", f"vllm:kv_cache_usage_perc{label} 0.25", f"vllm:num_preemptions_total{label} 0",
            f"vllm:prefix_cache_queries_total{label} {counts['queries']}", f"vllm:prefix_cache_hits_total{label} 0",
        ]  # fmt: skip
        if self.accepted is not None:
            drafts, stem = counts["drafts"], "vllm:spec_decode_num_accepted_tokens"
            lines += [
                f"vllm:spec_decode_num_drafts_total{label} {drafts}", f"vllm:spec_decode_num_draft_tokens_total{label} {K * drafts}",
                f"{stem}_total{label} {self.accepted * drafts}",
                *(f"{stem}_per_pos_total{label[:-1]},position=\"{i}\"}} {drafts * (i < self.accepted)}" for i in range(K)),
            ]  # fmt: skip
        return "\n".join(lines) + "\n"
