"""What the page may ask of the app, asked with a real tiny model and with hostile values."""

from __future__ import annotations

import gc
import json
import statistics
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from playground.errors import PlaygroundError
from playground.figures import get_figure
from playground.measures import Quantity
from playground.request import Limits
from playground.trace import TokenChosen, Trace
from playground.ui.packets import MOST_EVENTS, numbers_json, payloads_of
from playground.ui.service import Service
from tests.tiny_folder import tiny_folder

VISITOR = "visitor-0001"


@pytest.fixture(scope="module")
def service() -> Service:
    return Service(Limits(max_new_tokens=450))


def asked(*lanes: dict[str, Any], **more: Any) -> dict[str, Any]:
    default = ({"strategy": "greedy"}, {"strategy": "sample", "knobs": {"temperature": 1.3, "top_k": 30}})
    return {"prompt": {"text": "Hello 你好 🎉", "chat": True}, "lanes": list(lanes or default), "model": str(tiny_folder()), "seed": 3, **more}


def packets(service: Service, run: str, seq: int = 0, session: str = "tab") -> Iterator[dict[str, Any]]:
    return (json.loads(packet) for packet in service.follow(run, seq, session))


def started(service: Service, request: dict[str, Any], visitor: str = VISITOR) -> str:
    answer = service.start(request, visitor)
    assert "error" not in answer, answer
    return answer["run"]


def collect(stream: Iterator[dict[str, Any]]) -> tuple[dict[int, list[dict[str, Any]]], dict[str, Any]]:
    """All token payloads per lane, each packet counted once, and the last packet."""
    tokens: dict[int, list[dict[str, Any]]] = {}
    last: dict[str, Any] = {}
    for packet in stream:
        if packet.get("n") == last.get("n"):
            continue
        last = packet
        for lane, kind, payload in packet["events"]:
            if kind == "token":
                tokens.setdefault(lane, []).append(payload)
    return tokens, last


def test_a_run_arrives_whole(service: Service) -> None:
    run = started(service, asked(*[{"strategy": "sample", "max_new_tokens": 60, "knobs": {"temperature": t}} for t in (0.7, 1.0, 1.5)]))
    tokens, last = collect(packets(service, run))
    assert last["state"]["phase"] == "done"
    trace = Trace.from_json(service.trace(run)["json"])
    for lane in range(3):
        chosen = list(trace.of(lane, TokenChosen))
        assert [payload["t"] for payload in tokens[lane]] == [event.token for event in chosen]
        assert [payload["p"] for payload in tokens[lane]] == list(range(len(chosen)))
        raw = b"".join(name.piece for event in chosen if not (name := trace.names(trace.about.lanes[lane].model)[event.token]).special)
        text = "".join(payload["x"] for payload in tokens[lane])
        assert raw.decode("utf-8", "replace").startswith(text)  # only an unfinished last character may be missing


def test_a_dropped_stream_goes_on_from_its_sequence_number(service: Service) -> None:
    run = started(service, asked({"strategy": "sample", "max_new_tokens": 300, "knobs": {"min_new_tokens": 300}}))
    seen: list[int] = []
    stream, seq, number = packets(service, run), 0, None
    for packet in stream:
        if packet["n"] != number:
            seen += [payload["p"] for _, kind, payload in packet["events"] if kind == "token"]
        seq, number = packet["seq"], packet["n"]
        if len(seen) > 20:
            break
    stream.close()
    tokens, last = collect(packets(service, run, seq))
    assert last["state"]["phase"] == "done"
    assert seen + [payload["p"] for payload in tokens[0]] == list(range(300))


def test_the_packet_at_token_400_is_as_small_as_at_token_40(service: Service) -> None:
    """Whole packets, told token by token: what a viewer gets who asks again after every event."""
    run = started(service, asked({"strategy": "sample", "max_new_tokens": 450, "knobs": {"min_new_tokens": 450, "temperature": 0.9}}))
    collect(packets(service, run))
    whole = service.line.get(run)
    payloads = payloads_of(whole)
    sizes: dict[int, list[int]] = {40: [], 400: []}
    told: dict[tuple[str, str], Quantity] = {}
    for end, (_, event) in enumerate(whole.events, start=1):
        if isinstance(event, TokenChosen):
            numbers = numbers_json(payloads.numbers, told)
            size = len(json.dumps([payloads.encoded[end - 1 : end + 1], numbers]).encode())
            for centre, found in sizes.items():
                if abs(event.position - centre) <= 25:
                    found.append(size)
    assert statistics.median(sizes[400]) <= 1.3 * statistics.median(sizes[40])


def test_the_end_is_told_only_with_the_last_event(service: Service) -> None:
    """A page stops listening at "done": after a reload of a long finished run it must have heard everything."""
    lanes = [{"strategy": "sample", "max_new_tokens": 200, "knobs": {"min_new_tokens": 200}}] * 3
    run = started(service, asked(*lanes))
    collect(packets(service, run))
    whole = service.line.get(run)
    assert len(whole.events) > 1.5 * MOST_EVENTS
    for packet in packets(service, run, session="a reload"):
        ended = packet["state"]["phase"] in ("done", "failed")
        assert ended == (packet["seq"] == len(whole.events))


def test_a_forgotten_run_leaves_memory(service: Service) -> None:
    run = started(service, asked({"max_new_tokens": 3}))
    collect(packets(service, run))
    kept = weakref.ref(service.line.get(run))
    del service.line._kept[run]
    gc.collect()
    assert kept() is None


def test_closing_the_stream_frees_the_worker(service: Service) -> None:
    run = started(service, asked({"strategy": "sample", "max_new_tokens": 450, "knobs": {"min_new_tokens": 450}}), "visitor-gone")
    stream = packets(service, run)
    for packet in stream:
        if packet["events"]:
            break
    left = time.monotonic()
    stream.close()
    while service.line.busy:
        assert time.monotonic() - left < 0.5
        time.sleep(0.005)


def test_a_newer_stream_of_the_same_tab_ends_the_older(service: Service) -> None:
    run = started(service, asked({"strategy": "sample", "max_new_tokens": 200, "knobs": {"min_new_tokens": 200}}))
    older_ended = threading.Event()
    opened = threading.Event()

    def older() -> None:
        for _ in service.follow(run, 0, "one-tab"):
            opened.set()
        older_ended.set()

    threading.Thread(target=older, daemon=True).start()
    assert opened.wait(5)
    _, last = collect(packets(service, run, 0, "one-tab"))
    assert older_ended.wait(5) and last["state"]["phase"] == "done"


def test_numbers_are_described_once_and_then_only_their_values_travel(service: Service) -> None:
    run = started(service, asked({"strategy": "sample", "max_new_tokens": 60, "knobs": {"min_new_tokens": 60}}))
    described: set[tuple[str, str, str]] = set()
    known: dict[tuple[str, str], dict[str, Any]] = {}
    number = None
    for packet in packets(service, run):
        if packet["n"] == number:
            continue
        number = packet["n"]
        for lane, numbers in packet["numbers"].items():
            for name, given in numbers.items():
                if isinstance(given, dict):
                    key = (lane, name, json.dumps({**given, "value": None}))
                    assert key not in described
                    described.add(key)
                    known[lane, name] = given
                else:
                    known[lane, name] = {**known[lane, name], "value": given}
    assert known["0", "tokens"]["value"] == 60 and known["0", "tokens"]["unit"] == "tokens"
    assert known["0", "decode"]["formula"] and known["0", "stop"]["value"] == "length"


def test_two_visitors_do_not_control_each_other(service: Service) -> None:
    run = started(service, asked({"strategy": "sample", "max_new_tokens": 300, "knobs": {"min_new_tokens": 300}}))
    refused = service.control(run, "stop", "visitor-9999")
    assert refused["error"]["code"] == "not_yours"
    stream = packets(service, run)
    next(stream)
    assert service.control(run, "stop", VISITOR) == {"ok": True}
    _, last = collect(stream)
    assert last["state"]["phase"] == "done"


def test_prepare_shows_what_would_run(service: Service) -> None:
    lanes = [
        {"strategy": "sample", "defaults": "inherit", "knobs": {"top_p": 0.9}},
        {"strategy": "greedy", "knobs": {"top_k": 3}},
        {"knobs": {"top_p": 9}},
    ]
    collect(packets(service, started(service, asked({"max_new_tokens": 1}))))  # loads the model
    answer = service.prepare(asked(*lanes))
    assert answer["rendered"].startswith("<|user|>Hello") and answer["tokens"][0][1:] == ["<|user|>", True]
    assert [(stage["stage"], stage["origin"], stage["idle"]) for stage in answer["lanes"][0]["stages"]] == [
        ("top_k", "library", False), ("top_p", "asked", False),
    ]  # fmt: skip
    assert answer["lanes"][1]["stages"][0]["idle"] is True
    assert answer["lanes"][2]["error"]["code"] == "knob_range"


def test_a_default_model_that_can_not_be_loaded_is_said_and_does_not_load_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Service()
    monkeypatch.setattr(broken.catalog, "get", lambda *arguments: 1 / 0)
    broken._load_default()
    assert broken.models()["state"] == "failed" and broken.models()["error"]["code"] == "bug"


def test_a_chinese_prompt_gets_a_note_about_the_default_model(service: Service) -> None:
    notes = service.prepare(asked(model=None) | {"prompt": "请解释"})["notes"]
    assert notes and notes[0]["offer"] == "Qwen/Qwen3-0.6B" and "Qwen3" in notes[0]["zh"]
    assert service.prepare(asked(model=None) | {"prompt": "Explain"})["notes"] == []


def test_looking_up_any_token_agrees_with_the_record(service: Service) -> None:
    run = started(service, asked({"strategy": "sample", "max_new_tokens": 12, "knobs": {"top_k": 5, "repetition_penalty": 1.3, "mirostat_tau": 4}}))
    collect(packets(service, run))
    step = service.step(run, 0, 7)
    for candidate in (step["candidates"][0], step["candidates"][20]):
        found = service.lookup(run, 0, 7, f"#{candidate['id']}")
        assert found["raw"]["p"] == pytest.approx(candidate["raw"], rel=1e-3)
        assert found["removed_by"] == candidate["removed_by"]
        if candidate["removed_by"] is None:
            assert found["final"]["p"] == pytest.approx(candidate["final"], rel=1e-3)
    assert service.lookup(run, 0, 7, "ab")["error"]["code"] == "token_unclear"


@pytest.mark.parametrize("hostile", [None, 0, -1, 10**30, "x", "${1}", "#²", "\ud800", [], {}, [[]], {"run": None}, True, 1.5, "a" * 10_000])
def test_hostile_values_get_an_error_and_break_nothing(service: Service, hostile: Any) -> None:
    run = started(service, asked({"max_new_tokens": 2}))
    collect(packets(service, run))
    answers = [
        service.start(hostile, VISITOR), service.start(asked(), hostile), service.prepare(hostile), service.control(hostile, "stop", VISITOR),
        service.control(run, hostile, VISITOR), service.figure(hostile, "pipeline", 0, 0, {}), service.figure(run, hostile, 0, 0, {}),
        service.step(run, hostile, 0), service.step(run, 0, hostile), service.lookup(run, 0, 0, hostile), service.record(hostile),
        service.trace(hostile), service.set_device("cpu", hostile), service.set_device(hostile, "auto"),
    ]  # fmt: skip
    assert all(isinstance(answer, dict) for answer in answers)
    assert "error" in answers[0] and "error" in answers[3] and "error" in answers[4] and "error" in answers[6] and "error" in answers[10]
    service.figure(run, "pipeline", hostile, hostile, hostile)
    list(service.follow(hostile, hostile, "hostile-tab"))
    _, last = collect(packets(service, started(service, asked({"max_new_tokens": 2}))))
    assert last["state"]["phase"] == "done"


def test_every_figure_draws_every_lane(service: Service) -> None:
    run = started(service, asked())
    collect(packets(service, run))
    kinds = {type(event) for _, event in service.line.get(run).events}
    for figure in service.declarations()["figures"]:
        for lane in (0, 1):
            answer = service.figure(run, figure["name"], lane, None, {"theme": "dark", "language": "zh", "narrow": True})
            has_needs = get_figure(figure["name"]).needs <= kinds  # on the CPU no GPU is sampled
            assert bool(answer["figure"]["data"]) == has_needs and answer["text"]["zh"], (figure["name"], answer)


def test_looking_up_does_not_disturb_a_run(service: Service) -> None:
    run = started(service, asked({"strategy": "sample", "max_new_tokens": 450, "knobs": {"min_new_tokens": 450, "top_k": 4}}))
    stream = packets(service, run)
    while service.line.get(run).tokens < 5:
        next(stream)
    step = service.step(run, 0, 2)
    known = step["candidates"][3]
    found = service.lookup(run, 0, 2, f"#{known['id']}")
    assert found["raw"] == {"p": known["raw"], "rank": 3}
    recorded = {candidate["id"] for candidate in step["candidates"]}
    other = next(token for token in range(256) if token not in recorded)
    assert service.lookup(run, 0, 2, f"#{other}")["error"]["code"] == "busy"
    service.control(run, "stop", VISITOR)
    collect(stream)
    assert service.lookup(run, 0, 2, f"#{other}")["raw"]["rank"] >= 50


def test_an_identical_request_is_answered_from_the_run_already_made(service: Service) -> None:
    request = asked({"strategy": "sample", "max_new_tokens": 6}, seed=4711)
    first = service.start(request, VISITOR, True)
    assert first["made"] is None
    collect(packets(service, first["run"]))
    again = service.start(request, "visitor-0002", True)
    assert again["run"] == first["run"] and again["made"] >= 0
    assert service.start(request | {"seed": 4712}, "visitor-0003", True)["run"] != first["run"]
    afresh = service.start(request, "visitor-0004", False)
    assert afresh["run"] != first["run"]
    collect(packets(service, afresh["run"], session="afresh"))


def test_what_was_made_is_named_before_it_is_shown_and_only_a_run_that_goes_on_is_joined_unasked(service: Service) -> None:
    request = asked({"strategy": "sample", "max_new_tokens": 6}, seed=4721)
    assert service.prepare(request)["made"] is None
    first = service.start(request, VISITOR, "going")
    collect(packets(service, first["run"]))
    assert service.prepare(request)["made"] == first["run"]
    assert service.prepare(request | {"seed": 4722})["made"] is None
    again = service.start(request, "visitor-0002", "going")
    assert again["made"] is None and again["run"] != first["run"]
    collect(packets(service, again["run"], session="again"))
    assert service.prepare(request)["made"] == again["run"]


def test_thirty_who_press_the_same_button_cost_one_run(service: Service) -> None:
    request = asked({"strategy": "sample", "max_new_tokens": 300, "knobs": {"min_new_tokens": 300}}, seed=99)
    first = service.start(request, VISITOR, True)
    stream = packets(service, first["run"], session="first")
    next(stream)
    assert {service.start(request, f"student-{number:04}", True)["run"] for number in range(30)} == {first["run"]}
    service.control(first["run"], "stop", VISITOR)
    collect(stream)
    assert service.start(request, "student-late", True)["run"] != first["run"]  # it was stopped: no answer to others


def test_on_a_crowded_public_host_new_runs_are_shorter_and_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAYGROUND_PUBLIC", "1")
    public = Service()
    monkeypatch.setattr(type(public.line), "waiting", property(lambda line: 6))
    monkeypatch.setattr(public.line, "_work", lambda: None)
    crowded = public.start({"prompt": "x", "lanes": [{"max_new_tokens": 100}, {"max_new_tokens": 10}]}, VISITOR)
    assert "40" in crowded["note"]["en"]
    assert [lane.max_new_tokens for lane in public.line.get(crowded["run"]).request.lanes] == [40, 10]


def test_a_note_about_the_prompt_reaches_the_page(service: Service) -> None:
    hostile = asked({"max_new_tokens": 1}) | {"prompt": {"text": "say <|end|> now", "chat": True}}
    assert any("<|end|>" in note["en"] or "special" in note["en"] for note in service.prepare(hostile)["lanes"][0]["notes"])


def test_a_program_gets_the_record(service: Service) -> None:
    states = list(service.compare("Hi", ["greedy", "sample temperature=0.7 name=warm"], 5, 1, None, str(tiny_folder()), True, "api-123456"))
    assert states[-1]["state"] == "done" and [lane["lane"] for lane in states[-1]["lanes"]] == ["greedy", "warm"]
    assert Trace.from_json(states[-1]["trace"]).about.request["seed"] == 1
    with pytest.raises(PlaygroundError):
        list(service.compare("Hi", ["dance"], 5, 1, None, None, False, "api-123456"))


def test_on_a_public_host_only_catalog_models_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAYGROUND_PUBLIC", "1")
    public = Service()
    for model in (str(tiny_folder()), "someone/else", "/etc/passwd", "../x", "https://example.org/model"):
        assert "error" in public.start(asked(model=model), VISITOR), model
        assert "error" in public.start(asked({"model": model}, model=None), VISITOR), model
    assert "error" in public.set_device("cpu", "float32")
