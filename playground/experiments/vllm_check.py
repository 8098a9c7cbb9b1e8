"""What only a real vLLM can show: `make vllm-check`, without a GPU, in 10 to 40 minutes.

The default model in float32 runs on vLLM's CPU build in an environment of its own: first plain, then, restarted, with n-gram
speculation. Everything is asked through the command line and through the page in Chromium, as anybody would, and held against what
the server counts itself:

- greedy text equals our own greedy in float32, or parts at a near-tie
- `/metrics` moves by exactly what the requests' own figures add up to
- the ledger of a request is complete, and its parts add up
- a server killed in mid-stream costs its own lanes only, and what had come is kept
- the page shows the same: tokens, ledger and rounds, and the guided experiment with its restart ends in a verdict

The report is Markdown on standard output; exit status 1 if a check fails, 2 if nothing could be checked.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import os
import platform
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playground import terminal
from playground.backends import embedded, progress, servers
from playground.backends.openai_api import metrics_text
from playground.errors import PlaygroundError
from playground.experiments import prompts, serve_commands, vllm_page
from playground.experiments.app_process import AppMissing, free_port
from playground.experiments.vllm_page import PageMissing, Visitor
from playground.measures.server_k import confirmed
from playground.measures.server_load import SIDES, Cell, LoadResult
from playground.measures.server_rounds import rounds
from playground.measures.server_speculation import Counters, counters, speculation_record
from playground.trace import ChunkArrived, Finished, ServerReported, StepView, TokenChosen, Trace

PACKAGE = f"vllm-cpu=={serve_commands.VLLM}"
#: They come with vllm-cpu, don't match its CPU build of torch, and break its start.
UNFIT = ("torchvision", "torchaudio", "torchcodec")
#: Where the CPU build of torch is that it asks for, if the user's own index doesn't have it.
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
#: The name under which the server is asked for, here and in its own model list.
NAME, MODEL = "check", "smollm2"

#: Seconds until a server must answer; a slow machine compiles for a quarter of an hour.
PATIENCE = 1800.0
#: Seconds that one comparison may take.
COMPARISON = 600.0
#: Two likeliest tokens whose scores lie closer than this may change places from one implementation to another.
NEAR_TIE = 0.01
GREEDY_PROMPTS, TOKENS, K = 4, 48, 4
#: The page begins a long answer once the server has written so many tokens of another; then the server is killed.
KILLED_AFTER, LONG = 25, 600
STORY = "Tell me a very long story about a lighthouse."
#: What the page's experiment is asked for: small, since the command line's is the one that is measured with nothing beside it.
PAGE_LOADS, PAGE_REQUESTS = (1, 2), 4


class CheckImpossible(Exception):
    """Nothing can be checked here; the text says why."""


class Report:
    """Lines of Markdown, printed as they come; a check that failed is counted."""

    def __init__(self) -> None:
        self.failures = 0

    def say(self, line: str = "") -> None:
        terminal.say(line)

    def check(self, passed: bool, line: str) -> None:
        self.failures += not passed
        self.say(f"- {'ok' if passed else '**FAILED**'}: {line}")


# --- the environment and the server ---------------------------------------------------------------


def environment() -> Path:
    """The Python of an environment that has vLLM: VLLM_PYTHON, or one of our own in the cache folder, built at the first call."""
    if named := os.environ.get("VLLM_PYTHON"):
        return Path(named).expanduser()
    folder = embedded.cache_folder() / f"vllm-{serve_commands.VLLM}"
    python = folder / "bin" / "python"
    if not (folder / "ready").exists():
        if os.name != "posix":
            raise CheckImpossible("vLLM runs on Linux and macOS; on Windows use WSL.")
        print(f"Building {folder}: {PACKAGE}, about 3.5 GB, once.", file=sys.stderr)
        pip = [str(python), "-m", "pip", "--disable-pip-version-check"]
        install = [*pip, "install", PACKAGE]
        made = ran(sys.executable, "-m", "venv", str(folder))
        if not (made and (ran(*install) or ran(*install, "--extra-index-url", TORCH_INDEX)) and ran(*pip, "uninstall", "--yes", *UNFIT)):
            raise CheckImpossible(f"{folder} can't be built: what failed stands above. VLLM_PYTHON=/path/to/python uses a Python that has vLLM.")
        (folder / "ready").touch()
    return python


def ran(*command: str) -> bool:
    """Whether a command ended well; what it prints goes to standard error."""
    return subprocess.run(command, stdout=sys.stderr).returncode == 0


@dataclass
class Server:
    """One vLLM on this machine: started, stopped or killed, with its log in a file."""

    python: Path
    model: Path
    log: Path
    port: int
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self, name: str, config: dict[str, Any] | None = None) -> float:
        """Start it as the command of that name on the page does, and wait until it answers; seconds that took.

        `config` takes the place of the command's own --speculative-config.
        """
        known = {command.name: command for command in serve_commands.commands("model", draft=str(self.model), k=K)}
        words = shlex.split(known[name].command)
        extra = words[words.index("--port") + 2 :]  # what follows is the command's own
        if config is not None:
            extra[extra.index("--speculative-config") + 1] = json.dumps(config)
        command = [
            str(self.python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(self.model), "--served-model-name", MODEL,
            "--host", "127.0.0.1", "--port", str(self.port), "--dtype", "float32", "--max-model-len", "2048", "--max-logprobs", "50", *extra,
        ]  # fmt: skip
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command, env={**os.environ, **ENVIRONMENT}, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        started, turns = time.monotonic(), itertools.count()
        while not self._answers():
            seconds = time.monotonic() - started
            if self.process.poll() is not None:
                raise CheckImpossible(f"vLLM ({name}) ended with status {self.process.returncode} before it answered:\n{self.last_words()}")
            if seconds > PATIENCE:
                raise CheckImpossible(f"vLLM ({name}) didn't answer within {PATIENCE:.0f} s:\n{self.last_words()}")
            wait_for(f"vLLM ({name}) is starting, {seconds:.0f} s so far; 1 to 15 minutes are usual", next(turns))
        print("\r\x1b[K" if sys.stderr.isatty() else "", end="", file=sys.stderr, flush=True)
        return time.monotonic() - started

    def stop(self) -> None:
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """kill -9, the engine's own processes included."""
        self._end(signal.SIGKILL)

    def last_words(self) -> str:
        """What its log says of its end: the lines that name an error, else the last ones."""
        lines = self.log.read_text("utf-8", "replace").splitlines()
        return "\n".join(([line for line in lines if "Error" in line] or lines)[-6:])

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5) as reply:
                return reply.status == 200
        except (urllib.error.URLError, OSError):
            return False

    def _end(self, how: signal.Signals) -> None:
        if self.process is None:
            return
        for one in (how, signal.SIGKILL):
            with suppress(ProcessLookupError):  # nothing of its group is left
                os.killpg(self.process.pid, one)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=30)


def wait_for(text: str, turn: int) -> None:
    """Say what is waited for, and for how long so far: one line that is written over on a terminal, a new line every half minute elsewhere."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
    elif turn % 30 == 0:
        print(text, file=sys.stderr, flush=True)
    time.sleep(1)


# --- what is asked, through the command line ------------------------------------------------------


@dataclass
class CommandLine:
    """`python -m playground` as anybody calls it, with the server under its name."""

    server: Server
    folder: Path

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "playground", *words]

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "PLAYGROUND_SERVERS": f"{NAME}={self.server.url}"}

    def compare(self, prompt: str, *lanes: str, meanwhile: Callable[[], None] = lambda: None, expected: int = 0) -> Trace:
        """A comparison in float32, as its saved trace; `meanwhile` runs while it does, and `expected` is the exit status that is right."""
        file = self.folder / "trace.json"
        words = [word for lane in lanes for word in ("--lane", lane)]
        command = self.command("compare", "--prompt", prompt, *words, "--device", "cpu", "--dtype", "float32", "--json", str(file))
        process = subprocess.Popen(command, env=self.environment, stdout=subprocess.DEVNULL)
        try:
            meanwhile()
            status = process.wait(timeout=COMPARISON)
        finally:
            process.kill()
        if status != expected:
            raise CheckImpossible(f"This ended with status {status}, not {expected}: {shlex.join(command)}")
        return Trace.from_json(file.read_bytes())

    def load(self, concurrency: str, repeats: int, requests: int, restart: Callable[[], dict[str, Any]]) -> tuple[LoadResult, str]:
        """The load experiment on one server that is restarted in between, and what the command line printed of it.

        `restart` restarts it with speculation and gives its setting; the verdict is printed anew with that.
        """
        file = self.folder / "load.json"
        config: dict[str, Any] = {}
        words = (
            NAME, NAME, "--concurrency", concurrency, "--repeats", str(repeats), "--requests", str(requests), "--max-new-tokens", str(TOKENS),
        )  # fmt: skip
        self._measure(words, file, lambda _: config.update(restart()))
        shown = self.command("load", "--show", str(file), "--speculative-config", json.dumps(config))
        printed = subprocess.run(shown, capture_output=True, text=True, check=True).stdout
        return LoadResult.from_json(file.read_bytes()), printed

    def confirm(self, config: dict[str, Any], restart: Callable[[dict[str, Any]], None]) -> LoadResult:
        """The run that confirms the answer of `load`: `restart` restarts the server with the setting that is asked for."""
        file = self.folder / "confirmed.json"

        def asked(line: str) -> None:
            words = shlex.split(line)
            restart(json.loads(words[words.index("--speculative-config") + 1].rstrip(",")))

        self._measure(("--confirm", str(self.folder / "load.json"), "--speculative-config", json.dumps(config)), file, asked)
        return LoadResult.from_json(file.read_bytes())

    def _measure(self, words: Sequence[str], file: Path, restart: Callable[[str], None]) -> None:
        """Run `load`; `restart` is called with the line that asks for Enter, once."""
        command = self.command("load", *words, "--json", str(file))
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, env=self.environment, stdin=pipe, stdout=subprocess.DEVNULL, stderr=pipe, text=True)
        assert process.stdin is not None and process.stderr is not None
        restarted = False
        try:
            for line in process.stderr:
                terminal.say(line.rstrip("\n"), error=True)
                if "press Enter" in line:
                    if restarted:
                        raise CheckImpossible("The load experiment doesn't take the restarted server for a speculating one.")
                    restarted = True
                    restart(line)
                    process.stdin.write("\n")
                    process.stdin.flush()
            status = process.wait()
        finally:
            process.kill()
        if status or not restarted:
            raise CheckImpossible(f"This ended with status {status}: {shlex.join(command)}")


# --- the checks -----------------------------------------------------------------------------------


def greedy_is_ours(report: Report, line: CommandLine) -> list[Trace]:
    """Greedy on the server against our own greedy, token by token; the traces of both."""
    traces = []
    for prompt in prompts.shipped().prompts[:GREEDY_PROMPTS]:
        trace = line.compare(prompt.text, f"greedy server={NAME} max_new_tokens={TOKENS}", f"greedy max_new_tokens={TOKENS}")
        traces.append(trace)
        told = next(iter(trace.of(0, ServerReported)), None)
        same_prompt = told is not None and told.prompt_ids == trace.about.lanes[1].prompt_ids
        report.check(same_prompt, f"“{prompt.kind}”: the server read the same {len(trace.about.lanes[1].prompt_ids)} prompt tokens")
        passed, said = compared(trace.output(0), trace.output(1))
        report.check(passed, f"“{prompt.kind}”: {said}")
    return traces


def compared(theirs: Sequence[TokenChosen], ours: Sequence[TokenChosen]) -> tuple[bool, str]:
    """Whether two greedy texts are the same as far as two implementations can be, and a sentence on it."""
    same = next((i for i, (a, b) in enumerate(zip(theirs, ours, strict=False)) if a.token != b.token), min(len(theirs), len(ours)))
    pairs = [(a.raw_log_probability, b.raw_log_probability) for a, b in zip(theirs[:same], ours[:same], strict=True)]
    apart = [abs(a - b) for a, b in pairs if a is not None and b is not None]
    numbers = f"; log p differ by at most {max(apart):.1e} on {len(apart)} of them" if apart else ""
    if same == len(theirs) == len(ours):
        return bool(same), f"greedy equals ours, {same} tokens{numbers}"
    margin = tie(ours[same].view) if same < len(ours) and same < len(theirs) else None
    if margin is None:
        return False, f"greedy parts from ours after {same} tokens ({len(theirs)} and {len(ours)} in all){numbers}"
    explained = margin <= NEAR_TIE
    why = f"our two best lie {margin:.1e} apart" + (", a near-tie" if explained else "")
    return explained, f"greedy parts from ours after {same} of {len(ours)} tokens, where {why}{numbers}"


def tie(view: StepView | None) -> float | None:
    """How far the likeliest token is above the next."""
    if view is None or len(view.raw) < 2 or view.raw[0] is None or view.raw[1] is None:
        return None
    return view.raw[0] - view.raw[1]


def ledger_is_complete(report: Report, trace: Trace) -> None:
    """Every figure of a speculating request is there, and they add up to one another and to its text."""
    record = speculation_record(trace, 0)
    written = len(trace.output(0))
    lists = (record.by_position, record.histogram, record.per_step_drafted, record.per_step_accepted)
    numbers = (record.steps, record.drafted, record.accepted, record.most, record.tokens, record.forwards)
    if record.source != "request" or None in (*lists, *numbers):
        report.check(False, f"the ledger of a request is incomplete: {record}")
        return
    assert record.histogram is not None and record.per_step_drafted is not None and record.per_step_accepted is not None
    assert record.steps is not None and record.accepted is not None and record.forwards is not None and record.tokens is not None
    sums = {
        "steps in the lists": (len(record.per_step_drafted), len(record.per_step_accepted), sum(record.histogram), record.steps),
        "drafted": (sum(record.per_step_drafted), record.drafted),
        "accepted": (sum(record.per_step_accepted), sum(i * count for i, count in enumerate(record.histogram)), record.accepted),
        "tokens": (record.tokens, written),
    }
    wrong = [f"{name} {values}" for name, values in sums.items() if len(set(values)) > 1]
    behind = record.forwards + record.accepted - record.tokens  # accepted, but the text had ended
    if not 0 <= behind <= (record.most or 0):
        wrong.append(f"{record.forwards} forwards + {record.accepted} accepted for {record.tokens} tokens")
    found = rounds(record, [chunk.tokens for chunk in trace.of(0, ChunkArrived)])
    placed = sum(one.start is not None for one in found)
    told = (
        f"{record.tokens} tokens = {record.forwards} forwards + {record.accepted} accepted − {behind} behind the end; "
        f"{record.steps} steps with a draft, {record.drafted} drafted; {placed} of {len(found)} rounds have their place in the text"
    )
    report.check(not wrong, told + "".join(f"; doesn't add up: {one}" for one in wrong))


def counts_are_the_servers(report: Report, result: LoadResult) -> None:
    """What the requests say, added up, is what the server's counters moved by, cell by cell."""
    for side in SIDES:
        cells = [cell for cell in result.cells if cell.side == side]
        wrong = [said for cell in cells if (said := unequal(cell))]
        total = sum(request.tokens or 0 for cell in cells for request in cell.whole)
        report.check(bool(cells) and not wrong, f"{side}: {total} tokens in {len(cells)} measurements are those of /metrics" + "".join(wrong))
    records = [cell.speculation for cell in result.cells if cell.side == "speculative"]
    report.check(
        bool(records) and all(record.source == "request" and record.steps for record in records),
        f"speculative: {sum(r.steps or 0 for r in records)} steps, {sum(r.drafted or 0 for r in records)} drafted, "
        f"{sum(r.accepted or 0 for r in records)} accepted, told by the requests and equal to /metrics",
    )


def answer_is_confirmed(report: Report, server: Server, line: CommandLine, config: dict[str, Any]) -> None:
    """The server restarted with the setting that the answer gives: it takes it, and what it brings is held against what was expected."""

    def restart(asked: dict[str, Any]) -> None:
        server.stop()
        seconds = server.start("ngram", asked)
        report.say(f"- up after {seconds:.0f} s with `{json.dumps(asked)}`")

    result = line.confirm(config, restart)
    for one in confirmed(result):
        report.say(f"- {one.sentence.en}")
    report.check(result.complete and result.confirms is not None, "every load was measured again on the speculative server")
    wrong = [said for cell in result.cells if cell.side == "speculative" and (said := unequal(cell))]
    report.check(not wrong, "counts are those of /metrics" + "".join(wrong))


def unequal(cell: Cell) -> str:
    """What differs between a cell's requests and the server's counters; empty where all is equal."""
    moved, record = cell.moved, cell.speculation
    if moved is None:
        return f"; no counters at level {cell.level}"
    pairs: dict[str, tuple[Any, Any]] = {
        "requests": (len(cell.whole), moved.requests),
        "failed": (len(cell.requests) - len(cell.whole), 0),
        "tokens": (sum(request.tokens or 0 for request in cell.whole), moved.tokens),
        "prompt tokens": (sum(request.prompt_tokens or 0 for request in cell.whole), moved.prompt_tokens),
    }
    if cell.side == "speculative":
        pairs |= {
            "steps": (record.steps, moved.drafts), "drafted": (record.drafted, moved.drafted), "accepted": (record.accepted, moved.accepted),
            "by position": (record.by_position, moved.per_position),
        }  # fmt: skip
    wrong = [f"{name} {ours} and {theirs}" for name, (ours, theirs) in pairs.items() if ours != theirs]
    return f"; at level {cell.level}, repeat {cell.repeat}: {', '.join(wrong)}" if wrong else ""


def page_compares(report: Report, page: Visitor, speculates: bool) -> None:
    """A lane on the server beside a local one on the page: the same tokens, on the screen too, and the server's guesses where it made any."""
    prompt = prompts.shipped().prompts[1 if speculates else 0]  # "copy" has something to guess from
    page.begin(prompt.text, server_lane(TOKENS), local_lane(TOKENS))
    far, near = page.finish()
    report.check(
        far == near and bool(far), f"page, “{prompt.kind}”: {vllm_page.same(far, near)} of {len(far)} tokens equal those of the lane beside it"
    )
    report.check(len(page.shown(0)) == len(far) and page.shown(0) == page.shown(1), "page: both strips show them all, in the same words")
    numbers = page.numbers(0)
    told = ", ".join(f"{name} {value}" for name, value in numbers.items())
    report.check({"TTFT", "TPOT", "chunk gap p50", "amortised p50", "tok/chunk"} <= set(numbers), f"page: {told}")
    page.picture("comparison-ngram" if speculates else "comparison-baseline")
    if not speculates:
        return
    counts, rounds_drawn, placed = page.ledger(0)
    behind = counts["forwards"] + counts["accepted"] - len(far)
    adds_up = counts["steps"] > 0 and counts["accepted"] <= counts["drafted"] <= K * counts["steps"] and 0 <= behind <= K
    report.check(
        adds_up and rounds_drawn == counts["steps"],
        f"page, ledger: {len(far)} tokens = {counts['forwards']} forwards + {counts['accepted']} accepted − {behind} behind the end; "
        f"{counts['drafted']} drafted; {rounds_drawn} rounds drawn, {placed} with their place in the text",
    )
    page.picture("speculation-ngram", of=".remote-speculation")


def server_lane(tokens: int) -> vllm_page.Lane:
    return {"name": "on the server", "strategy": "greedy", "max_new_tokens": tokens, "server": NAME}


def local_lane(tokens: int) -> vllm_page.Lane:
    return {"name": "here", "strategy": "greedy", "max_new_tokens": tokens}


def page_experiment_begins(report: Report, page: Visitor, config: dict[str, Any]) -> None:
    """The card of the server, and the guided experiment until the page asks for the restart."""
    can = page.capabilities(NAME)
    report.check(
        "vLLM" in can["kind"] and "raw, before temperature" in can["logprobs"] and can["speculation"].startswith("–"),
        f"page, the server's card: {can['kind']}; {can['logprobs']}; speculation {can['speculation']}",
    )
    page.picture("server-card", of=".server-card")
    fields = {
        "concurrency": ", ".join(map(str, PAGE_LOADS)), "repeats": "1", "max_new_tokens": str(TOKENS), "requests": str(PAGE_REQUESTS),
    }  # fmt: skip
    page.begin_experiment(NAME, fields, config)
    page.picture("experiment-restart", of=".load-progress")


def page_experiment_ends(report: Report, page: Visitor) -> None:
    """The experiment after the restart: a row per load with acceptance and speed-up, and a verdict."""
    verdict, rows = page.end_experiment()
    whole = [row for row in rows[1:] if "%" in row[4] and "×" in row[5]]
    report.check(len(whole) == len(PAGE_LOADS), "page, the experiment's record: " + "; ".join(" | ".join(row) for row in rows[1:]))
    report.check(bool(verdict), f"page, its verdict: “{verdict}”")
    page.picture("experiment-result", of=".load-result")


def death_is_survived(report: Report, line: CommandLine, page: Visitor) -> None:
    """kill -9 in mid-stream: what came is kept, the lane behind it gets one message, and a local lane goes on; on the page too."""
    entry = servers.entry(NAME, line.server.url)
    before = told_by(entry).tokens or 0.0

    def kill() -> None:
        give_up = time.monotonic() + COMPARISON / 2
        while (told_by(entry).tokens or 0.0) < before + KILLED_AFTER and time.monotonic() < give_up:
            time.sleep(0.1)
        page.begin(STORY, server_lane(LONG), local_lane(TOKENS))
        page.until(lambda: len(page.tokens()[0]) > 0, COMPARISON, "the server's first token")
        line.server.kill()

    lanes = (f"greedy server={NAME} max_new_tokens={LONG}", f"greedy server={NAME} max_new_tokens={TOKENS}", f"greedy max_new_tokens={TOKENS}")
    trace = line.compare(STORY, *lanes, meanwhile=kill, expected=1)
    first, second, local = (list(trace.of(lane, Finished)) for lane in range(3))
    kept = trace.output(0)
    said = [(one[0].message or {}).get("en", "") if one else "" for one in (first, second)]
    broke_off = len(first) == 1 and first[0].reason == "error" and "incomplete" in said[0]
    report.check(broke_off and 0 < len(kept) < LONG, f"{len(kept)} tokens kept: “{said[0]}”")
    report.check(len(second) == 1 and second[0].reason == "error" and bool(said[1]), f"the next lane: “{said[1]}”")
    report.check(len(local) == 1 and local[0].reason in ("length", "stop"), f"the local lane wrote all its {len(trace.output(2))} tokens")
    far, near = page.finish()
    message = page.message(0)
    report.check(0 < len(far) < LONG and len(page.shown(0)) == len(far) and "incomplete" in message, f"page: {len(far)} tokens kept: “{message}”")
    report.check(bool(near) and not page.message(1), f"page: the local lane wrote all its {len(near)} tokens")
    page.picture("killed")


def told_by(entry: servers.ServerEntry) -> Counters:
    """What a server counts at this moment; nothing where it doesn't say."""
    text = metrics_text(entry)
    try:
        return counters(text) if text is not None else Counters()
    except PlaygroundError:
        return Counters()


def draft_model_says(report: Report, server: Server, line: CommandLine) -> None:
    """The model as its own draft model: whether the server starts so, and what it then tells."""
    try:
        seconds = server.start("draft_model")
    except CheckImpossible as error:
        report.say(f"- draft_model doesn't run: {str(error).splitlines()[-1]}")
        return
    trace = line.compare(prompts.shipped().prompts[0].text, f"greedy server={NAME} max_new_tokens={TOKENS}", f"greedy max_new_tokens={TOKENS}")
    record = speculation_record(trace, 0)
    report.say(f"- up after {seconds:.0f} s; the model guesses for itself, so nearly every guess should stand")
    report.say(f"- {record.accepted} of {record.drafted} guesses accepted in {record.steps} steps; by position {record.by_position}")
    report.check(*compared(trace.output(0), trace.output(1)))
    ledger_is_complete(report, trace)


def ngram() -> dict[str, Any]:
    """The --speculative-config of the server that speculates."""
    return next(command.config or {} for command in serve_commands.commands(k=K) if command.name == "ngram")


# --- all of it ------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Run every check; the report goes to standard output, what is being waited for to standard error."""
    parser = argparse.ArgumentParser(prog="make vllm-check", description=__doc__.partition("\n")[0])  # type: ignore[union-attr]
    parser.add_argument("--concurrency", default="1,2,4", help="streams at once (default %(default)s)")
    parser.add_argument("--repeats", type=int, default=2, help="how often each load is measured on each server (default %(default)s)")
    parser.add_argument("--requests", type=int, default=12, help="requests per measurement (default %(default)s)")
    parser.add_argument("--pictures", type=Path, help="a folder for pictures of the page, in two sizes and both themes")
    parser.add_argument("--draft-model", action="store_true", help="start it once more, with the model as its own draft model")
    options = parser.parse_args(arguments)
    report = Report()
    try:
        with started() as (server, line):
            check(report, server, line, options)
    except (CheckImpossible, PageMissing, AppMissing) as error:
        report.say(f"\n**Not checked to the end:** {error}")
        return 2
    report.say(f"\n{'All checks passed.' if not report.failures else f'{report.failures} checks failed.'}")
    return 1 if report.failures else 0


@contextmanager
def started() -> Iterator[tuple[Server, CommandLine]]:
    """What the checks need, none of it running yet; a server that still runs at the end is stopped."""
    model = embedded.ensure_model(progress.unreported)
    with tempfile.TemporaryDirectory() as name:
        server = Server(environment(), model, Path(name) / "vllm.log", free_port())
        try:
            yield server, CommandLine(server, Path(name))
        finally:
            server.stop()


def check(report: Report, server: Server, line: CommandLine, options: argparse.Namespace) -> None:
    today = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
    seconds = server.start("baseline")
    said = subprocess.run([str(server.python), "-c", "import importlib.metadata as m; print(m.version('vllm-cpu'))"], capture_output=True, text=True)
    report.say(f"# vLLM {said.stdout.strip() or '?'} (CPU build) · {today}")
    report.say(f"\n{embedded.NAME} in float32 on {platform.machine()}, {os.cpu_count()} CPU cores.")
    report.say(f"\n## Baseline (up after {seconds:.0f} s)\n")
    greedy_is_ours(report, line)

    def restart() -> dict[str, Any]:
        config = ngram()
        # The page is closed before the command line goes on measuring: nothing runs beside that.
        with vllm_page.visitor(line.environment, line.folder / "page.log", options.pictures) as page:
            report.say("\n## The page, baseline\n")
            page_compares(report, page, speculates=False)
            page_experiment_begins(report, page, config)
            server.stop()
            seconds = server.start("ngram")
            report.say(f"\n## The page, n-gram speculation (up after {seconds:.0f} s)\n")
            page_experiment_ends(report, page)
            page_compares(report, page, speculates=True)
        report.say("\n## N-gram speculation\n")
        for trace in greedy_is_ours(report, line):
            ledger_is_complete(report, trace)
        return config

    result, printed = line.load(options.concurrency, options.repeats, options.requests, restart)
    report.say("\n## Baseline against speculative\n")
    report.say(printed)
    report.say("\n## Counts\n")
    counts_are_the_servers(report, result)
    report.say("\n## The answer, put to the test\n")
    answer_is_confirmed(report, server, line, ngram())
    report.say("\n## kill −9 in mid-stream\n")
    with vllm_page.visitor(line.environment, line.folder / "page.log", options.pictures) as page:
        death_is_survived(report, line, page)
    if options.draft_model:
        report.say("\n## Draft model\n")
        draft_model_says(report, server, line)


if __name__ == "__main__":
    raise SystemExit(main())
