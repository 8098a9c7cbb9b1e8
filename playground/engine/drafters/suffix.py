"""Suffix lookup: the longest end of the text that stood anywhere before, in this text or in earlier runs (Oliaro et al. 2024)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from playground.engine.drafters import Draft, Drafter, Drafting, Start, drafters
from playground.engine.knobs import knob
from playground.errors import Text

if TYPE_CHECKING:
    from playground.engine.task import Row, Task

#: A place in the texts: which text (0 is the lane's own), and the index of the token there.
Place = tuple[int, int]


@drafters.register
@dataclass(frozen=True)
class Suffix(Drafter):
    """Find the places where the longest end of the text stood before, and guess what most often came after."""

    name = "suffix"
    label = Text("suffix lookup", "后缀查找")
    summary = Text(
        "Looks for the longest end of the text in prompt, output and earlier finished runs, and guesses what most often followed.",
        "在提示词、输出和先前完成的运行中查找文本的最长后缀，猜测其后最常出现的内容。",
    )

    suffix_min: int = knob(
        2,
        label=Text("shortest suffix", "最短后缀"),
        help=Text("How many tokens must match at least.", "至少要匹配多少个词元。"),
        low=1, high=16, slider=(1, 8),
    )  # fmt: skip
    suffix_max: int = knob(
        24,
        label=Text("longest suffix", "最长后缀"),
        help=Text("Beyond so many tokens, matches count as equally long.", "超过这个长度的匹配视为同样长。"),
        low=16, high=64, slider=(16, 64), names={"vllm": "suffix_decoding_max_tree_depth"},
    )  # fmt: skip
    earlier_runs: bool = knob(
        True,
        label=Text("earlier runs", "先前的运行"),
        help=Text(
            "Also look in runs of this model that finished before this one began, never in another lane of this race. Off on public hosts.",
            "也在此模型此前已完成的运行中查找，但绝不查看本次比赛的其他通道。公共主机上关闭。",
        ),
    )  # fmt: skip

    def start(self, task: Task) -> Start:
        yield from ()
        return Suffixes(task.prompt, task.earlier if self.earlier_runs else (), self.suffix_min, self.suffix_max)


class Suffixes(Drafting):
    """Every place of every text by the `shortest` tokens before it; longer matches are compared from there."""

    def __init__(self, prompt: tuple[int, ...], earlier: tuple[tuple[int, ...], ...], shortest: int, longest: int) -> None:
        self._prompt, self._shortest, self._longest = prompt, shortest, longest
        self._texts: list[tuple[int, ...]] = [(), *reversed(earlier)]  # the own text first, then the newest run
        self._places: dict[tuple[int, ...], list[Place]] = {}
        self._indexed = 0
        for text in range(1, len(self._texts)):
            self._index(text, 0)

    def guess(self, row: Row, k: int, round: int, doubt: float = 0.0) -> Draft:
        self._texts[0] = ids = self._prompt + row.output
        self._index(0, self._indexed)
        self._indexed = len(ids) - 1
        places = self._places.get(ids[-self._shortest :], []) if len(ids) >= self._shortest else []
        if not places:
            return Draft(limit="no_match")
        lengths = [self._match(place) for place in places]
        longest = max(lengths)
        living = [place for place, length in zip(places, lengths, strict=True) if length == longest]
        text, at = min(living, key=lambda place: (place[0], -place[1]))  # the newest place in the own text, else in the newest run
        source = "earlier_run" if text else "prompt" if at < len(self._prompt) else "output"
        tokens: list[int] = []
        while len(tokens) < k and (ahead := [(self._texts[text][at], (text, at + 1)) for text, at in living if at < len(self._texts[text])]):
            token, _ = Counter(token for token, _ in ahead).most_common(1)[0]
            tokens.append(token)
            living = [place for following, place in ahead if following == token]
        return Draft(tuple(tokens), source=source, matched=longest)

    def _index(self, text: int, indexed: int) -> None:
        ids = self._texts[text]
        for end in range(max(indexed + 1, self._shortest), len(ids)):
            self._places.setdefault(ids[end - self._shortest : end], []).append((text, end))

    def _match(self, place: Place) -> int:
        """How many tokens before the place are the end of the own text."""
        own, (text, at) = self._texts[0], place
        other, length = self._texts[text], self._shortest
        while length < min(self._longest, at, len(own)) and other[at - length - 1] == own[-length - 1]:
            length += 1
        return length
