"""Weights from the Hugging Face Hub: asked for first, so that what can't work is said before gigabytes have come."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import httpx
import huggingface_hub
from huggingface_hub import HfApi, constants, hf_hub_download, try_to_load_from_cache
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
)
from tqdm.std import tqdm

from playground.backends.progress import Report, downloaded
from playground.errors import ModelUnavailable, Text

#: Seconds to wait for the Hub's first answer: a lecture hall without network should not wait for long.
PATIENCE = 4.0

#: What is fetched beside the weights: configuration, tokenizer, chat template.
_SMALL_FILES = (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "vocab.json", "vocab.txt", "merges.txt", "tokenizer.model", "spiece.model", "chat_template.jinja", "chat_template.json",
)  # fmt: skip

_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"

_PICKLED = (".bin", ".pt", ".pth", ".ckpt")


@dataclass(frozen=True)
class Snapshot:
    """A folder with everything that loading needs, and the commit that it holds."""

    folder: Path
    revision: str


def fetch(repository: str, gguf: str | None, report: Report, check: Callable[[int], object]) -> Snapshot:
    """The model's files, from the Hub or, where it can't be reached, from its cache on this machine.

    `check` is called with the number of parameters, where the Hub knows it, before any weights are fetched.
    HF_ENDPOINT, HF_HUB_OFFLINE, HF_TOKEN and the cache's variables work as everywhere. Raises `ModelUnavailable`.
    """
    try:
        info = HfApi().model_info(repository, timeout=PATIENCE, files_metadata=True)
    except (RepositoryNotFoundError, HFValidationError) as error:
        _refuse(repository, error)
    except Exception as error:  # whatever the HTTP library raises when nobody answers, or when the answer isn't the Hub's
        held = cached(repository, gguf)
        if held is not None:
            return held
        _unreachable(repository, error)
    sizes = {file.rfilename: file.size or 0 for file in info.siblings or ()}
    wanted = _wanted(repository, gguf, sizes)
    if info.safetensors is not None and info.safetensors.total and gguf is None:
        check(info.safetensors.total)
    try:
        return _download(repository, wanted, sizes, report)
    except ModelUnavailable:
        raise
    except (RepositoryNotFoundError, RemoteEntryNotFoundError) as error:
        _refuse(repository, error)
    except (ValueError, KeyError) as error:
        raise ModelUnavailable(
            "weights_broken", Text("The index of {model}'s weights is broken.", "{model} 的权重索引已损坏。"), model=repository
        ) from error  # fmt: skip
    except Exception as error:  # a connection that breaks in the middle; the parts that came are kept by the Hub's cache
        _unreachable(repository, error)


def _wanted(repository: str, gguf: str | None, sizes: dict[str, int]) -> list[str]:
    """Which of a repository's files loading needs; shards are found in their index."""
    if gguf is not None:
        if gguf not in sizes:
            there = [name for name in sizes if name.endswith(".gguf")]
            raise ModelUnavailable(
                "gguf_unknown",
                Text("{model} has no file {file}; its GGUF files: {there}.", "{model} 没有文件 {file}；它的 GGUF 文件有：{there}。"),
                model=repository, file=gguf, there=", ".join(there[:8]) or "–",
            )  # fmt: skip
        return [gguf]
    weights = SINGLE if SINGLE in sizes else INDEX
    if weights not in sizes:
        raise _without_weights(repository, list(sizes))
    if "config.json" not in sizes:
        raise without_config(repository)
    return ["config.json", *(name for name in sizes if name in _SMALL_FILES and name != "config.json"), weights]


def cached(repository: str, gguf: str | None = None) -> Snapshot | None:
    """What the Hub's cache on this machine holds of a model, if it is all that loading needs."""
    first = try_to_load_from_cache(repository, gguf or "config.json")
    if not isinstance(first, str):
        return None
    folder = Path(first).parents[Path(gguf or "config.json").as_posix().count("/")]
    if gguf is None and not (_has_weights(folder) and any((folder / name).exists() for name in _TOKENIZERS)):
        return None
    return Snapshot(folder, folder.name)


def _has_weights(folder: Path) -> bool:
    """Whether the weights are here whole: one file, or every shard of the index."""
    if (folder / SINGLE).exists():
        return True
    try:
        shards = set(json.loads((folder / INDEX).read_text("utf-8"))["weight_map"].values())
    except (OSError, ValueError, KeyError):
        return False
    return bool(shards) and all((folder / shard).exists() for shard in shards)


def _download(repository: str, wanted: list[str], sizes: dict[str, int], report: Report) -> Snapshot:
    """Fetch every wanted file into the Hub's cache, all of the commit that the first one came from."""
    cache = Path(constants.HF_HUB_CACHE)
    cache.mkdir(parents=True, exist_ok=True)
    done, total = 0, sum(sizes[name] for name in wanted)

    def count(some: int) -> None:
        nonlocal done
        done += some
        report(downloaded(repository, done, total))

    def fetched(name: str, revision: str | None = None) -> Path:
        return Path(hf_hub_download(repository, name, revision=revision, etag_timeout=PATIENCE, tqdm_class=_bar(count)))

    if not isinstance(try_to_load_from_cache(repository, wanted[0]), str):
        _room(repository, sizes[wanted[0]], cache)
    # The default revision is asked for by name, so that the cache remembers which commit it is when the Hub can't be reached.
    folder = fetched(wanted[0]).parents[wanted[0].count("/")]
    revision = folder.name
    if INDEX in wanted:
        index = json.loads(fetched(INDEX, revision).read_text("utf-8"))
        wanted = [*wanted, *sorted(set(index["weight_map"].values()))]
    missing = [name for name in wanted[1:] if not isinstance(try_to_load_from_cache(repository, name, revision=revision), str)]
    total = done + sum(sizes[name] for name in missing)
    _room(repository, total - done, cache)
    for name in missing:
        fetched(name, revision)
    return Snapshot(folder, revision)


def _room(repository: str, needed: int, cache: Path) -> None:
    """Refuse to begin a download of more bytes than the disk has left."""
    free = shutil.disk_usage(cache).free
    if needed > free:
        raise ModelUnavailable(
            "disk_full",
            Text(
                "{model} needs {needed} GB of disk, {free} GB are free in {folder}.",
                "{model} 需要 {needed} GB 磁盘空间，而 {folder} 只剩 {free} GB。",
            ),
            model=repository, needed=f"{needed / 1e9:.1f}", free=f"{free / 1e9:.1f}", folder=cache,
        )  # fmt: skip


def _bar(count: Callable[[int], None]) -> type[tqdm]:
    """A progress bar that draws nothing and tells how many bytes have come, as `hf_hub_download` wants it: a class."""

    class Counting(tqdm):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            options.pop("name", None)
            super().__init__(*arguments, **{**options, "disable": True})
            count(int(options.get("initial") or 0))  # what an earlier, broken download left

        def update(self, n: float | None = 1) -> bool | None:
            count(int(n or 0))
            return None

    return Counting


def _without_weights(repository: str, files: list[str]) -> ModelUnavailable:
    """Why a repository's files can't be loaded: only pickled weights, only GGUF, or none at all."""
    ggufs = [name for name in files if name.endswith(".gguf")]
    if ggufs:
        return ModelUnavailable(
            "gguf_unnamed",
            Text("{model} holds GGUF files: name one, as in {model}:{file}.", "{model} 中是 GGUF 文件：请指明一个，例如 {model}:{file}。"),
            model=repository, file=ggufs[0],
        )  # fmt: skip
    return without_weights(repository, files)


def without_weights(name: str, files: list[str]) -> ModelUnavailable:
    """The error for a folder or repository with no safetensors: pickled weights can run code when they are read, so they aren't."""
    if any(file.endswith(_PICKLED) for file in files):
        return ModelUnavailable(
            "weights_pickled",
            Text(
                "{model} has only pickled weights (.bin), which can run code when they are read: only safetensors and GGUF are loaded here.",
                "{model} 只有 pickle 格式的权重（.bin），读取时可能执行代码：这里只加载 safetensors 和 GGUF。",
            ),
            model=name,
        )  # fmt: skip
    lacking = Text("{model} has no weights (model.safetensors).", "{model} 没有权重文件（model.safetensors）。")
    return ModelUnavailable("weights_missing", lacking, model=name)


def without_config(name: str) -> ModelUnavailable:
    return ModelUnavailable("config_missing", Text("{model} has no config.json that can be read.", "{model} 没有可读取的 config.json。"), model=name)


def _refuse(repository: str, error: Exception) -> NoReturn:
    """Turn the Hub's own refusal into a sentence."""
    if isinstance(error, GatedRepoError):
        raise ModelUnavailable(
            "model_gated",
            Text(
                "{model} is gated: accept its terms at {endpoint}/{model}, and start with HF_TOKEN set.",
                "{model} 需要授权：请在 {endpoint}/{model} 接受条款，并设置 HF_TOKEN 后启动。",
            ),
            model=repository, endpoint=constants.ENDPOINT,
        ) from error  # fmt: skip
    if isinstance(error, (RepositoryNotFoundError, HFValidationError)):
        raise ModelUnavailable(
            "model_unknown",
            Text(
                "The Hub has no public model called {model}. Check the name (organisation/model), or set HF_TOKEN if it is private.",
                "Hub 上没有名为 {model} 的公开模型。请检查名称（组织/模型），若为私有模型请设置 HF_TOKEN。",
            ),
            model=repository[:100],
        ) from error  # fmt: skip
    raise ModelUnavailable(
        "model_incomplete", Text("A file of {model} is missing on the Hub.", "Hub 上缺少 {model} 的某个文件。"), model=repository
    ) from error  # fmt: skip


def _unreachable(repository: str, error: Exception) -> NoReturn:
    """Turn a Hub that doesn't answer, or answers with an error of its own, into a sentence."""
    if isinstance(error, HfHubHTTPError):
        raise ModelUnavailable(
            "hub_refused",
            Text("The Hub answered {status} for {model}. Try again in a while.", "Hub 对 {model} 返回了 {status}。请稍后重试。"),
            model=repository, status=error.response.status_code,
        ) from error  # fmt: skip
    if isinstance(error, OfflineModeIsEnabled) or constants.HF_HUB_OFFLINE:
        raise ModelUnavailable(
            "model_offline",
            Text(
                "{model} is not on this machine and offline mode is on (HF_HUB_OFFLINE). Fetch it once with the network, or choose another model.",
                "本机没有 {model}，而离线模式已打开（HF_HUB_OFFLINE）。请联网获取一次，或选择其他模型。",
            ),
            model=repository,
        ) from error  # fmt: skip
    reason = "" if isinstance(error, LocalEntryNotFoundError) else f" ({type(error).__name__})"
    raise ModelUnavailable(
        "hub_unreachable",
        Text(
            "{endpoint} can't be reached{reason}, and {model} is not on this machine. Check the network or HF_ENDPOINT, "
            "or choose the default model or a local folder.",
            "无法连接 {endpoint}{reason}，而本机没有 {model}。请检查网络或 HF_ENDPOINT，或选择默认模型或本地文件夹。",
        ),
        endpoint=constants.ENDPOINT, model=repository, reason=reason,
    ) from error  # fmt: skip


def answers(seconds: float = 3.0) -> bool:
    """Whether the Hub (or the mirror that HF_ENDPOINT names) can be reached from here at all."""
    if constants.HF_HUB_OFFLINE:
        return False
    try:
        httpx.head(constants.ENDPOINT, timeout=seconds, follow_redirects=False)
    except httpx.HTTPError:
        return False
    return True


def is_here(repository: str) -> bool:
    """Whether the Hub's cache on this machine knows the model already."""
    return isinstance(try_to_load_from_cache(repository, "config.json"), str)


def silence() -> None:
    """No progress bars on the terminal: progress is reported."""
    huggingface_hub.utils.disable_progress_bars()
