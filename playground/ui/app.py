"""The page "Compare": one custom front end inside Gradio, which carries it (queue, stream, API, MCP)."""

from __future__ import annotations

import hashlib
import inspect
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import gradio as gr

from playground.errors import Text

ASSETS = Path(__file__).resolve().parents[2] / "assets"

#: The page's scripts in the order in which they build on each other; they share one function scope.
SCRIPTS = ("dom", "texts", "numbers", "popover", "bus", "run", "strip", "lanes", "editor", "plots", "focus", "page")

#: What the page may call by name; each takes and returns JSON values and answers a visitor's mistake with {"error": …}.
SERVER_FUNCTIONS = (
    "declarations", "models", "set_device", "prepare", "start", "control", "figure", "step", "lookup", "record", "trace",
)  # fmt: skip

PLOTLY = ASSETS / "vendor" / "plotly-basic.min.js"

#: The bus only passes packets on; everything else happens in the page's own scripts.
BUS_SCRIPT = "(window.__playgroundBus ??= []).push({ follow: (from) => trigger('follow', from), listen: (hear) => watch('value', () => hear(props.value)) });"


class Service(Protocol):
    """What the page asks of the server: the functions named in `SERVER_FUNCTIONS`, and the stream of a run."""

    def follow(self, run: Any, seq: Any, session: str) -> Iterator[str]:
        """Packets of a run from event `seq` on, one JSON string per 100 ms; closing it says that the viewer left."""
        ...


def build(service: Service) -> gr.Blocks:
    """The page over a service. Nothing here waits for a model, and nothing imports one."""
    gr.set_static_paths([PLOTLY])
    with gr.Blocks(title="Decoding Playground", fill_width=True, analytics_enabled=_analytics()) as page:
        gr.HTML(
            html_template=_asset("page.html"),
            js_on_load=_script(),
            server_functions=[_callable(service, name) for name in SERVER_FUNCTIONS],
            apply_default_css=False,
            elem_id="playground-page",
        )
        bus = gr.HTML(
            "",
            html_template="<span hidden></span>",
            js_on_load=BUS_SCRIPT,
            visible="hidden",
            apply_default_css=False,
        )
        bus.follow(
            _Followers(service).follow,
            outputs=[bus],
            show_progress="hidden",
            queue=True,
            trigger_mode="multiple",
            concurrency_limit=None,
            postprocess=False,
            api_visibility="private",
        )
        _register_endpoints(service)
    return page.queue(default_concurrency_limit=20, max_size=64)


def launch(page: gr.Blocks, **settings: Any) -> None:
    """Serve the page: on 127.0.0.1:7860 unless told otherwise, on every address of a Space."""
    os.environ.setdefault("GRADIO_ANALYTICS_CACHE_FREQUENCY", "50")
    os.environ.setdefault("GRADIO_ANALYTICS_MAX_EVENTS", "500")
    on_space = "SPACE_ID" in os.environ
    page.launch(
        **{
            "server_name": os.environ.get("GRADIO_SERVER_NAME", "0.0.0.0" if on_space else "127.0.0.1"),
            "server_port": int(os.environ.get("GRADIO_SERVER_PORT", "7860")),
            "max_threads": 100,
            "run_history": False,
            "state_session_capacity": 500,
            "mcp_server": True,
            "ssr_mode": False,
            "footer_links": ["settings", "api"],
            "theme": _theme(),
            "head": f'<meta name="color-scheme" content="light dark">\n<style>\n{_asset("page.css")}\n</style>',
            **settings,
        }
    )


class _Followers:
    """The open streams, one per browser tab: a newer one supersedes the older."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._newest: dict[str, object] = {}
        self._lock = threading.Lock()

    def follow(self, event: gr.EventData, request: gr.Request) -> Iterator[str]:
        """Stream a run's packets to one tab until the run ends, the tab closes, or it asks anew."""
        session = request.session_hash or ""
        mine = object()
        with self._lock:
            self._newest[session] = mine
        data = event._data if isinstance(event._data, dict) else {}
        packets = self._service.follow(data.get("run"), data.get("seq"), session)
        try:
            for packet in packets:
                if self._newest.get(session) is not mine:
                    return
                yield packet
        finally:
            packets.close()  # type: ignore[attr-defined]
            with self._lock:
                if self._newest.get(session) is mine:
                    del self._newest[session]


def _callable(service: Service, name: str) -> Callable[[Any], Any]:
    """A server function as Gradio calls it: with one JSON value, which here is the list of arguments."""
    function = getattr(service, name)
    signature = inspect.signature(function)

    def call(arguments: Any) -> Any:
        try:
            bound = signature.bind(*arguments)
        except TypeError:
            text = Text("The page asked for something that this server doesn't know: reload it.", "页面的请求与此服务器不符：请刷新页面。")
            return {"error": {"code": "call_broken", "text": text.to_json(), "values": {}}}
        return function(*bound.args)

    call.__name__ = name
    return call


def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


def _script() -> str:
    """All scripts as one function body, after the one thing that only the server knows: where Plotly lies."""
    version = hashlib.sha256(PLOTLY.read_bytes()).hexdigest()[:12]
    address = f"/gradio_api/file={PLOTLY.as_posix()}?v={version}"
    parts = [f"const PLOTLY_ADDRESS = {address!r};", *(_asset(f"{name}.js") for name in SCRIPTS), "//# sourceURL=playground.js"]
    return "\n".join(parts)


def _theme() -> gr.themes.Base:
    """Gradio's plainest theme with the system's fonts, so that nothing is fetched from elsewhere."""
    return gr.themes.Base(font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"])


def _analytics() -> bool:
    """Whether Gradio may phone home: only where somebody has said so."""
    return os.environ.get("GRADIO_ANALYTICS_ENABLED", "False").lower() in ("true", "1")


def _register_endpoints(service: Service) -> None:
    """The endpoints for programs (API and MCP) belong to the same Blocks as the page."""
    try:
        from playground.ui import endpoints
    except ImportError:
        return
    endpoints.register(service)
