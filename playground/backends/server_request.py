"""What a lane asks of a server: every sampling parameter by name, so that no default of the server's slips in.

A stage that the server doesn't know, or refuses as it was started, is refused here, before anything is sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from playground.backends.servers import Capabilities, ServerEntry
from playground.engine.knobs import knobs_of, values_of
from playground.engine.stages import ORDERS, LogitBias, Stage, stages
from playground.errors import BadValue, PlaygroundError, Text
from playground.request import EffectiveStage, Lane, Request, effective_stages
from playground.trace import StageAbout

#: How many of the likeliest tokens are asked for per step.
CANDIDATES = 20

#: Below this vLLM samples at 0.01 instead; only 0 is greedy there.
VLLM_COLDEST = 0.01

#: Values at which a parameter does nothing, by the name that the server has for it.
OFF: dict[str, dict[str, Any]] = {
    "vllm": {
        "temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0,
        "frequency_penalty": 0.0, "min_tokens": 0, "n": 1, "ignore_eos": False,
    },
    "llama.cpp": {
        "temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "typical_p": 1.0, "repeat_penalty": 1.0, "repeat_last_n": -1,
        "presence_penalty": 0.0, "frequency_penalty": 0.0, "top_n_sigma": -1.0, "xtc_probability": 0.0, "dry_multiplier": 0.0,
        "dynatemp_range": 0.0, "mirostat": 0, "ignore_eos": False, "cache_prompt": False,
    },
    "other": {"temperature": 1.0, "top_p": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "n": 1},
}  # fmt: skip

#: llama.cpp's own names of our knobs; vLLM's and OpenAI's stand with the knobs.
LLAMA_CPP_NAMES = {
    "temperature": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p", "typical_p": "typical_p",
    "repetition_penalty": "repeat_penalty", "presence_penalty": "presence_penalty", "frequency_penalty": "frequency_penalty",
    "logit_bias": "logit_bias",
}  # fmt: skip

KIND_NAMES = {"vllm": "vLLM", "llama.cpp": "llama.cpp", "other": "OpenAI-compatible server"}


@dataclass(frozen=True)
class ServerRequest:
    """A lane as it is sent: which path, the whole body, the stages as the server runs them, and what to know about them."""

    chat: bool
    body: dict[str, Any]
    stages: tuple[StageAbout, ...]
    notes: tuple[Text, ...]

    @property
    def path(self) -> str:
        return "chat/completions" if self.chat else "completions"


def server_request(request: Request, lane: Lane, entry: ServerEntry, can: Capabilities) -> ServerRequest:
    """The body for one lane. Raises `PlaygroundError` for whatever this server can't do, by name."""
    if lane.strategy.name not in ("greedy", "sample"):
        raise _no_strategy(lane, entry, can)
    if lane.branch is not None:
        raise PlaygroundError(
            "server_branch",
            Text(
                "A branch begins with given tokens: that runs on this machine, not on {server}.",
                "分支以给定词元开头：只能在本机运行，不能在 {server} 上运行。",
            ),
            server=entry.name,
        )  # fmt: skip
    greedy = lane.strategy.name == "greedy"
    active = effective_stages(lane, {})
    notes = [*lane.notes]
    body: dict[str, Any] = {"model": can.model, "max_tokens": lane.max_new_tokens, **OFF[can.kind]}
    for stage in active:
        if not stage.idle:
            body |= _parameters(stage.stage, entry, can)
    if greedy:
        body["temperature"] = 0.0
    elif can.kind == "vllm" and body["temperature"] < VLLM_COLDEST:
        notes.append(Text("vLLM samples at 0.01 for any temperature between 0 and 0.01.", "温度在 0 与 0.01 之间时，vLLM 一律按 0.01 采样。"))
    if lane.defaults == "inherit" and not greedy:
        notes.append(
            Text(
                "The model's own generation config stays on the server and is not used; every value was sent.",
                "模型自带的生成配置留在服务器上，未被使用；所有参数均已显式发送。",
            )
        )
    on = {stage.stage.name for stage in active if not stage.idle}
    if "min_p" in on and on & {"top_k", "top_p"}:
        notes.append(_order_note(can))
    body["seed"] = request.seed % 2**32 if can.kind == "llama.cpp" else request.seed
    if lane.stop:
        body["stop"] = list(lane.stop)
    chat = _as_chat(request, entry, can)
    if chat:
        system = [{"role": "system", "content": request.prompt.system}] if request.prompt.system else []
        body["messages"] = [*system, {"role": "user", "content": request.prompt.text}]
    else:
        body["prompt"] = request.prompt.text
        if request.prompt.system:
            notes.append(Text("Raw text has no place for a system text: it is left out.", "原始文本中没有系统提示的位置：已忽略。"))
    body |= _telling(can, chat)
    if can.context is not None and lane.max_new_tokens >= can.context:
        raise BadValue(
            "server_context",
            Text(
                "{model} on {server} takes {most} tokens in all: ask for fewer than {value} new ones.",
                "{server} 上的 {model} 总共只能容纳 {most} 个词元：请求的新词元须少于 {value}。",
            ),
            model=can.model, server=entry.name, most=can.context, value=lane.max_new_tokens,
        )  # fmt: skip
    return ServerRequest(chat, body, _stages_about(active, can), tuple(notes))


def refused_stages(can: Capabilities) -> dict[str, Literal["unknown", "refused"]]:
    """The stages that can't run on a server: it has no name for them, or refuses them as it was started."""
    found: dict[str, Literal["unknown", "refused"]] = {}
    for name, stage in stages.all().items():
        names = [_name_of(stage(), knob, can.kind) for knob in knobs_of(stage) if knob != "repetition_scope"]
        if None in names:
            found[name] = "unknown"
        elif set(names) & set(can.refused):
            found[name] = "refused"
    return found


def _telling(can: Capabilities, chat: bool) -> dict[str, Any]:
    """What a server is asked to tell besides the text, as far as it can."""
    asked: dict[str, Any] = {"stream": True}
    if can.usage:
        asked["stream_options"] = {"include_usage": True}
    if can.logprobs:
        top = min(CANDIDATES, can.logprobs)
        asked |= {"logprobs": True, "top_logprobs": top} if chat else {"logprobs": top}
    if can.token_ids:
        asked["return_token_ids"] = True
    if can.request_metrics or can.request_speculation:
        asked["include_metrics"] = True
    return asked


def _as_chat(request: Request, entry: ServerEntry, can: Capabilities) -> bool:
    """Whether the prompt goes through the chat template: as asked, else if the server has both a template and the path."""
    wanted = request.prompt.chat
    if (wanted and not can.chat) or (wanted is False and not can.completions):
        raise PlaygroundError(
            "server_prompt",
            Text("{server} takes {kind} for {model}.", "{server} 对 {model} 只接受{kind_zh}。"),
            server=entry.name, model=can.model, kind="only raw text" if wanted else "only chats", kind_zh="原始文本" if wanted else "对话",
        )  # fmt: skip
    return can.chat if wanted is None else wanted


def _parameters(stage: Stage, entry: ServerEntry, can: Capabilities) -> dict[str, Any]:
    """One stage as the server's parameters; refused if it has no name for one of the knobs, or refuses it as it was started."""
    sent: dict[str, Any] = {}
    for knob, value in values_of(stage).items():
        if knob == "repetition_scope":
            if value != "prompt+output":
                raise _unknown(f"repetition_scope={value}", entry, can)
            continue
        name = _name_of(stage, knob, can.kind)
        if name is None:
            raise _unknown(knob, entry, can)
        if name in can.refused:
            raise PlaygroundError(
                "server_refuses_knob",
                Text(
                    "{server} refuses {knob}{why}: take it off, or run this lane elsewhere.",
                    "{server} 不接受 {knob}{why_zh}：请去掉它，或在别处运行这条通道。",
                ),
                server=entry.name, knob=knob,
                why=" while it speculates" if can.speculation else "", why_zh="（推测解码开启时）" if can.speculation else "",
            )  # fmt: skip
        if isinstance(stage, LogitBias):
            sent[name] = _biases(stage, entry)
        elif name == "bad_words":
            if not all(isinstance(word, str) for word in value):
                raise _unknown("bad_words by id", entry, can)
            sent[name] = list(value)
        else:
            sent[name] = value
    if can.kind == "vllm" and sent.get("temperature", 0) > 2:
        raise BadValue(
            "knob_range",
            Text(
                "temperature must be in [0, 2] on {server} (vLLM), got {value}.",
                "在 {server}（vLLM）上 temperature 必须在 [0, 2] 范围内，而给出的是 {value}。",
            ),
            server=entry.name, value=sent["temperature"],
        )  # fmt: skip
    return sent


def _name_of(stage: Stage, knob: str, kind: str) -> str | None:
    if kind == "llama.cpp":
        return LLAMA_CPP_NAMES.get(knob)
    return dict(knobs_of(type(stage))[knob].names).get("vllm" if kind == "vllm" else "openai")


def _biases(stage: LogitBias, entry: ServerEntry) -> dict[str, float]:
    found: dict[str, float] = {}
    for tokens, bias in stage.logit_bias:
        if isinstance(tokens, str):
            raise BadValue(
                "server_bias_text",
                Text(
                    "On a server logit_bias takes token ids (#12: 3), not text ({text}).",
                    "在服务器上 logit_bias 只接受词元编号（#12: 3），不接受文本（{text}）。",
                ),
                text=repr(tokens)[:40],
            )  # fmt: skip
        found |= {str(token): bias for token in tokens}
    return found


def _unknown(knob: str, entry: ServerEntry, can: Capabilities) -> PlaygroundError:
    known = sorted(set(OFF[can.kind]) - {"n", "ignore_eos", "cache_prompt", "repeat_last_n", "dynatemp_range", "mirostat"})
    return PlaygroundError(
        "server_knob_unknown",
        Text(
            "{server} ({kind}) has no {knob}; it takes {known}. Run this lane on this machine, or take {knob} off.",
            "{server}（{kind}）没有 {knob}；它支持 {known}。请在本机运行这条通道，或去掉 {knob}。",
        ),
        server=entry.name, kind=KIND_NAMES[can.kind], knob=knob, known=", ".join(known),
    )  # fmt: skip


def _no_strategy(lane: Lane, entry: ServerEntry, can: Capabilities) -> PlaygroundError:
    if lane.strategy.name == "beam" and can.beam_search:
        text = Text(
            "{server} can search with beams, but not while it streams, which this page needs. Run the lane on this machine.",
            "{server} 支持束搜索，但流式输出时不行，而本页需要流式输出。请在本机运行这条通道。",
        )
    else:
        text = Text(
            "{server} can run greedy and sample lanes, not {strategy}: run it on this machine.",
            "{server} 只能运行 greedy 和 sample 通道，不能运行 {strategy}：请在本机运行。",
        )
    return PlaygroundError("server_strategy", text, server=entry.name, strategy=lane.strategy.name)


def _order_note(can: Capabilities) -> Text:
    if can.kind == "vllm":
        return Text("vLLM applies min-p before top-k and top-p.", "vLLM 先做 min-p，再做 top-k 和 top-p。")
    return Text("The server applies its filters in its own order.", "服务器按自己的顺序应用过滤器。")


def _stages_about(active: tuple[EffectiveStage, ...], can: Capabilities) -> tuple[StageAbout, ...]:
    """The lane's stages in the order in which the server applies them, as far as that is known."""
    order = ORDERS["vllm"] if can.kind == "vllm" else ORDERS["transformers"]
    return tuple(
        StageAbout(entry.stage.name, entry.stage.kind, values_of(entry.stage), entry.origin, entry.idle)  # type: ignore[arg-type]
        for entry in sorted(active, key=lambda entry: order.index(entry.stage.name))
    )
