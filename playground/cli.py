"""The same work without a browser: `python -m playground compare | load | replay | record | models | bench`."""

from __future__ import annotations

import argparse
import json
import lzma
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from playground.errors import BadValue, ModelUnavailable, PlaygroundError, Text
from playground.terminal import ProgressBar, say

#: What a command returns.
DONE, FAILED, MISTAKEN, INTERRUPTED = 0, 1, 2, 130

STATUS = """exit status: 0 all went well; 1 something that ran ended in an error (a lane, a request of a load, a part of the bench), or `same`
found a difference; 2 nothing ran, because of what was asked or of what it needs; 130 stopped by Ctrl-C."""

EPILOG = """lanes are written as a strategy and its knobs:
  --lane greedy --lane "sample temperature=0.8 top_p=0.95" --lane "sample top_k=50 order=vllm stop='###'"
besides knobs a lane takes name=, model=, server=, order=transformers|vllm|a,b,c, defaults=off|inherit, max_new_tokens= and stop=."""

LOAD_EPILOG = "Ctrl-C ends the experiment and prints what was measured. Without a server: --show, --metrics or --bench."


def parser() -> argparse.ArgumentParser:
    """The command line, as `--help` prints it."""
    top = argparse.ArgumentParser(prog="python -m playground", description=__doc__, epilog=STATUS)
    commands = top.add_subparsers(dest="command", required=True)
    compare = commands.add_parser(
        "compare", help="run one prompt under several decoding configurations", epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    compare.add_argument("--prompt", required=True, metavar="TEXT", help="the text that every lane answers; - reads it from standard input")
    mode = compare.add_mutually_exclusive_group()
    mode.add_argument("--chat", action="store_true", help="wrap the prompt in the model's chat template (the default where it has one)")
    mode.add_argument("--raw", action="store_true", help="give the model the bare text to continue")
    compare.add_argument("--system", metavar="TEXT", help="a system message, for models whose template takes one")
    compare.add_argument("--model", metavar="ID", help="a catalog id, a Hub id, a folder or a .gguf file (default: the embedded model)")
    compare.add_argument("--server", metavar="NAME", help="run the lanes on a server: its name in servers.toml, or its address (or server= per lane)")
    compare.add_argument("--lane", action="append", metavar="LANE", dest="lanes", help="a lane; repeat it for more (default: the classic experiment)")
    compare.add_argument("--max-new-tokens", metavar="N", help="how many tokens every lane may write, unless it says otherwise (default 80)")
    compare.add_argument("--seed", metavar="S", default="0", help="what every die follows from (default 0)")
    compare.add_argument("--each-reads", action="store_true", help="every lane reads the prompt itself, so that every lane has a TTFT")
    compare.add_argument("--align", action="store_true", help="lanes take turns by step instead of by time used")
    compare.add_argument("--json", metavar="FILE", help="write the whole trace to a file")
    _device(compare)
    _load_arguments(commands.add_parser("load", help="compare a speculating server with a plain one under load, and say which k", epilog=LOAD_EPILOG))
    replay = commands.add_parser("replay", help="play a saved trace again at its recorded pace, and print its table; needs no model")
    replay.add_argument("file", metavar="FILE", help="what --json or the page's download wrote, or a recording (.json.xz)")
    replay.add_argument("--speed", type=_speed, default=1.0, metavar="N", help="times the recorded pace, or inf (default 1)")
    record = commands.add_parser("record", help="make the recordings anew that ship with the app, on the default model")
    record.add_argument("names", nargs="*", metavar="NAME", help="which ones (default: all)")
    same = commands.add_parser(
        "same", help="test whether a lane that speculates writes the same distribution as without guesses", epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    same.add_argument("--prompt", required=True, metavar="TEXT", help="the text that every draw answers")
    same.add_argument("--raw", action="store_true", help="give the model the bare text to continue")
    same.add_argument("--model", metavar="ID", help="a catalog id, a Hub id, a folder or a .gguf file (default: the embedded model)")
    same.add_argument("--lane", metavar="LANE", default="speculative_sample drafter=early_exit drafting=probabilistic", help="the lane (%(default)s)")
    same.add_argument("--draws", type=_count(20), default=200, metavar="N", help="how many short draws with and without speculation (default 200)")
    same.add_argument("--seed", metavar="S", default="0", help="what every die follows from (default 0)")
    _device(same)
    models = commands.add_parser("models", help="list the models that can be named")
    models.set_defaults(command="models")
    bench = commands.add_parser("bench", help="measure decoding against transformers' generate, the stream, and thirty people at once")
    bench.add_argument("--json", metavar="FILE", help="write the figures to a file")
    bench.add_argument("--pairs", type=_count(1), default=10, help="interleaved pairs per figure at most (default 10)")
    bench.add_argument("--tokens", type=_count(4), default=60, help="tokens per run (default 60)")
    bench.add_argument("--only", choices=("decode", "speculation", "stream", "viewers", "visitors", "servers"), help="measure only one part")
    return top


def _load_arguments(load: argparse.ArgumentParser) -> None:
    load.add_argument("servers", nargs="*", metavar="BASELINE SPECULATIVE", help="two servers, by name or address; the same one twice is restarted")
    load.add_argument("--concurrency", type=_numbers(int), metavar="1,2,4", help="streams at once (default 1,2,4,8)")
    load.add_argument("--rate", type=_numbers(float), metavar="1,2.5", help="requests per second instead, sent at random times (Poisson)")
    load.add_argument("--repeats", type=_count(1), default=3, metavar="N", help="how often each load is measured on each server (default 3)")
    load.add_argument("--requests", type=_count(1), metavar="N", help="requests per measurement (default: every prompt once, at least 2 per stream)")
    load.add_argument("--prompts", metavar="FILE", help='JSONL with "prompt" or "messages" per line (default: the shipped set of 40)')
    load.add_argument("--max-new-tokens", type=_count(2), default=128, metavar="N", help="tokens per answer at most (default 128)")
    load.add_argument("--ignore-eos", action="store_true", help="write on to that number whatever the model says")
    load.add_argument(
        "--lane", default="greedy", metavar="LANE", help='how tokens are chosen, as in compare: "sample temperature=0.8" (default greedy)'
    )
    load.add_argument("--seed", type=_count(0), default=0, metavar="S", help="what the arrival times and the dice follow from (default 0)")
    load.add_argument("--no-unique-prefixes", action="store_true", help="leave prompts as they are: a cached prefix then makes the TTFT better")
    load.add_argument(
        "--warm-up", type=_count(0), metavar="N", help="requests before each load that are left out (default: one per stream, at most 8)"
    )
    load.add_argument("--slo-ttft", type=_above_zero, metavar="MS", help="goodput counts requests with at most this TTFT")
    load.add_argument("--slo-tpot", type=_above_zero, metavar="MS", help="goodput counts requests with at most this TPOT")
    load.add_argument(
        "--confirm",
        metavar="FILE",
        help="put a saved result's answer to the test: restart its speculative server with the setting, measure that side again",
    )
    load.add_argument("--speculative-config", metavar="JSON", help="the speculating server's, to be written out again with the best k")
    load.add_argument("--json", metavar="FILE", help="write the whole result to a file")
    load.add_argument("--markdown", metavar="FILE", nargs="?", const="-", help="a row per request too; to FILE, or to standard output")
    load.add_argument("--show", metavar="FILE", help="print the tables of a saved result; needs no server")
    load.add_argument(
        "--metrics", nargs=2, metavar=("BEFORE", "AFTER"), help="read two saved /metrics pages of one server instead of running anything"
    )
    load.add_argument("--seconds", type=_above_zero, metavar="S", help="with --metrics: the time between the two")
    load.add_argument("--bench", nargs=2, metavar=("BASELINE", "SPECULATIVE"), help="read two results of `vllm bench serve --save-result` instead")


def _numbers(kind: Callable[[str], float]) -> Callable[[str], list[float]]:
    """An argument that is a list of numbers above 0."""

    def numbers(text: str) -> list[float]:
        try:
            found = [kind(part) for part in text.split(",")]
        except ValueError:
            found = []
        if not found or not all(0 < number < 1e6 for number in found):
            raise argparse.ArgumentTypeError(f"must be numbers above 0, as in 1,2,4, got {text!r}")
        return found

    return numbers


def _count(least: int) -> Callable[[str], int]:
    """An argument that is a whole number of at least so much."""

    def count(text: str) -> int:
        if not text.isascii() or not text.isdigit() or int(text) < least:
            raise argparse.ArgumentTypeError(f"must be a whole number of at least {least}, got {text!r}")
        return int(text)

    return count


def _above_zero(text: str) -> float:
    """An argument that is a number above 0, and no inf."""
    number = _speed(text)
    if number == float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number above 0, got {text!r}")
    return number


def _speed(text: str) -> float:
    """An argument that is a number above 0."""
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not speed > 0:
        raise argparse.ArgumentTypeError(f"must be a number above 0, got {text!r}")
    return speed


def _device(command: argparse.ArgumentParser) -> None:
    command.add_argument("--device", default="auto", help="auto | cpu | cuda | mps")
    command.add_argument("--dtype", default="auto", help="auto | float32 | bfloat16 | float16")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; what the user can mend is one line on standard error. Returns the exit status, as `STATUS` lists them."""
    options = parser().parse_args(arguments)
    try:
        commands = {"compare": compare, "load": load, "replay": replay, "record": record, "same": same, "models": models, "bench": bench}
        return commands[options.command](options)
    except PlaygroundError as error:
        say(f"error: {error.text.en}", error=True)
        return MISTAKEN
    except KeyboardInterrupt:
        return INTERRUPTED


def _interruptible(stop: Callable[[], None]) -> threading.Event:
    """Ctrl-C stops what runs and keeps what it has made so far; the event then says that it did."""
    interrupted = threading.Event()

    def handle(*_: Any) -> None:
        interrupted.set()
        stop()

    signal.signal(signal.SIGINT, handle)
    return interrupted


def _status(failed: bool, interrupted: threading.Event | None = None) -> int:
    return INTERRUPTED if interrupted is not None and interrupted.is_set() else FAILED if failed else DONE


def _failed(events: Iterable[tuple[int | None, Any]]) -> bool:
    """Whether a lane ended in an error."""
    return any(event.kind == "finished" and event.reason == "error" for _, event in events)


# The commands import what they need themselves: `--help` must not wait for torch.


def compare(options: argparse.Namespace) -> int:
    from playground.backends import catalog, local, mixed, probing
    from playground.presets import CLASSIC_LANES
    from playground.records.table import markdown
    from playground.request import Limits, Request, words_to_raw
    from playground.trace import Trace

    limits = Limits(max_new_tokens=8192, prompt_characters=1_000_000)
    shared = {"max_new_tokens": options.max_new_tokens} if options.max_new_tokens is not None else {}
    if options.lanes:
        lanes = [{**shared, **words_to_raw(words)} for words in options.lanes]
    else:
        lanes = [{**lane, **shared} for lane in CLASSIC_LANES]
    if options.server is not None:
        lanes = [{"server": options.server, "model": options.model, **lane} for lane in lanes]
    text = sys.stdin.read() if options.prompt == "-" else options.prompt
    chat = True if options.chat else False if options.raw else None
    request = Request.from_json(
        {
            "prompt": {"text": text, "chat": chat, "system": options.system}, "lanes": lanes, "seed": options.seed, "model": options.model,
            "share_prompt": not options.each_reads, "align": options.align,
        },
        limits,
    )  # fmt: skip
    if options.json:
        _writable(Path(options.json))
    models = catalog.Catalog()
    bar = ProgressBar(sum(lane.max_new_tokens for lane in request.lanes))

    def load(model: str | None) -> catalog.LoadedModel:
        return models.get(model, options.device, options.dtype, lambda progress: bar.say(progress.text.en, progress.fraction))

    comparison = mixed.prepare(request, lambda here: local.prepare(here, load), probing.Prober(), local.versions)
    assert comparison.about is not None  # nothing here waits for a device of somebody else's
    trace = Trace(comparison.about)
    interrupted = _interruptible(comparison.stop)
    for events in comparison:
        trace.add(events)
        bar.advance(events)
    bar.close()
    say(markdown(trace))
    if options.json:
        Path(options.json).write_text(trace.to_json(), encoding="utf-8")
    return _status(_failed(trace.events), interrupted)


def load(options: argparse.Namespace) -> int:
    from playground.measures import server_pasted
    from playground.measures.server_load import MOST_BYTES, LoadResult
    from playground.records import load_table

    config = _config(options.speculative_config)
    if options.metrics or options.bench:
        first, second = (_read(Path(file), server_pasted.MOST_BENCH_BYTES) for file in options.metrics or options.bench)
        if options.bench:
            pasted = server_pasted.from_bench(first, second)
        else:
            pasted = server_pasted.from_snapshots(first.decode("utf-8", "replace"), second.decode("utf-8", "replace"), options.seconds)
        say(load_table.pasted_markdown(pasted))
        if options.json:
            _writable(Path(options.json))
            Path(options.json).write_text(json.dumps(pasted.to_json(), ensure_ascii=False, indent=1), encoding="utf-8")
        return 0
    for file in (options.json, options.markdown):
        if file not in (None, "-"):
            _writable(Path(file))
    interrupted = None
    if options.show:
        result = LoadResult.from_json(_read(Path(options.show), MOST_BYTES))
    else:
        experiment = _confirming(options, config) if options.confirm else _load_experiment(options)
        interrupted = _interruptible(experiment.stop)
        result = _run_load(experiment)
    _print_load(result, options.markdown, config)
    if options.json:
        Path(options.json).write_text(result.to_json(), encoding="utf-8")
    answered = [request.whole for cell in result.cells for request in cell.requests]
    return _status(not answered or not all(answered), interrupted)


def _print_load(result: Any, file: str | None, config: dict[str, Any] | None) -> None:
    from playground.measures import server_k
    from playground.records import load_table

    verdict = server_k.which_k(result, config)
    say(load_table.markdown(result, verdict, requests=file == "-").en)
    if file not in (None, "-"):
        Path(file).write_text(load_table.markdown(result, verdict, requests=True).en + "\n", encoding="utf-8")


def _load_experiment(options: argparse.Namespace) -> Any:
    """The experiment that the words ask for."""
    from playground.backends import servers
    from playground.experiments import load as loads
    from playground.experiments import prompts
    from playground.measures.server_load import Slo
    from playground.request import words_to_raw

    if len(options.servers) != 2:
        raise BadValue(
            "load_servers",
            Text(
                "Name two servers, the baseline first; the same one twice if it is to be restarted.",
                "请给出两台服务器，基线在前；若要重启同一台，请写两次。",
            ),
        )
    lane = words_to_raw(options.lane)
    if unused := set(lane) - {"strategy", "knobs"}:
        raise BadValue(
            "load_lane", Text("A load takes a strategy and its knobs, not {name}.", "负载只接受策略及其参数，不接受 {name}。"), name=sorted(unused)[0]
        )
    chosen = loads.levels(options.concurrency or (() if options.rate else (1, 2, 4, 8)), options.rate or ())
    slo = Slo(*(None if limit is None else limit / 1e3 for limit in (options.slo_ttft, options.slo_tpot)))
    asked = loads.LoadOptions(
        levels=chosen, repeats=options.repeats, requests=options.requests, max_new_tokens=options.max_new_tokens,
        strategy=lane.get("strategy", "greedy"), knobs=lane.get("knobs", {}), seed=options.seed, unique_prefixes=not options.no_unique_prefixes,
        warm_up=options.warm_up, ignore_eos=options.ignore_eos, slo=slo,
    )  # fmt: skip
    chosen_prompts = prompts.load(Path(options.prompts)) if options.prompts else prompts.shipped()
    return loads.LoadExperiment(*map(servers.resolve, options.servers), chosen_prompts, asked)


def _confirming(options: argparse.Namespace, config: dict[str, Any] | None) -> Any:
    """The speculative half of a saved result once more, with the setting that its answer gives."""
    from playground.backends import probing, servers
    from playground.experiments import load as loads
    from playground.experiments import prompts
    from playground.measures.server_k import confirmation, which_k
    from playground.measures.server_load import MOST_BYTES, LoadResult

    earlier = LoadResult.from_json(_read(Path(options.confirm), MOST_BYTES))
    verdict = which_k(earlier, config)
    if verdict is None or len(options.servers) > 1:
        raise BadValue(
            "load_unconfirmed",
            Text(
                "--confirm takes a result that has an answer, and at most one server: the speculative one.",
                "--confirm 需要一个有结论的结果，且至多给出一台服务器：推测服务器。",
            ),
        )
    server = servers.resolve(options.servers[0] if options.servers else earlier.servers["speculative"].name)
    chosen_prompts = prompts.load(Path(options.prompts)) if options.prompts else prompts.shipped()
    return loads.LoadExperiment.confirming(earlier, confirmation(earlier, verdict), server, chosen_prompts, probing.Prober())


def _run_load(experiment: Any) -> Any:
    """Run an experiment with a progress line; a server that is to be restarted is restarted by whoever sits at the terminal."""
    from playground.experiments import load as loads
    from playground.measures.server_k import config_text

    bar = ProgressBar(1)
    failed = 0
    for step in experiment:
        if isinstance(step, loads.RestartWanted):
            bar.close()
            if step.problem is not None:
                say(step.problem.en, error=True)
            setting = "--speculative-config" if step.config is None else f"--speculative-config '{config_text(step.config)}'"
            say(f"The baseline is measured. Restart {step.server} with {setting}, then press Enter.", error=True)
            if not sys.stdin.readline():
                experiment.stop()
            experiment.resume()
        elif isinstance(step, loads.RequestEnded):
            failed += not step.request.whole
            tail = f", {failed} failed" if failed else ""
            bar.say(f"{step.done} of {step.of} requests{tail} · {step.side}, {step.level.text.en}, repeat {step.repeat + 1}", step.done / step.of)
        elif isinstance(step, loads.CellBegan):
            bar.say(f"{step.done} of {step.of} requests · {step.side}, {step.level.text.en}, repeat {step.repeat + 1}", step.done / step.of)
        elif isinstance(step, loads.LoadEnded):
            bar.close()
            return step.result
    raise AssertionError("an experiment ends with its result")


def _config(text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise BadValue("speculative_config", Text("--speculative-config is a JSON object.", "--speculative-config 应为 JSON 对象。"))
    return found


def _read(path: Path, most: int) -> bytes:
    """A file that somebody names, as far as it may be read."""
    try:
        with path.open("rb") as file:
            return file.read(most + 1)
    except OSError as error:
        text = Text("Can't read {path}: {reason}.", "无法读取 {path}：{reason}。")
        raise BadValue("file", text, path=path, reason=error.strerror or error) from error


def replay(options: argparse.Namespace) -> int:
    from playground.backends.replay import Replay
    from playground.records.opened import check
    from playground.records.table import markdown
    from playground.trace import Trace

    path = Path(options.file)
    try:
        data = path.read_bytes()
        if path.suffix == ".xz":
            data = lzma.decompress(data)
    except (OSError, EOFError, lzma.LZMAError) as error:
        text = Text("Can't read {path}: {reason}.", "无法读取 {path}：{reason}。")
        raise BadValue("file", text, path=path, reason=getattr(error, "strerror", None) or error) from error
    trace = Trace.from_json(data)
    check(trace)
    played = Replay(trace, options.speed)
    again = Trace(trace.about)
    bar = ProgressBar(sum(event.kind == "token_chosen" for _, event in trace.events))
    interrupted = _interruptible(played.stop)
    for events in played:
        again.add(events)
        bar.advance(events)
    bar.close()
    say(f"recorded · {trace.about.machine} · {trace.about.created}\n")
    say(markdown(again))
    return _status(_failed(again.events), interrupted)


def _writable(path: Path) -> None:
    """Find out that a file can't be written before the run, not after it."""
    try:
        path.open("a").close()
    except OSError as error:
        text = Text("Can't write {path}: {reason}.", "无法写入 {path}：{reason}。")
        raise BadValue("file", text, path=path, reason=error.strerror) from error


def record(options: argparse.Namespace) -> int:
    from playground.backends import catalog, local
    from playground.engine.stages import stages
    from playground.engine.strategies import strategies
    from playground.records import recordings
    from playground.records.table import rows
    from playground.request import Request
    from playground.trace import Trace
    from playground.ui.views import declared

    known = {recording.name: recording for recording in recordings.RECORDINGS}
    if unknown := set(options.names) - set(known):
        raise BadValue(
            "recording_unknown",
            Text("There is no recording called {name}; there are {names}.", "没有名为 {name} 的录制；可用的有 {names}。"),
            name=sorted(unknown)[0], names=", ".join(known),
        )  # fmt: skip
    loaded = catalog.Catalog().get(device="cpu", dtype="float32")
    # The first run after loading is a warm-up: it is made, and thrown away.
    for _ in local.prepare(Request.from_json({"prompt": "Hello", "lanes": [{"max_new_tokens": 8}]}), lambda _: loaded):
        pass
    recordings.FOLDER.mkdir(parents=True, exist_ok=True)
    broken = False
    for name in options.names or known:
        comparison = local.prepare(Request.from_json(known[name].request), lambda _: loaded)
        trace = Trace(comparison.about)
        for events in comparison:
            trace.add(events)
        if _failed(trace.events):  # what shipped before stays
            broken = True
            say(f"{name:12} not made: {'; '.join(row[-2] for row in rows(trace))}", error=True)
            continue
        data = recordings.packed(trace)
        known[name].path.write_bytes(data)
        say(f"{name:12} {len(data) / 1000:.0f} kB")
    lanes = [lane for recording in known.values() if recording.path.is_file() for lane in recordings.load(recording.name).about.lanes]
    used = {name for lane in lanes for name in (lane.strategy, *(stage.stage for stage in lane.stages))}
    shown = declared(
        [strategy for name, strategy in strategies.all().items() if name in used], [stage for name, stage in stages.all().items() if name in used]
    )
    recordings.DECLARED.write_text(json.dumps(shown, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    return _status(broken)


def same(options: argparse.Namespace) -> int:
    from playground.backends import catalog
    from playground.experiments.same_as_target import same_as_target
    from playground.request import Request, words_to_raw

    raw = {"prompt": {"text": options.prompt, "chat": False if options.raw else None}, "model": options.model, "seed": options.seed}
    request = Request.from_json({**raw, "lanes": [words_to_raw(options.lane)]})
    known = catalog.Catalog()
    bar = ProgressBar(options.draws)

    def load(model: str | None) -> catalog.LoadedModel:
        return known.get(model, options.device, options.dtype, lambda progress: bar.say(progress.text.en, progress.fraction))

    def told(done: int) -> None:
        bar.say(f"{done} of {options.draws} draws", done / options.draws)

    try:
        found = same_as_target(request, request.lanes[0], load, options.draws, told)
    except (BadValue, ModelUnavailable):
        raise
    except PlaygroundError as error:  # it ran, and a draw came to nothing
        bar.close()
        say(f"error: {error.text.en}", error=True)
        return FAILED
    bar.close()
    say(found.verdict.en)
    return _status(found.significant)


def models(options: argparse.Namespace) -> int:
    from playground.backends import catalog

    for entry in catalog.entries():
        say(f"{entry.id:24} {entry.name:40} {entry.note.en}")
    say("\nAny Hub id (org/name), local folder or .gguf file can be named too.")
    return 0


def bench(options: argparse.Namespace) -> int:
    from playground.experiments.bounded import PartFailed, bounded

    if options.json:
        _writable(Path(options.json))
    figures: dict[str, Any] = {}
    failed = False
    for name, (measure, *arguments) in _bench_parts(options.pairs, options.tokens).items():
        if options.only not in (None, name):
            continue
        try:
            figures[name] = bounded(measure, *arguments)
        except PartFailed as error:
            failed = True
            say(f"error: {name}: {error}", error=True)
    if options.json:
        Path(options.json).write_text(json.dumps(figures, indent=2), encoding="utf-8")
    return _status(failed)


def _bench_parts(pairs: int, tokens: int) -> dict[str, tuple[Any, ...]]:
    """What is measured, by name, and with what."""
    from playground.experiments import bench as decoding
    from playground.experiments import server_bench, speculation_bench
    from playground.ui import load_bench, stream_bench

    return {
        "decode": (decoding.run, pairs, tokens, say),
        "speculation": (speculation_bench.run, pairs, tokens, say),
        "stream": (stream_bench.run, pairs, tokens, say),
        "viewers": (load_bench.viewers, pairs, tokens, say),
        "visitors": (load_bench.visitors, tokens, say),
        "servers": (server_bench.run, 32, tokens, say),
    }
