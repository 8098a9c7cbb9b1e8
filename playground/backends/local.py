"""A transformers model as a LanguageModel, and a request as a race of such models on this machine."""

from __future__ import annotations

import datetime
import os
import platform
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakSet

import psutil
import torch
import transformers

import playground
from playground.backends.catalog import LoadedModel, Rendered, render
from playground.backends.drafting import earlier_runs, load_draft, remember
from playground.backends.growing_cache import GrowingLayer, growing_cache
from playground.backends.language_model import TransformersModel, WholeTextModel
from playground.backends.loading import free_memory
from playground.engine.clock import Clock
from playground.engine.dice import Dice
from playground.engine.knobs import values_of
from playground.engine.model import LanguageModel
from playground.engine.race import Race, Runner
from playground.engine.record import distribution_numbers
from playground.engine.stages import Context
from playground.engine.stop import ContextLimit, EndOfSequence, MaxNewTokens, StopRule, StopStrings
from playground.engine.task import Row, Task, prompt_pieces
from playground.errors import BadValue, PlaygroundError, Text
from playground.request import Branch, Lane, Request, effective_stages
from playground.trace import (
    About,
    BeamsAdvanced,
    DraftJudged,
    Event,
    LaneAbout,
    LaneEvent,
    ModelAbout,
    StageAbout,
    TokenChosen,
    TokenName,
    TokensNamed,
)

WITHOUT_CACHE = Text(
    "{model} ({kind}) has no KV cache that can be used here: every forward reads the whole text. That is slower; the scores are the same.",
    "{model}（{kind}）没有可在此使用的 KV 缓存：每次前向都重读全文。速度较慢，分数相同。",
)

#: What a growing KV cache takes at most, as a multiple of what it holds.
ROOM_TO_GROW = 1.5


@dataclass(frozen=True)
class PreparedLane:
    """A lane made ready for one model: what it asks of it, and how it will be told."""

    lane: Lane
    loaded: LoadedModel
    rendered: Rendered
    about: LaneAbout


#: Loaded models that have written a token: the first run after loading is a warm-up.
_has_run: WeakSet[LoadedModel] = WeakSet()


@dataclass
class Comparison:
    """A request made ready to run: iterate to run it, one list of events per step."""

    about: About
    race: Race
    lanes: tuple[PreparedLane, ...]
    device: torch.device

    def __iter__(self) -> Iterator[list[LaneEvent]]:
        named: dict[str, set[int]] = {}
        outputs: list[list[int]] = [[] for _ in self.lanes]
        for prepared in self.lanes:
            yield self._name(prepared, prepared.rendered.ids, named)
        for events in self._steps():
            # Names travel with the step that they belong to: a pause between the two would tear it apart.
            names = [name for lane, event in events if lane is not None for name in self._name(self.lanes[lane], mentioned(event), named)]
            yield [*names, *events]
            for lane, event in events:
                if lane is not None and isinstance(event, TokenChosen):
                    outputs[lane][event.position :] = [event.token]
            _has_run.update(self.lanes[lane].loaded for lane, event in events if lane is not None and isinstance(event, TokenChosen))
        for prepared, output in zip(self.lanes, outputs, strict=True):  # only now: no lane may look at another of its race
            remember(prepared.loaded, (*prepared.rendered.ids, *output))

    def _steps(self) -> Iterable[list[LaneEvent]]:
        """The race's steps, with samples of the GPU between them where there is one."""
        if self.device.type != "cuda":
            return self.race
        from playground.backends.gpu import GpuReader, sampled  # noqa: PLC0415  (NVML is wanted only where there is a GPU)

        return sampled(self.race, GpuReader(self.device), self.race.started)

    @staticmethod
    def _name(prepared: PreparedLane, ids: Sequence[int], named: dict[str, set[int]]) -> list[LaneEvent]:
        key, vocabulary = prepared.loaded.key, prepared.loaded.vocabulary
        fresh = dict.fromkeys(token for token in ids if token not in named.setdefault(key, set()))
        named[key].update(fresh)
        return [(None, TokensNamed(key, tuple(token_name(vocabulary, token) for token in fresh)))] if fresh else []

    def stop(self) -> None:
        self.race.stop()

    def one_round(self) -> None:
        self.race.one_round()

    @property
    def owed(self) -> int:
        return self.race.owed


def mentioned(event: Event) -> Sequence[int]:
    """The token ids that an event tells of."""
    if isinstance(event, TokenChosen):
        return (event.token, *(event.view.ids if event.view else ()))
    if isinstance(event, DraftJudged):
        return [guess.token for guess in event.guesses]
    if isinstance(event, BeamsAdvanced):
        return [candidate.token for candidate in event.candidates]
    return ()


def token_name(vocabulary: Any, token: int) -> TokenName:
    """How a trace names a token: its bytes, or for a special token its display name."""
    special = vocabulary.is_special(token)
    return TokenName(token, vocabulary.name(token).encode() if special else vocabulary.piece(token), special)


def prepare_lane(request: Request, lane: Lane, loaded: LoadedModel) -> PreparedLane:
    """What a lane will really do on a model: the prompt in tokens, the stages with their origin."""
    rendered = render(loaded, request.prompt.text, request.prompt.chat, request.prompt.system)
    stages = tuple(
        StageAbout(
            stage=entry.stage.name,
            kind=entry.stage.kind,
            knobs=values_of(entry.stage),
            origin=entry.origin,  # type: ignore[arg-type]
            idle=entry.idle,
        )
        for entry in effective_stages(lane, loaded.generation_config)
    )
    about = LaneAbout(
        name=lane.name,
        model=loaded.key,
        strategy=lane.strategy.name,
        knobs=values_of(lane.strategy),
        stages=stages,
        max_new_tokens=lane.max_new_tokens,
        stop=lane.stop,
        eos=loaded.eos_ids,
        prompt_ids=tuple(rendered.ids),
        rendered=rendered.text,
        notes=tuple(note.to_json() for note in (*lane.notes, *rendered.notes, *reading_notes(loaded))),
        branch=lane.branch.to_json() if lane.branch is not None else None,
    )
    return PreparedLane(lane, loaded, rendered, about)


def language_model(loaded: LoadedModel) -> LanguageModel:
    """A lane's own view of a loaded model, read the way that it can be read."""
    if loaded.reading == "whole_text":
        return WholeTextModel(loaded.model, loaded.linears)
    return TransformersModel(loaded.model, loaded.linears, reads_in_pieces=loaded.reading == "in_pieces")


def reading_notes(loaded: LoadedModel) -> tuple[Text, ...]:
    """What a lane says of a model that is read in another way than through a KV cache."""
    return (WITHOUT_CACHE.filled(model=loaded.entry.name, kind=loaded.model.config.model_type),) if loaded.reading == "whole_text" else ()


def make_task(request: Request, prepared: PreparedLane, record: bool = True) -> Task:
    """Bind a lane's stages and stop rules to its model."""
    lane, loaded, ids = prepared.lane, prepared.loaded, tuple(prepared.rendered.ids)
    model = language_model(loaded)
    if lane.branch is not None:
        check_branch(lane.branch, loaded, model.vocabulary_size)
    context = Context(
        prompt=ids,
        eos=loaded.eos_ids,
        max_new_tokens=min(lane.max_new_tokens, model.context - len(ids)) if model.context is not None else lane.max_new_tokens,
        vocabulary=loaded.vocabulary,
        device=model.device,
        min_tokens_to_keep=lane.strategy.min_tokens_to_keep(len(loaded.eos_ids)),
    )
    active = [entry.stage for entry in effective_stages(lane, loaded.generation_config) if not entry.idle]
    rules: list[StopRule] = [EndOfSequence(frozenset(loaded.eos_ids))]
    if lane.stop:
        rules.append(StopStrings(tuple(text.encode() for text in lane.stop), loaded.vocabulary))
    rules.append(MaxNewTokens(lane.max_new_tokens))
    if model.context is not None:
        rules.append(ContextLimit(model.context, len(ids)))
    return Task(
        model=model,
        prompt=ids,
        stages=tuple((stage.name, stage.kind, stage.bind(context)) for stage in active),
        stop_rules=tuple(rules),
        dice=Dice(request.seed),
        clock=Clock(model.device),
        record=record,
        forced=lane.branch.tokens if lane.branch is not None else (),
        vocabulary=loaded.vocabulary,
    )


def give_drafter(task: Task, draft: LoadedModel, shared: int) -> None:
    """Let a model write guesses for a lane: `shared` ids mean the same to both."""
    task.draft_model, task.shared_ids = language_model(draft), shared


def check_branch(branch: Branch, loaded: LoadedModel, size: int) -> None:
    """Refuse a branch whose token ids mean something else, or nothing, to this model (`size` ids in its vocabulary)."""
    written_by = branch.model.rpartition("@")[0] if branch.model is not None else loaded.entry.id
    if written_by != loaded.entry.id:  # another device or number format of the same model has the same vocabulary
        raise BadValue(
            "branch_model",
            Text(
                "This lane was branched from tokens that {origin} wrote, and {model} has other tokens: choose {origin} again, or drop the branch.",
                "此通道的分支来自 {origin} 写出的词元，而 {model} 的词元不同：请换回 {origin}，或去掉分支。",
            ),
            origin=written_by[:100], model=loaded.entry.id,
        )  # fmt: skip
    beyond = next((token for token in branch.tokens if token >= size), None)
    if beyond is not None:
        raise BadValue(
            "token_range",
            Text("Token ids go from 0 to {last}, got {value}.", "词元编号从 0 到 {last}，而给出的是 {value}。"),
            last=size - 1, value=beyond,
        )  # fmt: skip


def prepare(request: Request, load: Callable[[str | None], LoadedModel], record: bool = True, calibrate: bool = True) -> Comparison:
    """Load what the lanes need, bind everything, and build the race; nothing runs yet.

    `load` gives the loaded model of a catalog id (None: the default). Errors of a lane carry its
    index in `values["lane"]`. `calibrate` measures what verifying costs before a recorded lane that speculates.
    """
    prepared, tasks, drafts = [], [], []
    for index, lane in enumerate(request.lanes):
        try:
            prepared.append(prepare_lane(request, lane, load(lane.model or request.model)))
            check_rows(lane, prepared[-1])
            tasks.append(make_task(request, prepared[-1], record))
            if drafted := load_draft(lane, prepared[-1].loaded, load):
                give_drafter(tasks[-1], *drafted)
                drafts.append(drafted[0])
                about = prepared[-1].about
                notes = (*about.notes, *(note.to_json() for note in reading_notes(drafted[0])))
                prepared[-1] = replace(prepared[-1], about=replace(about, draft_model=drafted[0].key, notes=notes))
            tasks[-1].earlier, tasks[-1].calibrate = earlier_runs(prepared[-1].loaded), record and calibrate
            lane.strategy.check_models(tasks[-1])
        except PlaygroundError as error:
            error.values = {**error.values, "lane": index}
            raise
    models = {loaded.key: model_about(loaded) for loaded in (*(entry.loaded for entry in prepared), *drafts)}
    about = About(
        request=request.to_json(),
        models=tuple(models.values()),
        lanes=tuple(entry.about for entry in prepared),
        versions=versions(),
        machine=machine(tasks[0].model.device),
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        warm=all(entry.loaded in _has_run for entry in prepared),
    )
    runners = [Runner(index, task, lane.strategy) for index, (task, lane) in enumerate(zip(tasks, request.lanes, strict=True))]
    race = Race(runners, share_prompt=request.share_prompt, align=request.align, memory=memory_in_use(tasks[0].model.device))
    return Comparison(about, race, tuple(prepared), tasks[0].model.device)


def check_rows(lane: Lane, prepared: PreparedLane) -> None:
    """Refuse a lane whose beams would fill more KV cache than there is memory, if the model's cache has a formula."""
    rows, model = lane.strategy.rows, model_about(prepared.loaded)
    per_token = model.cache_bytes_per_token
    if rows == 1 or per_token is None:
        return
    tokens = min(len(prepared.rendered.ids) + lane.max_new_tokens, model.context or sys.maxsize)
    needed, free = rows * tokens * per_token, free_memory(prepared.loaded.device)
    if needed * ROOM_TO_GROW > free:
        raise BadValue(
            "beams_memory",
            Text(
                "{rows} beams × {tokens} tokens (prompt and max new tokens) × {per_token} bytes are {needed} GB of KV cache, with room to grow "
                "half as much again, and {free} GB of memory are free: choose fewer beams, fewer tokens or a smaller model.",
                "{rows} 个束 × {tokens} 个词元（提示词加最多新词元）× {per_token} 字节 = {needed} GB KV 缓存，另需一半的增长空间，"
                "而空闲内存只有 {free} GB：请减少束数、词元数，或换用更小的模型。",
            ),
            rows=rows, tokens=tokens, per_token=per_token, needed=f"{needed / 1e9:.2f}", free=f"{free / 1e9:.2f}",
        )  # fmt: skip


def model_about(loaded: LoadedModel) -> ModelAbout:
    """What ran, with the KV cache's formula: keys and values of every layer and KV head."""
    config = loaded.model.config.get_text_config(decoder=True)
    per_token, formula = _cache_formula(loaded)
    parameters = list(loaded.model.parameters())
    return ModelAbout(
        key=loaded.key,
        name=loaded.entry.name,
        revision=loaded.revision,
        dtype=str(loaded.dtype).removeprefix("torch."),
        device=str(loaded.device),
        parameters=sum(parameter.numel() for parameter in parameters),
        weight_bytes=sum(parameter.nbytes for parameter in parameters),
        layers=config.num_hidden_layers,
        vocabulary=int(loaded.model.get_output_embeddings().weight.shape[0]),
        context=getattr(config, "max_position_embeddings", None),
        cache_bytes_per_token=per_token,
        cache_formula=formula,
        weights=loaded.weights,
    )


def _cache_formula(loaded: LoadedModel) -> tuple[int | None, str | None]:
    """Bytes of KV cache per token and how they come about; None where it grows otherwise: sliding windows, states, or no cache at all."""
    config = loaded.model.config.get_text_config(decoder=True)
    grows = loaded.reading != "whole_text" and all(isinstance(layer, GrowingLayer) for layer in growing_cache(config).layers)
    asking = getattr(config, "num_attention_heads", None)
    heads = getattr(config, "num_key_value_heads", None) or asking
    width = getattr(config, "head_dim", None) or (config.hidden_size // asking if asking else None)
    if not (grows and heads and width):
        return None, None
    layers, item = config.num_hidden_layers, torch.finfo(loaded.model.dtype).bits // 8
    return 2 * layers * heads * width * item, f"2 (K, V) × {layers} layers × {heads} KV heads × {width} × {item} bytes"


def versions() -> dict[str, str]:
    return {
        "playground": playground.__version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
    }


def machine(device: torch.device) -> str:
    """The device in words, as it stands beside every recorded time."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type == "mps":
        return f"{platform.machine()} GPU (MPS)"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{cores} CPU cores ({platform.machine()})"


def memory_in_use(device: torch.device) -> Callable[[], int | None]:
    """Reads how much this process holds: the CUDA allocator's peak since now, else the resident set."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return lambda: torch.cuda.max_memory_allocated(device)
    process = psutil.Process()
    return lambda: process.memory_info().rss


@dataclass(frozen=True)
class Looked:
    """One token's place in a step's distribution, over the whole vocabulary."""

    token: int
    raw_probability: float
    raw_rank: int
    probability: float
    rank: int
    removed_by: str | None


def look_up(request: Request, prepared: PreparedLane, output: Sequence[int], logs: Sequence[float], text: str) -> Looked:
    """Any token's probability and rank at the step after `output`: the model reads the prefix again.

    `logs` are the recorded log-probabilities of the output tokens: stages with state need them.
    """
    vocabulary = prepared.loaded.vocabulary
    token = _one_token(vocabulary, text)
    task = make_task(request, prepared, record=True)
    with torch.inference_mode():
        row: Row = task.start
        for chosen, log_probability in zip(output, logs, strict=True):
            row = task.extend(row, chosen, log_probability)
        everything = row.ids.tolist()
        for piece in prompt_pieces(everything, task.model):
            logits = task.forward([piece])[:, -1]
        if prepared.lane.strategy.scale == "raw_log_probability":
            logits = logits.log_softmax(-1)
        scored = task.score(logits, [row])
        record = scored.records[0]
        assert record is not None
        raw, final = record.raw, record.final
        gone = float(final[token]) == float("-inf")
        removed_by = next((name for name, scores in record.stages if gone and float(scores[token]) == float("-inf")), None)
        return Looked(
            token=token,
            raw_probability=float(distribution_numbers(raw)[1][token]),
            raw_rank=int((raw > raw[token]).sum()),
            probability=float(distribution_numbers(final)[1][token]),
            rank=int((final > final[token]).sum()),
            removed_by=removed_by,
        )


def choice_again(request: Request, prepared: PreparedLane, tokens: Sequence[tuple[int, float]], on_logs: bool) -> tuple[TokenChosen, TokensNamed]:
    """The last of these `(token, log-probability)` pairs as it was chosen, with its view: the model reads what stands before it again.

    `on_logs` says that the stages work on log-probabilities, as in beam search. The names are those of the view's candidates.
    """
    task = make_task(request, prepared, record=True)
    with torch.inference_mode():
        row: Row = task.start
        for token, log_probability in tokens[:-1]:
            row = task.extend(row, token, log_probability)
        for piece in prompt_pieces(row.ids.tolist(), task.model):
            logits = task.forward([piece])[:, -1]
        scored = task.score(logits.log_softmax(-1), [row], scale="raw_log_probability") if on_logs else task.score(logits, [row])
        choice = task.take(scored, tokens[-1][0])
    assert choice.view is not None
    vocabulary = prepared.loaded.vocabulary
    names = TokensNamed(prepared.about.model, tuple(token_name(vocabulary, token) for token in choice.view.ids))
    event = TokenChosen(
        row.position, choice.token, choice.log_probability, choice.raw_log_probability, choice.rank, choice.raw_rank, view=choice.view
    )
    return event, names


def _one_token(vocabulary: Any, text: str) -> int:
    """The token that a visitor means: "#123" by id, else a text that is exactly one token."""
    if re.fullmatch(r"#[0-9]{1,9}", text):
        token = int(text[1:])
        if token < vocabulary.size:
            return token
        raise BadValue(
            "token_range",
            Text("Token ids go from 0 to {last}, got {value}.", "词元编号从 0 到 {last}，而给出的是 {value}。"),
            last=vocabulary.size - 1,
            value=token,
        )
    ids = vocabulary.encode(text)
    if len(ids) != 1:
        pieces = " ".join(f"#{token}" for token in ids[:12])
        raise BadValue(
            "token_unclear",
            Text(
                "{text} is {count} tokens here ({pieces}); a leading space matters. Give one token, or #id.",
                "{text} 在这里是 {count} 个词元（{pieces}）；开头的空格有区别。请给出一个词元或 #编号。",
            ),
            text=repr(text)[:60], count=len(ids), pieces=pieces,
        )  # fmt: skip
    return int(ids[0])
