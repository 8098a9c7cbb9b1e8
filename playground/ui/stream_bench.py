"""What watching costs: a live run with a client that only reads the stream, beside the same run without a viewer.

The app is served over HTTP as for a browser; the reading client is a process of its own. Also
measured: how fast Stop is answered while a long prompt is read, and how large packets are late in a run.
"""

from __future__ import annotations

import json
import multiprocessing
import secrets
import statistics
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import httpx

from playground import presets
from playground.experiments.bench import WARM_UP_TOKENS, spread
from playground.experiments.bounded import Budget, PartFailed
from playground.line import Run
from playground.request import Limits, Request
from playground.trace import TokenChosen
from playground.ui.app import build, launch
from playground.ui.crowd import undo_diff
from playground.ui.service import Service


def run(pairs: int, tokens: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure all three on the default model; `say` gets one line per finding."""
    budget, service = Budget(), Service(Limits())
    page = build(service)
    launch(page, prevent_thread_lock=True, quiet=True, server_port=None, server_name="127.0.0.1")
    try:
        service.load(None)
        unwatched_seconds(service, min(tokens, WARM_UP_TOKENS))
        figures = {"stop": stop_latency(service), "packets": packet_sizes(service)}
        figures["viewer"] = viewer_cost(service, page.local_url, pairs, tokens, budget)
    finally:
        page.close()
    viewer, stop, packets = figures["viewer"], figures["stop"], figures["packets"]
    say(
        f"with a reading viewer ÷ without: {viewer['ratio']['median']:.3f} (min {viewer['ratio']['min']:.3f}, max {viewer['ratio']['max']:.3f}, "
        f"{viewer['pairs']} pairs); {viewer['missing_tokens']} of {viewer['tokens']} tokens missing"
    )
    say(f"Stop while a prompt of {stop['prompt_tokens']} tokens is read: {stop['seconds']['median']:.2f} s (max {stop['seconds']['max']:.2f} s)")
    say(f"bytes per packet around token 400 ÷ around token 40: {packets['ratio']:.2f} ({packets['late']:.0f} ÷ {packets['early']:.0f})")
    return figures


def classic_lanes(tokens: int) -> Request:
    return Request.from_json({**presets.classic(), "lanes": [{**lane, "max_new_tokens": tokens} for lane in presets.CLASSIC_LANES]})


def unwatched_seconds(service: Service, tokens: int) -> float:
    """Seconds of a run that nobody reads: it is only kept alive."""
    asked = service.line.start(classic_lanes(tokens), secrets.token_hex(8))
    with service.line.watch(asked):
        return seconds_running(asked)


def seconds_running(asked: Run) -> float:
    """Wall seconds from the first event to the end of the run; raises `PartFailed` where it ends in an error."""
    while not asked.events and not asked.ended:
        time.sleep(0.002)
    started = time.perf_counter()
    while not asked.ended:
        with asked.changed:
            asked.changed.wait(timeout=0.5)
    if asked.error is not None:
        raise PartFailed(asked.error.text.en)
    return time.perf_counter() - started


def viewer_cost(service: Service, url: str, pairs: int, tokens: int, budget: Budget) -> dict[str, Any]:
    """Interleaved pairs of the same request, read by one client or by nobody."""
    here, there = multiprocessing.Pipe()
    client = multiprocessing.get_context("spawn").Process(target=read_runs, args=(url, there), daemon=True)
    client.start()
    there.close()  # so that it shows here when the client's process ends
    ratios, missing, expected = [], 0, 0
    watched_seconds(service, here, min(tokens, WARM_UP_TOKENS))  # warms the client up
    for pair in budget.turns(pairs):
        without = unwatched_seconds(service, tokens) if pair % 2 else None
        watched, written, seen = watched_seconds(service, here, tokens)
        if without is None:
            without = unwatched_seconds(service, tokens)
        ratios.append(watched / without)
        expected, missing = expected + written, missing + written - seen
    here.send(None)
    client.join(timeout=5)
    return {"pairs": len(ratios), "ratio": spread(ratios), "tokens": expected, "missing_tokens": missing}


def watched_seconds(service: Service, client: Connection, tokens: int) -> tuple[float, int, int]:
    """Seconds of a run that one client reads; how many tokens it wrote, and how many the client saw."""
    asked = service.line.start(classic_lanes(tokens), secrets.token_hex(8))
    client.send(asked.id)
    seconds = seconds_running(asked)
    return seconds, sum(isinstance(event, TokenChosen) for _, event in asked.events), client.recv()


def read_runs(url: str, pipe: Connection) -> None:
    """The client process: follow each run that the pipe names, send back how many tokens came."""
    while (run_id := pipe.recv()) is not None:
        pipe.send(sum(kind == "token" for packet in follow(url, run_id) for _, kind, _ in packet["events"]))


def follow(url: str, run_id: str) -> Iterator[dict[str, Any]]:
    """The packets of a run as Gradio's stream carries them, over plain HTTP: join the queue, read, undo its diffs."""
    session, base = secrets.token_hex(8), url.rstrip("/") + "/gradio_api"
    with httpx.Client(timeout=60) as client:
        config = client.get(url.rstrip("/") + "/config").json()
        dependency = next(d for d in config["dependencies"] if any(target[1] == "follow" for target in d["targets"]))
        asked = {"data": [], "event_data": {"run": run_id, "seq": 0}, "fn_index": dependency["id"], "trigger_id": dependency["targets"][0][0]}
        client.post(f"{base}/queue/join", json={**asked, "session_hash": session}).raise_for_status()
        packet, number = "", 0
        with client.stream("GET", f"{base}/queue/data", params={"session_hash": session}) as stream:
            for line in stream.iter_lines():
                if not line.startswith("data:"):
                    continue
                message = json.loads(line[5:])
                if message["msg"] == "process_generating":
                    packet = undo_diff(packet, message["output"]["data"][0])
                    found = json.loads(packet)
                    if found["n"] != number:
                        number = found["n"]
                        yield found
                elif message["msg"] == "process_completed":
                    return


def stop_latency(service: Service, repeats: int = 5) -> dict[str, Any]:
    """Seconds from Stop to the end of the run, pressed while a prompt of about 4,000 tokens is read."""
    seconds, read = [], 0
    for repeat in range(repeats):
        text = "The quick brown fox jumps over the lazy dog. " * 400
        asked = service.line.start(Request.from_json({"prompt": {"text": text[: 19_000 - repeat]}, "lanes": [{}]}), secrets.token_hex(8))
        with service.line.watch(asked):
            while sum(event.kind == "prompt_read" for _, event in asked.events) < 2 + repeat * 3:
                if asked.ended:
                    raise PartFailed(asked.error.text.en if asked.error is not None else "the prompt was read before Stop was pressed")
                time.sleep(0.002)
            started = time.perf_counter()
            service.line.stop(asked)
            while not asked.ended:
                with asked.changed:
                    asked.changed.wait(timeout=0.05)
            seconds.append(time.perf_counter() - started)
        assert asked.about is not None
        read = len(asked.about.lanes[0].prompt_ids)
    return {"prompt_tokens": read, "seconds": spread(seconds)}


def packet_sizes(service: Service) -> dict[str, Any]:
    """Bytes of whole packets that carry one token, around token 40 and around token 400 of one lane."""
    lane = {"strategy": "sample", "knobs": {"temperature": 0.8, "top_k": 50, "min_new_tokens": 430}, "max_new_tokens": 430}
    asked = service.line.start(Request.from_json({"prompt": presets.CLASSIC_PROMPT, "lanes": [lane], "seed": 1}), secrets.token_hex(8))
    sizes: dict[int, list[float]] = {40: [], 400: []}
    number = 0
    for text in service.follow(asked.id, 0, secrets.token_hex(8)):
        packet = json.loads(text)
        positions = [payload["p"] for _, kind, payload in packet["events"] if kind == "token"]
        if packet["n"] != number and len(positions) == 1 and packet["about"] is None:
            for centre, found in sizes.items():
                if abs(positions[0] - centre) <= 30:
                    found.append(len(text.encode()))
        number = packet["n"]
    early, late = statistics.median(sizes[40]), statistics.median(sizes[400])
    return {"early": early, "late": late, "ratio": late / early, "packets": {str(centre): len(found) for centre, found in sizes.items()}}
