"""The recordings that ship with the app: what is asked in each, and the traces that it gave on the default model.

A recording's file is a trace's JSON, compressed.
"""

from __future__ import annotations

import json
import lzma
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from playground import presets
from playground.errors import BadValue, Text
from playground.records.opened import OPENED
from playground.records.opened import PREFIX as OPENED_PREFIX
from playground.records.playhead import upto
from playground.trace import Trace

FOLDER = Path(__file__).resolve().parents[2] / "assets" / "recordings"
#: What the page calls a recording where it asks for a run.
PREFIX = "recording:"
#: And what stands between its name and the number of moments that have played, where the page shows it up to its playhead.
PLAYED = "@"

#: The strategies and stages that occur in the recordings, as the page's declarations: they are shown before any module of the engine is imported.
DECLARED = FOLDER / "declared.json"


@dataclass(frozen=True)
class Recording:
    """One experiment that ships with the app: `request` is what was asked, as plain values."""

    name: str
    title: Text
    line: Text
    request: dict[str, Any]

    @property
    def run(self) -> str:
        """What stands where a run has its id."""
        return f"{PREFIX}{self.name}"

    @property
    def path(self) -> Path:
        return FOLDER / f"{self.name}.json.xz"


ARTICLE = (
    "The lighthouse at Cape Ferrin was built in 1871 after three ships ran aground on the same reef in one winter. For eighty years a keeper "
    "climbed its 212 steps every evening to light the lamp. In 1953 the lamp became electric and the keeper's job ended. Today volunteers "
    "open the tower to visitors on summer weekends, and the entrance fee pays for the repair of its windows."
)


def _request(text: str, *lanes: dict[str, Any], tokens: int, seed: int = 7, **prompt: Any) -> dict[str, Any]:
    return {"prompt": {"text": text, **prompt}, "lanes": [{"max_new_tokens": tokens, **lane} for lane in lanes], "seed": seed}


GREEDY = {"name": "greedy", "strategy": "greedy"}
BEAM = {"name": "beam 4", "strategy": "beam", "knobs": {"num_beams": 4}}
TOP_P = {"name": "top-p", "strategy": "sample", "knobs": {"temperature": 0.8, "top_p": 0.95}}

RECORDINGS: tuple[Recording, ...] = (
    Recording(
        "classic",
        Text("The classic experiment", "经典实验"),
        Text(
            "One prompt, one model, one die: greedy, beam search, top-p and top-k part after a few tokens.",
            "同一提示词、同一模型、同一骰子：贪心、束搜索、top-p 与 top-k 几个词元后就分开。",
        ),
        presets.classic(),
    ),
    Recording(
        "summary",
        Text("A summary in one sentence", "一句话摘要"),
        Text(
            "Where the text says what to write, the most likely words serve well, and beam search finds a likelier whole.",
            "原文已经决定该写什么时，最可能的词就够用，而束搜索能找到整体更可能的文本。",
        ),
        _request(f"Summarize the following text in one sentence.\n\n{ARTICLE}", GREEDY, BEAM, TOP_P, tokens=60),
    ),
    Recording(
        "repetition",
        Text("An open end: greedy and beams repeat themselves", "开放续写：贪心与束搜索会重复"),
        Text(
            "Always the most likely word runs in circles; a die, or a ban on repeats, breaks the circle.",
            "总取最可能的词会原地打转；掷骰子，或禁止重复，都能打破循环。",
        ),
        _request(
            "It was a dark and stormy night. The rain",
            GREEDY, BEAM, TOP_P, {"name": "no 3-gram twice", "strategy": "greedy", "knobs": {"no_repeat_ngram_size": 3}},
            tokens=60, seed=4, chat=False,
        ),
    ),
    Recording(
        "temperature",
        Text("Temperature 0.2, 1 and 1.8", "温度 0.2、1 与 1.8"),
        Text("The same die on a sharper and a flatter distribution.", "同一颗骰子，落在更尖或更平的分布上。"),
        _request(
            "Write the first lines of a story about a robot who learns to cook.",
            *({"name": f"T = {t:g}", "strategy": "sample", "knobs": {"temperature": t}} for t in (0.2, 1.0, 1.8)),
            tokens=60, seed=459,
        ),
    ),
    Recording(
        "copying",
        Text("Guessing ahead pays: code to be rewritten", "预先猜测划算：改写代码"),
        Text(
            "Where the answer copies the prompt, guesses looked up in it are mostly right: several tokens per forward.",
            "答案照抄提示词时，从中查找到的猜测大多正确：每次前向得到多个词元。",
        ),
        presets.pair("copying"),
    ),
    Recording(
        "not_copying",
        Text("Guessing ahead loses: a story to be invented", "预先猜测亏损：编一个故事"),
        Text(
            "The same guessing where nothing is copied: hardly a guess is right, and verifying them costs all the same.",
            "同样的猜测，但没有可照抄的内容：几乎没有一个猜对，而验证照样要付出代价。",
        ),
        presets.pair("not_copying"),
    ),
)  # fmt: skip


def is_recording(run: object) -> bool:
    """Whether what stands where a run has its id names a recording."""
    return isinstance(run, str) and run.startswith(PREFIX)


def name_of(run: str) -> str:
    return run.removeprefix(PREFIX)


def get(name: object) -> Recording:
    """The recording of that name, or a `BadValue` that lists those there are."""
    for recording in RECORDINGS:
        if recording.name == name and recording.path.is_file():
            return recording
    raise BadValue(
        "recording_unknown",
        Text("There is no recording called {name}; there are {names}.", "没有名为 {name} 的录制；可用的有 {names}。"),
        name=repr(name)[:60], names=", ".join(recording.name for recording in RECORDINGS),
    )  # fmt: skip


def load(name: str) -> Trace:
    """The trace of a recording, or of a file that was opened here, up to the playhead where its name says one; not to be changed."""
    whole, at, played = name.partition(PLAYED)
    if whole.startswith(OPENED_PREFIX):
        trace = OPENED.load(whole)
        return _cut(trace, played) if at else trace
    return _shipped_upto(whole, played) if at else _shipped(whole)


@cache
def _shipped(name: str) -> Trace:
    """A recording's trace, checked like any other file, and read once."""
    return Trace.from_json(lzma.decompress(get(name).path.read_bytes()))


@lru_cache(maxsize=256)
def _shipped_upto(name: str, played: str) -> Trace:
    return _cut(_shipped(name), played)


def _cut(trace: Trace, played: str) -> Trace:
    cut = upto(trace, int(played)) if played.isdecimal() and len(played) < 10 else None
    if cut is None:
        raise BadValue("playhead", Text("This recording has no moment {played}.", "该录制没有第 {played} 个时刻。"), played=repr(played)[:20])
    return cut


@cache
def declarations() -> dict[str, Any]:
    """Strategies and stages of the recordings as `declared` wrote them: labels, help and knobs."""
    return json.loads(DECLARED.read_text(encoding="utf-8"))


def packed(trace: Trace) -> bytes:
    """A trace as a recording's file holds it; equal traces give equal bytes."""
    return lzma.compress(trace.to_json().encode(), preset=9)
