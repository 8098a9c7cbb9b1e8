"""Why a server says that a reply ended: the words that are a normal end, and what the others mean.

Every server has words of its own (OpenAI, vLLM, llama.cpp, SGLang and Ollama say stop and length; TGI eos_token and
stop_sequence; proxies of other APIs end_turn and max_tokens). A word that isn't a normal end here is told as it is, and
its reply doesn't count as whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from playground.errors import Text
from playground.trace import SERVER_SAID

#: The longest word that is shown of a server's.
LONGEST = 60


@dataclass(frozen=True)
class Ending:
    """One finish reason: the server's own `word`, and, where it is a normal end, which; `detail` is None where that is left open."""

    word: str
    reason: Literal["stop", "length"] | None = None
    detail: Literal["eos", "stop_string", "context"] | None = None

    @property
    def failure(self) -> tuple[Text, str]:
        """What a visitor reads of an end that is none of the normal ones, and its name in a trace."""
        means = MEANINGS.get(self.word.lower(), UNKNOWN)
        told = Text(
            f"The server ended this reply with “{self.word}”: {means.en}.", f"服务器以“{self.word}”结束了此回复：{means.zh}。"
        )  # fmt: skip
        return told, SERVER_SAID + self.word


#: The normal ends: the word in lower case → reason and detail of the lane's end.
NORMAL: dict[str, tuple[Literal["stop", "length"], Literal["eos", "stop_string", "context"] | None]] = {
    "stop": ("stop", None),
    "eos": ("stop", "eos"),
    "eos_token": ("stop", "eos"),
    "end_turn": ("stop", "eos"),
    "stop_sequence": ("stop", "stop_string"),
    "length": ("length", None),
    "max_tokens": ("length", None),
    "model_length": ("length", "context"),
}

UNKNOWN = Text("this app doesn't know that reason", "本应用不认识这个原因")
_CANCELLED = Text("it was cancelled there", "在服务器上被取消")
MEANINGS: dict[str, Text] = {
    "abort": Text("it was given up there", "在服务器上被中止"),
    "error": Text("something went wrong there", "服务器出错"),
    "cancelled": _CANCELLED,
    "canceled": _CANCELLED,
    "timeout": Text("it took too long there", "在服务器上超时"),
    "content_filter": Text("a filter of the server's cut it off", "被服务器的内容过滤器截断"),
    "tool_calls": Text("the model called a tool instead of writing on", "模型转而调用工具，没有继续写"),
    "function_call": Text("the model called a function instead of writing on", "模型转而调用函数，没有继续写"),
    "repetition": Text("the server cut off a text that repeats itself", "服务器截断了重复的文本"),
}


def ending(raw: Any) -> Ending | None:
    """What a chunk's `finish_reason` says; None where it says nothing: no text, or an empty one."""
    word = " ".join(raw.split())[:LONGEST] if isinstance(raw, str) else ""
    if not word:
        return None
    return Ending(word, *NORMAL.get(word.lower(), (None, None)))
