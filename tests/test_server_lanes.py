"""Lanes on servers: recorded replies of vLLM 0.32 and hand-made ones of llama.cpp, cut off everywhere, and hostile ones."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from playground.backends import guarded_http, mixed, openai_api, probing, servers
from playground.backends.guarded_http import Bounds
from playground.backends.servers import Capabilities
from playground.cli import main
from playground.errors import BadValue, PlaygroundError
from playground.experiments import server_bench
from playground.measures.latency import race_meter
from playground.measures.server_speculation import speculation_record
from playground.measures.text import output_text
from playground.records.table import markdown
from playground.request import Request
from playground.trace import ChunkArrived, Finished, MetricsRead, ServerReported, SpeculationReported, TokenChosen, Trace
from playground.ui import packets
from tests.recorded_server import NOT_FOUND, Ask, RecordedServer, Reply, as_json, chunked, recorded, serving, text, vllm
from tests.test_cli import run as command_line

CAT = "the cat sat on the mat.\n" * 6


@pytest.fixture(scope="module")
def well() -> Iterator[tuple[RecordedServer, Capabilities]]:
    """A recorded vLLM with speculation, and what it was found to be able to do."""
    with serving(vllm) as server:
        yield server, probing.probe(servers.entry("lab", server.url))


@pytest.fixture
def lab(well: tuple[RecordedServer, Capabilities], monkeypatch: pytest.MonkeyPatch) -> RecordedServer:
    """The server as it was recorded, configured as "lab"."""
    server, server.known = well
    server.answer = vllm
    server.asks.clear()
    monkeypatch.setenv("PLAYGROUND_SERVERS", f"lab={server.url}")
    return server


def run(*lanes: dict[str, Any], prober: probing.Prober | None = None, prompt: Any = "Hello", **more: Any) -> Trace:
    """A comparison of server lanes from beginning to end."""
    request = Request.from_json({"prompt": prompt, "lanes": [{"server": "lab", "max_new_tokens": 48, **lane} for lane in lanes], **more})
    comparison = mixed.prepare(request, no_local, prober or probing.Prober(), dict)
    assert comparison.about is not None
    trace = Trace(comparison.about)
    for events in comparison:
        trace.add(events)
    assert Trace.from_json(trace.to_json()) == trace
    return trace


def no_local(request: Request) -> Any:
    raise AssertionError("nothing runs on this machine here")


def ending(trace: Trace, lane: int = 0) -> Finished:
    (finished,) = trace.of(lane, Finished)
    assert trace.events[-1][1] == finished or len(trace.about.lanes) > 1
    return finished


def answering(stream: Callable[[], Reply]) -> Callable[[Ask], Reply]:
    """vLLM as recorded, with another reply to whatever lanes stream."""
    return lambda ask: vllm(ask, stream=lambda _: stream())


def streamed(server: RecordedServer, stream: Callable[[], Reply], *lanes: dict[str, Any], **more: Any) -> Trace:
    """A run against this stream, asked by a prober that saw the server while it was well."""
    server.answer = answering(stream)
    return run(*(lanes or ({},)), prober=well_known(server), **more)


def well_known(server: RecordedServer) -> probing.Prober:
    prober = probing.Prober()
    assert server.known is not None
    prober.remember(servers.resolve("lab"), None, server.known)
    return prober


# --- what vLLM said -------------------------------------------------------------------------------


def test_a_recorded_reply_becomes_tokens_with_ids_numbers_and_a_ledger(lab: RecordedServer) -> None:
    trace = streamed(lab, lambda: recorded("completions_ngram_greedy"))
    chosen = trace.output(0)
    assert output_text(trace, 0) == CAT and len(chosen) == 48
    assert [token.token for token in chosen[:6]] == [1195, 2644, 2643, 335, 260, 1171]
    first = chosen[0]
    assert first.view is not None and first.view.scale == "raw_log_probability" and first.view.doubt is None
    assert first.raw_log_probability == pytest.approx(-1.1746084690093994) and first.raw_rank == 0
    assert first.log_probability is None and first.rank is None and first.view.entropy is None and first.view.alive is None
    names = trace.names("lab/smol")
    assert [names[token].piece for token in first.view.ids] == [b"the", b"The", b"\n", b"cat", b"This"]
    assert first.view.ids[0] == 1195 and all(token < 0 for token in first.view.ids[1:])  # ids that the server didn't give are ours
    assert [chunk.tokens for chunk in trace.of(0, ChunkArrived)] == [1, *[5] * 9, 2]
    assert ending(trace).reason == "length"
    (reported,) = trace.of(0, ServerReported)
    assert (reported.prompt_tokens, reported.completion_tokens, reported.ttft_from) == (28, 48, "scheduling")
    assert reported.queue == pytest.approx(5.859e-5, rel=1e-3) and reported.mean_itl == pytest.approx(0.019288, rel=1e-4)
    assert len(reported.prompt_ids) == 28
    (told,) = trace.of(0, SpeculationReported)
    assert (told.steps, told.drafted, told.accepted, told.per_step_accepted) == (10, 40, 40, (4,) * 10)


def test_times_follow_the_recording_and_a_chunk_gap_is_no_token_latency(lab: RecordedServer) -> None:
    trace = streamed(lab, lambda: recorded("completions_ngram_greedy"))
    numbers = race_meter(trace.events).lanes[0].numbers()
    # The recording: first chunk at 1.8766 s, last at 2.5715 s, 10 gaps; the machine may be slower, never faster.
    assert 1.8766 <= numbers["ttft"].value < 2.4 and 2.5715 <= numbers["e2e"].value < 3.4  # type: ignore[operator]
    assert numbers["tpot"].value == pytest.approx((numbers["e2e"].value - numbers["ttft"].value) / 47)  # type: ignore[operator]
    assert numbers["chunk_gap_p50"].value == pytest.approx(0.068, abs=0.02) and numbers["itl_p50"].value == pytest.approx(0.0137, abs=0.004)
    assert "amortised" in numbers["itl_p50"].label.en and "tokens in the chunk" in numbers["itl_p50"].formula_text.en  # type: ignore[union-attr]
    assert numbers["tokens_per_chunk"].value == pytest.approx(48 / 11)
    assert numbers["server_ttft"].how == "reported" and numbers["server_ttft"].value == pytest.approx(1.63067, rel=1e-4)
    assert numbers["kv_bytes"].value is None and numbers["stop"].value == "length"
    said = markdown(trace)
    assert "(amortised)" in said and "40 of 40 drafted accepted" in said and '"temperature": 0.0' in said


def test_a_sampled_reply_names_what_was_rarely_guessed(lab: RecordedServer) -> None:
    trace = streamed(lab, lambda: recorded("completions_ngram_sampled", 20), {"strategy": "sample", "knobs": {"top_p": 0.9}})
    chosen = trace.output(0)
    assert chosen[0].raw_rank == 1  # "The" was drawn, "the" was likelier
    assert chosen[-1].raw_rank is None and chosen[-1].raw_log_probability == pytest.approx(-32.545, rel=1e-4)  # not among those told
    record = speculation_record(trace, 0)
    assert (record.steps, record.drafted, record.accepted, record.histogram) == (10, 39, 3, (7, 3, 0, 0, 0))
    assert record.by_position == (3, 0, 0, 0) and record.mean_acceptance_length.value == 1.3 and record.mean_acceptance_length.how == "reported"
    assert record.forwards == 45 and record.tokens_per_forward.value == pytest.approx(48 / 45)
    conditional = record.position_rates(conditional=True)
    assert [rate.value for rate in conditional] == [0.3, 0.0, None, None]


def test_every_sampling_parameter_is_sent_and_shown(lab: RecordedServer) -> None:
    knobs = {"temperature": 0.8, "top_p": 0.95, "top_k": 50, "repetition_penalty": 1.1}
    trace = run({"strategy": "sample", "knobs": knobs}, {"strategy": "greedy"}, seed=7)
    asked = [body for body in lab.bodies("/v1/completions") if body.get("max_tokens") == 48]
    assert asked[0].items() >= {**knobs, "min_p": 0.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "min_tokens": 0, "seed": 7}.items()
    assert asked[1]["temperature"] == 0.0 and asked[1]["top_k"] == -1 and asked[1]["top_p"] == 1.0 and asked[1]["repetition_penalty"] == 1.0
    sent = trace.about.lanes[0].sent
    assert sent is not None and sent["path"] == "completions" and sent.items() >= knobs.items() and "prompt" not in sent
    assert any("one after the other" in note["en"] for note in trace.about.lanes[0].notes)
    assert trace.about.models[0].context == 2048 and trace.about.models[0].dtype is None


def test_what_a_server_can_do_is_found_out_by_what_it_answers(lab: RecordedServer) -> None:
    can = probing.probe(servers.resolve("lab"))
    assert (can.kind, can.version, can.models, can.context) == ("vllm", "0.32.0", (("smol", 2048),), 2048)
    assert can.token_ids and can.usage and can.request_metrics and can.request_speculation and can.metrics and can.beam_search
    assert can.completions and not can.chat and can.scale == "raw_log_probability" and can.speculation and set(can.refused) == {"min_p", "logit_bias"}
    assert "vllm:spec_decode_num_drafts" in can.families
    json.dumps(can.to_json())
    prober = probing.Prober()
    before = len(lab.asks)
    assert prober.capabilities(servers.resolve("lab")) == prober.capabilities(servers.resolve("lab")) == can
    assert len(lab.asks) - before < 25  # asked once


def test_how_many_log_probabilities_is_read_from_the_refusal(lab: RecordedServer) -> None:
    lab.answer = lambda ask: vllm(ask, logprobs=20, speculates=False)
    can = probing.probe(servers.resolve("lab"))
    tried = [body["logprobs"] for body in lab.bodies("/v1/completions") if body.get("stream")]
    assert tried == [50, 20] and can.logprobs == 5  # what it then named: the recording has five
    assert can.refused == ()


def test_processed_log_probabilities_are_seen_by_two_temperatures(lab: RecordedServer) -> None:
    def processed(ask: Ask) -> Reply:
        body = ask.body
        if ask.path == "/v1/completions" and not body.get("stream") and body.get("logprobs"):
            top = {"a": -0.5 / body["temperature"], "b": -2.0 / body["temperature"]}
            logprobs = {"tokens": ["a"], "token_logprobs": [top["a"]], "top_logprobs": [top]}
            return as_json({"choices": [{"text": "a", "logprobs": logprobs, "finish_reason": "length"}]})
        return vllm(ask)

    lab.answer = processed
    prober = probing.Prober()
    assert prober.capabilities(servers.resolve("lab")).scale == "processed_log_probability"
    trace = run({}, prober=prober)
    first = trace.output(0)[0]
    assert first.view is not None and first.view.scale == "processed_log_probability"
    assert first.log_probability == pytest.approx(-1.1746, rel=1e-4) and first.raw_log_probability is None


@pytest.mark.parametrize(("lane", "words"), [
    ({"strategy": "sample", "knobs": {"min_p": 0.1}}, ("lab", "min_p", "speculates")),
    ({"knobs": {"logit_bias": [[[5], 2.0]]}}, ("lab", "logit_bias", "speculates")),
    ({"strategy": "sample", "knobs": {"typical_p": 0.5}}, ("lab", "vLLM", "typical_p", "top_p")),
    ({"knobs": {"no_repeat_ngram_size": 3}}, ("lab", "no_repeat_ngram_size")),
    ({"knobs": {"repetition_penalty": 1.2, "repetition_scope": "output"}}, ("repetition_scope",)),
    ({"strategy": "beam"}, ("lab", "beams", "stream")),
    ({"strategy": "speculative_greedy"}, ("lab", "greedy and sample", "speculative_greedy")),
    ({"strategy": "sample", "knobs": {"temperature": 3}}, ("temperature", "[0, 2]", "3")),
    ({"model": "nope"}, ("nope", "smol")),
    ({"max_new_tokens": 4096}, ("2048", "4096")),
    ({"server": "elsewhere"}, ("elsewhere", "lab")),
])  # fmt: skip
def test_what_a_server_cannot_do_is_refused_before_the_run_by_name(lab: RecordedServer, lane: dict[str, Any], words: tuple[str, ...]) -> None:
    request = Request.from_json({"prompt": "Hi", "lanes": [{"server": "lab"}, {"server": "lab", **lane}]}, limits=_wide())
    with pytest.raises(PlaygroundError) as raised:
        mixed.prepare(request, no_local, probing.Prober(), dict)
    assert all(word in raised.value.text.en for word in words), raised.value.text.en
    assert raised.value.values["lane"] == 1
    assert not [body for body in lab.bodies("/v1/completions") if body.get("max_tokens") == 80]


def _wide() -> Any:
    from playground.request import Limits  # noqa: PLC0415

    return Limits(max_new_tokens=8192)


# --- streams that are cut off ---------------------------------------------------------------------


def pieces_of(reply: Reply) -> bytes:
    return b"".join(data for _, data in reply.body)


@pytest.fixture(scope="module")
def whole() -> bytes:
    return pieces_of(recorded("completions_ngram_greedy"))


def cut_places(whole: bytes) -> dict[str, int]:
    """Boundaries at which a connection can break, by name."""
    last_token = whole.index(b'"finish_reason":"length"')
    return {
        "before the first byte": 0,
        "inside a line": whole.index(b"data:", 2000) + 40,
        "between the two ends of a line": whole.index(b"\n\n", 3000) + 1,
        "after a chunk": whole.index(b"\n\n", 3000) + 2,
        "inside the last token's chunk": last_token - 5,
        "after the last token, before usage": whole.index(b"\n\n", last_token) + 2,
        "inside the usage": whole.index(b"mean_itl_ms"),
        "before [DONE]": whole.index(b"data: [DONE]"),
    }


@pytest.mark.parametrize("breaks", [True, False], ids=["broken connection", "clean end"])
def test_a_stream_cut_off_anywhere_keeps_its_tokens_and_says_so(lab: RecordedServer, whole: bytes, breaks: bool) -> None:
    for place, at in cut_places(whole).items():
        trace = streamed(lab, lambda at=at: Reply([(0.0, whole[:at])], breaks=breaks))
        end, chosen = ending(trace), trace.output(0)
        complete = whole[:at].rfind(b"\n\n")
        arrived = sum(len(chunk["choices"][0]["token_ids"]) for chunk in _chunks(whole[: max(complete, 0)]) if chunk["choices"])
        assert len(chosen) == arrived, place
        assert CAT.startswith(output_text(trace, 0)), place
        if arrived == 48:  # the text is whole, only its figures may be missing
            assert end.reason == "length", place
        else:
            assert end.reason == "error" and end.message is not None, place
            assert ("incomplete" in end.message["en"]) == bool(chosen), place
        assert bool(list(trace.of(0, SpeculationReported))) == (b"num_spec_steps" in whole[: max(complete, 0)]), place


def _chunks(data: bytes) -> list[dict[str, Any]]:
    events = (part.removeprefix(b"data: ") for part in data.split(b"\n\n"))
    return [json.loads(event) for event in events if event.startswith(b"{")]


def test_a_stream_cut_inside_a_character_keeps_whole_characters_only(lab: RecordedServer) -> None:
    chunk = {"choices": [{"index": 0, "text": "你好", "finish_reason": None, "token_ids": [7]}]}
    line = b"data: " + json.dumps(chunk, ensure_ascii=False).encode() + b"\n\n"
    for cut in range(len(line), 2 * len(line)):  # at every byte of the second chunk
        trace = streamed(lab, lambda cut=cut: Reply([(0.0, (line * 2)[:cut])], breaks=True))
        assert output_text(trace, 0) == "你好" and ending(trace).reason == "error"


def test_bytes_may_arrive_one_by_one(lab: RecordedServer) -> None:
    chunk = {"choices": [{"index": 0, "text": "字。", "finish_reason": "stop", "stop_reason": None, "token_ids": [7]}]}
    data = b": keep-alive\r\n\r\ndata: " + json.dumps(chunk, ensure_ascii=False).encode() + b"\r\n\r\ndata: [DONE]\r\n\r\n"
    trace = streamed(lab, lambda: Reply([(0.0, data[i : i + 1]) for i in range(len(data))]))
    assert output_text(trace, 0) == "字。" and ending(trace).detail == "eos"


def test_one_server_gone_leaves_the_other_lanes_alone(lab: RecordedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAYGROUND_SERVERS", f"lab={lab.url} gone=http://127.0.0.1:1")
    trace = run({}, {"server": "gone"}, {})
    ends = [ending(trace, lane) for lane in range(3)]
    assert [end.reason for end in ends] == ["length", "error", "length"]
    assert ends[1].message is not None and "gone" in ends[1].message["en"] and "can't be reached" in ends[1].message["en"]


# --- why a reply ended ----------------------------------------------------------------------------


def words(*reasons: Any, text: str = " a") -> list[dict[str, Any]]:
    """A chunk of one token for every finish reason."""
    return [{"choices": [{"index": 0, "text": text, "token_ids": [5], "finish_reason": reason}]} for reason in reasons]


@pytest.mark.parametrize("word", ["abort", "error", "cancelled", "content_filter", "tool_calls", "function_call", "Repetition", "moonshine"])
def test_an_end_that_is_no_normal_one_is_told_by_its_name_and_incomplete(lab: RecordedServer, word: str) -> None:
    trace = streamed(lab, lambda: chunked(words(None, None, None, word)))
    end = ending(trace)
    assert (end.reason, end.detail) == ("error", f"server:{word}") and end.message is not None
    assert f"“{word}”" in end.message["en"] and "incomplete" in end.message["en"] and word in end.message["zh"]
    assert output_text(trace, 0) == " a" * 4 and f"“{word}”" in markdown(trace)
    (shown,) = [payload for packet in packets.replayed(trace) for _, kind, payload in packet["events"] if kind == "finished"]
    assert shown["detail"] == f"server:{word}"  # the page's lane shows the word


@pytest.mark.parametrize(("word", "reason", "detail"), [
    ("stop", "stop", "eos"), ("eos_token", "stop", "eos"), ("end_turn", "stop", "eos"), ("stop_sequence", "stop", "stop_string"),
    ("length", "length", "max_new_tokens"), ("MAX_TOKENS", "length", "max_new_tokens"), ("model_length", "length", "context"),
])  # fmt: skip
def test_the_words_that_servers_have_for_normal_ends_are_known(lab: RecordedServer, word: str, reason: str, detail: str) -> None:
    end = ending(streamed(lab, lambda: chunked(words(None, word))))
    assert (end.reason, end.detail) == (reason, detail) and end.message is None


@pytest.mark.parametrize("breaks", [True, False], ids=["broken connection", "clean end"])
@pytest.mark.parametrize("reasons", [("",) * 4, (" ",) * 4, (None,) * 4])
def test_an_empty_finish_reason_is_none(lab: RecordedServer, breaks: bool, reasons: tuple[Any, ...]) -> None:
    data = b"".join(f"data: {json.dumps(chunk)}\n\n".encode() for chunk in words(*reasons))
    end = ending(streamed(lab, lambda: Reply([(0.0, data)], breaks=breaks)))
    assert (end.reason, end.detail) == ("error", "server_broke_off") and end.message is not None and "incomplete" in end.message["en"]


def test_an_empty_finish_reason_takes_back_no_reason(lab: RecordedServer) -> None:
    assert ending(streamed(lab, lambda: chunked([*words("", "stop"), *words("", text="")]))).reason == "stop"


def test_a_reason_in_every_chunk_makes_no_broken_reply_whole(lab: RecordedServer) -> None:
    data = b"".join(f"data: {json.dumps(chunk)}\n\n".encode() for chunk in words("stop", "stop", "stop"))
    assert ending(streamed(lab, lambda: Reply([(0.0, data)], breaks=True))).detail == "server_broke_off"
    assert ending(streamed(lab, lambda: chunked(words("stop", "stop", "stop")))).reason == "stop"


def test_a_server_that_stops_before_our_limit_stopped_at_its_own(lab: RecordedServer) -> None:
    short = [*words(None, "length"), {"choices": [], "usage": {"completion_tokens": 2}}]
    end = ending(streamed(lab, lambda: chunked(short)))
    assert (end.reason, end.detail) == ("length", "server_length")
    assert ending(streamed(lab, lambda: chunked(short), {"max_new_tokens": 2})).detail == "max_new_tokens"


SAID = "KV cache is full"


def as_event(data: Any) -> Reply:
    return Reply([(0.0, ONE + f"data: {json.dumps(data)}\n\n".encode())])


@pytest.mark.parametrize("reply", [
    lambda: as_event({"error": SAID}), lambda: as_event({"error": {"message": SAID, "code": 500}}), lambda: as_event({"error": {"msg": SAID}}),
    lambda: as_event({"object": "error", "message": SAID, "code": 500}), lambda: as_event({"detail": SAID}),
    lambda: as_event({"message": SAID, "type": "server_error"}),
    lambda: as_event({"choices": [{"index": 0, "text": "", "finish_reason": "error"}], "error": {"message": SAID}}),
    lambda: Reply([(0.0, ONE + f'event: error\ndata: {{"message": "{SAID}"}}\n\n'.encode())]),
    lambda: Reply([(0.0, ONE + f"event: error\ndata: {SAID}\n\n".encode())]),
    lambda: Reply([(0.0, ONE + f'error: {{"code": 500, "message": "{SAID}"}}\n\n'.encode())]),
    lambda: Reply([(0.0, ONE + f'data: {{"error": "{SAID}"}}\n'.encode())]),
    lambda: Reply([(0.0, ONE + f'data: {{"error": "{SAID}"}}'.encode())]),
    lambda: chunked([*words(None, "error"), {"error": {"message": SAID}}]),
    lambda: as_json({"error": SAID}), lambda: as_json({"error": {"message": SAID}}), lambda: as_json({"object": "error", "message": SAID}),
    lambda: as_json({"detail": [{"msg": SAID}]}), lambda: text(json.dumps({"error": {"message": SAID}}, indent=2), kind="text/event-stream"),
    lambda: text(SAID, kind="text/plain"), lambda: text(f"error: {SAID}", kind="text/plain"), lambda: as_json({"error": SAID}, 503),
])  # fmt: skip
def test_a_server_is_quoted_in_whatever_shape_its_error_comes(lab: RecordedServer, reply: Callable[[], Reply]) -> None:
    end = ending(streamed(lab, reply))
    assert end.reason == "error" and end.message is not None and SAID in end.message["en"] and SAID in end.message["zh"]


def test_an_error_that_says_nothing_is_none(lab: RecordedServer) -> None:
    for nothing in (None, "", {}, False):
        assert ending(streamed(lab, lambda nothing=nothing: chunked([{**words("stop")[0], "error": nothing}]))).reason == "stop"


def test_a_reply_that_came_whole_instead_of_as_a_stream_is_read(lab: RecordedServer) -> None:
    trace = streamed(lab, lambda: as_json({"choices": [{"index": 0, "text": "Hi", "finish_reason": "stop"}], "usage": {"completion_tokens": 1}}))
    assert output_text(trace, 0) == "Hi" and ending(trace).reason == "stop"


# --- hostile servers ------------------------------------------------------------------------------

TIGHT = Bounds(connect=1.0, silence=0.4, seconds=1.5, bytes=300_000)


def endless(data: bytes, pause: float = 0.0) -> Iterator[tuple[float, bytes]]:
    for _ in range(100_000):
        yield pause, data


ONE = b'data: {"choices":[{"index":0,"text":"a","finish_reason":null}]}\n\n'


@pytest.mark.parametrize(("stream", "words"), [
    (lambda: Reply(endless(b"x" * 10_000)), "doesn't end"),
    (lambda: Reply(endless(ONE)), "more than the 48 tokens"),
    (lambda: Reply(endless(b": ping\n\n", 0.02)), "sent nothing"),
    (lambda: Reply([(0.0, ONE), (1.5, ONE)]), "sent nothing"),
    (lambda: Reply([(0.0, b"data: {not json}\n\n")]), "no JSON"),
    (lambda: Reply([(0.0, b"data: [1, 2]\n\n")]), "no object"),
    (lambda: Reply([(0.0, b"data: " + b"[" * 100_000 + b"\n\n")]), "no JSON"),
    (lambda: Reply([(0.0, b"data: " + b"9" * 5000 + b"\n\n")]), "no JSON"),
    (lambda: Reply([(0.0, b"<html>hello</html>")], kind="text/html"), "<html>hello</html>"),
    (lambda: Reply([(0.0, b"\x1f\x8b")], headers=(("Content-Encoding", "gzip"),)), "Content-Encoding"),
    (lambda: chunked([{"error": {"message": "out of <b>memory</b>", "code": 500}}]), "out of <b>memory</b>"),
    (lambda: as_json({"error": {"message": "no"}}, 500), '"no"'),
    (lambda: as_json("?" * 5000, 503), "503"),
    (lambda: as_json({}, 401), "key"),
    (lambda: Reply([], 307, headers=(("Location", "http://169.254.169.254/latest"),)), "169.254.169.254"),
])  # fmt: skip
def test_a_hostile_stream_is_refused_with_one_clear_message(lab: RecordedServer, monkeypatch: pytest.MonkeyPatch, stream: Any, words: str) -> None:
    monkeypatch.setattr(mixed, "bounds_for", lambda lane: TIGHT)
    started = time.monotonic()
    end = ending(streamed(lab, stream))
    assert end.reason == "error" and end.message is not None and words in end.message["en"], end
    assert end.message["zh"] and len(end.message["en"]) < 600 and time.monotonic() - started < 8


WEIRD: list[Any] = [None, 7, -1, True, "text", [], {}, [None], [{}], [7], [-1], {"content": 7}, {"tokens": 7}, 1e308, "\ud800"]


@pytest.mark.parametrize("field", ["text", "logprobs", "token_ids", "finish_reason", "prompt_token_ids", "stop_reason", "delta", "index"])
def test_fields_of_the_wrong_type_never_break_a_lane(lab: RecordedServer, field: str) -> None:
    good = {"index": 0, "text": "a", "logprobs": None, "finish_reason": None}
    for value in WEIRD:
        trace = streamed(lab, lambda value=value: chunked([{"choices": [{**good, field: value}]}, {"choices": [{**good, "finish_reason": "stop"}]}]))
        assert ending(trace).detail != "server_malformed" and output_text(trace, 0).endswith("a"), value


@pytest.mark.parametrize("field", ["usage", "metrics", "timings", "choices", "sglext"])
def test_figures_of_the_wrong_type_are_unknown(lab: RecordedServer, field: str) -> None:
    nested = [{name: value for name in ("completion_tokens", "queue_time_ms", "speculative_decoding", "predicted_ms", "draft_n")} for value in WEIRD]
    for value in [*WEIRD, *nested]:
        good = {"choices": [{"index": 0, "text": "a", "finish_reason": "stop"}]}
        trace = streamed(lab, lambda value=value, good=good: chunked([good, {"choices": [], field: value}]))
        assert ending(trace).reason == "stop" and output_text(trace, 0) == "a", value
        markdown(trace)


def test_log_probabilities_that_cannot_be_right_are_marked(lab: RecordedServer) -> None:
    def chunk(token: str, number: float, top: dict[str, float], end: str | None = None) -> dict[str, Any]:
        logprobs = {"tokens": [token], "token_logprobs": [number], "top_logprobs": [top]}
        return {"choices": [{"index": 0, "text": token, "logprobs": logprobs, "finish_reason": end}]}

    trace = streamed(
        lab,
        lambda: chunked([
            chunk("a", 0.0, {"a": 0.0}), chunk("b", 0.0, {"b": 0.0, "c": 0.0}), chunk("d", -0.1, {"d": -0.1, "e": -0.5}), chunk("f", 0.3, {"f": 0.3}),
            chunk("g", 0.0, {"g": 0.0, "h": -17.0}), chunk("i", -0.1, {"i": -0.1, "j": -9999.0}, "stop"),
        ]),
    )  # fmt: skip
    doubts = [chosen.view.doubt for chosen in trace.output(0) if chosen.view]
    assert doubts == ["certain_without_rival", "sum_above_one", "sum_above_one", "above_zero", None, None]
    assert [chosen.raw_log_probability for chosen in trace.output(0)] == [None, None, None, None, 0.0, -0.1]
    assert "4 tokens are not to be trusted" in markdown(trace)


# --- stop, and how lanes share a server -----------------------------------------------------------


def test_stop_hangs_up_at_once_and_keeps_the_tokens(lab: RecordedServer) -> None:
    prober = well_known(lab)
    lab.answer = answering(lambda: Reply([(0.0, ONE), *[(0.05, ONE)] * 3, (30.0, ONE)]))
    request = Request.from_json({"prompt": "Hi", "lanes": [{"server": "lab"}, {"server": "lab"}]})
    comparison = mixed.prepare(request, no_local, prober, dict)
    events: list[Any] = []
    stopped = 0.0
    for batch in comparison:
        events += batch
        if not stopped and sum(isinstance(event, TokenChosen) for _, event in events) == 4:
            threading.Timer(0.2, comparison.stop).start()
            stopped = time.monotonic()
    assert time.monotonic() - stopped < 1.5
    ends = {lane: event for lane, event in events if isinstance(event, Finished)}
    assert {lane: end.reason for lane, end in ends.items()} == {0: "cancelled", 1: "cancelled"}
    assert sum(isinstance(event, TokenChosen) for _, event in events) == 4


def test_while_waiting_for_the_first_byte_stop_works_too(lab: RecordedServer) -> None:
    prober = well_known(lab)
    lab.answer = answering(lambda: Reply([(30.0, ONE)]))
    comparison = mixed.prepare(Request.from_json({"prompt": "Hi", "lanes": [{"server": "lab"}]}), no_local, prober, dict)
    threading.Timer(0.3, comparison.stop).start()
    started = time.monotonic()
    events = [event for batch in comparison for _, event in batch]
    assert [event.reason for event in events if isinstance(event, Finished)] == ["cancelled"] and time.monotonic() - started < 2


def test_lanes_of_one_server_run_one_after_the_other_and_of_two_at_once(lab: RecordedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(vllm) as other:
        monkeypatch.setenv("PLAYGROUND_SERVERS", f"lab={lab.url} other={other.url}")
        prober = probing.Prober()
        for name in ("lab", "other"):
            prober.capabilities(servers.resolve(name))
        slow = answering(lambda: Reply([(0.1, ONE)] * 5))
        lab.answer = other.answer = slow
        trace = run({}, {}, {"server": "other"}, prober=prober)
    at = [[chunk.at for chunk in trace.of(lane, ChunkArrived)] for lane in range(3)]
    assert at[0][-1] < at[1][0] and at[2][0] < at[0][-1]


def test_a_step_while_paused_gives_every_server_lane_one_batch(lab: RecordedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    prober = well_known(lab)
    lab.answer = answering(lambda: Reply([(0.0, ONE), (0.4, ONE), *[(0.0, ONE)] * 3]))
    comparison = mixed.prepare(Request.from_json({"prompt": "Hi", "lanes": [{"server": "lab"}]}), no_local, prober, dict)
    steps = iter(comparison)
    while not any(isinstance(event, ChunkArrived) for _, event in next(steps)):
        pass
    time.sleep(1.0)  # paused: the other chunks pile up meanwhile
    comparison.one_round()
    assert comparison.owed == 1
    events: list[Any] = []
    while comparison.owed:
        events += next(steps)
    assert sum(isinstance(event, ChunkArrived) for _, event in events) == 1
    rest = [event for batch in steps for _, event in batch]
    assert sum(isinstance(event, ChunkArrived) for event in rest) == 3 and isinstance(rest[-1], Finished)


# --- llama.cpp ------------------------------------------------------------------------------------


def llama_cpp(ask: Ask) -> Reply:
    """llama.cpp's server in its documented shape, drafting with a small model: chats only name their tokens' ids."""
    if ask.path == "/v1/models":
        return as_json({"object": "list", "data": [{"id": "qwen.gguf", "owned_by": "llamacpp", "meta": {"n_ctx_train": 32768}}]})
    if ask.path == "/props":
        return as_json({"default_generation_settings": {"n_ctx": 4096}, "build_info": "b6123-abcdef", "total_slots": 1})
    if ask.path != "/v1/chat/completions":
        return NOT_FOUND
    head = {"id": "chatcmpl-x", "object": "chat.completion.chunk", "model": "qwen.gguf"}

    def delta(content: dict[str, Any], entry: Any = None, finish: str | None = None) -> dict[str, Any]:
        logprobs = {"logprobs": {"content": [entry]}} if entry and ask.body.get("logprobs") else {}
        return {**head, "choices": [{"finish_reason": finish, "index": 0, "delta": content, **logprobs}]}

    def entry(token: int, piece: bytes, number: float, *rivals: tuple[int, bytes, float]) -> dict[str, Any]:
        named = {"id": token, "token": piece.decode("utf-8", "replace"), "bytes": list(piece), "logprob": number}
        return {**named, "top_logprobs": [named, *(entry(*rival) for rival in rivals)]}

    tokens = [(11, b"Hi", -0.2), (12, b" \xe4\xbd", -0.3), (13, b"\xa0", -0.01)]
    texts = ["Hi", "", " 你"]
    if not ask.body.get("stream"):
        logprobs = {"content": [entry(11, b"Hi", -0.2, (14, b"Yo", -2.0))]}
        return as_json(
            {"choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi"}, "logprobs": logprobs, "finish_reason": "length"}]}
        )
    timings = {
        "cache_n": 0, "prompt_n": 9, "prompt_ms": 30.5, "predicted_n": 3, "predicted_ms": 60.0, "predicted_per_token_ms": 20.0,
        "predicted_per_second": 50.0, "draft_n": 4, "draft_n_accepted": 1,
    }  # fmt: skip
    return chunked([
        delta({"role": "assistant", "content": None}),
        *(delta({"content": shown}, entry(*token, (14, b"Yo", -2.0))) for token, shown in zip(tokens, texts, strict=True)),
        delta({}, finish="stop"),
        {**head, "choices": [], "usage": {"completion_tokens": 3, "prompt_tokens": 9}, "timings": timings},
    ])  # fmt: skip


def test_llama_cpp_in_its_documented_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(llama_cpp) as server:
        monkeypatch.setenv("PLAYGROUND_SERVERS", f"lab={server.url}/v1")
        can = probing.probe(servers.resolve("lab"))
        assert (can.kind, can.version, can.context, can.chat, can.completions) == ("llama.cpp", "b6123-abcdef", 4096, True, False)
        assert not can.metrics and can.speculation is None and not can.token_ids and can.request_metrics
        trace = run({"strategy": "sample", "knobs": {"min_p": 0.1, "typical_p": 0.9, "repetition_penalty": 1.1}})
        sent = next(body for body in server.bodies("/v1/chat/completions") if body.get("max_tokens") == 48)
    assert sent.items() >= {"min_p": 0.1, "typical_p": 0.9, "repeat_penalty": 1.1, "top_k": 0, "mirostat": 0, "cache_prompt": False}.items()
    assert [chosen.token for chosen in trace.output(0)] == [11, 12, 13] and output_text(trace, 0) == "Hi 你"
    assert trace.output(0)[0].view.ids == (11, 14)  # type: ignore[union-attr]
    assert [chunk.tokens for chunk in trace.of(0, ChunkArrived)] == [1, 1, 1]  # the role is no chunk, nor is the end
    (reported,) = trace.of(0, ServerReported)
    assert (reported.prefill, reported.decode, reported.completion_tokens) == (0.0305, 0.06, 3)
    record = speculation_record(trace, 0)
    assert (record.drafted, record.accepted, record.steps, record.histogram) == (4, 1, None, None)
    assert record.acceptance_rate.value == 0.25 and record.mean_acceptance_length.value is None  # steps are not told
    assert record.tokens_per_forward.value == 1.5 and "tokens − accepted" in record.tokens_per_forward.formula_text.en  # type: ignore[union-attr]
    assert ending(trace).detail == "eos"


def test_a_stop_string_ends_the_text_where_the_server_ends_it(lab: RecordedServer) -> None:
    def stopped() -> Reply:
        logprobs = {"tokens": ["A", " B", "##", "#"], "token_logprobs": [-0.1] * 4, "top_logprobs": [{}] * 4}
        choice = {"index": 0, "text": "A B", "logprobs": logprobs, "finish_reason": "stop", "stop_reason": "###", "token_ids": [1, 2, 3, 4]}
        return chunked([{"choices": [choice]}])

    trace = streamed(lab, stopped, {"stop": ["###"]})
    assert output_text(trace, 0) == "A B" and len(trace.output(0)) == 4
    assert (ending(trace).detail, ending(trace).cut) == ("stop_string", 3)


def test_text_that_a_server_held_back_is_not_told_twice(lab: RecordedServer) -> None:
    """While a stop string may be beginning, text lags behind its tokens, and may come without any."""

    def held_back() -> Reply:
        def named(*tokens: str) -> dict[str, Any]:
            return {"tokens": list(tokens), "token_logprobs": [-0.1] * len(tokens), "top_logprobs": [{}] * len(tokens)}

        first = {"index": 0, "text": "", "logprobs": named("A"), "finish_reason": None, "token_ids": [1]}
        second = {"index": 0, "text": "A", "logprobs": named(" B"), "finish_reason": None, "token_ids": [2]}
        last = {"index": 0, "text": " B", "logprobs": None, "finish_reason": "length", "token_ids": []}
        return chunked([{"choices": [choice]} for choice in (first, second, last)])

    trace = streamed(lab, held_back, {"stop": ["##"]})
    assert output_text(trace, 0) == "A B" and [chunk.tokens for chunk in trace.of(0, ChunkArrived)] == [1, 1, 0]


def test_the_token_that_ends_a_text_is_shown_as_special(lab: RecordedServer) -> None:
    def ended() -> Reply:
        logprobs = {"tokens": ["A", "<|im_end|>"], "token_logprobs": [-0.1, -0.2], "top_logprobs": [{}, {}]}
        return chunked(
            [{"choices": [{"index": 0, "text": "A", "logprobs": logprobs, "finish_reason": "stop", "stop_reason": None, "token_ids": [1, 2]}]}]
        )

    trace = streamed(lab, ended)
    assert output_text(trace, 0) == "A" and trace.names("lab/smol")[2].special and ending(trace).detail == "eos"


def test_counters_stand_in_where_a_server_says_nothing_of_the_request(lab: RecordedServer) -> None:
    """Without per-request figures: two snapshots around the request, and what others did meanwhile is said."""
    quiet = [
        {"choices": [{"index": 0, "text": "a", "token_ids": [1], "finish_reason": "length"}]},
        {"choices": [], "usage": {"completion_tokens": 30}},
    ]
    counted = {"drafts": 31, "draft_tokens": 123, "accepted_tokens": 87, "generation": 165}

    def answer(ask: Ask) -> Reply:
        if ask.path == "/metrics":
            page = (
                "vllm:spec_decode_num_drafts_total{{engine=\"0\"}} {drafts}\nvllm:spec_decode_num_drafts_total{{engine=\"1\"}} 5\n"
                "vllm:spec_decode_num_draft_tokens_total {draft_tokens}\nvllm:spec_decode_num_accepted_tokens_total {accepted_tokens}\n"
                "vllm:generation_tokens_total {generation}\n"
            )  # fmt: skip
            return text(page.format(**counted), kind="text/plain")
        if ask.body.get("max_tokens") == 48:
            counted.update(drafts=41, draft_tokens=163, accepted_tokens=107, generation=215)
        return vllm(ask, stream=lambda _: chunked(quiet))

    lab.answer = answer
    trace = run({})
    assert len(list(trace.of(0, MetricsRead))) == 2
    record = speculation_record(trace, 0)
    assert (record.source, record.steps, record.drafted, record.accepted, record.other_tokens) == ("counters", 10, 40, 20, 20)
    assert record.mean_acceptance_length.value == 3.0 and record.tokens_per_forward.value is None and record.window is not None
    assert "tokens of others: 20" in markdown(trace)


# --- addresses ------------------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["127.0.0.1", "10.1.2.3", "192.168.0.9", "169.254.169.254", "::1", "fd00::1", "fe80::1%eth0", "0.0.0.0",
                                     "::ffff:10.0.0.1", "2002:7f00:1::", "64:ff9b::a00:1", "100.64.0.1", "224.0.0.1"])  # fmt: skip
def test_private_addresses_are_seen_in_every_disguise(address: str) -> None:
    assert guarded_http.is_private(address)


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8"])
def test_public_addresses_are_public(address: str) -> None:
    assert not guarded_http.is_private(address)


def test_typed_in_servers_need_an_app_of_ones_own(lab: RecordedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not servers.resolve(lab.url).configured
    monkeypatch.setenv("PLAYGROUND_PUBLIC", "1")
    with pytest.raises(BadValue) as raised:
        servers.resolve(lab.url)
    assert raised.value.code == "server_not_public" and "lab" in raised.value.text.en
    assert run({}).of(0, Finished)  # configured ones may be inside the network, also on a public app
    hostile = servers.ServerEntry("x", lab.url, f"{lab.url}/v1", f"{lab.url}/metrics", configured=False)
    with pytest.raises(PlaygroundError) as refused:
        probing.probe(hostile)
    assert refused.value.code == "server_private"


def test_a_name_is_resolved_once_and_the_checked_address_is_used(lab: RecordedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that is public when it is checked and private when it is connected to (DNS rebinding) reaches nothing."""
    port = int(lab.url.rpartition(":")[2])
    asked: list[str] = []

    def rebinding(host: str, *_: Any, **__: Any) -> Any:
        asked.append(host)
        return [(2, 1, 6, "", ("127.0.0.1", port))]

    monkeypatch.setattr(guarded_http.socket, "getaddrinfo", rebinding)
    with guarded_http.client(True, "secret") as http:
        reply = http.get(f"http://rebinding.example:{port}/version")
    assert reply.json() == {"version": "0.32.0"} and asked.count("rebinding.example") == 1
    assert lab.asks[-1].headers["host"] == f"rebinding.example:{port}" and lab.asks[-1].headers["authorization"] == "Bearer secret"
    with guarded_http.client(False, None) as http, pytest.raises(PlaygroundError):
        http.get(f"http://rebinding.example:{port}/version")


def test_the_key_and_nothing_else_of_this_machine_is_sent(lab: RecordedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-somebody-else")
    monkeypatch.setenv("OPENAI_ORG_ID", "org-private")
    run({})
    assert not any("authorization" in ask.headers or "openai-organization" in ask.headers for ask in lab.asks)
    assert all(set(ask.headers) <= {*guarded_http.SENT_HEADERS, "accept-encoding", "connection"} for ask in lab.asks)
    monkeypatch.setenv("PLAYGROUND_KEY_LAB", "sk-lab")
    before = len(lab.asks)
    run({})
    assert all(ask.headers["authorization"] == "Bearer sk-lab" for ask in lab.asks[before:])


def test_servers_come_from_a_file_and_the_environment(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "servers.toml"
    file.write_text('[servers.big]\nurl = "https://big.example/v1/"\nkey_env = "BIG"\nmetrics = "https://big.example:9090/metrics"\n')
    monkeypatch.setenv("PLAYGROUND_SERVERS_FILE", str(file))
    monkeypatch.setenv("PLAYGROUND_SERVERS", "lab=http://localhost:8000, http://10.0.0.2:8000/v1")
    monkeypatch.setenv("BIG", "sk-1")
    known = servers.entries()
    assert list(known) == ["big", "lab", "server-2"]
    assert (known["big"].root, known["big"].api, known["big"].metrics) == (
        "https://big.example",
        "https://big.example/v1",
        "https://big.example:9090/metrics",
    )
    assert known["big"].key == "sk-1" and "sk-1" not in repr(known["big"]) and known["lab"].key is None
    for broken in (
        "[servers.x]\nurl = 3",
        "[servers.x]\nurl='ftp://a'",
        "[servers.x]\nurl='http://u:p@a'",
        "[servers.'x y']\nurl='http://a'",
        "[",
        "servers=1",
    ):
        file.write_text(broken)
        with pytest.raises(PlaygroundError):
            servers.entries()


# --- beside the local race ------------------------------------------------------------------------


def test_local_and_server_lanes_mix_in_one_comparison(lab: RecordedServer) -> None:
    from playground.backends import local  # noqa: PLC0415
    from playground.backends.catalog import Catalog  # noqa: PLC0415
    from tests.tiny_folder import tiny_folder  # noqa: PLC0415

    models = Catalog()
    lanes = [{"max_new_tokens": 6}, {"server": "lab", "max_new_tokens": 48}, {"strategy": "sample", "max_new_tokens": 6}]
    request = Request.from_json({"prompt": "Hello", "model": str(tiny_folder()), "lanes": lanes})
    comparison = mixed.prepare(request, lambda here: local.prepare(here, lambda model: models.get(model, "cpu", "float32")), probing.Prober(), dict)
    assert comparison.about is not None and [lane.server for lane in comparison.about.lanes] == [None, "lab", None]
    trace = Trace(comparison.about)
    for events in comparison:
        trace.add(events)
    assert [len(trace.output(lane)) for lane in range(3)] == [6, 48, 6] and output_text(trace, 1) == CAT
    assert Trace.from_json(trace.to_json()) == trace and trace.about.request == request.to_json()
    assert len(markdown(trace).split("\n|")) == 5
    lanes[0] = {"strategy": "sample", "knobs": {"bad_words": "☃"}, "max_new_tokens": 6, "branch": {"tokens": [10**6], "lane": "x", "position": 0}}
    with pytest.raises(PlaygroundError) as raised:
        broken = Request.from_json({"prompt": "Hello", "model": str(tiny_folder()), "lanes": [lanes[1], lanes[0]]})
        mixed.prepare(broken, lambda here: local.prepare(here, lambda model: models.get(model, "cpu", "float32")), probing.Prober(), dict)
    assert raised.value.values["lane"] == 1  # counted among all lanes, not among those on this machine


# --- how much the client costs --------------------------------------------------------------------


def test_thirty_two_streams_at_once_all_arrive_whole(lab: RecordedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    can = lab.known
    assert can is not None
    lab.answer = answering(lambda: recorded("completions_ngram_greedy", 2))
    entry, started = servers.resolve("lab"), time.perf_counter()
    request = Request.from_json({"prompt": "Hi", "lanes": [{"server": "lab", "max_new_tokens": 48}]})
    from playground.backends.server_request import server_request  # noqa: PLC0415

    asked = server_request(request, request.lanes[0], entry, can)
    pieces = openai_api.Pieces("lab/smol")
    lanes = [openai_api.ServerLane(index, request.lanes[0], entry, can, asked, pieces, started) for index in range(32)]
    texts: dict[int, list[Any]] = {}
    threads = [threading.Thread(target=lambda lane=lane: texts.update({lane.index: [event for batch in lane for event in batch]})) for lane in lanes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert len(texts) == 32
    for events in texts.values():
        assert "".join(event.text for _, event in events if isinstance(event, ChunkArrived)) == CAT, events[-1]


@pytest.mark.slow
def test_the_bench_follows_every_chunk_of_every_stream() -> None:
    said: list[str] = []
    figures = server_bench.run(3, 4, said.append)
    assert {name: found["chunks"] for name, found in figures.items()} == {"1 streams": 4 * server_bench.TURNS, "3 streams": 12 * server_bench.TURNS}
    for found in figures.values():
        for name in ("delay_ms", "floor_ms"):
            assert 0 < found[name]["median"] <= found[name]["p95"] < 5000
        assert found["added_ms"] == found["delay_ms"]["median"] - found["floor_ms"]["median"] and found["cpu_ms_per_chunk"] > 0
    assert len(said) == 2 and "per chunk" in said[0]


def test_the_command_line_runs_lanes_on_a_server(lab: RecordedServer, tmp_path: Any) -> None:
    file = tmp_path / "trace.json"
    arguments = ["compare", "--prompt", "Hi", "--server", "lab", "--lane", "greedy", "--lane", "sample top_p=0.9", "--max-new-tokens", "48"]
    done = command_line(*arguments, "--json", str(file))
    assert done.returncode == 0, done.stderr
    rows = [line for line in done.stdout.splitlines() if line.startswith("| greedy") or line.startswith("| sample")]
    assert len(rows) == 2 and "on lab" in rows[0] and "(amortised)" in rows[0] and "mean acceptance length 5.00" in done.stdout
    assert [lane.server for lane in Trace.from_json(file.read_text()).about.lanes] == ["lab", "lab"]
    refused = command_line("compare", "--prompt", "Hi", "--server", "lab", "--lane", "sample min_p=0.1")
    assert refused.returncode == 2 and "min_p" in refused.stderr and "Traceback" not in refused.stderr
    unknown = command_line("compare", "--prompt", "Hi", "--server", "nowhere")
    assert unknown.returncode == 2 and "nowhere" in unknown.stderr and "lab" in unknown.stderr


def test_the_exit_status_says_that_a_lane_ended_in_an_error(lab: RecordedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(tmp_path / "trace.json")
    for stream, status in ((lambda: chunked(words(None, "abort")), 1), (lambda: chunked(words(None, "stop")), 0)):
        lab.answer = answering(stream)
        assert main(["compare", "--prompt", "Hi", "--server", "lab", "--lane", "greedy", "--json", file]) == status
        assert main(["replay", file, "--speed", "inf"]) == status  # a saved error is one, too
        assert ("“abort”" in capsys.readouterr().out) == bool(status)


def test_a_terminal_gets_control_characters_escaped_and_files_get_the_text(
    lab: RecordedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evil, file = "a\x1b[2J\x1b]0;title\x07\x9bb\u202ec", tmp_path / "trace.json"
    lab.answer = answering(lambda: chunked(words(None, "stop", text=evil)))
    assert main(["compare", "--prompt", "Hi", "--server", "lab", "--lane", "greedy", "--json", str(file)]) == 0
    lab.answer = lambda ask: as_json({"error": {"message": evil}}, 500)
    assert main(["compare", "--prompt", "Hi", "--server", "lab", "--lane", "greedy"]) == 1
    assert main(["compare", "--prompt", "Hi", "--lane", f"greedy order={evil}"]) == 2
    said = capsys.readouterr()
    escaped = "a\\x1b[2J\\x1b]0;title\\x07\\x9bb\\u202ec"
    assert said.out.count(escaped) == 3 and "title" in said.err  # twice in the text, once in the error
    assert not set("\x1b\x07\x9b\u202e") & set(said.out + said.err)
    assert output_text(Trace.from_json(file.read_text()), 0) == evil * 2
