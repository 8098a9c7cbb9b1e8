"""Which models there are, and the few that are in memory.

Nothing here imports torch or transformers before a model is asked for: that takes seconds, and the page opens before.
"""

from __future__ import annotations

import gc
import re
import secrets
import sys
import threading
from collections.abc import Collection
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from playground.backends import embedded
from playground.backends.progress import Progress, Report, unreported
from playground.errors import BadValue, ModelUnavailable, PlaygroundError, Text

if TYPE_CHECKING:
    import torch

    from playground.backends.cpu_linear import SplitLinears
    from playground.backends.reading import Reading
    from playground.backends.vocabulary import TokenizerVocabulary


NO_NOTE = Text("", "")


@dataclass(frozen=True)
class CatalogEntry:
    """One model that can be chosen; models of one `pair` share a tokenizer, so a small one can draft for a large one."""

    id: str
    name: str
    source: Literal["embedded", "hub", "folder", "gguf"]
    note: Text = NO_NOTE
    chat: bool | None = None
    languages: tuple[str, ...] = ()
    pair: str | None = None
    role: Literal["target", "draft"] | None = None
    gated: bool = False
    parameters: int | None = None
    hub: str | None = None
    file: str | None = None
    path: str | None = None


DEFAULT = "smollm2-135m"

_ENTRIES = (
    CatalogEntry(
        DEFAULT, embedded.NAME, "embedded", hub=embedded.HUB_ID, chat=True, languages=("en",), pair="smollm2", role="draft", parameters=134_515_008,
        note=Text("The default: small, English-centred, fetched with the app.", "默认模型：小巧，以英语为主，随应用获取。"),
    ),
    CatalogEntry(
        "gpt2", "gpt2", "hub", hub="openai-community/gpt2", chat=False, languages=("en",), pair="gpt2", role="target", parameters=124_439_808,
        note=Text("The model of the classic experiment; it continues text, English only.", "经典实验所用的模型；只续写文本，仅英语。"),
    ),
    CatalogEntry(
        "Qwen/Qwen3-0.6B", "Qwen3-0.6B", "hub", hub="Qwen/Qwen3-0.6B", chat=True, languages=("zh", "en"), pair="qwen3", role="draft",
        parameters=596_049_920, note=Text("Chinese and English; drafts for Qwen3-4B.", "中文和英文；可为 Qwen3-4B 起草。"),
    ),
    CatalogEntry(
        "Qwen/Qwen3-4B", "Qwen3-4B", "hub", hub="Qwen/Qwen3-4B", chat=True, languages=("zh", "en"), pair="qwen3", role="target",
        parameters=4_022_468_096, note=Text("Chinese and English; wants a GPU.", "中文和英文；需要 GPU。"),
    ),
    CatalogEntry(
        "HuggingFaceTB/SmolLM2-360M-Instruct", "SmolLM2-360M-Instruct", "hub", hub="HuggingFaceTB/SmolLM2-360M-Instruct", chat=True,
        languages=("en",), pair="smollm2", role="draft", parameters=361_821_120,
        note=Text("The default's larger sister.", "默认模型的较大版本。"),
    ),
    CatalogEntry(
        "HuggingFaceTB/SmolLM2-1.7B-Instruct", "SmolLM2-1.7B-Instruct", "hub", hub="HuggingFaceTB/SmolLM2-1.7B-Instruct", chat=True,
        languages=("en",), pair="smollm2", role="target", parameters=1_711_376_384,
        note=Text("The target that the smaller SmolLM2 models draft for.", "由较小的 SmolLM2 模型为其起草的目标模型。"),
    ),
    CatalogEntry(
        "distilgpt2", "distilgpt2", "hub", hub="distilbert/distilgpt2", chat=False, languages=("en",), pair="gpt2", role="draft",
        parameters=81_912_576, note=Text("Half of gpt2's layers; drafts for it.", "层数为 gpt2 的一半；可为其起草。"),
    ),
    CatalogEntry(
        "gpt2-xl", "gpt2-xl", "hub", hub="openai-community/gpt2-xl", chat=False, languages=("en",), pair="gpt2", role="target",
        parameters=1_557_611_200, note=Text("The largest gpt2.", "最大的 gpt2。"),
    ),
    CatalogEntry(
        "meta-llama/Llama-2-7b-hf", "Llama-2-7b", "hub", hub="meta-llama/Llama-2-7b-hf", chat=False, languages=("en",), pair="llama2", role="target",
        gated=True, parameters=6_738_415_616,
        note=Text("With llama-160m the classic example of vLLM; gated, wants a GPU.", "与 llama-160m 组成 vLLM 的经典示例；需要授权和 GPU。"),
    ),
    CatalogEntry(
        "JackFram/llama-160m", "llama-160m", "hub", hub="JackFram/llama-160m", chat=False, languages=("en",), pair="llama2", role="draft",
        parameters=162_417_408, note=Text("Drafts for Llama-2-7b.", "为 Llama-2-7b 起草。"),
    ),
)  # fmt: skip

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9][\w.-]{0,95})?")


def entries() -> tuple[CatalogEntry, ...]:
    """The models that are offered by name, the default first."""
    return _ENTRIES


def public_host() -> bool:
    """Whether strangers use this machine: a Space, or PLAYGROUND_PUBLIC=1."""
    return embedded.on_space() or embedded.is_set("PLAYGROUND_PUBLIC")


def resolve(name: str | None, public: bool | None = None) -> CatalogEntry:
    """The entry of a catalog id, a Hub id, a local folder, a .gguf file, or "organisation/model:file.gguf" on the Hub.

    None is the default model. On a public host only the catalog's own models are taken. Raises `ModelUnavailable`.
    """
    name = (name or DEFAULT).strip()
    for entry in _ENTRIES:
        names = (entry.id, entry.name, entry.hub) if entry.source == "hub" else (entry.id, entry.name)
        if name.lower() in {known.lower() for known in names if known is not None}:
            return entry
    if public_host() if public is None else public:
        if name.lower() == embedded.HUB_ID.lower():
            return _ENTRIES[0]
        raise ModelUnavailable(
            "model_not_public",
            Text(
                "On this public page only its own models can be used, not {model}: {names}. On your own machine any Hub id or folder works.",
                "在此公开页面上只能使用目录中的模型，不能使用 {model}：{names}。在自己的机器上可用任意 Hub 模型或文件夹。",
            ),
            model=repr(name)[:100], names=", ".join(entry.id for entry in _ENTRIES),
        )  # fmt: skip
    return _local(name) or _on_hub(name)


def paired_draft(target: CatalogEntry) -> CatalogEntry:
    """The smallest model that shares a tokenizer with this one and is smaller; raises `ModelUnavailable` where there is none."""
    smaller = [
        (entry.parameters, entry)
        for entry in _ENTRIES
        if target.pair is not None and entry.pair == target.pair and entry.parameters and entry.parameters < (target.parameters or 0)
    ]
    if not smaller:
        raise ModelUnavailable(
            "draft_model_unknown",
            Text(
                "The catalog has no smaller model that could draft for {model}: name one as draft_model.",
                "目录中没有可为 {model} 起草的更小模型：请用 draft_model 指定一个。",
            ),
            model=target.name,
        )  # fmt: skip
    return min(smaller, key=lambda pair: pair[0])[1]


def _local(name: str) -> CatalogEntry | None:
    """A folder or GGUF file of this machine, if the name is one."""
    try:
        path = Path(name).expanduser()
        if path.is_dir():
            path = path.resolve()
            return CatalogEntry(str(path), path.name, "folder", path=str(path))
        if path.suffix.lower() == ".gguf" and path.is_file():
            path = path.resolve()
            return CatalogEntry(str(path), path.stem, "gguf", path=str(path))
    except (OSError, ValueError, RuntimeError):  # a name that no file can have, or a home that doesn't exist
        return None
    looks_local = name.startswith((".", "/", "~", "\\")) or "\\" in name or (name.lower().endswith(".gguf") and ":" not in name)
    if looks_local:
        raise ModelUnavailable(
            "model_folder_unknown",
            Text("There is no folder or .gguf file {path} on this machine.", "这台机器上没有文件夹或 .gguf 文件 {path}。"),
            path=repr(name)[:200],
        )  # fmt: skip
    return None


def _on_hub(name: str) -> CatalogEntry:
    repository, colon, file = name.partition(":")
    well_formed = _HUB_NAME.fullmatch(repository) and ".." not in repository and "--" not in repository
    if not well_formed or (colon and (not re.fullmatch(r"[\w./ -]+\.gguf", file) or ".." in file)):
        raise ModelUnavailable(
            "model_unknown",
            Text(
                "{model} is no model's name: give a Hub id (organisation/model), organisation/model:file.gguf, a folder or a .gguf file.",
                "{model} 不是模型名称：请给出 Hub 标识（组织/模型）、组织/模型:文件.gguf、文件夹或 .gguf 文件。",
            ),
            model=repr(name)[:100],
        )  # fmt: skip
    if colon:
        return CatalogEntry(name, Path(file).stem, "gguf", hub=repository, file=file)
    return CatalogEntry(repository, repository.rpartition("/")[2], "hub", hub=repository)


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A model in memory and all that a lane wants to know about it. Shared by lanes: nobody changes it."""

    key: str
    entry: CatalogEntry
    model: Any  # the transformers model, in eval mode, without gradients
    tokenizer: Any
    vocabulary: TokenizerVocabulary
    revision: str
    dtype: torch.dtype
    #: The format in which the file holds the weights; None where no file tells.
    weights: str | None
    device: torch.device
    #: The model's own defaults for generation, by knob name: only what its generation_config.json sets.
    generation_config: dict[str, Any]
    eos_ids: tuple[int, ...]
    context: int | None
    #: Whether the prompt may be read in pieces, and whether the model has a KV cache that can be used.
    reading: Reading = "in_pieces"
    #: How a CPU model's weights are read by all cores at once, where that is faster here.
    linears: SplitLinears | None = None


class Catalog:
    """The models in memory. Each is loaded once, however many ask; loads happen one after the other.

    One at a time, because each load is held against the memory that is free, which two at once would both count on.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._loading = threading.Lock()
        self._futures: dict[tuple[str, str, str], Future[LoadedModel]] = {}

    def get(self, name: str | None = None, device: str = "auto", dtype: str = "auto", report: Report = unreported) -> LoadedModel:
        """The model, loaded now if it isn't yet; raises `ModelUnavailable` or `BadValue`, and leaves the others as they are."""
        entry = resolve(name)
        from playground.backends import loading  # noqa: PLC0415  (torch and transformers take seconds; the page opens before)

        where = loading.choose_device(device)
        numbers = loading.choose_dtype(dtype, where)
        key = (entry.id, str(where), str(numbers))
        with self._guard:
            future = self._futures.get(key)
            is_mine = future is None
            if future is None:
                future = self._futures[key] = Future()
        if not is_mine:
            if not future.done():
                report(Progress("load", None, Text("{name} is being loaded already.", "{name} 正在加载中。").filled(name=entry.name)))
            return future.result()
        try:
            with self._loading:
                loaded = loading.load(entry, where, numbers, report)
        except BaseException as error:
            with self._guard:
                del self._futures[key]  # the next one to ask tries again
            future.set_exception(error)
            raise
        future.set_result(loaded)
        return loaded

    def loaded(self) -> tuple[LoadedModel, ...]:
        """What is in memory now."""
        with self._guard:
            return tuple(future.result() for future in self._futures.values() if future.done() and future.exception() is None)

    def release(self, except_keys: Collection[str] = ()) -> None:
        """Let go of every model that no lane uses: `except_keys` holds the keys (`LoadedModel.key`) of those that stay."""
        with self._guard:
            unused = [key for key, one in self._futures.items() if one.done() and one.exception() is None and one.result().key not in except_keys]
            for key in unused:
                del self._futures[key]
        if not unused:
            return  # a collection takes half a second when many runs are kept
        gc.collect()
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_available():
            torch.cuda.empty_cache()
        elif torch is not None and torch.backends.mps.is_available():
            torch.mps.empty_cache()


@dataclass(frozen=True)
class Rendered:
    """A prompt as the model gets it: the text with its template, the ids, and what the visitor should know about it."""

    text: str
    ids: tuple[int, ...]
    chat: bool
    notes: tuple[Text, ...] = field(default=())


def render(loaded: LoadedModel, text: str, chat: bool | None = None, system: str | None = None) -> Rendered:
    """Write a prompt as the model expects it: with its chat template if it has one (`chat` None), or as raw text.

    In a chat, what the visitor wrote can't end its own turn: the name of a special token is ordinary text in it. Raw text
    goes to the tokenizer as it stands, special tokens included, as with `tokenizer(text)`.
    Raises `BadValue` for an empty or too long prompt, `PlaygroundError` for a chat that the model can't hold.
    """
    has_template = bool(getattr(loaded.tokenizer, "chat_template", None))
    if chat and not has_template:
        raise PlaygroundError(
            "chat_template_missing",
            Text("{model} has no chat template: use raw text.", "{model} 没有对话模板：请使用原始文本。"),
            model=loaded.entry.name,
        )  # fmt: skip
    if chat is None:
        chat = has_template
    rendered = _in_chat(loaded, text, system) if chat else _raw(loaded, text, system)
    if not rendered.ids:
        nothing = Text("The prompt has no tokens: write something for the model to continue.", "提示词没有任何词元：请写点内容让模型继续。")
        raise BadValue("prompt_empty", nothing)
    most = None if loaded.context is None else loaded.context - 1
    if most is not None and len(rendered.ids) > most:
        raise BadValue(
            "prompt_tokens",
            Text("The prompt has {length} tokens, {model} can take {most}.", "提示词有 {length} 个词元，而 {model} 最多 {most} 个。"),
            length=len(rendered.ids), most=most, model=loaded.entry.name,
        )  # fmt: skip
    beyond = max(rendered.ids)
    if beyond >= loaded.vocabulary.size:
        raise PlaygroundError(
            "tokenizer_mismatch",
            Text("{model}'s tokenizer knows token {token}, its weights don't.", "{model} 的分词器有词元 {token}，而权重中没有。"),
            model=loaded.entry.name, token=beyond,
        )  # fmt: skip
    return rendered


def _raw(loaded: LoadedModel, text: str, system: str | None) -> Rendered:
    unused = Text("Raw text has no place for a system text: it is left out.", "原始文本中没有系统提示的位置：已忽略。")
    return Rendered(text, tuple(loaded.tokenizer(text).input_ids), False, (unused,) if system else ())


def _in_chat(loaded: LoadedModel, text: str, system: str | None) -> Rendered:
    vocabulary = loaded.vocabulary
    whole = _filled_template(loaded, text, system)
    ids = vocabulary.encode(whole)
    # The template once more, around marks instead of what the visitor wrote: the special tokens that it has by itself.
    marks = {secrets.token_hex(8): written for written in (text, system) if written}
    by_content = {written: mark for mark, written in marks.items()}
    frame = _filled_template(loaded, by_content.get(text, text), by_content.get(system or "", system))
    parts = re.split("(" + "|".join(marks) + ")", frame) if marks else [frame]
    pieces = [vocabulary.encode_literally(marks[part]) if part in marks else vocabulary.encode(part) for part in parts if part]
    apart = tuple(token for piece in pieces for token in piece)
    if [token for token in ids if token in vocabulary.special_ids] == [token for token in apart if token in vocabulary.special_ids]:
        return Rendered(whole, ids, True)  # the ordinary case: exactly what `apply_chat_template` gives
    taken = Text("The prompt spells special tokens: here they are ordinary text.", "提示词中写有特殊词元的名称：这里按普通文本处理。")
    return Rendered("".join(marks.get(part, part) for part in parts), apart, True, (taken,))


def _filled_template(loaded: LoadedModel, text: str, system: str | None) -> str:
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": text})
    try:
        return loaded.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    except Exception as error:  # a template is a small program from the model's folder: it may refuse a system text, or be broken
        raise PlaygroundError(
            "chat_template_failed",
            Text(
                "{model}'s chat template refuses this: {reason}. Leave out the system text, or use raw text.",
                "{model} 的对话模板拒绝：{reason}。请去掉系统提示，或使用原始文本。",
            ),
            model=loaded.entry.name, reason=str(error)[:160],
        ) from error  # fmt: skip
