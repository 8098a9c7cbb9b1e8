"""What the page asks about servers: which there are, what each can do, whether a lane can run there, and what pasted figures say."""

from __future__ import annotations

import threading
from typing import Any

from playground.backends import servers
from playground.backends.probing import Prober
from playground.backends.server_request import KIND_NAMES, refused_stages, server_request
from playground.backends.servers import Capabilities, ServerEntry
from playground.errors import BadValue, PlaygroundError, Text
from playground.measures import server_pasted
from playground.measures.server_k import KVerdict, config_text
from playground.request import Lane, Request
from playground.ui.server_ledger import quantity_json
from playground.ui.views import Answer

#: So many servers may be asked at once what they can do: each question keeps a thread waiting.
ASKED_AT_ONCE = 4
#: On a public page a visitor's file has so many bytes at most; reading one takes the app several times as much memory.
PUBLIC_FILE_BYTES = 10_000_000


class Servers:
    """The servers of one app, as the page sees them."""

    def __init__(self, prober: Prober, public: bool) -> None:
        self._prober = prober
        self._public = public
        self._asking = threading.BoundedSemaphore(ASKED_AT_ONCE)

    def listed(self) -> Answer:
        """The configured servers, with what is known of each; nobody is asked."""
        return {"entries": [self._entry(entry) for entry in servers.entries().values()], "public": self._public}

    def probe(self, name: Any, model: Any, again: Any) -> Answer:
        """What a server can do with a model, asked if it isn't known yet; `name` may be an address where that is allowed."""
        entry = servers.resolve(_short(name))
        model = None if model is None else _short(model)
        # On a public page a server is asked once: visitors can't make this app bother it.
        again = again is True and not self._public
        can = self._prober.known(entry, model)
        if can is None or again:
            if not self._asking.acquire(blocking=False):
                raise BadValue(
                    "servers_busy", Text("Other servers are being asked right now: try again in a moment.", "正在询问其他服务器：请稍后再试。")
                )
            try:
                can = self._prober.capabilities(entry, model, again)
            finally:
                self._asking.release()
        return {"server": self._entry(entry, can)}

    def _entry(self, entry: ServerEntry, can: Capabilities | None = None) -> Answer:
        """A server without its secrets: the name of its key's variable, not the key; on a public page no address either."""
        can = can or self._prober.known(entry)
        return {
            "name": entry.name if entry.configured else entry.root,
            "label": entry.name,
            "address": None if self._public else entry.root,
            "configured": entry.configured,
            "key_env": None if self._public else entry.key_env,
            "key": bool(entry.key),
            "can": None if can is None else capabilities_json(can),
        }

    def prepared(self, request: Request, lane: Lane) -> Answer:
        """A server lane as it would run, from what is known already: a preview must not wait for a network."""
        told: Answer = {"server": lane.server, "model": lane.model, "notes": [note.to_json() for note in lane.notes], "asked": False}
        try:
            entry = servers.resolve(lane.server or "")
            can = self._prober.known(entry, lane.model)
            if can is None:
                return told
            asked = server_request(request, lane, entry, can)
        except PlaygroundError as error:
            return told | {"error": error.to_json()}
        stages = [{"stage": s.stage, "kind": s.kind, "knobs": s.knobs, "origin": s.origin, "idle": s.idle} for s in asked.stages]
        return told | {"asked": True, "model": can.model, "notes": [note.to_json() for note in asked.notes], "stages": stages}


def capabilities_json(can: Capabilities) -> Answer:
    """What a server can do, with the words of the page for its kind, and the stages that can't run there."""
    families = len(can.families)
    return {**can.to_json(), "families": families, "kind_name": KIND_NAMES[can.kind], "refused_stages": refused_stages(can)}


# --- without connecting ---------------------------------------------------------------------------


def pasted_snapshots(before: Any, after: Any, seconds: Any) -> Answer:
    """The ledger and the verdict of two `/metrics` pages."""
    if isinstance(seconds, bool) or not (seconds is None or isinstance(seconds, (int, float))):
        raise BadValue("window", Text("The window is a number of seconds above 0.", "时间窗口应为大于 0 的秒数。"))
    return _pasted(server_pasted.from_snapshots(_text(before), _text(after), seconds))


def pasted_bench(first: Any, second: Any) -> Answer:
    """The comparison of two result files of `vllm bench serve`."""
    return _pasted(server_pasted.from_bench(_text(first), _text(second)))


def check_public_size(*texts: Any) -> None:
    """Raise for a visitor's file that is too large for a public page."""
    if any(isinstance(text, str) and len(text.encode("utf-8", "replace")) > PUBLIC_FILE_BYTES for text in texts):
        text = Text("On this public page a file has at most {most} MB.", "在此公开页面上，文件不得超过 {most} MB。")
        raise BadValue("public_size", text, most=PUBLIC_FILE_BYTES // 10**6)


def _pasted(found: server_pasted.Pasted) -> Answer:
    told = found.to_json()
    told["ledger"] = [{"name": name, **quantity_json(quantity)} for name, quantity in found.ledger.items()]
    told["positions"] = [
        [one.value if isinstance(one.value, (int, float)) else None, other.value if isinstance(other.value, (int, float)) else None]
        for one, other in zip(found.positions, found.conditional, strict=True)
    ]
    del told["conditional"]
    told["which_k"] = None if found.which_k is None else verdict_json(found.which_k)
    return told


def verdict_json(found: KVerdict) -> Answer:
    """Which k, with the server's setting as it stands on its command line."""
    return {**found.to_json(), "config_text": None if found.config is None else config_text(found.config)}


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise BadValue("pasted_empty", Text("Two texts are needed: one of them is empty.", "需要两段文本：其中一段为空。"))
    return value


def _short(value: Any) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= 300:
        raise BadValue("server_unknown", Text("A server is named by a short text.", "服务器由一段短文本命名。"))
    return value
