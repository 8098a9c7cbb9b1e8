"""The prompts of a load experiment: the shipped set, or a JSONL file of the user's own.

One JSON object per line, with `prompt` (a text) or `messages` (a chat: role and content); `kind` names what sort of prompt it
is, and whatever else stands there is left alone.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playground.errors import BadValue, PlaygroundError, Text
from playground.request import has_half_characters

#: Forty short prompts: questions, stories, code, and texts to copy from, mixed so that the first few are varied too.
SHIPPED = Path(__file__).resolve().parents[2] / "assets" / "prompts" / "varied.jsonl"

MOST_BYTES = 8_000_000
MOST_LINES = 2000
MOST_CHARACTERS = 20_000
MOST_MESSAGES = 64
ROLES = ("system", "user", "assistant")


@dataclass(frozen=True)
class LoadPrompt:
    """One prompt: messages as (role, content), or one text with the role None."""

    messages: tuple[tuple[str | None, str], ...]
    kind: str | None = None

    @property
    def chat(self) -> bool:
        return self.messages[0][0] is not None

    @property
    def text(self) -> str:
        """The whole prompt, for measuring its length and for showing it."""
        return "\n".join(content for _, content in self.messages)

    def prefixed(self, prefix: str) -> LoadPrompt:
        """The same prompt behind a line of its own, so that no cached prefix fits it."""
        (role, content), *rest = self.messages
        return LoadPrompt(((role, f"{prefix}\n{content}"), *rest), self.kind)

    def as_messages(self) -> list[dict[str, str]]:
        return [{"role": role or "user", "content": content} for role, content in self.messages]


@dataclass(frozen=True)
class PromptSet:
    """Prompts with the name of their file and the SHA-256 of its content."""

    name: str
    sha256: str
    prompts: tuple[LoadPrompt, ...]


def shipped() -> PromptSet:
    """The set that comes with the app."""
    return parse(SHIPPED.read_bytes(), SHIPPED.name)


def load(path: Path) -> PromptSet:
    """A set from a file of the user's. Raises `PlaygroundError`."""
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        text = Text("Can't read {path}: {reason}.", "无法读取 {path}：{reason}。")
        raise BadValue("file", text, path=path, reason=error.strerror or error) from error
    return parse(data, path.name)


def parse(data: bytes, name: str) -> PromptSet:
    """A set from the bytes of a JSONL file that somebody gives; the first line that is wrong is named."""
    if len(data) > MOST_BYTES:
        raise BadValue(
            "prompts_size",
            Text("A prompt file may have {most} MB, {name} has more.", "提示词文件最多 {most} MB，{name} 超出了。"),
            most=MOST_BYTES // 10**6, name=name[:80],
        )  # fmt: skip
    try:
        lines = data.decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise _broken(name, 1 + data[: error.start].count(b"\n"), "not UTF-8", "不是 UTF-8") from error
    found = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not 1 <= len(found) <= MOST_LINES:
        raise BadValue(
            "prompts_count",
            Text("A prompt file has 1 to {most} prompts, {name} has {count}.", "提示词文件应有 1 到 {most} 条提示词，{name} 有 {count} 条。"),
            most=MOST_LINES, name=name[:80], count=len(found),
        )  # fmt: skip
    prompts = tuple(_prompt(line, number, name) for number, line in found)
    return PromptSet(name[:200], hashlib.sha256(data).hexdigest(), prompts)


def _prompt(line: str, number: int, name: str) -> LoadPrompt:
    try:
        raw = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _broken(name, number, "no JSON", "不是 JSON") from error
    if not isinstance(raw, dict) or ("prompt" in raw) == ("messages" in raw):
        raise _broken(name, number, 'needs either "prompt" or "messages"', "需要 “prompt” 或 “messages” 之一")
    messages = _messages(raw["messages"]) if "messages" in raw else _text(raw["prompt"])
    if messages is None:
        raise _broken(name, number, "an empty prompt, or one that is no text", "提示词为空，或不是文本")
    kind = raw.get("kind")
    prompt = LoadPrompt(messages, kind[:40] if isinstance(kind, str) else None)
    if len(prompt.text) > MOST_CHARACTERS:
        raise _broken(name, number, f"more than {MOST_CHARACTERS} characters", f"超过 {MOST_CHARACTERS} 个字符")
    if has_half_characters(prompt.text):
        raise _broken(name, number, "half a character (a lone surrogate)", "含半个字符（孤立代理项）")
    return prompt


def _text(raw: Any) -> tuple[tuple[None, str], ...] | None:
    return ((None, raw),) if isinstance(raw, str) and raw.strip() else None


def _messages(raw: Any) -> tuple[tuple[str, str], ...] | None:
    if not isinstance(raw, list) or not 1 <= len(raw) <= MOST_MESSAGES:
        return None
    good = all(
        isinstance(entry, dict) and entry.get("role") in ROLES and isinstance(entry.get("content"), str) and entry["content"].strip() for entry in raw
    )
    return tuple((entry["role"], entry["content"]) for entry in raw) if good else None


def _broken(name: str, number: int, why: str, why_zh: str) -> PlaygroundError:
    return BadValue(
        "prompts_broken",
        Text("Line {number} of {name}: {why}.", "{name} 第 {number} 行：{why_zh}。"),
        number=number, name=name[:80], why=why, why_zh=why_zh,
    )  # fmt: skip
