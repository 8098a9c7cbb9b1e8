"""HTTP to servers that nobody vouches for: checked addresses, no redirects, bounded replies, and a way to hang up.

A name is resolved once per request and the connection goes to the address that was checked, so that a name which
changes its address between the check and the connection gains nothing.
"""

from __future__ import annotations

import functools
import ipaddress
import json
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httpx2

from playground.errors import PlaygroundError, Text

#: What a request carries besides its body; everything else that a client library adds stays here.
SENT_HEADERS = ("host", "accept", "content-type", "content-length", "authorization", "user-agent")

#: The longest line of a stream, in bytes: a chunk with fifty candidates per token takes some ten thousand.
LONGEST_LINE = 4_000_000


class ServerFailed(PlaygroundError):
    """A server that can't be used now: gone, slow, refusing, or answering something else than what it should."""


@dataclass(frozen=True)
class Bounds:
    """How long and how much a reply may be: seconds to connect, seconds without news, seconds and bytes in all."""

    connect: float = 5.0
    silence: float = 60.0
    seconds: float = 900.0
    bytes: int = 16_000_000


@dataclass
class Wire:
    """One request on its way: when it was sent, and the socket that another thread may cut."""

    sent: float | None = None
    cut: bool = False
    _socket: Any = None

    def watch(self, name: str, info: dict[str, Any]) -> None:
        """For the HTTP library, which tells of every step: keeps the socket and the moment of sending."""
        if name in ("connection.connect_tcp.complete", "connection.start_tls.complete"):
            self._socket = info["return_value"].get_extra_info("socket")
            if self.cut:
                self.hang_up()
        elif name.endswith("send_request_headers.started"):
            self.sent = time.perf_counter()

    def hang_up(self) -> None:
        """End the request: whoever waits for data learns it at once."""
        self.cut = True
        if self._socket is not None:
            with suppress(OSError):  # it may be closed already
                self._socket.shutdown(socket.SHUT_RDWR)


def is_private(address: str) -> bool:
    """Whether an address lies inside a machine or a network, also if an IPv6 address only wraps it."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour
        if ip in ipaddress.ip_network("64:ff9b::/96"):
            inner = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        if inner is not None:
            return is_private(str(inner))
    return not ip.is_global or ip.is_multicast


def checked_addresses(host: str, port: int, private: bool) -> list[str]:
    """The addresses of a host, resolved now; refused where one is private and `private` ones aren't allowed."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ServerFailed("server_unknown_host", Text("There is no host called {host}.", "没有名为 {host} 的主机。"), host=host[:100]) from error
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
    if not private and any(map(is_private, addresses)):
        raise ServerFailed(
            "server_private",
            Text(
                "{host} is an address inside this machine or its network: on a public page only servers that its owner configured may be there.",
                "{host} 是本机或内部网络的地址：在公开页面上，只有管理员配置的服务器可以使用这类地址。",
            ),
            host=host[:100],
        )  # fmt: skip
    return addresses


@functools.cache
def _certificates() -> ssl.SSLContext:
    """Whom to believe on https: read once, as it takes longer than a request does."""
    return httpx2.create_ssl_context()


class GuardedTransport(httpx2.BaseTransport):
    """Connects to the address that was checked, sends no more than it must, and bounds what comes back."""

    def __init__(self, private: bool, bounds: Bounds, wire: Wire, with_key: bool) -> None:
        self._private, self._bounds, self._wire = private, bounds, wire
        self._headers = SENT_HEADERS if with_key else tuple(name for name in SENT_HEADERS if name != "authorization")
        self._inner = httpx2.HTTPTransport(verify=_certificates(), trust_env=False)

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        url = request.url
        if url.scheme not in ("http", "https"):
            raise ServerFailed(
                "server_scheme", Text("A server's address begins with http:// or https://.", "服务器地址以 http:// 或 https:// 开头。")
            )
        headers = [(name, value) for name, value in request.headers.multi_items() if name.lower() in self._headers]
        addresses = checked_addresses(url.host, url.port or (443 if url.scheme == "https" else 80), self._private)
        for number, address in enumerate(addresses, 1):
            pinned = httpx2.Request(
                request.method,
                url.copy_with(host=address),
                headers=[*headers, ("Accept-Encoding", "identity")],
                stream=request.stream,
                extensions={**request.extensions, "sni_hostname": url.host, "trace": self._wire.watch},
            )
            try:
                response = self._inner.handle_request(pinned)
            except httpx2.ConnectError:
                if number == len(addresses) or self._wire.cut:
                    raise
                continue
            if response.headers.get("content-encoding", "identity") != "identity":
                response.close()
                raise malformed("Content-Encoding")
            return httpx2.Response(
                response.status_code,
                headers=response.headers,
                stream=BoundedStream(response.stream, self._bounds),  # type: ignore[arg-type]
                extensions=response.extensions,
            )
        raise AssertionError("a host that resolves has an address")

    def close(self) -> None:
        self._inner.close()


class BoundedStream(httpx2.SyncByteStream):
    """A reply's body that ends with an error where it takes too many bytes or too much time."""

    def __init__(self, stream: httpx2.SyncByteStream, bounds: Bounds) -> None:
        self._stream, self._bounds = stream, bounds

    def __iter__(self) -> Iterator[bytes]:
        size, started = 0, time.monotonic()
        for data in self._stream:
            size += len(data)
            if size > self._bounds.bytes or time.monotonic() - started > self._bounds.seconds:
                raise ServerFailed(
                    "server_endless",
                    Text(
                        "The server's reply doesn't end: more than {megabytes:.0f} MB or {seconds:.0f} s.",
                        "服务器的回复没有尽头：超过 {megabytes:.0f} MB 或 {seconds:.0f} 秒。",
                    ),
                    megabytes=self._bounds.bytes / 1e6, seconds=self._bounds.seconds,
                )  # fmt: skip
            yield data

    def close(self) -> None:
        self._stream.close()


def client(private: bool, key: str | None, bounds: Bounds = Bounds(), wire: Wire | None = None) -> httpx2.Client:
    """An HTTP client for one server; `private` says whether it may be inside this machine or its network."""
    transport = GuardedTransport(private, bounds, wire or Wire(), with_key=key is not None)
    headers = {"Authorization": f"Bearer {key}"} if key is not None else {}
    timeout = httpx2.Timeout(bounds.silence, connect=bounds.connect)
    return httpx2.Client(transport=transport, follow_redirects=False, timeout=timeout, headers=headers, trust_env=False)


#: The fields of a stream of events.
FIELDS = (b"data:", b"event:", b"id:", b"retry:", b"error:", b":")


@dataclass
class _Event:
    """The lines of an event so far; `failed` where the server calls it an error, by the event's name or by the field's."""

    data: list[bytes] = field(default_factory=list)
    failed: bool = False

    def add(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name in (b"data", b"error"):
            self.data.append(value)
        self.failed |= name == b"error" or (name == b"event" and value == b"error")

    def read(self) -> bytes:
        """Its data; what is called an error comes as `{"error": …}`, as most servers send one."""
        said = b"\n".join(self.data)
        if not self.failed:
            return said
        found = _json(said)
        return said if isinstance(found, dict) and "error" in found else json.dumps({"error": found or said.decode("utf-8", "replace")}).encode()


def server_sent_events(pieces: Iterator[bytes], silence: float) -> Iterator[tuple[bytes, float]]:
    """The data of a stream's events, each with the moment (`perf_counter`) when its last byte was here.

    Comments and other fields are skipped. A line that is too long, and a stream that sends bytes but no event for
    `silence` seconds, are errors; an event that the end of the stream cuts off is left out, unless it is an error that came
    whole. A body that is no stream of events is given as a whole where it is JSON; any other is an error.
    """
    buffer = bytearray()
    searched = 0
    event = _Event()
    stray: list[bytes] = []  # lines of a body that is no stream of events
    began = False
    heard = now = time.perf_counter()
    for piece in pieces:
        now = time.perf_counter()
        buffer += piece
        while (end := buffer.find(b"\n", searched)) >= 0:
            line = bytes(buffer[:end]).removesuffix(b"\r")
            del buffer[: end + 1]
            searched = 0
            if not line and event.data:
                heard, began = now, True
                yield event.read(), now
                event = _Event()
            elif line.startswith(FIELDS):
                event.add(line)
            elif line and not began:
                stray.append(line)
        searched = len(buffer)
        if len(buffer) + sum(map(len, event.data)) + sum(map(len, stray)) > LONGEST_LINE:
            raise malformed("a line without end")
        if now - heard > silence:
            raise too_slow(silence)
    if (last := _left_over(event, bytes(buffer), stray, began)) is not None:
        yield last, now


def _left_over(event: _Event, rest: bytes, stray: list[bytes], began: bool) -> bytes | None:
    """What a stream's end leaves that must not be lost: an error without an empty line after it, or a body without events."""
    if rest.startswith(FIELDS):
        event.add(rest)
    if event.data:
        said = event.read()
        found = _json(said)
        return said if isinstance(found, dict) and error_words(found) is not None else None
    body = b"\n".join([*stray, rest]).strip()
    if began or not body or any(body.startswith(name) or name.startswith(body) for name in FIELDS):
        return None
    if not isinstance(_json(body), dict):
        raise malformed(f"no stream of events: {body[:60]!r}")
    return body


def _json(data: bytes) -> Any:
    """JSON as a plain value; None where it is none."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def error_words(reply: dict[str, Any]) -> str | None:
    """A server's own words in a JSON object that tells of an error; None where it tells of none.

    `{"error": …}` with a text or an object, `{"object": "error", "message": …}`, and an object without choices that has a
    `message` or a `detail`.
    """
    problem = reply.get("error")
    if not problem and (reply.get("object") == "error" or ("choices" not in reply and not reply.keys().isdisjoint(("message", "detail")))):
        problem = reply
    if not problem:
        return None
    if isinstance(problem, dict):
        problem = next((problem[name] for name in ("message", "detail", "msg") if problem.get(name)), problem)
    return problem if isinstance(problem, str) else json.dumps(problem, ensure_ascii=False)


def words_of(body: str) -> str:
    """A server's own words in the body of a refusal: the whole body, unless it is JSON that tells of an error."""
    found = _json(body.encode("utf-8", "replace"))
    return (error_words(found) if isinstance(found, dict) else None) or body


def malformed(what: str) -> ServerFailed:
    """The server answers, but not as this API does."""
    return ServerFailed(
        "server_malformed",
        Text(
            "The server's reply is not what an OpenAI-compatible server sends ({what}).", "服务器的回复不符合 OpenAI 兼容接口的格式（{what}）。"
        ),
        what=what[:200],
    )  # fmt: skip


def too_slow(seconds: float) -> ServerFailed:
    """The server has said nothing for longer than anybody waits."""
    return ServerFailed(
        "server_slow", Text("The server sent nothing for {seconds:.0f} s.", "服务器 {seconds:.0f} 秒内没有发送任何内容。"), seconds=seconds
    )


def failure(error: Exception, name: str, bounds: Bounds) -> PlaygroundError:
    """What a visitor reads of an error of the HTTP library: the server is gone, slow, or broke off."""
    if isinstance(error, PlaygroundError):
        return error
    if isinstance(error, httpx2.ConnectTimeout | httpx2.ConnectError):
        return ServerFailed(
            "server_gone",
            Text("The server {name} can't be reached: is it running, and is the address right?", "无法连接服务器 {name}：它在运行吗？地址对吗？"),
            name=name,
        )  # fmt: skip
    if isinstance(error, httpx2.TimeoutException):
        return too_slow(bounds.silence)
    return ServerFailed(
        "server_broke_off",
        Text("The connection to {name} broke in mid-reply.", "与 {name} 的连接在回复途中断开。"),
        name=name,
    )  # fmt: skip


def refusal(status: int, body: str, name: str, location: str | None = None) -> PlaygroundError:
    """What a visitor reads of a reply that is an error: in the server's own words, as far as it has some."""
    if 300 <= status < 400:
        text = Text(
            "{name} sends us on to {location}: redirects are not followed. Give that address instead, if you trust it.",
            "{name} 要求转到 {location}：不会跟随重定向。若信任该地址，请直接填写它。",
        )
        return ServerFailed("server_redirects", text, name=name, location=(location or "?")[:200])
    if status in (401, 403):
        text = Text("{name} refuses the key (HTTP {status}): check the entry's key.", "{name} 拒绝了密钥（HTTP {status}）：请检查密钥配置。")
        return ServerFailed("server_key", text, name=name, status=status)
    words = " ".join(body.split())[:300] or "–"
    if status < 400:
        told = Text('{name} reports an error: "{words}"', "{name} 报告错误：“{words}”")
        return ServerFailed("server_refuses", told, name=name, status=status, words=words)
    text = Text('{name} refuses (HTTP {status}): "{words}"', "{name} 拒绝了请求（HTTP {status}）：“{words}”")
    return ServerFailed("server_refuses", text, name=name, status=status, words=words)
