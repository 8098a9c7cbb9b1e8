"""The guided experiment "Baseline against speculative": one at a time, in a thread of its own, looked at by polling.

Nothing runs on this machine but the client, so the line of comparisons isn't needed; two experiments at once would measure
each other. An experiment that nobody looks at any more is stopped.
"""

from __future__ import annotations

import json
import logging
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from playground.backends import servers
from playground.backends.probing import Prober
from playground.errors import BadValue, PlaygroundError, Text
from playground.experiments import prompts as prompt_sets
from playground.experiments import serve_commands
from playground.experiments.load import (
    CellBegan,
    CellEnded,
    LoadEnded,
    LoadExperiment,
    LoadOptions,
    LoadStep,
    RequestEnded,
    RestartWanted,
    ServerSampled,
    levels,
)
from playground.figures import load as load_figures
from playground.measures.percentiles import percentile
from playground.measures.server_k import config_text, confirmation, confirmed, confirmed_sentence, which_k
from playground.measures.server_load import SIDES, Cell, LoadResult, ServerSample, Slo, cell_numbers, summary
from playground.records import load_table
from playground.ui.packets import rounded
from playground.ui.servers import verdict_json
from playground.ui.views import Answer, look_of

log = logging.getLogger(__name__)

#: An experiment that no page has asked about for so many seconds is stopped.
ABANDONED = 300.0
#: How many experiments are kept to be looked at.
KEPT = 6
#: On a public page a visitor's experiment has so many streams, requests per load, and repeats at most.
PUBLIC_STREAMS, PUBLIC_REQUESTS, PUBLIC_REPEATS = 8, 40, 3
#: So many requests are shown one by one; the saved result has them all.
SHOWN_REQUESTS = 400
#: What is drawn while an experiment runs, as soon as there is something in it.
LIVE_FIGURES = ("speed_up", "itl", "throughput", "acceptance", "over_time")

KNOBS = frozenset({
    "baseline", "speculative", "baseline_model", "speculative_model", "prompts", "concurrency", "rates", "repeats", "requests", "max_new_tokens",
    "unique_prefixes", "ignore_eos", "slo_ttft", "slo_tpot", "config",
})  # fmt: skip


@dataclass
class LoadRun:
    """One experiment as the page sees it; a saved result that somebody opened is one that has ended.

    `so_far` has the cells that have ended, `samples` what the server said of itself in the cell that runs. `earlier` is the
    experiment whose answer this one confirms.
    """

    id: str
    visitor: str
    experiment: LoadExperiment | None
    config: dict[str, Any] | None = None
    earlier: str | None = None
    phase: str = "preparing"
    done: int = 0
    of: int = 0
    now: Answer | None = None
    sample: Answer | None = None
    restart: Answer | None = None
    error: Answer | None = None
    cells: list[Answer] = field(default_factory=list)
    seen: list[tuple[float | None, float | None]] = field(default_factory=list)
    samples: list[ServerSample] = field(default_factory=list)
    cell: CellBegan | None = None
    so_far: LoadResult | None = None
    result: LoadResult | None = None
    looked: float = field(default_factory=time.monotonic)


class LoadRuns:
    """The experiments of one app."""

    def __init__(self, prober: Prober, public: bool) -> None:
        self._prober = prober
        self._public = public
        self._runs: OrderedDict[str, LoadRun] = OrderedDict()
        self._lock = threading.Lock()

    def form(self, model: Any, draft: Any, k: Any) -> Answer:
        """What stands beside the form: the shipped prompts, and the commands that start the two servers."""
        names = {"model": model, "draft": draft}
        asked = {name: value for name, value in names.items() if isinstance(value, str) and value.strip()}
        count = k if isinstance(k, int) and not isinstance(k, bool) else 4
        shipped = prompt_sets.shipped()
        found = [*serve_commands.commands(**asked, k=count), *serve_commands.classic(k=count)]
        return {
            "prompts": {"name": shipped.name, "count": len(shipped.prompts)},
            "commands": [command.to_json() for command in found],
            "limits": {"streams": PUBLIC_STREAMS, "requests": PUBLIC_REQUESTS, "repeats": PUBLIC_REPEATS} if self._public else None,
        }

    def start(self, raw: Any, visitor: str) -> Answer:
        """Check what is asked, and begin; one experiment at a time."""
        return self._begin(*self._asked(raw), visitor)

    def confirm(self, load: Any, visitor: str) -> Answer:
        """Begin the run that confirms a result's answer: its speculative half once more, with the setting that followed."""
        run = self._get(load)
        result = self._result(run, None, None)
        found = which_k(result, run.config)
        if found is None:
            raise BadValue("load_unconfirmed", Text("This result has no answer that a run could confirm.", "该结果没有可供验证的结论。"))
        mine = run.experiment
        prompts = mine.prompts if mine is not None else prompt_sets.shipped()
        server = mine.speculative if mine is not None else servers.resolve(result.servers["speculative"].name)
        confirms = confirmation(result, found)
        experiment = LoadExperiment.confirming(result, confirms, server, prompts, self._prober)
        experiment.options.check()
        if self._public:
            _within_public(experiment.options)
        return self._begin(experiment, confirms.config, visitor, earlier=run.id)

    def _begin(self, experiment: LoadExperiment, config: dict[str, Any] | None, visitor: str, earlier: str | None = None) -> Answer:
        with self._lock:
            if any(run.result is None and run.phase not in ("failed", "done") for run in self._runs.values()):
                raise BadValue("load_busy", Text("An experiment is running here: wait until it has ended.", "此处已有实验在运行：请等它结束。"))
            run = self._keep(LoadRun(secrets.token_urlsafe(12), visitor, experiment, config, earlier))
        threading.Thread(target=self._run, args=(run,), name="load experiment", daemon=True).start()
        threading.Thread(target=self._mind, args=(run,), name="load experiment's viewers", daemon=True).start()
        return {"load": run.id}

    def opened(self, text: Any, visitor: str) -> Answer:
        """Look at a saved result."""
        if not isinstance(text, str):
            raise BadValue("load_broken", Text("This file is not a load result.", "这个文件不是负载实验结果。"))
        result = LoadResult.from_json(text)
        with self._lock:
            run = self._keep(LoadRun(secrets.token_urlsafe(12), visitor, None, phase="done", result=result))
        return {"load": run.id}

    def state(self, load: Any) -> Answer:
        """How far an experiment is."""
        run = self._get(load)
        run.looked = time.monotonic()
        with self._lock:
            times = [sorted(value for value in column if value is not None) for column in zip(*run.seen, strict=True)] if run.seen else [[], []]
            return {
                "load": run.id, "phase": run.phase, "done": run.done, "of": run.of, "now": run.now, "sample": run.sample, "restart": run.restart,
                "error": run.error, "cells": list(run.cells), "result": run.result is not None, "mine": run.experiment is not None,
                "figures": _live_figures(run), "sampled": len(run.samples),
                "so_far": {"ttft": rounded(percentile(times[0], 50), 4), "tpot": rounded(percentile(times[1], 50), 4), "requests": len(run.seen)},
            }  # fmt: skip

    def control(self, load: Any, action: Any, visitor: str) -> Answer:
        """Stop an experiment, or say that the server has been restarted."""
        run = self._get(load)
        if run.visitor != visitor or run.experiment is None:
            raise BadValue("not_yours", Text("Only whoever started this run can control it.", "只有发起者可以控制这个运行。"))
        actions: Mapping[str, Callable[[], None]] = {"stop": run.experiment.stop, "resume": run.experiment.resume}
        if not isinstance(action, str) or action not in actions:
            raise BadValue("action", Text("There is no such control.", "没有这样的控制。"))
        actions[action]()
        return {"ok": True}

    def view(self, load: Any, slo_ttft: Any, slo_tpot: Any) -> Answer:
        """The whole result in numbers: by load, in both forms of the record, and which k."""
        run = self._get(load)
        result = self._result(run, slo_ttft, slo_tpot)
        found = which_k(result, run.config)
        tested = confirmed(result)
        found_levels = summary(result)
        sentence = confirmed_sentence(tested) if tested else found.sentence if found is not None else _plain_sentence(result)
        return {
            "sentence": sentence.to_json(),
            "confirms": None
            if result.confirms is None
            else {
                "load": run.earlier if run.earlier in self._runs else None,
                "config_text": config_text(result.confirms.config),
                "levels": [one.to_json() for one in tested],
            },
            "levels": [level.to_json() for level in found_levels],
            "verdict": None if found is None else verdict_json(found),
            "sentences": []
            if found is not None or tested
            else [_level_sentence(result, index).to_json() for index in range(len(result.setup.levels))],
            "words": load_table.words(result),
            "compared": _table(load_table.compared(result, found_levels)),
            "loaded": _table(load_table.loaded(result, found_levels)),
            "requests": _table(load_table.requested(result))[: SHOWN_REQUESTS + 1],
            "request_count": sum(len(cell.requests) for cell in result.cells),
            "notes": list(result.notes),
            "failures": [said.to_json() for said in load_table.failures(result)],
            "about": load_table.about(result).to_json(),
            "figures": list(load_figures.FIGURES),
            "slo": {"ttft": result.slo.ttft, "tpot": result.slo.tpot},
        }

    def figure(self, load: Any, name: Any, look: Any, slo_ttft: Any, slo_tpot: Any) -> Answer:
        """One picture of a result, in words and as a table; of what is measured so far while the experiment runs."""
        if name not in load_figures.FIGURES:
            raise BadValue("figure_unknown", Text("There is no such figure.", "没有这样的图。"))
        run = self._get(load)
        with self._lock:
            live = _so_far(run, name) if run.result is None else None
        result = live if live is not None else self._result(run, slo_ttft, slo_tpot)
        drawn, wanted = load_figures.FIGURES[name], look_of(look, {})
        return {"figure": drawn.spec(result, wanted), "text": drawn.describe(result, wanted).to_json(), "table": drawn.table(result, wanted)}

    def saved(self, load: Any) -> Answer:
        """The whole result as a file, and as Markdown in both languages."""
        run = self._get(load)
        result = self._result(run, None, None)
        found = which_k(result, run.config)
        return {"json": result.to_json(), "markdown": load_table.markdown(result, found).to_json()}

    # --- inside -------------------------------------------------------------------------------------

    def _keep(self, run: LoadRun) -> LoadRun:
        self._runs[run.id] = run
        for old in [one for one in self._runs.values() if one.result is not None or one.phase == "failed"][:-KEPT]:
            del self._runs[old.id]
        return run

    def _get(self, load: Any) -> LoadRun:
        run = self._runs.get(load) if isinstance(load, str) else None
        if run is None:
            raise BadValue("load_unknown", Text("This experiment is not here any more.", "该实验已不在此处。"))
        return run

    def _result(self, run: LoadRun, slo_ttft: Any, slo_tpot: Any) -> LoadResult:
        if run.result is None:
            raise BadValue("load_running", Text("The experiment has not ended.", "实验尚未结束。"))
        if slo_ttft is None and slo_tpot is None:
            return run.result
        return replace(run.result, slo=Slo(_seconds("slo_ttft", slo_ttft), _seconds("slo_tpot", slo_tpot)))

    def _asked(self, raw: Any) -> tuple[LoadExperiment, dict[str, Any] | None]:
        """What a page may ask for, checked: which servers, which prompts, which loads."""
        if not isinstance(raw, dict) or set(raw) - KNOBS:
            raise BadValue("load_broken", Text("The experiment can't be read: reload the page.", "无法读取实验设置：请刷新页面。"))
        baseline, speculative = (servers.resolve(_name(raw.get(side))) for side in SIDES)
        given = raw.get("prompts")
        if given is None:
            prompts = prompt_sets.shipped()
        elif isinstance(given, dict) and isinstance(given.get("text"), str):
            prompts = prompt_sets.parse(given["text"].encode("utf-8", "surrogatepass"), str(given.get("name") or "prompts.jsonl"))
        else:
            raise BadValue("prompts_broken", Text("The prompt file can't be read.", "无法读取提示词文件。"))
        requests = raw.get("requests")
        options = LoadOptions(
            levels=levels([_whole("concurrency", one) for one in _list(raw, "concurrency")], [_rate(one) for one in _list(raw, "rates")]),
            repeats=_whole("repeats", raw.get("repeats", 3)),
            requests=None if requests is None else _whole("requests", requests),
            max_new_tokens=_whole("max_new_tokens", raw.get("max_new_tokens", 128)),
            unique_prefixes=raw.get("unique_prefixes", True) is not False,
            ignore_eos=raw.get("ignore_eos") is True,
            slo=Slo(_seconds("slo_ttft", raw.get("slo_ttft")), _seconds("slo_tpot", raw.get("slo_tpot"))),
        )
        options.check()
        if self._public:
            _within_public(options)
        config = _config(raw.get("config"))
        models = {f"{side}_model": raw.get(f"{side}_model") for side in SIDES}
        named = {name: _name(value) for name, value in models.items() if value is not None}
        return LoadExperiment(baseline, speculative, prompts, options, self._prober, **named), config

    def _run(self, run: LoadRun) -> None:
        assert run.experiment is not None
        try:
            for step in run.experiment:
                with self._lock:
                    _take(run, step)
        except PlaygroundError as error:
            self._failed(run, error)
        except Exception:
            log.exception("a load experiment broke")
            self._failed(run, PlaygroundError("bug", Text("Something broke here; it is in the server's log.", "程序出错；详情在服务器日志中。")))

    def _failed(self, run: LoadRun, error: PlaygroundError) -> None:
        """It ended in an error; what had been measured by then is its result."""
        with self._lock:
            if run.so_far is not None and run.so_far.cells:
                run.result = run.so_far
            run.error, run.phase = error.to_json(), "failed"

    def _mind(self, run: LoadRun) -> None:
        """Stop an experiment that nobody looks at any more."""
        assert run.experiment is not None
        while run.phase not in ("done", "failed"):
            if time.monotonic() - run.looked > ABANDONED:
                run.experiment.stop()
                return
            time.sleep(1.0)


def _take(run: LoadRun, step: LoadStep) -> None:
    """An experiment's next step, as the page is told of it."""
    if isinstance(step, CellBegan):
        run.phase, run.restart, run.sample, run.seen, run.samples = "running", None, None, [], []
        run.cell, run.so_far = step, step.so_far
        run.now = {"side": step.side, "level": step.level.text.to_json(), "repeat": step.repeat}
        run.done, run.of = step.done, step.of
    elif isinstance(step, RequestEnded):
        run.done, run.of = step.done, step.of
        run.seen.append((step.request.ttft, step.request.tpot))
    elif isinstance(step, ServerSampled):
        sample = step.sample
        run.samples.append(sample)
        run.sample = {"running": sample.running, "waiting": sample.waiting, "kv_usage": rounded(sample.kv_usage, 3)}
    elif isinstance(step, CellEnded):
        run.so_far, run.cell, run.samples = step.so_far, None, []
        level = run.experiment.options.levels[step.cell.level] if run.experiment is not None else None
        numbers = cell_numbers(step.cell)
        short = {name: rounded(_number(numbers[name].value), 4) for name in ("ttft_p50", "itl_p50", "tpot_p50", "throughput", "acceptance")}
        run.cells.append({
            "side": step.cell.side, "level": level.text.to_json() if level is not None else None, "repeat": step.cell.repeat,
            "requests": len(step.cell.whole), "failed": len(step.cell.requests) - len(step.cell.whole), **short,
        })  # fmt: skip
    elif isinstance(step, RestartWanted):
        run.phase = "restart"
        problem = step.problem.to_json() if step.problem is not None else None
        run.restart = {"server": step.server, "problem": problem, "config_text": None if step.config is None else config_text(step.config)}
    elif isinstance(step, LoadEnded):
        run.result, run.phase = step.result, "done"


def _so_far(run: LoadRun, name: str) -> LoadResult | None:
    """What a figure of a running experiment shows: the cells that have ended, and over time what the server said in the one that runs.

    A cell that runs has no numbers of its own yet: the requests that end first are the short ones.
    """
    if run.so_far is None or run.cell is None or name != "over_time":
        return run.so_far
    began, cells = run.cell, run.so_far.cells
    level = run.so_far.setup.levels.index(began.level)
    running = Cell(began.side, level, began.repeat, len(cells), run.samples[-1].at if run.samples else 0.0, (), tuple(run.samples))
    return replace(run.so_far, cells=(*cells, running))


def _live_figures(run: LoadRun) -> list[str]:
    """Which figures have something in them by now."""
    if run.so_far is None or run.result is not None:
        return []
    timed = [(cell["side"], str(cell["level"]), cell["repeat"]) for cell in run.cells if cell["tpot_p50"] is not None]
    baseline = {(level, repeat) for side, level, repeat in timed if side == "baseline"}
    there = {
        "speed_up": any(side == "speculative" and (run.earlier is not None or (level, repeat) in baseline) for side, level, repeat in timed),
        "itl": any(cell["itl_p50"] is not None for cell in run.cells),
        "throughput": any(cell["throughput"] is not None for cell in run.cells),
        "acceptance": any(cell["acceptance"] is not None for cell in run.cells),
        "over_time": bool(run.samples) or any(cell.samples or cell.gpu for cell in run.so_far.cells),
    }
    return [name for name in LIVE_FIGURES if there[name]]


def _level_sentence(result: LoadResult, level: int) -> Text:
    """One load where acceptance isn't known: what was measured, and nothing of other k."""
    at = result.setup.levels[level].text
    found = next((one.speed_up for one in summary(result) if one.level == result.setup.levels[level]), None)
    if found is None or found.value is None:
        return Text(f"At {at.en}: not measured on both servers.", f"{at.zh}：未在两台服务器上都测到。")
    spread = "" if found.low is None or found.high is None else f" ({found.low:.2f}–{found.high:.2f})"
    said = f"{found.value:.2f}×{spread}"
    if (found.low if found.low is not None else found.value) > 1:
        return Text(f"At {at.en}: it pays, {said}.", f"{at.zh}：划算，{said}。")
    if (found.high if found.high is not None else found.value) <= 1:
        return Text(f"At {at.en}: leave it off, {said}.", f"{at.zh}：不要开启，{said}。")
    return Text(f"At {at.en}: undecided, {said}; the repeats lie on both sides of 1.", f"{at.zh}：尚无定论，{said}；各次重复分布在 1 的两侧。")


def _plain_sentence(result: LoadResult) -> Text:
    known = [one for one in summary(result) if one.speed_up.value is not None]
    if not known:
        return Text("No load was measured on both servers: there is nothing to compare.", "没有任何负载在两台服务器上都测到：无从比较。")
    return Text(
        "The speculative server tells nothing of its acceptance, so only the k that it ran with can be judged:",
        "推测服务器未给出接受率，因此只能评价它运行时所用的 k：",
    )


def _table(lines: list[str]) -> list[list[str]]:
    """A Markdown table's rows as cells, the line under its head left out."""
    return [row for line in lines if line.startswith("|") if not load_table.is_rule(row := load_table.cells_of(line))]


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None


def _within_public(options: LoadOptions) -> None:
    streams = max((level.concurrency or PUBLIC_STREAMS + 1) for level in options.levels)
    if streams > PUBLIC_STREAMS or options.repeats > PUBLIC_REPEATS or (options.requests or PUBLIC_REQUESTS + 1) > PUBLIC_REQUESTS:
        raise BadValue(
            "load_public",
            Text(
                "On this public page an experiment has at most {streams} streams (no rates), {requests} requests per load and {repeats} repeats.",
                "在此公开页面上，一次实验最多 {streams} 路并发（不支持请求速率）、每个负载 {requests} 个请求、{repeats} 次重复。",
            ),
            streams=PUBLIC_STREAMS, requests=PUBLIC_REQUESTS, repeats=PUBLIC_REPEATS,
        )  # fmt: skip


def _config(raw: Any) -> dict[str, Any] | None:
    """The speculative server's --speculative-config as its owner pastes it; nothing where nothing is given."""
    if raw is None or raw == "":
        return None
    try:
        found = json.loads(raw) if isinstance(raw, str) and len(raw) <= 2000 else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise BadValue(
            "load_config", Text("--speculative-config is a JSON object, or leave it empty.", "--speculative-config 应为 JSON 对象，或留空。")
        )
    return found


def _name(raw: Any) -> str:
    if not isinstance(raw, str) or not 0 < len(raw) <= 300:
        raise BadValue(
            "load_servers", Text("Choose two servers, or one twice: it is then restarted in between.", "请选择两台服务器，或同一台两次：中途重启。")
        )
    return raw


def _list(raw: Mapping[str, Any], name: str) -> list[Any]:
    value = raw.get(name, [])
    if not isinstance(value, list) or len(value) > 50:
        raise BadValue("load_range", Text("{name} is a list of numbers.", "{name} 应为数字列表。"), name=name)
    return value


def _whole(name: str, raw: Any) -> int:
    if isinstance(raw, bool) or not isinstance(raw, (int, float)) or raw != raw or abs(raw) > 1e9 or int(raw) != raw:
        raise BadValue(
            "load_range", Text("{name} is a whole number, got {value}.", "{name} 应为整数，而给出的是 {value}。"), name=name, value=repr(raw)[:40]
        )
    return int(raw)


def _rate(raw: Any) -> float:
    if isinstance(raw, bool) or not isinstance(raw, (int, float)) or not 0.001 <= raw <= 1000:
        raise BadValue(
            "load_range",
            Text("A rate is in [0.001, 1000] requests/s, got {value}.", "速率应在 [0.001, 1000] 请求/秒内，而给出的是 {value}。"),
            value=repr(raw)[:40],
        )
    return float(raw)


def _seconds(name: str, raw: Any) -> float | None:
    if raw is None:
        return None
    if isinstance(raw, bool) or not isinstance(raw, (int, float)) or not 1e-6 <= raw <= 1e6:
        raise BadValue(
            "load_range",
            Text("{name} is a time above 0, got {value}.", "{name} 应为大于 0 的时间，而给出的是 {value}。"),
            name=name,
            value=repr(raw)[:40],
        )
    return float(raw)
