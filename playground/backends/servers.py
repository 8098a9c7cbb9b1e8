"""Which servers there are: named entries from a small file and the environment, and typed-in addresses where that is allowed.

    [servers.lab]
    url = "http://gpu-box:8000"             # with or without /v1
    key_env = "LAB_KEY"                     # the variable that holds the key, if the server wants one
    metrics = "http://gpu-box:8000/metrics" # only if it is somewhere else

The file is named by PLAYGROUND_SERVERS_FILE, else it is `servers.toml` in the user's config folder. PLAYGROUND_SERVERS holds
more of them: `lab=http://gpu-box:8000 fast=https://llm.example.org`; their keys are PLAYGROUND_KEY_LAB, PLAYGROUND_KEY_FAST.
"""

from __future__ import annotations

import dataclasses
import os
import re
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from playground.backends.catalog import public_host
from playground.errors import BadValue, PlaygroundError, Text

_NAME = re.compile(r"[\w][\w.-]{0,59}")


@dataclass(frozen=True)
class ServerEntry:
    """One server: where it answers, and what it is called here.

    `root` has no /v1; `api` is where the OpenAI-compatible paths begin. `configured` entries may have private
    addresses on a public page, typed-in ones may not. The key itself is read when it is sent, and never kept or shown.
    """

    name: str
    root: str
    api: str
    metrics: str
    key_env: str | None = None
    configured: bool = True

    @property
    def key(self) -> str | None:
        """The key from the environment, if the entry names one and it is set."""
        return os.environ.get(self.key_env) or None if self.key_env else None

    @property
    def private(self) -> bool:
        """Whether this server may have a private address: if its owner configured it, or if nobody but the owner uses this app."""
        return self.configured or not public_host()


def config_file() -> Path:
    """Where the named servers are written down."""
    if named := os.environ.get("PLAYGROUND_SERVERS_FILE"):
        return Path(named).expanduser()
    if sys.platform == "win32" and os.environ.get("APPDATA"):
        return Path(os.environ["APPDATA"]) / "decoding-playground" / "servers.toml"
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "decoding-playground" / "servers.toml"


def entries() -> dict[str, ServerEntry]:
    """The configured servers by name: the file's, then the environment's. Raises `BadValue` for an entry that can't be used."""
    found = {name: _from_file(name, values) for name, values in _file().items()}
    for number, words in enumerate(re.split(r"[\s,]+", os.environ.get("PLAYGROUND_SERVERS", "").strip()), 1):
        if words:
            name, equals, url = words.partition("=")
            if not equals or "/" in name:  # a bare address, which may itself hold an equals sign
                name, url = f"server-{number}", words
            found[name] = entry(name, url, key_env=f"PLAYGROUND_KEY_{re.sub(r'[^A-Z0-9]', '_', name.upper())}")
    return found


def resolve(name: str) -> ServerEntry:
    """A server by its name, or by its address where nobody but the owner uses this app."""
    known = entries()
    if name in known:
        return known[name]
    if name.startswith(("http://", "https://")):
        if public_host():
            raise BadValue(
                "server_not_public",
                Text(
                    "On this public page only its own servers can be used: {names}. On your own machine any address works.",
                    "在此公开页面上只能使用已配置的服务器：{names}。在自己的机器上可用任意地址。",
                ),
                names=", ".join(known) or "–",
            )  # fmt: skip
        return entry(_host(name), name, configured=False)
    raise BadValue(
        "server_unknown",
        Text(
            "There is no server called {name}; there are {names}. Name one in servers.toml or PLAYGROUND_SERVERS, or give its address.",
            "没有名为 {name} 的服务器；可用的有 {names}。请在 servers.toml 或 PLAYGROUND_SERVERS 中命名，或直接给出地址。",
        ),
        name=repr(name)[:80], names=", ".join(known) or "–",
    )  # fmt: skip


def entry(name: str, url: Any, key_env: str | None = None, metrics: Any = None, configured: bool = True) -> ServerEntry:
    """A checked entry: http or https, a host, and no user, query or fragment in the address."""
    if configured and not _NAME.fullmatch(name):
        raise BadValue(
            "server_name",
            Text(
                "A server's name has letters, digits, dot, dash and underscore, got {name}.",
                "服务器名称由字母、数字、点、横线和下划线组成，而给出的是 {name}。",
            ),
            name=repr(name)[:80],
        )  # fmt: skip
    address = _checked(name, url)
    root = address.removesuffix("/v1")
    return ServerEntry(
        name, root, f"{root}/v1", _checked(name, metrics) if metrics is not None else f"{root}/metrics", key_env=key_env, configured=configured
    )


def _checked(name: str, url: Any) -> str:
    try:
        parts = urlsplit(url if isinstance(url, str) and len(url) <= 300 else "")
        good = parts.scheme in ("http", "https") and parts.hostname and not (parts.username or parts.password or parts.query or parts.fragment)
        good = good and parts.port != 0 and not any(character.isspace() or not character.isprintable() for character in url)
    except ValueError:  # a port that is no number, half a bracket
        good = False
    if not good:
        raise BadValue(
            "server_address",
            Text(
                "The address of server {name} must look like http://host:8000 (http or https, no password in it), got {url}.",
                "服务器 {name} 的地址应形如 http://host:8000（http 或 https，不含密码），而给出的是 {url}。",
            ),
            name=name[:80], url=repr(url)[:120],
        )  # fmt: skip
    return url.rstrip("/")


def _host(url: str) -> str:
    try:
        return urlsplit(url).netloc.rpartition("@")[2][:60] or url[:60]
    except ValueError:
        return url[:60]


def _from_file(name: str, values: Any) -> ServerEntry:
    allowed = {"url", "key_env", "metrics"}
    if not isinstance(values, Mapping) or not set(values) <= allowed or not isinstance(values.get("key_env", ""), str):
        raise BadValue(
            "server_entry",
            Text("Server {name} has url, key_env and metrics, and nothing else.", "服务器 {name} 只有 url、key_env 和 metrics。"),
            name=str(name)[:80],
        )  # fmt: skip
    return entry(name, values.get("url"), values.get("key_env"), values.get("metrics"))


def _file() -> Mapping[str, Any]:
    path = config_file()
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(path, str(error)) from error
    try:
        servers = tomllib.loads(text).get("servers", {})
    except tomllib.TOMLDecodeError as error:
        raise _unreadable(path, str(error)) from error
    if not isinstance(servers, Mapping):
        raise _unreadable(path, "[servers.name]")
    return servers


def _unreadable(path: Path, reason: str) -> PlaygroundError:
    return PlaygroundError(
        "servers_file",
        Text("The servers in {path} can't be read: {reason}.", "无法读取 {path} 中的服务器：{reason}。"),
        path=path,
        reason=reason[:200],
    )


@dataclass(frozen=True)
class Capabilities:
    """What a server can do with one of its models, found out by what it answers; None is not known.

    `logprobs` is how many of the likeliest tokens it names per step (0: none), `scale` whether their log-probabilities are
    the model's own or those after temperature and filters. `refused` names parameters that it refuses although it knows
    them (min_p and logit_bias under speculation). `families` are the metrics that it publishes.
    """

    kind: Literal["vllm", "llama.cpp", "other"]
    version: str | None
    models: tuple[tuple[str, int | None], ...]
    model: str
    completions: bool
    chat: bool
    token_ids: bool
    logprobs: int
    scale: Literal["raw_log_probability", "processed_log_probability"] | None
    usage: bool
    request_metrics: bool
    request_speculation: bool
    metrics: bool
    families: tuple[str, ...]
    speculation: bool | None
    beam_search: bool
    refused: tuple[str, ...]

    @property
    def context(self) -> int | None:
        """The longest text that the model takes, in tokens."""
        return dict(self.models).get(self.model)

    def to_json(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "context": self.context}
