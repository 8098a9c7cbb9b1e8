"""The page "Compare": one custom front end inside Gradio, which carries it (queue, stream, API, MCP)."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import logging
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Protocol

import gradio as gr

from playground.errors import Text
from playground.records.recordings import is_recording
from playground.ui.recordings import Recordings

log = logging.getLogger(__name__)

ASSETS = Path(__file__).resolve().parents[2] / "assets"

#: The page's scripts in the order in which they build on each other; they share one function scope.
SCRIPTS = (
    "dom", "texts", "connection", "numbers", "popover", "bus", "run", "replay", "open", "branch", "made", "strip",
    "lanes", "editor", "plots", "parting", "what_if", "beams", "speculation", "servers", "load", "focus", "parameters", "page",
)  # fmt: skip

#: What the page may call by name; each takes and returns JSON values and answers a visitor's mistake with {"error": …}.
SERVER_FUNCTIONS = (
    "recordings", "recording", "declarations", "models", "set_device", "prepare", "start", "control", "figure", "parting", "what_if",
    "step", "lookup", "record", "trace", "beams", "beam", "beam_pipeline", "speculation", "which_k", "same_test", "parameters", "open_trace",
    "servers", "probe_server", "server_speculation", "pasted_snapshots", "pasted_bench", "load_form", "load_start", "load_confirm", "load_open",
    "load_state", "load_control", "load_view", "load_figure", "load_saved",
)  # fmt: skip

PLOTLY = ASSETS / "vendor" / "plotly-basic.min.js"

#: The bus only passes packets on; everything else happens in the page's own scripts.
BUS_SCRIPT = """(window.__playgroundBus ??= []).push({
  follow: (from) => trigger('follow', from),
  listen: (hear) => watch('value', () => hear(props.value)),
});"""


class Arriving:
    """A service whose modules are still being imported: whoever asks it something waits, the page doesn't."""

    def __init__(self, module: str, name: str, first: str) -> None:
        self._made: Future[Any] = Future()
        self._source = (module, name, first)
        self._lock = threading.Lock()
        self._begun = False

    def begin(self) -> None:
        """Import in the background, once; then call the method that the service begins its work with."""
        with self._lock:
            if self._begun:
                return
            self._begun = True
        threading.Thread(target=self._make, name="service", daemon=True).start()

    def _make(self) -> None:
        module, name, first = self._source
        try:
            service = getattr(importlib.import_module(module), name)()
            getattr(service, first)()
            self._made.set_result(service)
        except Exception as error:
            log.exception("the service could not be made")
            self._made.set_exception(error)

    def __getattr__(self, name: str) -> Any:
        self.begin()
        return getattr(self._made.result(), name)


class Front:
    """Who answers what the page asks: recordings need no service, and don't wait for it to arrive."""

    def __init__(self, service: Any) -> None:
        self._service = service
        self._recordings = Recordings()

    def function(self, name: str, arguments: Any) -> Callable[..., Any]:
        """The function of that name that answers these arguments; its first one may name a run."""
        recorded = isinstance(arguments, list) and bool(arguments) and is_recording(arguments[0])
        if name in ("recordings", "recording", "open_trace") or (recorded and hasattr(self._recordings, name)):
            return getattr(self._recordings, name)
        return getattr(self._service, name)


class Service(Protocol):
    """What the page asks of the server: the functions named in `SERVER_FUNCTIONS`, and the stream of a run."""

    def follow(self, run: Any, seq: Any, session: str, stream: Any = 0) -> Iterator[str]:
        """Packets of a run from event `seq` on, one JSON string per 100 ms; closing it says that the viewer left. `stream` stands in each."""
        ...


def build(service: Service, register: Callable[[Service], None] | None = None) -> gr.Blocks:
    """The page over a service. Nothing here waits for a model, and nothing imports one.

    `register` adds what belongs to the same Blocks: the endpoints for programs (API and MCP).
    """
    os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
    gr.set_static_paths([PLOTLY])
    front = Front(service)
    with gr.Blocks(title="Decoding Playground", fill_width=True) as page:
        gr.HTML(
            html_template=_asset("page.html"),
            js_on_load=_script(),
            server_functions=[_callable(front, name) for name in SERVER_FUNCTIONS],
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
            _stream(service),
            outputs=[bus],
            show_progress="hidden",
            queue=True,
            trigger_mode="multiple",
            concurrency_limit=None,
            postprocess=False,
            api_visibility="private",
        )
        if register is not None:
            register(service)
    return page.queue(default_concurrency_limit=20, max_size=64)


def launch(page: gr.Blocks, **settings: Any) -> None:
    """Serve the page: on 127.0.0.1:7860 unless Gradio's environment variables say otherwise, on every address of a Space."""
    os.environ.setdefault("GRADIO_ANALYTICS_CACHE_FREQUENCY", "50")
    os.environ.setdefault("GRADIO_ANALYTICS_MAX_EVENTS", "500")
    on_space = "SPACE_ID" in os.environ
    page.launch(
        **{
            "server_name": os.environ.get("GRADIO_SERVER_NAME", "0.0.0.0" if on_space else "127.0.0.1"),
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


def _stream(service: Service) -> Callable[[gr.EventData, gr.Request], Iterator[str]]:
    """The handler behind the bus: a sync generator, closed by Gradio as soon as the tab is."""

    def follow(event: gr.EventData, request: gr.Request) -> Iterator[str]:
        asked = event._data if isinstance(event._data, dict) else {}
        yield from service.follow(asked.get("run"), asked.get("seq"), request.session_hash or "", asked.get("stream"))

    return follow


def _callable(front: Front, name: str) -> Callable[[Any], Any]:
    """A server function as Gradio calls it: with one JSON value, which here is the list of arguments."""

    def call(arguments: Any) -> Any:
        function = front.function(name, arguments)
        try:
            bound = inspect.signature(function).bind(*arguments)
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
