"""A small HTTP server that answers as recorded ones did: with their pauses, cut off where a test wants, or with nonsense."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from playground.backends.servers import Capabilities

RECORDED = Path(__file__).parent / "fixtures" / "vllm-0.32"

#: What is sent: seconds to wait before it, then bytes.
Timed = Iterable[tuple[float, bytes]]


@dataclass(frozen=True)
class Reply:
    """One answer: a status, a content type, timed bytes, and whether the connection breaks instead of ending."""

    body: Timed
    status: int = 200
    kind: str = "text/event-stream"
    breaks: bool = False
    headers: tuple[tuple[str, str], ...] = ()


Answer = Callable[["Ask"], Reply]


@dataclass(frozen=True)
class Ask:
    """One question that came in."""

    method: str
    path: str
    headers: dict[str, str]
    body: dict[str, Any]


@dataclass
class RecordedServer:
    """Where it answers, what it was asked, and how it answers now."""

    url: str
    answer: Answer
    asks: list[Ask] = field(default_factory=list)
    hung_up: int = 0
    #: What a probe found while it answered as recorded.
    known: Capabilities | None = None

    def bodies(self, path: str) -> list[dict[str, Any]]:
        return [ask.body for ask in self.asks if ask.path == path]


def recorded(name: str, speed: float = 1.0) -> Reply:
    """A recorded reply with its real pauses, divided by `speed`."""
    lines = json.loads((RECORDED / f"{name}.json").read_text())["response"]
    first = lines[0]
    if "status" in first or not first["line"].startswith("data:"):
        return text(first["line"], first.get("status", 200))
    before, body = 0.0, []
    for line in lines:
        body.append(((line["t"] - before) / speed, line["line"].encode() + b"\n\n"))
        before = line["t"]
    return Reply(body)


def chunked(chunks: Iterable[dict[str, Any] | str], pause: float = 0.0) -> Reply:
    """A stream of JSON objects (or a text as it is) with the same pause before each, and [DONE]."""
    lines = [chunk if isinstance(chunk, str) else json.dumps(chunk) for chunk in chunks]
    return Reply([(pause, f"data: {line}\n\n".encode()) for line in [*lines, "[DONE]"]])


def text(body: str, status: int = 200, kind: str = "application/json") -> Reply:
    return Reply([(0.0, body.encode())], status, kind)


def as_json(value: Any, status: int = 200) -> Reply:
    return text(json.dumps(value), status)


NOT_FOUND = as_json({"error": {"message": "Not Found", "code": 404}}, 404)


def vllm(ask: Ask, stream: Answer | None = None, speculates: bool = True, logprobs: int = 50, speed: float = 50.0) -> Reply:
    """vLLM 0.32 with n-gram speculation as it was recorded; `stream` answers streamed completions instead."""
    if ask.path == "/v1/models":
        return as_json({"object": "list", "data": [{"id": "smol", "object": "model", "owned_by": "vllm", "max_model_len": 2048}]})
    if ask.path == "/version":
        return as_json({"version": "0.32.0"})
    if ask.path == "/metrics":
        return text((RECORDED / "metrics.txt").read_text(), kind="text/plain")
    if ask.path == "/v1/completions":
        body = ask.body
        if (body.get("logprobs") or 0) > logprobs:
            words = f"Requested sample logprobs of {body['logprobs']}, which is greater than max allowed: {logprobs} (parameter=logprobs)"
            return as_json({"error": {"message": words, "type": "BadRequestError", "code": 400}}, 400)
        if speculates and (body.get("min_p") or body.get("logit_bias")):
            return recorded_error("chat_sampled")
        if body.get("use_beam_search"):
            return recorded("beam")
        if body.get("stream"):
            return stream(ask) if stream is not None else recorded("completions_ngram_greedy", speed)
        return recorded("completions_ngram_greedy_nostream")
    return NOT_FOUND


def recorded_error(name: str) -> Reply:
    """A recorded error that came as an event of a stream, as a reply that is none."""
    line = json.loads((RECORDED / f"{name}.json").read_text())["response"][0]["line"].removeprefix("data: ")
    return text(line, 400)


@contextmanager
def serving(answer: Answer) -> Iterator[RecordedServer]:
    """The server on a free port of this machine, for as long as the context lasts."""
    state = RecordedServer("", answer)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer({})

        def do_POST(self) -> None:
            self._answer(json.loads(self.rfile.read(int(self.headers["content-length"]))))

        def _answer(self, body: dict[str, Any]) -> None:
            ask = Ask(self.command, self.path, {name.lower(): value for name, value in self.headers.items()}, body)
            state.asks.append(ask)
            reply = state.answer(ask)
            try:
                self._send(reply)
            except (BrokenPipeError, ConnectionResetError):
                state.hung_up += 1
                self.close_connection = True

        def _send(self, reply: Reply) -> None:
            self.send_response(reply.status)
            self.send_header("Content-Type", reply.kind)
            self.send_header("Transfer-Encoding", "chunked")
            for name, value in reply.headers:
                self.send_header(name, value)
            self.end_headers()
            for pause, data in reply.body:
                time.sleep(max(pause, 0.0))
                if not data:  # an empty piece would be the end
                    continue
                self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
                self.wfile.flush()
            if reply.breaks:
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            self.wfile.write(b"0\r\n\r\n")

        def log_message(self, *_: Any) -> None:
            pass

    class Quiet(ThreadingHTTPServer):
        request_queue_size = 64

        def handle_error(self, *_: Any) -> None:
            """Clients hang up here on purpose."""

    server = Quiet(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    state.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join(timeout=5)
