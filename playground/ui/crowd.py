"""Many browsers at once, as far as the server can tell: the clients of the load test, in a process of their own.

They speak to the page's server as its scripts do (server functions, Gradio's queue, its stream). While
a run is on they only note when bytes came, so that they take little from the machine that they share
with the server; what the bytes say is read afterwards.
"""

from __future__ import annotations

import asyncio
import json
import resource
import secrets
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import httpx


@dataclass
class Client:
    """One visitor's page: its session, and the pieces of its stream with the monotonic second when each came."""

    http: httpx.AsyncClient
    config: dict[str, Any]
    session: str = field(default_factory=lambda: secrets.token_hex(8))
    pieces: list[tuple[float, bytes]] = field(default_factory=list)

    async def call(self, name: str, *values: Any) -> dict[str, Any]:
        """Ask a server function of the page."""
        page = next(component for component in self.config["components"] if component["props"].get("elem_id") == "playground-page")
        asked = {"session_hash": self.session, "component_id": page["id"], "fn_name": name, "data": list(values)}
        answer = await self.http.post("component_server", json=asked)
        answer.raise_for_status()
        return answer.json()

    async def follow(self, run_id: str) -> None:
        """Join the queue for a run's stream, and keep all of it with its times."""
        dependency = next(one for one in self.config["dependencies"] if any(target[1] == "follow" for target in one["targets"]))
        asked = {"data": [], "event_data": {"run": run_id, "seq": 0}, "fn_index": dependency["id"], "trigger_id": dependency["targets"][0][0]}
        (await self.http.post("queue/join", json={**asked, "session_hash": self.session})).raise_for_status()
        async with self.http.stream("GET", "queue/data", params={"session_hash": self.session}) as stream:
            async for piece in stream.aiter_raw():
                self.pieces.append((time.monotonic(), piece))

    def packets(self) -> Iterator[tuple[float, dict[str, Any]]]:
        """The packets that were new to this page, each with the second when its last byte came."""
        pending, packet, number = b"", "", 0
        for second, piece in self.pieces:
            *lines, pending = (pending + piece).split(b"\n")
            for line in lines:
                message = json.loads(line[5:]) if line.startswith(b"data:") else {}
                if message.get("msg") != "process_generating":
                    continue
                packet = undo_diff(packet, message["output"]["data"][0])
                found = json.loads(packet)
                if found["n"] != number:
                    number = found["n"]
                    yield second, found


def undo_diff(before: str, change: Any) -> str:
    """A streamed string from Gradio's edit script: whole at first, then nothing, a replacement or an appendix."""
    if isinstance(change, str):
        return change
    for action, _, value in change:
        before = before + value if action == "append" else value
    return before


def answer_load(url: str, pipe: Connection) -> None:
    """The process of the clients: carry out what the pipe asks, until it says None."""
    while (asked := pipe.recv()) is not None:
        kind, *arguments = asked
        pipe.send(asyncio.run({"watch": watch, "visit": visit}[kind](url, *arguments)))


@asynccontextmanager
async def _clients(url: str, count: int) -> AsyncIterator[list[Client]]:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(base_url=f"{url.rstrip('/')}/gradio_api/", timeout=600, limits=limits) as http:
        config = (await http.get(f"{url.rstrip('/')}/config")).json()
        yield [Client(http, config) for _ in range(count)]


async def watch(url: str, run_id: str, count: int) -> dict[str, Any]:
    """So many viewers of one run: the seconds at which each heard something new, and how many tokens it saw."""
    before = _cpu_seconds()
    async with _clients(url, count) as clients:
        await asyncio.gather(*(client.follow(run_id) for client in clients))
    used = _cpu_seconds() - before
    viewers = []
    for client in clients:
        found = [(second, packet["events"]) for second, packet in client.packets() if packet["events"]]
        tokens = sum(kind == "token" for _, events in found for _, kind, _ in events)
        viewers.append({"updates": [second for second, _ in found], "tokens": tokens})
    return {"viewers": viewers, "cpu_seconds": used}


async def visit(url: str, requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """So many visitors who press Run at the same moment, each with a request of their own, and follow it to its end."""
    async with _clients(url, len(requests)) as clients:
        return await asyncio.gather(*(_visit(client, raw) for client, raw in zip(clients, requests, strict=True)))


async def _visit(client: Client, raw: dict[str, Any]) -> dict[str, Any]:
    asked = time.monotonic()
    answer = await client.call("start", raw, f"load-{client.session}")
    if "run" not in answer:
        return {"seed": raw["seed"], "run": None, "error": answer["error"]["text"]["en"], "tokens": 0, "waited": None}
    await client.follow(answer["run"])
    packets = list(client.packets())
    first = next((second for second, packet in packets if packet["events"]), None)
    tokens = sum(kind == "token" for _, packet in packets for _, kind, _ in packet["events"])
    state = packets[-1][1]["state"]
    return {
        "seed": raw["seed"], "run": answer["run"], "error": None if state["phase"] == "done" else state["phase"],
        "tokens": tokens, "waited": None if first is None else first - asked,
    }  # fmt: skip


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
