"""When a lane ends: rules that are bound to a lane and keep their state per row, as stages do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from playground.engine.model import Vocabulary


@dataclass(frozen=True)
class Stopped:
    """Why a row ended, and where its shown text is cut (a byte offset, or None for no cut)."""

    reason: Literal["stop", "length"]
    detail: str
    cut: int | None = None


class StopRule(Protocol):
    """`check` is asked after every token: the rule's new state, and an end or None."""

    start: Any

    def check(self, state: Any, token: int, position: int) -> tuple[Any, Stopped | None]: ...


@dataclass(frozen=True)
class EndOfSequence:
    """Any of the model's EOS ids ends the row; the id itself stays in the output."""

    ids: frozenset[int]
    start: Any = None

    def check(self, state: Any, token: int, position: int) -> tuple[Any, Stopped | None]:
        return None, Stopped("stop", "eos") if token in self.ids else None


@dataclass(frozen=True)
class MaxNewTokens:
    """The lane's own limit on output tokens."""

    limit: int
    start: Any = None

    def check(self, state: Any, token: int, position: int) -> tuple[Any, Stopped | None]:
        return None, Stopped("length", "max_new_tokens") if position + 1 >= self.limit else None


@dataclass(frozen=True)
class ContextLimit:
    """Prompt and output fill the model's context: no position is left for another token."""

    context: int
    prompt: int
    start: Any = None

    def check(self, state: Any, token: int, position: int) -> tuple[Any, Stopped | None]:
        return None, Stopped("length", "context") if self.prompt + position + 1 >= self.context else None


@dataclass(frozen=True)
class StopStrings:
    """Ends the row when one of some strings appears in its text, across token borders if need be.

    Matching is done on bytes, so that a string whose characters are split over several tokens is
    found. The text is cut at the left-most match. The state is the output text so far and how much
    of it may be shown: the rest could still turn out to begin a stop string.
    """

    strings: tuple[bytes, ...]
    vocabulary: Vocabulary
    start: Any = (b"", 0)

    def check(self, state: Any, token: int, position: int) -> tuple[Any, Stopped | None]:
        text = state[0] + self.vocabulary.piece(token)
        # A match that ends in the new bytes can begin this far back, at the most.
        window = max(0, len(state[0]) - max(map(len, self.strings)) + 1)
        found = [at for at in (text.find(string, window) for string in self.strings) if at >= 0]
        if found:
            return (text, min(found)), Stopped("stop", "stop_string", cut=min(found))
        return (text, len(text) - held_back(text, self.strings)), None

    @staticmethod
    def shown(state: Any) -> int:
        return state[1]


def held_back(text: bytes, strings: Sequence[bytes]) -> int:
    """How many bytes at the end of `text` may still turn out to be the beginning of one of `strings`."""
    longest = min(len(text), max(map(len, strings)) - 1)
    for length in range(longest, 0, -1):
        tail = text[-length:]
        if any(len(string) > length and string.startswith(tail) for string in strings):
            return length
    return 0
