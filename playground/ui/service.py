"""What the page may ask of the app: plain JSON in, plain JSON out, everything that comes in checked.

No gradio here: the page, the API endpoints and the tests call the same functions.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import playground
from playground import presets
from playground.backends import catalog as models_catalog
from playground.backends import drafting, hub, loading, local, mixed, probing
from playground.backends.progress import Progress, Report
from playground.engine.drafters import drafters
from playground.engine.record import FINAL_TOP, RAW_TOP
from playground.engine.stages import stages
from playground.engine.strategies import strategies
from playground.errors import BadValue, ModelUnavailable, PlaygroundError, Text
from playground.experiments import same_as_target
from playground.figures.palette import PALETTES
from playground.line import Comparison, Line, Run
from playground.measures.beams import BeamTree
from playground.measures.distribution import distributions
from playground.measures.text import display_name
from playground.measures.what_if import CHOOSERS
from playground.records import recordings
from playground.records.table import COLUMNS, markdown, rows
from playground.request import ORDERS, Lane, Limits, Request, has_half_characters, words_to_raw
from playground.trace import TokenChosen, TokenName, TokensNamed, Trace, number_format
from playground.ui import beams, load_runs, packets, parameters, redeciding, same_test, server_ledger, servers, speculation, views, zerogpu
from playground.ui.views import Answer, answers, chosen_at, lane_of, removed_by

log = logging.getLogger(__name__)

#: When more than this many wait on a public host, new runs are capped at so many tokens per lane.
CROWD = 5
CROWDED_TOKENS = 40


class Service:
    """One app: its models, its line of runs, and the answers that the page gets."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.public = models_catalog.public_host()
        self.limits = limits or Limits(max_new_tokens=256 if self.public else 1024, prompt_characters=8_000 if self.public else 20_000)
        self.catalog = models_catalog.Catalog()
        self.gpu = zerogpu.gpu()
        self.device, self.dtype = ("auto", "auto") if self.gpu is None else ("cpu", zerogpu.DTYPE)
        self.line = Line(self._prepare) if self.gpu is None else zerogpu.ZeroGpuLine(self._prepare)
        self.prober = probing.Prober()
        self._servers = servers.Servers(self.prober, self.public)
        self._loads = load_runs.LoadRuns(self.prober, self.public)
        self._loading = threading.Lock()
        self._status: Answer = {"state": "absent", "progress": None, "text": Text("Waiting to load.", "等待加载。").to_json(), "error": None}
        self._followers: dict[str, threading.Event] = {}
        self._looking_up = threading.Lock()
        self._same_tests = same_test.SameTests(lambda: bool(self.line.busy))
        self._hub_answers: bool | None = None  # not asked yet

    # --- models ------------------------------------------------------------------------------

    def load_default(self) -> None:
        """Fetch and load the default model in the background; `models` tells how far it is."""
        threading.Thread(target=self._load_default, name="default model", daemon=True).start()
        threading.Thread(target=self._ask_hub, name="hub", daemon=True).start()

    def _ask_hub(self) -> None:
        self._hub_answers = hub.answers()

    def _load_default(self) -> None:
        try:
            self.load(None)
        except PlaygroundError as error:
            self._fail(error)
        except Exception:
            log.exception("the default model could not be loaded")
            self._fail(PlaygroundError("bug", Text("Something broke here; it is in the server's log.", "程序出错；详情在服务器日志中。")))

    def _fail(self, error: PlaygroundError) -> None:
        """Say on the page why there is no model, instead of loading for ever."""
        self._status = {"state": "failed", "progress": None, "text": error.text.to_json(), "error": error.to_json()}

    def _progress(self, progress: Progress) -> None:
        state = {"download": "downloading", "convert": "converting", "load": "loading"}[progress.phase]
        self._status = {"state": state, "progress": progress.fraction, "text": progress.text.to_json(), "error": None}

    def load(self, model: str | None) -> None:
        """Bring a model into memory, and wait until it is there."""
        with self._loading:
            self._load(model, self._progress)

    def _load(self, model: str | None, report: Report) -> models_catalog.LoadedModel:
        """A loaded model by its catalog id; loading the default one is what makes the app ready."""
        entry = models_catalog.resolve(model or models_catalog.DEFAULT, self.public)
        loaded = self.catalog.get(entry.id, self.device, self.dtype, report)
        if entry.id == models_catalog.DEFAULT:
            self._status = {"state": "ready", "progress": 1.0, "text": Text("Ready.", "就绪。").to_json(), "error": None}
        return loaded

    def models(self) -> Answer:
        device = loading.choose_device(self.device)
        loaded = {model.entry.id: number_format(model.weights, str(model.dtype).removeprefix("torch.")) for model in self.catalog.loaded()}
        return {
            "entries": [
                {
                    "id": entry.id, "name": entry.name, "note": entry.note.to_json(), "source": entry.source, "loaded": entry.id in loaded,
                    "format": how.to_json() if (how := loaded.get(entry.id)) else None,
                    "pair": entry.pair, "role": entry.role, "languages": entry.languages, "reachable": self._reachable(entry),
                }
                for entry in models_catalog.entries()
            ],
            "default": models_catalog.DEFAULT, "device": str(device) if self.gpu is None else "cuda",
            "dtype": str(loading.choose_dtype(self.dtype, device)).removeprefix("torch."), "devices": loading.devices_here(),
            "dtypes": ["auto", *loading.DTYPES], **self._status,
        }  # fmt: skip

    def _reachable(self, entry: models_catalog.CatalogEntry) -> bool | None:
        """Whether choosing this model can work from here; None while the Hub hasn't been asked."""
        if entry.source == "embedded" or (entry.hub and hub.is_here(entry.hub)):
            return True
        return self._hub_answers

    @answers
    def set_device(self, device: Any, dtype: Any) -> Answer:
        """Choose where models run from now on; loaded models are freed when no run uses them."""
        if self.public or self.gpu is not None:
            raise BadValue("public", Text("On a public host the device can't be changed.", "公共主机上不能更改设备。"))
        if self.line.busy or self.line.waiting:
            raise BadValue("busy", Text("Wait until no run is in progress, then change the device.", "请等到没有运行时再更改设备。"))
        loading.choose_dtype(dtype, loading.choose_device(device))  # raises where it can't be
        self.device, self.dtype = device, dtype
        self.catalog.release(set())
        self.load_default()
        return self.models()

    def _prepare(self, request: Request, tell: Callable[[Text, float | None], None]) -> Comparison:
        """For the line: a comparison on this machine, on servers, or on both."""
        return mixed.prepare(request, lambda here: self._prepare_here(here, tell), self.prober, local.versions)

    def _prepare_here(self, request: Request, tell: Callable[[Text, float | None], None]) -> Comparison:
        """Load what the lanes ask for, free what none does, and build the race."""
        wanted = drafting.models_of(request, self.public)
        while not self._loading.acquire(timeout=0.2):
            tell(Text(**self._status["text"]), self._status["progress"])  # another load is on; Stop is looked at here
        try:
            # First make room, then load: each load is held against the memory that is free.
            kept = wanted | {models_catalog.DEFAULT}
            self.catalog.release({model.key for model in self.catalog.loaded() if model.entry.id in kept})
            loaded = {entry: self._load(entry, lambda progress: tell(progress.text, progress.fraction)) for entry in sorted(wanted)}
        finally:
            self._loading.release()
        race = local.prepare(request, lambda model: loaded[models_catalog.resolve(model or models_catalog.DEFAULT, self.public).id])
        if self.gpu is None:
            return race
        # What can't be done has been told by now, before it costs anybody's share of the GPU.
        self.gpu.models = {model.entry.id: model for model in self.catalog.loaded()}
        tell(zerogpu.WAITING, None)
        return self.gpu.comparison(request)

    # --- what can be asked for ---------------------------------------------------------------

    def parameters(self) -> Answer:
        """The page "Parameters"."""
        return parameters.parameters()

    def declarations(self) -> Answer:
        """Everything that the page builds its controls from."""
        return {
            **views.declared(strategies.all().values(), stages.all().values()),
            "orders": ORDERS, "followed": redeciding.followed(), "choosers": CHOOSERS,
            "limits": dataclasses.asdict(self.limits),
            "presets": [{"label": label.to_json(), "lane": lane} for label, lane in presets.PRESETS],
            "classic": Request.from_json(presets.classic(), self.limits).to_json(),
            "drafters": {name: {"label": one.label.to_json(), "summary": one.summary.to_json()} for name, one in drafters.all().items()},
            "pairs": {name: Request.from_json(presets.pair(name), self.limits).to_json() for name in presets.PAIRS},
            "figures": views.declared_figures(),
            "palette": {theme: palette.lanes for theme, palette in PALETTES.items()},
            "public": self.public, "pause": self.line.pausable, "version": playground.__version__,
        }  # fmt: skip

    @answers
    def prepare(self, raw: Any) -> Answer:
        """A request as it would run: the rendered prompt, every lane's effective stages, what is wrong with it."""
        lanes: list[Answer] = []
        request = self._request_with_lane_errors(raw, lanes)
        notes = self._notes(request)
        answer: Answer = {"rendered": None, "chat": None, "tokens": [], "lanes": lanes, "seconds": None, "made": None, "notes": notes}
        loaded = {model.entry.id: model for model in self.catalog.loaded()}
        prompts: list[int] = []
        for index, lane in enumerate(request.lanes):
            if lane.server is not None:
                if lanes[index]["error"] is None:
                    lanes[index] |= self._servers.prepared(request, lane)
                continue
            entry = models_catalog.resolve(lane.model or request.model or models_catalog.DEFAULT, self.public)
            lanes[index] |= {"model": entry.id, "notes": [note.to_json() for note in lane.notes]}
            if entry.id not in loaded:
                continue
            try:
                prepared = local.prepare_lane(request, lane, loaded[entry.id])
                task = local.make_task(request, prepared)  # binds every stage: words that are no single token show here
                if (draft := drafting.draft_name(lane, entry)) is None:
                    lane.strategy.check_models(task)
                else:
                    models_catalog.resolve(draft, self.public)
            except PlaygroundError as error:
                lanes[index]["error"] = error.to_json()
                continue
            prompts.append(len(prepared.rendered.ids))
            lanes[index]["notes"] = prepared.about.notes
            lanes[index]["stages"] = [
                {"stage": s.stage, "kind": s.kind, "knobs": s.knobs, "origin": s.origin, "idle": s.idle} for s in prepared.about.stages
            ]
            if answer["rendered"] is None:
                vocabulary = prepared.loaded.vocabulary
                names = [local.token_name(vocabulary, token) for token in prepared.rendered.ids[:2000]]
                answer |= {
                    "rendered": prepared.rendered.text, "chat": prepared.rendered.chat, "prompt_tokens": len(prepared.rendered.ids),
                    "tokens": [[name.id, display_name(name), name.special] for name in names],
                }  # fmt: skip
        answer["seconds"] = self._seconds(request, tuple(prompts) if len(prompts) == len(request.lanes) else None)
        made = None if any(lane["error"] for lane in lanes) else self.line.made(request, self._settings())
        answer["made"] = made.id if made is not None and made.ended else None
        return answer

    def _prompts(self, request: Request) -> tuple[int, ...] | None:
        """How many tokens every lane reads before its first own one; None where a model isn't loaded."""
        loaded = {model.entry.id: model for model in self.catalog.loaded()}
        entries = [models_catalog.resolve(lane.model or request.model or models_catalog.DEFAULT, self.public) for lane in request.lanes]
        if any(lane.server is not None for lane in request.lanes) or any(entry.id not in loaded for entry in entries):
            return None
        try:
            return tuple(
                len(local.prepare_lane(request, lane, loaded[entry.id]).rendered.ids) for lane, entry in zip(request.lanes, entries, strict=True)
            )
        except PlaygroundError:
            return None  # the run says what is wrong with it

    def _seconds(self, request: Request, prompts: tuple[int, ...] | None) -> list[float | None] | None:
        """From how many to how many seconds a run will take, as the page gets it."""
        return packets.range_json(self.line.expected_seconds(request, self._settings(), prompts))

    def _request_with_lane_errors(self, raw: Any, lanes: list[Answer]) -> Request:
        """Check a request lane by lane, so that one bad lane doesn't hide the others."""
        good: list[Any] = []
        asked = raw.get("lanes") if isinstance(raw, dict) else None
        for lane in asked[: self.limits.lanes + 1] if isinstance(asked, list) else []:
            try:
                Lane.from_json(lane, self.limits)
                good.append(lane)
                lanes.append({"error": None, "stages": []})
            except PlaygroundError as error:
                good.append({"strategy": "greedy"})
                lanes.append({"error": error.to_json(), "stages": []})
        return Request.from_json({**raw, "lanes": good} if isinstance(raw, dict) else raw, self.limits)

    def _notes(self, request: Request) -> list[Answer]:
        """What the page should say beside the prompt: a Chinese prompt for an English-centred model."""
        entry = models_catalog.resolve(request.model or models_catalog.DEFAULT, self.public)
        chinese = any("\u4e00" <= character <= "\u9fff" for character in request.prompt.text)
        if not chinese or "zh" in entry.languages or not entry.languages:
            return []
        note = Text(
            "{model} was trained mostly on English: expect poor Chinese. Qwen3-0.6B writes Chinese.",
            "{model} 主要用英文训练：中文效果较差。Qwen3-0.6B 能写中文。",
        ).filled(model=entry.name)
        return [{**note.to_json(), "offer": "Qwen/Qwen3-0.6B"}]

    # --- runs --------------------------------------------------------------------------------

    @answers
    def start(self, raw: Any, visitor: Any, reuse: Any = False) -> Answer:
        """Take a place in the line. With `reuse`, an identical request that was run here, or is being run, answers instead.

        With "going" only one that is being run does.
        """
        request = Request.from_json(raw, self.limits)
        drafting.models_of(request, self.public)  # raises where a model can't be named here
        mixed.check_servers(request)
        _visitor(visitor)
        note = None
        if self.public and self.line.waiting > CROWD:
            request, note = shortened(request)
        if reuse in (True, "going") and (made := self.line.made(request, self._settings(), ended=reuse is True)) is not None:
            ago = packets.rounded(time.monotonic() - made.created, 3)
            return {"run": made.id, "made": ago, "place": None, "seconds": None, "note": note, "yours": made.visitor == visitor}
        run = self.line.start(request, _visitor(visitor), self._settings(), self._prompts(request))
        seconds = packets.range_json(self.line.seconds_until(run))
        return {"run": run.id, "made": None, "place": self.line.place(run), "seconds": seconds, "note": note, "yours": True}

    def _settings(self) -> tuple[str, str]:
        """What besides the request decides a trace; versions can't change while the app runs."""
        return self.device, self.dtype

    @answers
    def control(self, run_id: Any, action: Any, visitor: Any) -> Answer:
        run = self.line.get(run_id)
        if run.visitor != _visitor(visitor):
            raise BadValue("not_yours", Text("Only whoever started this run can control it.", "只有发起者可以控制这个运行。"))
        actions = {"stop": self.line.stop, "pause": self.line.pause, "resume": self.line.resume, "step": self.line.step}
        if not isinstance(action, str) or action not in actions:
            raise BadValue("action", Text("There is no such control.", "没有这样的控制。"))
        actions[action](run)
        return {"ok": True}

    def follow(self, run_id: Any, seq: Any, session: str, stream: Any = 0) -> Iterator[str]:
        """Packets of a run for one page; a page that follows anew gives up its older stream."""
        superseded = threading.Event()
        seq, stream = (value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53 else 0 for value in (seq, stream))
        session = session or secrets.token_hex(8)
        older, self._followers[session] = self._followers.get(session), superseded
        if older is not None:
            older.set()
        try:
            run = self.line.get(run_id)
        except PlaygroundError as error:
            state = {"phase": "failed", "error": error.to_json()}
            yield packets.json.dumps({"v": 1, "stream": stream, "n": 1, "seq": 0, "run": str(run_id)[:64], "state": state, "events": []})
            return
        try:
            yield from packets.follow(self.line, run, seq, superseded, stream)
        finally:
            if self._followers.get(session) is superseded:
                del self._followers[session]

    def compare(
        self, prompt: Any, lanes: Any, max_new_tokens: Any, seed: Any, chat: Any, model: Any, with_trace: Any, visitor: str
    ) -> Iterator[Answer]:
        """A whole comparison for a program: its state while it runs, then the record. Raises `PlaygroundError`.

        Closing the generator leaves the run, as closing a tab does.
        """
        if not isinstance(lanes, list) or not all(isinstance(lane, str) for lane in lanes):
            raise BadValue("lane_broken", Text("lanes is a list of texts.", "lanes 是文本列表。"))
        raw_lanes = [{"max_new_tokens": max_new_tokens, **words_to_raw(lane)} for lane in lanes]
        request = Request.from_json({"prompt": {"text": prompt, "chat": chat}, "lanes": raw_lanes, "seed": seed, "model": model}, self.limits)
        drafting.models_of(request, self.public)
        mixed.check_servers(request)
        run = self.line.start(request, visitor)
        with self.line.watch(run):
            while not run.ended:
                self.line.wait(run, len(run.events), run.version, 0.5)
                yield {"state": run.phase, "place": self.line.place(run), "tokens": run.tokens}
        if run.error is not None:
            raise run.error
        trace = self._trace(run.id)
        yield {
            "state": run.phase,
            "record": markdown(trace),
            "lanes": [dict(zip(COLUMNS, row, strict=True)) for row in rows(trace)],
            "trace": trace.to_json() if with_trace else None,
        }

    # --- looking at a run --------------------------------------------------------------------

    @answers
    def figure(self, run_id: Any, name: Any, lane: Any, position: Any, look: Any) -> Answer:
        labels = {name: stage.label for name, stage in stages.all().items()}
        return views.figure(self._trace(run_id), name, lane, position, look, labels, recorded=recordings.is_recording(run_id))

    @answers
    def parting(self, run_id: Any, lane_a: Any, lane_b: Any) -> Answer:
        """Where two lanes part, and why: found in the record, without the model."""
        return redeciding.parting(self._trace(run_id), lane_a, lane_b)

    @answers
    def what_if(self, run_id: Any, lane: Any, position: Any, changes: Any, look: Any) -> Answer:
        """A lane under other knobs, decided from its record: the pipeline of a step, and the first token that would flip."""
        return redeciding.what_if(self._trace(run_id), lane, position, changes, look, recorded=recordings.is_recording(run_id))

    @answers
    def step(self, run_id: Any, lane: Any, position: Any) -> Answer:
        """Everything recorded about one step, for the sheet under a token."""
        return views.step(self._trace(run_id), lane, position)

    @answers
    def lookup(self, run_id: Any, lane: Any, position: Any, text: Any) -> Answer:
        """Any token's probability and rank at a step: the model reads the prefix again."""
        trace = self._trace(run_id)
        lane = lane_of(trace, lane)
        chosen = chosen_at(trace, lane, position)
        if not isinstance(text, str) or not 0 < len(text) <= 100 or has_half_characters(text):
            raise BadValue("token_unclear", Text("Type one token, or #id.", "请输入一个词元，或 #编号。"))
        key = trace.about.lanes[lane].model
        if (recorded := _recorded(chosen, trace.names(key), text)) is not None:
            return recorded
        if self.line.busy or not self._looking_up.acquire(blocking=False):
            raise BadValue(
                "busy",
                Text(
                    "This token was not recorded at this step, and the model is busy: look it up when no run is on, or pause yours.",
                    "该词元在这一步没有记录，而模型正忙：请在没有运行时查询，或先暂停您的运行。",
                ),
            )
        try:
            return self._look_up(trace, lane, chosen, text)
        finally:
            self._looking_up.release()

    def _look_up(self, trace: Trace, lane: int, chosen: TokenChosen, text: str) -> Answer:
        before = trace.output(lane)[: chosen.position]
        key = trace.about.lanes[lane].model
        loaded = next((model for model in self.catalog.loaded() if model.key == key), None)
        if loaded is None:
            raise ModelUnavailable("model_not_loaded", Text("The model of this run is not loaded any more.", "这个运行的模型已不在内存中。"))
        request = Request.from_json(trace.about.request, self.limits)
        prepared = local.prepare_lane(request, request.lanes[lane], loaded)
        logs = [-math.inf if event.log_probability is None else event.log_probability for event in before]
        found = local.look_up(request, prepared, [event.token for event in before], logs, text)
        return {
            "id": found.token, "text": display_name(local.token_name(loaded.vocabulary, found.token)),
            "raw": {"p": packets.rounded(found.raw_probability), "rank": found.raw_rank},
            "final": {"p": packets.rounded(found.probability), "rank": None if found.removed_by else found.rank}, "removed_by": found.removed_by,
        }  # fmt: skip

    @answers
    def beams(self, run_id: Any, lane: Any, penalty: Any) -> Answer:
        """The tables beside a lane's beams, its hypotheses ranked under this length penalty."""
        return beams.beams(self._trace(run_id), lane, penalty)

    @answers
    def beam(self, run_id: Any, lane: Any, step: Any, candidate: Any) -> Answer:
        """One candidate of a beam search: the text to it, its scores, its obituary."""
        return beams.beam(self._trace(run_id), lane, step, candidate)

    @answers
    def beam_pipeline(self, run_id: Any, lane: Any, step: Any, candidate: Any, look: Any) -> Answer:
        """The pipeline of one candidate: from the record where its beam was once the best, else the model reads the text to it again."""
        trace = self._trace(run_id)
        lane, tree = beams.searched_tree(trace, lane)
        key = beams.key_of(tree, step, candidate)
        labels = {name: stage.label for name, stage in stages.all().items()}
        chosen = beams.recorded_view(trace, lane, tree, key)
        if chosen is None:
            chosen, named = self._read_again(trace, lane, tree, key)
            trace = Trace(trace.about, [(None, named), *trace.events])
        return beams.pipeline(trace, lane, key, tree, chosen, look, labels, recorded=recordings.is_recording(run_id))

    def _read_again(self, trace: Trace, lane: int, tree: BeamTree, key: tuple[int, int]) -> tuple[TokenChosen, TokensNamed]:
        loaded = next((model for model in self.catalog.loaded() if model.key == trace.about.lanes[lane].model), None)
        if loaded is None:
            raise ModelUnavailable("model_not_loaded", Text("The model of this run is not loaded any more.", "这个运行的模型已不在内存中。"))
        if self.line.busy or not self._looking_up.acquire(blocking=False):
            raise BadValue(
                "busy", Text("The model is busy: try again when no run is on, or pause yours.", "模型正忙：请在没有运行时再试，或先暂停您的运行。")
            )
        try:
            request = Request.from_json(trace.about.request, self.limits)
            prepared = local.prepare_lane(request, request.lanes[lane], loaded)
            path = [tree.candidate(one) for one in tree.path(key)]
            forced = trace.output(lane)[: tree.forced]
            tokens = [*((one.token, one.log_probability or 0.0) for one in forced), *((one.token, one.log_probability) for one in path)]
            return local.choice_again(request, prepared, tokens, on_logs=True)
        finally:
            self._looking_up.release()

    @answers
    def speculation(self, run_id: Any, lane: Any) -> Answer:
        """The ledger of a lane that speculates, and whether it wrote the plain lane's text."""
        return speculation.speculation(self._trace(run_id), lane)

    @answers
    def which_k(self, run_id: Any, lane: Any, factors: Any, look: Any) -> Answer:
        """The expected speed-up over k, with the three factors measured or as the page asks for them."""
        return speculation.which_k(self._trace(run_id), lane, factors, look)

    @answers
    def same_test(self, run_id: Any, lane: Any, start: Any) -> Answer:
        """The test whether a lane's text is distributed as its target's: how far it is; with `start`, begin it."""
        trace = self._trace(run_id)
        lane = lane_of(trace, lane)
        key = (str(run_id), lane)
        if start is not True:
            return self._same_tests.state(key)
        if self.gpu is not None:
            text = Text("This host lends its GPU for single runs only: test it elsewhere.", "此主机的 GPU 只用于单次运行：请在别处检验。")
            raise BadValue("gpu_shared", text)
        request = Request.from_json(trace.about.request, self.limits)
        same_as_target.check(request.lanes[lane])
        loaded = {model.entry.id: model for model in self.catalog.loaded()}

        def load(model: str | None) -> models_catalog.LoadedModel:
            entry = models_catalog.resolve(model or models_catalog.DEFAULT, self.public)
            if entry.id not in loaded:
                raise ModelUnavailable("model_not_loaded", Text("The model of this run is not loaded any more.", "这个运行的模型已不在内存中。"))
            return loaded[entry.id]

        return self._same_tests.start(key, lambda told: same_as_target.same_as_target(request, request.lanes[lane], load, told=told))

    # --- servers -----------------------------------------------------------------------------

    @answers
    def servers(self) -> Answer:
        """The configured servers, and what is known of them."""
        return self._servers.listed()

    @answers
    def probe_server(self, name: Any, model: Any, again: Any) -> Answer:
        """What a server can do: found out by asking it, once."""
        return self._servers.probe(name, model, again)

    @answers
    def server_speculation(self, run_id: Any, lane: Any) -> Answer:
        """The ledger of a lane that ran on a server."""
        return server_ledger.lane_speculation(self._trace(run_id), lane)

    @answers
    def pasted_snapshots(self, before: Any, after: Any, seconds: Any) -> Answer:
        """Two `/metrics` pages, without connecting to anything."""
        return servers.pasted_snapshots(before, after, seconds)

    @answers
    def pasted_bench(self, first: Any, second: Any) -> Answer:
        """Two result files of `vllm bench serve`, without connecting to anything."""
        if self.public:
            servers.check_public_size(first, second)
        return servers.pasted_bench(first, second)

    @answers
    def load_form(self, model: Any, draft: Any, k: Any) -> Answer:
        """What stands beside the form of the guided experiment."""
        return self._loads.form(model, draft, k)

    @answers
    def load_start(self, raw: Any, visitor: Any) -> Answer:
        """Begin baseline against speculative."""
        return self._loads.start(raw, _visitor(visitor))

    @answers
    def load_confirm(self, load: Any, visitor: Any) -> Answer:
        """Begin the run that confirms an experiment's answer."""
        return self._loads.confirm(load, _visitor(visitor))

    @answers
    def load_open(self, text: Any, visitor: Any) -> Answer:
        """Look at a saved result of an experiment."""
        if self.public:
            servers.check_public_size(text)
        return self._loads.opened(text, _visitor(visitor))

    @answers
    def load_state(self, load: Any) -> Answer:
        return self._loads.state(load)

    @answers
    def load_control(self, load: Any, action: Any, visitor: Any) -> Answer:
        return self._loads.control(load, action, _visitor(visitor))

    @answers
    def load_view(self, load: Any, slo_ttft: Any, slo_tpot: Any) -> Answer:
        """An experiment's result in numbers and verdicts."""
        return self._loads.view(load, slo_ttft, slo_tpot)

    @answers
    def load_figure(self, load: Any, name: Any, look: Any, slo_ttft: Any, slo_tpot: Any) -> Answer:
        return self._loads.figure(load, name, look, slo_ttft, slo_tpot)

    @answers
    def load_saved(self, load: Any) -> Answer:
        return self._loads.saved(load)

    # --- the record --------------------------------------------------------------------------

    @answers
    def record(self, run_id: Any) -> Answer:
        return {"markdown": markdown(self._trace(run_id))}

    @answers
    def trace(self, run_id: Any) -> Answer:
        return {"json": self._trace(run_id).to_json()}

    def _trace(self, run_id: Any) -> Trace:
        if recordings.is_recording(run_id):
            return recordings.load(recordings.name_of(run_id))
        run: Run = self.line.get(run_id)
        if run.about is None:
            raise BadValue("run_not_begun", Text("This run has not begun.", "这个运行还没有开始。"))
        return Trace(run.about, packets.events_of(run))


def _recorded(chosen: TokenChosen, names: dict[int, TokenName], text: str) -> Answer | None:
    """A look-up answered from the record, where probability and ranks are known exactly from it; else None."""
    view = chosen.view
    if view is None:
        return None
    wanted = [index for index, token in enumerate(view.ids) if text == f"#{token}" or names[token].piece == text.encode()]
    if len(wanted) != 1 or wanted[0] >= RAW_TOP:
        return None
    index, way, gone = wanted[0], distributions(view), removed_by(view)
    final = way[-1].probabilities
    rank = sum(p > final[index] for p in final)
    if index not in gone and rank >= FINAL_TOP:
        return None
    return {
        "id": view.ids[index], "text": display_name(names[view.ids[index]]),
        "raw": {"p": packets.rounded(way[0].probabilities[index]), "rank": sum(p > way[0].probabilities[index] for p in way[0].probabilities)},
        "final": {"p": packets.rounded(final[index]), "rank": None if index in gone else rank}, "removed_by": gone.get(index),
    }  # fmt: skip


def shortened(request: Request) -> tuple[Request, Answer | None]:
    """A request as a crowded public host takes it: fewer tokens, and the words that say so."""
    lanes = tuple(
        # What a branch forces isn't written by the lane: it comes on top.
        dataclasses.replace(lane, max_new_tokens=min(lane.max_new_tokens, CROWDED_TOKENS + (len(lane.branch.tokens) if lane.branch else 0)))
        for lane in request.lanes
    )
    if lanes == request.lanes:
        return request, None
    note = Text(
        "Many people are waiting here: lanes write at most {tokens} tokens for now.", "此处排队的人很多：目前每条通道最多写 {tokens} 个词元。"
    ).filled(tokens=CROWDED_TOKENS)
    return dataclasses.replace(request, lanes=lanes), note.to_json()


def _visitor(visitor: Any) -> str:
    if not isinstance(visitor, str) or not 8 <= len(visitor) <= 100:
        raise BadValue("visitor", Text("This page has no visitor id: reload it.", "此页面没有访客编号：请刷新。"))
    return visitor
