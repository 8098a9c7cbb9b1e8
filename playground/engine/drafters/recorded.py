"""A recorded answer as draft: an earlier or an edited output is guessed to be written again."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from playground.engine.drafters import Draft, Drafter, Drafting, Start, drafters
from playground.engine.knobs import knob
from playground.errors import BadValue, Text

if TYPE_CHECKING:
    from playground.engine.task import Row, Task

#: After a rejection the place in the recording is found again by at most so many tokens.
LONGEST_MATCH = 8


@drafters.register
@dataclass(frozen=True)
class Recorded(Drafter):
    """Follow a given text; after a rejection, find the place in it again."""

    name = "recorded"
    label = Text("recorded answer", "已有答案")
    summary = Text(
        "Guesses that a given text is written again: the case of editing or rewriting. After a rejection it looks for its place anew.",
        "猜测给定的文本会被再次写出，即编辑或改写的情形。被拒绝后重新寻找位置。",
    )

    recorded: str = knob(
        "",
        kind="text",
        high=20_000,
        label=Text("recorded answer", "已有答案"),
        help=Text("The text, or its token ids as #12 #34.", "文本，或写作 #12 #34 的词元编号。"),
    )  # fmt: skip

    def check_models(self, task: Task) -> None:
        ids = self.ids(task)
        if not ids:
            raise BadValue("recorded_empty", Text("There is no recorded answer: give its text or its ids.", "没有已有答案：请给出文本或编号。"))
        beyond = next((token for token in ids if token >= task.model.vocabulary_size), None)
        if beyond is not None:
            raise BadValue(
                "token_range",
                Text("Token ids go from 0 to {last}, got {value}.", "词元编号从 0 到 {last}，而给出的是 {value}。"),
                last=task.model.vocabulary_size - 1, value=beyond,
            )  # fmt: skip

    def ids(self, task: Task) -> tuple[int, ...]:
        """The recorded answer in token ids."""
        words = self.recorded.split()
        if words and all(re.fullmatch(r"#[0-9]{1,9}", word) for word in words):
            return tuple(int(word[1:]) for word in words)
        assert task.vocabulary is not None, "a recorded text needs the lane's vocabulary"
        return tuple(task.vocabulary.encode(self.recorded))

    def start(self, task: Task) -> Start:
        yield from ()
        return Follower(self.ids(task))


class Follower(Drafting):
    """A place in a recorded answer that moves along with the output."""

    def __init__(self, recorded: tuple[int, ...]) -> None:
        self._recorded = recorded
        self._at = 0
        self._seen = 0

    def guess(self, row: Row, k: int, round: int, doubt: float = 0.0) -> Draft:
        matched = None
        fresh = row.output[self._seen :]
        if self._recorded[self._at : self._at + len(fresh)] == fresh:
            self._at += len(fresh)
        else:
            matched = self._realign(row.output)
        self._seen = len(row.output)
        tokens = self._recorded[self._at : self._at + k] if matched != 0 else ()
        return Draft(tokens, limit=None if tokens else "no_match", source="recorded" if tokens else None, matched=matched)

    def _realign(self, output: tuple[int, ...]) -> int:
        """Move to where the output's end stands in the recording, nearest to the old place; returns how many tokens match."""
        for n in range(min(LONGEST_MATCH, len(output)), 0, -1):
            ends = [end for end in range(n, len(self._recorded) + 1) if self._recorded[end - n : end] == output[-n:]]
            if ends:
                self._at = min(ends, key=lambda end: (abs(end - self._at), end))
                return n
        return 0
