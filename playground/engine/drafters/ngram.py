"""Prompt lookup: what followed the same few tokens before is guessed to follow them again (Saxena 2023)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from playground.engine.drafters import Draft, Drafter, Drafting, Start, drafters
from playground.engine.knobs import knob
from playground.errors import BadValue, Text

if TYPE_CHECKING:
    from playground.engine.task import Row, Task


@drafters.register
@dataclass(frozen=True)
class NGram(Drafter):
    """Look the text's last n tokens up in prompt and output, longest n first, and guess what came after them."""

    name = "ngram"
    label = Text("n-gram lookup", "n-gram 查找")
    summary = Text(
        "Guesses that what followed the last n tokens earlier in prompt or output follows them again. Needs no model.",
        "猜测最后 n 个词元此前在提示词或输出中之后的内容会再次出现。不需要模型。",
    )

    ngram_max: int = knob(
        3,
        label=Text("longest n-gram", "最长 n-gram"),
        help=Text("The longest run of tokens that is looked up; the longest match wins.", "查找的最长词元串；最长匹配优先。"),
        low=1, high=16, slider=(1, 8), names={"transformers": "max_matching_ngram_size", "vllm": "prompt_lookup_max"},
    )  # fmt: skip
    ngram_min: int = knob(
        1,
        label=Text("shortest n-gram", "最短 n-gram"),
        help=Text("The shortest one: a short match is found often and is often wrong.", "最短的词元串：短匹配容易找到，也容易出错。"),
        low=1, high=16, slider=(1, 8), names={"vllm": "prompt_lookup_min"},
    )  # fmt: skip

    def __post_init__(self) -> None:
        if self.ngram_min > self.ngram_max:
            raise BadValue(
                "knob_range",
                Text(
                    "ngram_min must be at most ngram_max ({most}), got {value}.",
                    "ngram_min 不能大于 ngram_max（{most}），而给出的是 {value}。",
                ),
                most=self.ngram_max, value=self.ngram_min,
            )  # fmt: skip

    def start(self, task: Task) -> Start:
        yield from ()
        return Lookup(task.prompt, self.ngram_min, self.ngram_max)


class Lookup(Drafting):
    """Where every n-gram of prompt and output stood first, kept up with the row."""

    def __init__(self, prompt: tuple[int, ...], shortest: int, longest: int) -> None:
        self._prompt, self._lengths = prompt, range(longest, shortest - 1, -1)
        #: n-gram -> the index of the token that followed it, left-most first as in transformers.
        self._after: dict[tuple[int, ...], int] = {}
        self._indexed = 0

    def guess(self, row: Row, k: int, round: int, doubt: float = 0.0) -> Draft:
        ids = self._prompt + row.output
        # An n-gram that ends at the row's end has no token after it yet: it is indexed when it has one.
        for end in range(self._indexed + 1, len(ids)):
            for n in self._lengths:
                if n <= end:
                    self._after.setdefault(ids[end - n : end], end)
        self._indexed = len(ids) - 1
        for n in self._lengths:
            at = self._after.get(ids[-n:]) if n <= len(ids) else None
            if at is not None:
                return Draft(ids[at : at + k], source="prompt" if at < len(self._prompt) else "output", matched=n)
        return Draft(limit="no_match")
