"""What this client adds to a server's chunks: from a chunk's writing, in another process, to its events being here.

The stand-in server sends chunks of five tokens with twenty candidates each, every 20 ms per stream, and writes into each the
moment at which it was sent (both processes read the same monotonic clock). Serialising is the server's, not ours.

What the kernel and Python's own HTTP reader take to hand over the same bytes is measured too, in turns with it: the floor. What
this client adds is the rest.
"""

from __future__ import annotations

import json
import multiprocessing
import statistics
import threading
import time
import urllib.request
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from playground.backends.guarded_http import Wire
from playground.backends.openai_api import DEFAULT_BOUNDS, Pieces, StreamReader, chunks, opened
from playground.backends.server_request import server_request
from playground.backends.servers import Capabilities, entry
from playground.measures.percentiles import percentile
from playground.request import Request

PAUSE = 0.02
#: How often the client and the floor are measured in turns.
TURNS = 5
TOKENS_PER_CHUNK = 5
CANDIDATES = 20
#: How a chunk begins: with the moment at which it was sent.
CREATED = b'data: {"created": '


def _serve(port: Any, chunks: int) -> None:
    """For a process of its own: answer every completion with a paced stream."""
    token = {f" word{i}": -0.1 - i for i in range(CANDIDATES)}
    logprobs = {"tokens": [" word0"] * TOKENS_PER_CHUNK, "token_logprobs": [-0.1] * TOKENS_PER_CHUNK, "top_logprobs": [token] * TOKENS_PER_CHUNK}
    choice = {"index": 0, "text": " word0" * TOKENS_PER_CHUNK, "logprobs": logprobs, "token_ids": [7] * TOKENS_PER_CHUNK, "finish_reason": None}
    body = json.dumps({"object": "text_completion", "choices": [choice]})[1:]
    end = json.dumps({"choices": [{**choice, "text": "", "token_ids": [], "logprobs": None, "finish_reason": "length"}]})

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for _ in range(chunks):
                time.sleep(PAUSE)
                self._piece(f"{CREATED.decode()}{time.perf_counter()!r}, {body}\n\n")
            self._piece(f"data: {end}\n\n")
            self._piece("data: [DONE]\n\n")
            self.wfile.write(b"0\r\n\r\n")

        def _piece(self, text: str) -> None:
            data = text.encode()
            self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            self.wfile.flush()

        def log_message(self, *_: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        request_queue_size = 128
        daemon_threads = True

    with Server(("127.0.0.1", 0), Handler) as server:
        port.send(server.server_port)
        server.serve_forever()


def run(streams: int, count: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Milliseconds per chunk that this client adds with one stream and with many at once; `say` gets one line each."""
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    server = multiprocessing.get_context("spawn").Process(target=_serve, args=(theirs, count), daemon=True)
    server.start()
    try:
        url = f"http://127.0.0.1:{ours.recv()}"
        _measured(url, 1)  # a warm-up: imports and certificates
        figures = {f"{many} streams": _in_turns(url, many) for many in dict.fromkeys((1, streams))}
    finally:
        server.terminate()
        server.join(timeout=5)
    for name, found in figures.items():
        say(
            f"{name}: {found['chunks']} chunks of {TOKENS_PER_CHUNK} tokens; from sent to events median {found['delay_ms']['median']:.2f} ms, "
            f"p95 {found['delay_ms']['p95']:.2f} ms; to a bare reader {found['floor_ms']['median']:.2f} ms, p95 {found['floor_ms']['p95']:.2f} ms; "
            f"this client adds {found['added_ms']:.2f} ms; CPU {found['cpu_ms_per_chunk']:.3f} ms per chunk"
        )
    return figures


def _in_turns(url: str, streams: int) -> dict[str, Any]:
    """This client and the floor, one after the other, several times; what it adds is the difference of the medians."""
    ours: list[float] = []
    floor: list[float] = []
    spent = 0.0
    for _ in range(TURNS):
        delays, seconds = _measured(url, streams)
        ours += delays
        spent += seconds
        floor += _floor(url, streams)
    found = {"delay_ms": _spread(ours), "floor_ms": _spread(floor)}
    added = found["delay_ms"]["median"] - found["floor_ms"]["median"]
    return {"chunks": len(ours), **found, "added_ms": added, "cpu_ms_per_chunk": spent / len(ours) * 1e3}


def _spread(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    return {"median": statistics.median(ordered) * 1e3, "p95": (percentile(ordered, 95) or 0.0) * 1e3}


def _followed(follow: Callable[[], None], streams: int) -> float:
    """Run so many of them at once; the seconds of CPU that this process spent."""
    threads = [threading.Thread(target=follow) for _ in range(streams)]
    before = time.process_time()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.process_time() - before


def _floor(url: str, streams: int) -> list[float]:
    """Seconds from a chunk's writing to its bytes being here, read with Python's own HTTP client and left as they are."""
    delays: list[float] = []

    def follow() -> None:
        with urllib.request.urlopen(urllib.request.Request(f"{url}/v1/completions", b"{}")) as reply:
            for line in reply:
                arrived = time.perf_counter()
                if line.startswith(CREATED):
                    delays.append(arrived - float(line[len(CREATED) : line.index(b",")]))

    _followed(follow, streams)
    return delays


def _measured(url: str, streams: int) -> tuple[list[float], float]:
    """Seconds from a chunk's writing to its events being here, and the seconds of CPU for all of them."""
    can = Capabilities(
        kind="vllm", version=None, models=(("m", None),), model="m", completions=True, chat=False, token_ids=True, logprobs=CANDIDATES,
        scale="raw_log_probability", usage=True, request_metrics=False, request_speculation=False, metrics=False, families=(), speculation=None,
        beam_search=None, refused=(),
    )  # fmt: skip
    where = entry("bench", url)
    request = Request.from_json({"prompt": "Hello", "lanes": [{"server": "bench", "max_new_tokens": 1024}]})
    asked = server_request(request, request.lanes[0], where, can)
    pieces, started = Pieces("bench/m"), time.perf_counter()
    delays: list[float] = []

    def follow() -> None:
        wire = Wire()
        reader = StreamReader(request.lanes[0], pieces, can, started, wire)
        with opened(where, asked.chat, asked.body, wire) as body:
            for chunk, arrived in chunks(body, where.name, DEFAULT_BOUNDS.silence):
                reader.read(chunk, arrived)
                if isinstance(chunk.get("created"), float):
                    delays.append(time.perf_counter() - chunk["created"])

    spent = _followed(follow, streams)
    return delays, spent
