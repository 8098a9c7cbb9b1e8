"""What the page may ask of servers, asked without a browser: probes, previews, runs without a local model, the experiment, hostile values."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from playground.experiments.load import LoadExperiment
from playground.measures.divergence import first_divergence
from playground.measures.server_rounds import rounds
from playground.measures.server_speculation import SpeculationRecord
from playground.request import Limits
from playground.trace import ChunkArrived, TokenChosen, Trace
from playground.ui import packets
from playground.ui.recordings import Recordings
from playground.ui.service import Service
from tests.recorded_server import RECORDED, Ask, RecordedServer, Reply, chunked, serving, text, vllm

VISITOR = "visitor-0001"


def fast(ask: Ask) -> Reply:
    return vllm(ask, speed=40.0)


def plain(ask: Ask) -> Reply:
    """A server without speculation that gives neither ids nor log-probabilities: two texts of a token each."""
    if ask.path == "/metrics":
        return text("\n".join(line for line in (RECORDED / "metrics.txt").read_text().splitlines() if "spec_decode" not in line), kind="text/plain")
    usage = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
    words = ["the", " cat", " sat", " up"]
    chunks: list[Any] = [{"choices": [{"text": word, "finish_reason": "length" if word == words[-1] else None}]} for word in words]
    return vllm(ask, stream=lambda _: chunked([*chunks, {"choices": [], "usage": usage}], pause=0.004), speculates=False)


@pytest.fixture(scope="module")
def lab() -> Iterator[RecordedServer]:
    with serving(fast) as server:
        yield server


@pytest.fixture(scope="module")
def bare() -> Iterator[RecordedServer]:
    with serving(plain) as server:
        yield server


@pytest.fixture
def service(lab: RecordedServer, bare: RecordedServer, monkeypatch: pytest.MonkeyPatch) -> Service:
    monkeypatch.setenv("PLAYGROUND_SERVERS", f"lab={lab.url} bare={bare.url}")
    return Service(Limits(max_new_tokens=200))


def asked(*lanes: dict[str, Any]) -> dict[str, Any]:
    return {"prompt": {"text": "the cat"}, "lanes": [{"strategy": "greedy", "max_new_tokens": 48, **one} for one in lanes], "seed": 3}


def run(service: Service, *lanes: dict[str, Any]) -> tuple[Trace, list[list[Any]]]:
    """A comparison to its end: the trace, and the events as a page heard them."""
    answer = service.start(asked(*lanes), VISITOR)
    assert "error" not in answer, answer
    heard: list[list[Any]] = []
    number = None
    for packet in map(json.loads, service.follow(answer["run"], 0, "tab")):
        if packet["n"] != number:
            heard += packet["events"]
        number = packet["n"]
    assert packet["state"]["phase"] == "done"
    return Trace.from_json(service.trace(answer["run"])["json"]), heard


def test_a_request_of_server_lanes_alone_needs_no_model_here(service: Service) -> None:
    trace, heard = run(service, {"server": "lab"}, {"server": "bare"})
    assert not service.catalog.loaded()
    kinds = [kind for lane, kind, _ in heard if lane == 0]
    assert kinds.count("chunk") == 11 and kinds.count("token") == 48 and "counted" in kinds
    first = next(payload for lane, kind, payload in heard if lane == 0 and kind == "token")
    assert first["sc"] == "raw_log_probability" and first["d"] is None and first["top"]
    assert trace.about.lanes[0].sent["temperature"] == 0.0 and packets.about_json(trace.about)["lanes"][0]["server"] == "lab"


def test_what_a_server_wrote_before_is_no_answer_to_the_same_request_now(service: Service) -> None:
    first = service.start(asked({"server": "lab"}), VISITOR, True)["run"]
    for _ in service.follow(first, 0, "tab"):
        pass
    again = service.start(asked({"server": "lab"}), VISITOR, True)
    assert again["made"] is None and again["run"] != first  # it may have been restarted in between
    for _ in service.follow(again["run"], 0, "tab"):  # to its end: the next test counts what the server is asked
        pass


def test_the_preview_knows_what_was_asked_and_asks_nobody(service: Service, lab: RecordedServer) -> None:
    lab.asks.clear()
    beam = {"strategy": "beam", "server": "lab"}
    before = service.prepare(asked({"server": "lab"}, beam))
    assert before["lanes"][0]["asked"] is False and before["lanes"][1]["error"] is None and not lab.asks
    can = service.probe_server("lab", None, False)["server"]["can"]
    assert can["kind_name"] == "vLLM" and can["refused_stages"]["min_p"] == "refused" and can["refused_stages"]["no_repeat_ngram"] == "unknown"
    count = len(lab.asks)
    after = service.prepare(asked({"server": "lab"}, beam, {"server": "lab", "strategy": "sample", "knobs": {"top_p": 0.9}}))
    assert after["lanes"][0]["asked"] and after["lanes"][0]["model"] == "smol"
    assert after["lanes"][1]["error"]["code"] == "server_strategy" and "lab" in after["lanes"][1]["error"]["text"]["en"]
    assert [stage["stage"] for stage in after["lanes"][2]["stages"]] == ["top_p"]
    assert service.probe_server("lab", None, False)["server"]["can"] == can and len(lab.asks) == count  # once


def test_a_key_is_never_told(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAYGROUND_KEY_LAB", "secret-word")
    told = service.servers()
    assert told["entries"][0]["key"] is True and "secret-word" not in json.dumps(told)


def test_a_public_page_names_no_address_and_takes_none(lab: RecordedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAYGROUND_PUBLIC", "1")
    monkeypatch.setenv("PLAYGROUND_SERVERS", f"lab={lab.url}")
    service = Service()
    listed = service.servers()
    assert listed["public"] and lab.url not in json.dumps(listed)
    assert service.probe_server("http://127.0.0.1:1", None, False)["error"]["code"] == "server_not_public"
    assert service.start(asked({"server": "http://127.0.0.1:1"}), VISITOR)["error"]["code"] == "server_not_public"
    large = {"baseline": "lab", "speculative": "lab", "concurrency": [64], "repeats": 1, "requests": 4}
    assert service.load_start(large, VISITOR)["error"]["code"] == "load_public"
    for answer in (service.load_open("x" * 10_000_001, VISITOR), service.pasted_bench("{}", "é" * 5_000_001)):
        assert answer["error"]["code"] == "public_size" and "10 MB" in answer["error"]["text"]["en"]
    assert service.load_open("x" * 10_000_000, VISITOR)["error"]["code"] == "load_broken"
    lab.asks.clear()
    service.probe_server("lab", None, False)
    count = len(lab.asks)
    assert count and "can" in service.probe_server("lab", None, True)["server"] and len(lab.asks) == count  # visitors can't make it ask again


def test_the_ledger_of_a_lane_has_rounds_in_their_places(service: Service) -> None:
    trace, _ = run(service, {"server": "lab"})
    name = json.loads(json.dumps(Recordings().open_trace(trace.to_json())))
    for told in (Recordings().server_speculation(name["run"], 0), _of_run(service)):
        assert told["source"] == "request" and [row["value"] for row in told["rows"][:4]] == [10, 40, 40, 1.0]
        assert told["rounds"][0] == [4, 4, 1, 6] and told["rounds"][-1] == [4, 4, 46, 48]
    # Chunk by chunk, as it came: the tokens of a chunk in one packet, none of it late.
    sizes = [sum(kind == "token" for _, kind, _ in packet["events"]) for packet in name["packets"]]
    assert [size for size in sizes if size] == [1, *[5] * 9, 2]
    assert name["packets"][0]["at"] == pytest.approx(next(trace.of(0, ChunkArrived)).at, rel=1e-4)


def _of_run(service: Service) -> dict[str, Any]:
    answer = service.start(asked({"server": "lab"}), VISITOR)
    for _ in service.follow(answer["run"], 0, "tab"):
        pass
    return service.server_speculation(answer["run"], 0)


@pytest.mark.parametrize(("accepted", "drafted", "chunks", "places"), [
    ((0, 2, 0, 1), (4, 4, 4, 4), (1, 1, 3, 1, 2), [(1, 2), (2, 5), (5, 6), (6, 8)]),
    ((0, 2), (4, 4), (1, 1, 1, 3), [(None, None), (3, 6)]),  # one single token was a step without a draft: which, nobody knows
    ((0, 2), (4, 4), (1, 1, 1), [(1, 2), (2, 3)]),  # the text ended inside the last draft
    ((3, 2), (4, 4), (1, 7), [(None, None)] * 2),  # two steps in one chunk
    ((3, 2), (4, 4), (1, None, 3), [(None, None)] * 2),
])  # fmt: skip
def test_rounds_stand_where_chunks_and_lists_fit_together(
    accepted: tuple[int, ...], drafted: tuple[int, ...], chunks: tuple[int | None, ...], places: list[Any]
) -> None:
    found = rounds(SpeculationRecord("request", per_step_accepted=accepted, per_step_drafted=drafted), chunks)
    assert [(one.start, one.stop) for one in found] == places and [one.accepted for one in found] == list(accepted)
    assert rounds(SpeculationRecord("counters"), chunks) == ()


def test_lanes_of_two_servers_part_by_their_text_and_not_by_ids_of_our_own(service: Service) -> None:
    trace, _ = run(service, {"server": "lab"}, {"server": "bare"})
    ids = [[event.token for event in trace.of(lane, TokenChosen)][:3] for lane in (0, 1)]
    assert ids[0] != ids[1] and all(token < 0 for token in ids[1])
    found = first_divergence(trace, 0, 1)
    assert found is not None and found.position == 3  # "the cat sat", then " on" and " up"
    assert found.cause.kind == "server" and found.cause.certain
    trace, _ = run(service, {"server": "lab"}, {"server": "bare", "strategy": "sample", "knobs": {"temperature": 0.5}})
    found = first_divergence(trace, 0, 1)
    assert found is not None and found.cause.kind == "server" and not found.cause.certain  # the settings differ too


def finished(service: Service, load: str) -> dict[str, Any]:
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        state = service.load_state(load)
        if state["phase"] in ("done", "failed"):
            return state
        time.sleep(0.05)
    raise AssertionError(state)


@pytest.mark.slow
def test_the_experiment_gives_its_record_and_is_one_at_a_time(service: Service) -> None:
    wanted = {
        "baseline": "bare", "speculative": "lab", "concurrency": [1, 2], "repeats": 2, "requests": 3, "max_new_tokens": 48, "slo_tpot": 1.0,
        "prompts": {"name": "mine.jsonl", "text": '{"prompt": "a"}\n{"prompt": "b"}'},
        "config": '{"method": "ngram", "num_speculative_tokens": 4}',
    }  # fmt: skip
    started = service.load_start(wanted, VISITOR)
    assert "error" not in started, started
    assert service.load_start(wanted, VISITOR)["error"]["code"] == "load_busy"
    assert service.load_control(started["load"], "stop", "somebody-else")["error"]["code"] == "not_yours"
    state = finished(service, started["load"])
    assert state["phase"] == "done" and (state["done"], state["of"], len(state["cells"])) == (24, 24, 8)
    view = service.load_view(started["load"], None, None)
    assert [row[0] for row in view["compared"]] == ["load", "1 stream", "2 streams"] and view["request_count"] == 24
    assert len(view["requests"]) == 25 and view["requests"][0][0] == "server"
    assert "2 prompts of mine.jsonl" in view["about"]["en"]
    assert '"method": "ngram"' in view["verdict"]["config_text"] or view["verdict"]["config_text"] is None
    for name in view["figures"]:
        drawn = service.load_figure(started["load"], name, {"language": "zh", "narrow": True}, None, None)
        json.dumps(drawn, allow_nan=False)
        assert drawn["text"]["en"] and (drawn["table"] or name == "over_time"), name
    speed = service.load_figure(started["load"], "speed_up", {}, None, None)
    assert speed["figure"]["layout"]["shapes"][0]["y0"] == 1  # break-even
    saved = service.load_saved(started["load"])
    again = service.load_open(saved["json"], VISITOR)
    assert service.load_view(again["load"], None, None)["compared"] == view["compared"] and "speed-up" in saved["markdown"]["en"]


@pytest.mark.slow
def test_figures_grow_while_the_experiment_runs_and_a_broken_one_keeps_its_cells(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = {"baseline": "bare", "speculative": "lab", "concurrency": [1, 2], "repeats": 2, "requests": 4, "max_new_tokens": 48}
    whole = LoadExperiment._cell

    def breaks(self: LoadExperiment, server: Any, level: Any, index: int, *more: Any) -> Iterator[Any]:
        if index == 1:
            raise RuntimeError("planted")
        yield from whole(self, server, level, index, *more)

    monkeypatch.setattr(LoadExperiment, "_cell", breaks)
    load = service.load_start(wanted, VISITOR)["load"]
    seen: dict[str, set[int]] = {}
    while (state := service.load_state(load))["phase"] in ("preparing", "running"):
        for name in state["figures"]:
            drawn = service.load_figure(load, name, {}, None, None)
            if "error" not in drawn:  # it has ended in between
                seen.setdefault(name, set()).add(sum(len(one.get("x", ())) for one in drawn["figure"]["data"]))
        time.sleep(0.01)
    assert {"itl", "throughput", "over_time", "speed_up", "acceptance"} <= set(seen)
    # The baseline's chunks aren't counted in tokens: its ITL isn't known. Its throughput is, and stands alone at first.
    assert seen["itl"] == {3} and seen["throughput"] == {1, 2}
    assert len(seen["over_time"]) > 2
    assert state["phase"] == "failed" and state["result"] and len(state["cells"]) == 4
    view = service.load_view(load, None, None)
    assert len(view["compared"]) == 2 and "stopped before its end" in view["about"]["en"]


def test_one_server_is_restarted_in_between(service: Service, lab: RecordedServer) -> None:
    lab.answer = plain
    wanted = {"baseline": "lab", "speculative": "lab", "concurrency": [1], "repeats": 1, "requests": 2, "max_new_tokens": 48}
    load = service.load_start(wanted, VISITOR)["load"]
    while (state := service.load_state(load))["phase"] in ("preparing", "running"):
        time.sleep(0.02)
    assert state["phase"] == "restart" and state["restart"] == {"server": "lab", "problem": None, "config_text": None}
    lab.answer = fast
    service.load_control(load, "resume", VISITOR)
    assert finished(service, load)["phase"] == "done"
    view = service.load_view(load, None, None)
    assert "one after the other" in view["notes"][0]["en"] and len(view["compared"]) == 2 and view["verdict"] is not None


@pytest.mark.slow
def test_an_answer_is_put_to_the_test_by_its_own_setting(service: Service, lab: RecordedServer, bare: RecordedServer) -> None:
    wanted = {
        "baseline": "bare", "speculative": "lab", "concurrency": [1, 2], "repeats": 2, "requests": 3, "max_new_tokens": 48,
        "config": '{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4}',
        "prompts": {"name": "mine.jsonl", "text": '{"prompt": "a"}\n{"prompt": "b"}'},
    }  # fmt: skip
    lab.answer, first = fast, service.load_start(wanted, VISITOR)["load"]
    assert service.load_confirm(first, VISITOR)["error"]["code"] in ("load_running", "load_unconfirmed")
    assert finished(service, first)["phase"] == "done"
    asked_of_baseline = len(bare.asks)
    begun = service.load_confirm(first, VISITOR)["load"]
    while (state := service.load_state(begun))["phase"] == "preparing":
        time.sleep(0.02)
    assert state["phase"] == "restart" and '"method": "ngram"' in state["restart"]["config_text"]
    service.load_control(begun, "resume", VISITOR)
    state = finished(service, begun)
    assert state["phase"] == "done" and (state["done"], state["of"], len(state["cells"])) == (12, 12, 4)
    assert len(bare.asks) == asked_of_baseline  # the baseline's numbers are the earlier ones
    view, before = service.load_view(begun, None, None), service.load_view(first, None, None)
    assert [row[1] for row in view["compared"]] == [row[1] for row in before["compared"]] and view["verdict"] is None
    assert [one["as_expected"] for one in view["confirms"]["levels"]] != [] and "confirmed" in view["sentence"]["en"].lower()
    assert "measured at" in view["notes"][0]["en"] and view["confirms"]["load"] == first
    saved = service.load_saved(begun)
    assert "as expected" in saved["markdown"]["en"] or "expected," in saved["markdown"]["en"]
    assert service.load_view(service.load_open(saved["json"], VISITOR)["load"], None, None)["confirms"] == {**view["confirms"], "load": None}
    assert service.load_confirm(begun, VISITOR)["error"]["code"] == "load_unconfirmed"  # the answer was the first run's
    # Of a saved result the prompts must be there too: these were the visitor's own.
    opened = service.load_open(service.load_saved(first)["json"], VISITOR)["load"]
    assert service.load_confirm(opened, VISITOR)["error"]["code"] == "load_prompts_differ"


def test_an_experiment_can_be_stopped_and_fails_in_words(service: Service) -> None:
    wanted = {"baseline": "bare", "speculative": "lab", "concurrency": [1], "repeats": 5, "requests": 200, "max_new_tokens": 48}
    started = service.load_start(wanted, VISITOR)
    while service.load_state(started["load"])["phase"] == "preparing":
        time.sleep(0.02)
    service.load_control(started["load"], "stop", VISITOR)
    assert finished(service, started["load"])["phase"] == "done"
    gone = service.load_start({**wanted, "speculative": "http://127.0.0.1:9"}, VISITOR)
    state = finished(service, gone["load"])
    assert state["phase"] == "failed" and "127.0.0.1:9" in state["error"]["text"]["en"]


@pytest.mark.parametrize("raw", [
    None, [], "x", {"baseline": 3}, {"baseline": "lab", "speculative": "nobody"}, {"surprise": 1},
    {"baseline": "lab", "speculative": "bare", "concurrency": ["1"]}, {"baseline": "lab", "speculative": "bare", "concurrency": [1e400]},
    {"baseline": "lab", "speculative": "bare", "concurrency": []}, {"baseline": "lab", "speculative": "bare", "concurrency": [1], "repeats": True},
    {"baseline": "lab", "speculative": "bare", "concurrency": [1], "rates": [float("nan")]},
    {"baseline": "lab", "speculative": "bare", "concurrency": [1], "prompts": {"text": "{"}},
    {"baseline": "lab", "speculative": "bare", "concurrency": [1], "config": "[1]"},
    {"baseline": "lab", "speculative": "bare", "concurrency": [1], "slo_ttft": -1},
])  # fmt: skip
def test_whatever_a_page_sends_is_refused_in_words(service: Service, raw: Any) -> None:
    answer = service.load_start(raw, VISITOR)
    assert answer["error"]["text"]["en"] and answer["error"]["text"]["zh"]


def test_pasted_texts_are_judged_without_a_server(service: Service) -> None:
    assert service.pasted_snapshots("", "x", None)["error"]["code"] == "pasted_empty"
    assert service.pasted_snapshots(None, 3, None)["error"]["code"] == "pasted_empty"
    assert service.pasted_snapshots("a 1", "a 2", "soon")["error"]["code"] == "window"
    assert service.pasted_bench("{", "[]")["error"]["code"] == "bench_broken"
    page = (RECORDED / "metrics.txt").read_text()
    told = service.pasted_snapshots(page, page, 3)
    assert told["verdict"]["en"] and {row["name"] for row in told["ledger"]} >= {"drafts", "acceptance", "seconds_per_step"}
    assert service.load_form("a model", None, 4)["error"]["code"] == "serve_model"
    assert service.load_form("org/model", None, 6)["commands"][1]["config"]["num_speculative_tokens"] == 6
