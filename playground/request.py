"""What was asked: a prompt, the lanes that answer it, and the seed they share.

Requests come from a page, a command line, a link or a program, as plain values that nobody has
checked: `Request.from_json` casts every value, holds it against its range and says what is wrong.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field, replace
from typing import Any

from playground.engine.knobs import Knob, cast, checked, knobs_of, values_of
from playground.engine.stages import ORDERS, TRANSFORMERS_ORDER, Stage, is_cold, knob_owners, stages
from playground.engine.strategies import Strategy, strategies
from playground.errors import BadValue, PlaygroundError, Text

#: What `generate` switches on by itself when it samples: the library's own default.
LIBRARY_DEFAULTS: dict[str, Any] = {"top_k": 50}


@dataclass(frozen=True)
class Limits:
    """What one run may ask for here; the page and the errors name these numbers."""

    lanes: int = 6
    prompt_characters: int = 20_000
    max_new_tokens: int = 1024
    stop_strings: int = 8


_MAX_NEW_TOKENS = Knob("int", 80, Text("max new tokens", "最多新词元"), Text("How many tokens a lane may write.", "一条通道最多写多少词元。"), low=1)
_SEED = Knob("int", 0, Text("seed", "种子"), Text("What every die follows from.", "所有骰子由它决定。"), low=0, high=2**63 - 1)


#: How long the key of a model in memory may be: its name, revision, device and number format.
_LONGEST_KEY = 500


@dataclass(frozen=True)
class Branch:
    """Where a lane continues another one: output tokens that it begins with, because somebody decided them.

    `tokens` are ids of the vocabulary of `model` (the key of the model that wrote them; None: any). Up to `position` they are
    those of the lane called `lane`; the one at `position` is the other choice.
    """

    tokens: tuple[int, ...]
    lane: str
    position: int
    model: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {"tokens": list(self.tokens), "lane": self.lane, "position": self.position, "model": self.model}

    @staticmethod
    def from_json(raw: Any, most: int) -> Branch | None:
        """Check a lane's branch; `most` is how many tokens the lane may have. None is no branch."""
        if raw is None:
            return None
        if not isinstance(raw, dict):
            raise _branch_broken("tokens, lane, position", "tokens、lane、position")
        _known_keys(raw, {"tokens", "lane", "position", "model"}, "branch")
        tokens, position = raw.get("tokens"), raw.get("position")
        if not isinstance(tokens, (list, tuple)) or not all(map(_is_count, tokens)):
            raise _branch_broken("tokens: a list of token ids from 0", "tokens：由不小于 0 的词元编号组成的列表")
        if not 1 <= len(tokens) <= most:
            raise BadValue(
                "branch_length",
                Text(
                    "A branch begins with 1 to {most} tokens (the lane's max new tokens), got {length}.",
                    "分支以 1 到 {most} 个词元开头（即通道的最多新词元），而给出的是 {length} 个。",
                ),
                most=most, length=len(tokens),
            )  # fmt: skip
        if not _is_count(position) or position >= len(tokens):
            raise _branch_broken(f"position: a whole number from 0 to {len(tokens) - 1}", f"position：0 到 {len(tokens) - 1} 的整数")
        if not _is_short(raw.get("lane"), 60) or (raw.get("model") is not None and not _is_short(raw["model"], _LONGEST_KEY)):
            raise _branch_broken("lane, model: short texts", "lane、model：短文本")
        return Branch(tuple(tokens), raw["lane"], position, raw.get("model"))


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


def _is_short(text: Any, most: int) -> bool:
    return isinstance(text, str) and 0 < len(text) <= most and not has_half_characters(text)


def _branch_broken(en: str, zh: str) -> BadValue:
    return BadValue("branch_broken", Text(f"A branch has {en}.", f"分支应包含 {zh}。"))


@dataclass(frozen=True)
class Lane:
    """One way of decoding the prompt: a strategy, the stages that were asked for, and where it ends.

    `stages` holds what was asked, switched off or not, and `asked` the names of the knobs that were
    set: an "off" that was asked for wins over a default that would be inherited. `defaults` says
    whether a lane inherits what `generate` would (the model's generation config, then the library's
    top-k 50) or starts with everything off. With `server`, by its name, the lane runs there, and
    `model` is one of that server's (None: its first).
    """

    name: str
    strategy: Strategy
    stages: tuple[Stage, ...] = ()
    asked: frozenset[str] = frozenset()
    order: tuple[str, ...] = TRANSFORMERS_ORDER
    defaults: str = "off"
    model: str | None = None
    max_new_tokens: int = 80
    stop: tuple[str, ...] = ()
    branch: Branch | None = None
    server: str | None = None
    notes: tuple[Text, ...] = field(default=(), compare=False)

    def to_json(self) -> dict[str, Any]:
        knobs = values_of(self.strategy) | {name: value for stage in self.stages for name, value in values_of(stage).items() if name in self.asked}
        order: Any = next((name for name, order in ORDERS.items() if order == self.order), list(self.order))
        return {
            "name": self.name, "strategy": self.strategy.name, "knobs": knobs, "order": order, "defaults": self.defaults,
            "model": self.model, "max_new_tokens": self.max_new_tokens, "stop": list(self.stop),
            **({} if self.branch is None else {"branch": self.branch.to_json()}),
            **({} if self.server is None else {"server": self.server}),
        }  # fmt: skip

    @staticmethod
    def from_json(raw: Any, limits: Limits = Limits()) -> Lane:
        """Check one lane's plain values; errors name the lane, the knob, the range and the value."""
        if not isinstance(raw, dict):
            raise BadValue("lane_broken", Text("A lane is an object with a strategy and knobs.", "通道应是包含策略和参数的对象。"))
        allowed = {"name", "strategy", "knobs", "order", "defaults", "model", "max_new_tokens", "stop", "branch", "server"}
        _known_keys(raw, allowed, "lane")
        knobs = raw.get("knobs", {})
        if not isinstance(knobs, dict):
            raise BadValue("lane_broken", Text("A lane's knobs are an object.", "通道的参数应是一个对象。"))
        strategy_class = strategies.get(str(raw.get("strategy", "greedy")))
        own = {name: value for name, value in knobs.items() if name in knobs_of(strategy_class)}
        strategy = checked(strategy_class, own)
        by_stage: dict[type[Stage], dict[str, Any]] = {}
        owners = knob_owners()
        for name, value in knobs.items():
            if name in own:
                continue
            if name not in owners:
                raise BadValue("knob_unknown", Text("There is no knob {name}.", "没有参数 {name}。"), name=repr(name)[:60])
            by_stage.setdefault(owners[name], {})[name] = value
        strategy, by_stage, notes = greedy_if_cold(strategy, by_stage)
        strategy.check()
        order = _order(raw.get("order", "transformers"))
        asked = tuple(checked(stage, values) for stage, values in by_stage.items())
        stop = raw.get("stop", ())
        if isinstance(stop, str):
            stop = (stop,)
        if not isinstance(stop, (list, tuple)) or len(stop) > limits.stop_strings or not all(map(_is_stop, stop)):
            raise BadValue(
                "stop_range",
                Text(
                    "stop takes up to {most} strings of 1 to 200 characters, got {value}.",
                    "stop 最多 {most} 个字符串，每个 1 到 200 字符，而给出的是 {value}。",
                ),
                most=limits.stop_strings, value=repr(stop)[:60],
            )  # fmt: skip
        defaults = raw.get("defaults", "off")
        if defaults not in ("off", "inherit"):
            raise BadValue(
                "knob_range",
                Text("defaults must be off | inherit, got {value}.", "defaults 必须是 off | inherit，而给出的是 {value}。"),
                value=repr(defaults)[:60],
            )
        model = raw.get("model")
        if model is not None and (not isinstance(model, str) or not 0 < len(model) <= 300):
            raise BadValue("model_unknown", Text("A model is named by a short text.", "模型由一段短文本命名。"))
        server = raw.get("server")
        if server is not None and not _is_short(server, 300):
            raise BadValue("server_unknown", Text("A server is named by a short text.", "服务器由一段短文本命名。"))
        most = replace(_MAX_NEW_TOKENS, high=limits.max_new_tokens)
        name = str(raw.get("name") or describe(strategy, asked))[:60]
        if has_half_characters(name + (model or "")):
            raise BadValue("lane_broken", Text("A lane's name or model contains half a character.", "通道的名称或模型包含半个字符。"))
        max_new_tokens = cast("max_new_tokens", most, raw.get("max_new_tokens", _MAX_NEW_TOKENS.default))
        return Lane(
            name=name,
            strategy=strategy,
            stages=asked,
            asked=frozenset(name for values in by_stage.values() for name in values),
            order=order,
            defaults=defaults,
            model=model,
            max_new_tokens=max_new_tokens,
            stop=tuple(stop),
            branch=Branch.from_json(raw.get("branch"), max_new_tokens),
            server=server,
            notes=notes,
        )


def words_to_raw(words: str) -> dict[str, Any]:
    """A lane as people type it, as the plain values that `Lane.from_json` checks."""
    try:
        strategy, *settings = shlex.split(words)
        raw: dict[str, Any] = {"strategy": strategy, "knobs": {}}
        for name, value in (setting.split("=", 1) for setting in settings):
            if name in ("name", "order", "defaults", "model", "max_new_tokens", "server"):
                raw[name] = value.split(",") if name == "order" and "," in value else value
            elif name == "stop":
                raw.setdefault("stop", []).append(value.replace("\\n", "\n"))
            else:
                raw["knobs"][name] = value.replace("\\n", "\n")
    except ValueError as error:
        raise BadValue(
            "lane_broken",
            Text("A lane is a strategy and knob=value pairs, got {value}.", "通道写作：策略 参数=值 …，而给出的是 {value}。"),
            value=repr(words)[:80],
        ) from error  # fmt: skip
    return raw


@dataclass(frozen=True)
class Prompt:
    """The text that every lane answers. `chat` None means: a chat template if the model has one."""

    text: str
    chat: bool | None = None
    system: str | None = None


@dataclass(frozen=True)
class Request:
    """A comparison as asked. Equal requests of equal versions give equal traces."""

    prompt: Prompt
    lanes: tuple[Lane, ...]
    seed: int = 0
    model: str | None = None
    share_prompt: bool = True
    align: bool = False

    def to_json(self) -> dict[str, Any]:
        return {
            "prompt": {"text": self.prompt.text, "chat": self.prompt.chat, "system": self.prompt.system},
            "lanes": [lane.to_json() for lane in self.lanes],
            "seed": self.seed, "model": self.model, "share_prompt": self.share_prompt, "align": self.align,
        }  # fmt: skip

    @staticmethod
    def from_json(raw: Any, limits: Limits = Limits()) -> Request:
        """Check a whole request; the first thing wrong with it is raised as a `BadValue`."""
        if not isinstance(raw, dict):
            raise BadValue("request_broken", Text("A request is an object with a prompt and lanes.", "请求应是包含提示词和通道的对象。"))
        _known_keys(raw, {"prompt", "lanes", "seed", "model", "share_prompt", "align"}, "request")
        prompt = raw.get("prompt")
        if isinstance(prompt, str):
            prompt = {"text": prompt}
        if not isinstance(prompt, dict) or not isinstance(prompt.get("text"), str) or not prompt["text"].strip():
            raise BadValue(
                "prompt_empty", Text("The prompt is empty: write something for the model to continue.", "提示词为空：请写点内容让模型继续。")
            )
        _known_keys(prompt, {"text", "chat", "system"}, "prompt")
        text, system, chat = prompt["text"], prompt.get("system"), prompt.get("chat")
        if not (chat is None or isinstance(chat, bool)) or not (system is None or isinstance(system, str)):
            raise BadValue(
                "request_broken", Text("chat is true, false or null; system is text or null.", "chat 为 true、false 或 null；system 为文本或 null。")
            )
        length = len(text) + len(system or "")
        if length > limits.prompt_characters:
            raise BadValue(
                "prompt_length",
                Text("The prompt may have {most} characters, this one has {length}.", "提示词最多 {most} 个字符，这个有 {length} 个。"),
                most=limits.prompt_characters, length=length,
            )  # fmt: skip
        if has_half_characters(text + (system or "")):
            raise BadValue("prompt_broken", Text("The prompt contains half a character (a lone surrogate).", "提示词包含半个字符（孤立代理项）。"))
        lanes = raw.get("lanes")
        if not isinstance(lanes, (list, tuple)) or not 1 <= len(lanes) <= limits.lanes:
            raise BadValue("lane_count", Text("A comparison has 1 to {most} lanes.", "一次比较有 1 到 {most} 条通道。"), most=limits.lanes)
        model = raw.get("model")
        if model is not None and (not isinstance(model, str) or not 0 < len(model) <= 300):
            raise BadValue("model_unknown", Text("A model is named by a short text.", "模型由一段短文本命名。"))
        for switch in ("share_prompt", "align"):
            if not isinstance(raw.get(switch, True), bool):
                raise BadValue("request_broken", Text("{name} is true or false.", "{name} 为 true 或 false。"), name=switch)
        return Request(
            prompt=Prompt(text, chat, system or None),
            lanes=tuple(_in_lane(index, lane, limits) for index, lane in enumerate(lanes)),
            seed=cast("seed", _SEED, raw.get("seed", 0)),
            model=model,
            share_prompt=raw.get("share_prompt", True),
            align=raw.get("align", False),
        )


def _is_stop(text: Any) -> bool:
    return isinstance(text, str) and 0 < len(text) <= 200 and not has_half_characters(text)


def has_half_characters(text: str) -> bool:
    """Whether a text holds lone surrogates, which have no bytes."""
    return any(0xD800 <= ord(character) <= 0xDFFF for character in text)


def _in_lane(index: int, raw: Any, limits: Limits) -> Lane:
    try:
        return Lane.from_json(raw, limits)
    except PlaygroundError as error:
        error.values = {**error.values, "lane": index}
        raise


def _known_keys(raw: dict[str, Any], allowed: set[str], what: str) -> None:
    unknown = set(raw) - allowed
    if unknown:
        raise BadValue(
            "request_broken", Text("A {what} has no {name}.", "{what} 没有 {name}。"), what=what, name=repr(sorted(map(str, unknown))[0])[:60]
        )


def _order(raw: Any) -> tuple[str, ...]:
    """A stage order by name, or a list of stages that come first; the others follow as in transformers."""
    if isinstance(raw, str) and raw in ORDERS:
        return ORDERS[raw]
    known = stages.all()
    if not isinstance(raw, (list, tuple)) or len(set(map(str, raw))) != len(raw) or not all(isinstance(n, str) and n in known for n in raw):
        raise BadValue(
            "order_range",
            Text(
                "order must be {names} or a list of different stages, got {value}.",
                "order 必须是 {names} 或互不相同的阶段列表，而给出的是 {value}。",
            ),
            names=" | ".join(ORDERS), value=repr(raw)[:60],
        )  # fmt: skip
    return (*raw, *(name for name in TRANSFORMERS_ORDER if name not in raw))


def greedy_if_cold(
    strategy: Strategy, by_stage: dict[type[Stage], dict[str, Any]]
) -> tuple[Strategy, dict[type[Stage], dict[str, Any]], tuple[Text, ...]]:
    """A temperature from 0 to below 1e-5 means greedy: say so, and don't divide by it."""
    temperature = stages.get("temperature")
    value = by_stage.get(temperature, {}).get("temperature")
    if not is_cold(value):
        return strategy, by_stage, ()
    if strategy.when_cold is None:
        return strategy, by_stage, ()  # the knob's own range refuses it
    kept = {**by_stage, temperature: {"temperature": 1.0}}  # asked to be off: no default may come back for it
    if strategy.when_cold == strategy.name:
        cooled = strategy.cooled()
        note = Text("temperature {value} means that no die is rolled.", "温度 {value} 即不掷骰子。").filled(value=str(value)[:20])
        return cooled, kept, (note,) if cooled != strategy else ()
    note = Text("temperature {value} means greedy: no die is rolled.", "温度 {value} 即贪心：不掷骰子。").filled(value=str(value)[:20])
    cold = strategies.get(strategy.when_cold)
    shared = {name: value for name, value in values_of(strategy).items() if name in knobs_of(cold)}
    return checked(cold, shared), kept, (note,)


def describe(strategy: Strategy, asked: tuple[Stage, ...]) -> str:
    """A lane's name when it was given none: the strategy and what is switched on."""
    on = [f"{name} {getattr(stage, name)}" for stage in asked if not stage.is_off for name in knobs_of(type(stage))]
    return " · ".join([strategy.name, *on])


@dataclass(frozen=True)
class EffectiveStage:
    """A stage that a lane will run: who asked for it, and whether it has anything to do."""

    stage: Stage
    origin: str  # asked | model | library
    idle: bool


def _usable(name: str, value: Any) -> bool:
    """Whether a model's own default is a knob here and has a value that the knob can have."""
    owner = knob_owners().get(name)
    try:
        return owner is not None and checked(owner, {name: value}) is not None
    except BadValue:
        return False


def effective_stages(lane: Lane, generation_config: dict[str, Any]) -> tuple[EffectiveStage, ...]:
    """The stages of a lane in order, inherited defaults included, those that are off left out.

    `generation_config` holds the model's own defaults by knob name. As in `generate`, a value
    that was asked for wins over the model's, and the model's over the library's.
    """
    values = {name: (value, "asked") for stage in lane.stages for name, value in values_of(stage).items() if name in lane.asked}
    if lane.defaults == "inherit":
        library = LIBRARY_DEFAULTS if lane.strategy.warps else {}
        for origin, inherited in (("model", generation_config), ("library", library)):
            values = {name: (value, origin) for name, value in inherited.items() if _usable(name, value)} | values
    found: dict[str, tuple[Stage, str]] = {}
    for stage_class in {knob_owners()[name] for name in values}:
        own = {name: values[name] for name in knobs_of(stage_class) if name in values}
        origin = min((origin for _, origin in own.values()), key=("asked", "model", "library").index)
        found[stage_class.name] = (checked(stage_class, {name: value for name, (value, _) in own.items()}), origin)
    position = {name: index for index, name in enumerate(lane.order)}
    on = sorted((entry for entry in found.values() if not entry[0].is_off), key=lambda entry: position[entry[0].name])
    return tuple(EffectiveStage(stage, origin, idle=stage.kind == "warper" and not lane.strategy.warps) for stage, origin in on)
