"""Token ids as text: joining pieces whose characters may be split over several tokens.

In a trace a special token's `piece` is its display name (b"<|im_end|>"), so that it can be shown;
it adds nothing to the output text, and joining skips it.
"""

from __future__ import annotations

import codecs
import unicodedata
from dataclasses import dataclass, field

from playground.trace import Finished, TokenName, Trace

_GLYPHS = {" ": "␣", "\n": "↵", "\t": "⇥", "\r": "␍"}


@dataclass(frozen=True)
class Joined:
    """What one token did to the output: the `text` that it completed, and its bytes `start` to `end`.

    The text may be empty (the token ends inside a character), or longer than its own bytes (it
    completes a character that began in an earlier token).
    """

    text: str
    start: int
    end: int


@dataclass
class TextJoiner:
    """Joins the pieces of tokens into text as they come.

    Bytes of a character that isn't complete are held back; as soon as they can't be completed any
    more they become U+FFFD, as in every UTF-8 decoder. `names` may grow while tokens arrive.
    """

    names: dict[int, TokenName]
    output: bytearray = field(default_factory=bytearray)
    _decoder: codecs.IncrementalDecoder = field(default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace"))
    #: Before every token: how many bytes there were, and what was held back.
    _before: list[tuple[int, tuple[bytes, int]]] = field(default_factory=list)

    def back_to(self, position: int) -> None:
        """Forget the token at a position and all behind it: other ones take their place."""
        if position < len(self._before):
            length, held = self._before[position]
            del self.output[length:], self._before[position:]
            self._decoder.setstate(held)

    def add(self, token: int) -> Joined:
        """The text that this token completes: none for special tokens and for tokens that no event named."""
        name = self.names.get(token)
        start = len(self.output)
        self._before.append((start, self._decoder.getstate()))
        piece = b"" if name is None or name.special else name.piece
        self.output += piece
        return Joined(self._decoder.decode(piece), start, len(self.output))

    def flush(self) -> str:
        """What is still held back, when no more tokens come: U+FFFD, or nothing."""
        return self._decoder.decode(b"", final=True)


def output_text(trace: Trace, lane: int) -> str:
    """The text that a lane wrote, cut where its stop string begins (a byte offset)."""
    joiner = TextJoiner(trace.names(trace.about.lanes[lane].model))
    for chosen in trace.output(lane):
        joiner.add(chosen.token)
    cut = next((finished.cut for finished in trace.of(lane, Finished)), None)
    return bytes(joiner.output[:cut]).decode("utf-8", "replace")


def display_name(name: TokenName | None) -> str:
    """A token as a label: visible glyphs for whitespace, ⟨E4 BD⟩ for bytes that are no text."""
    if name is None:
        return "⟨?⟩"
    if not name.piece:
        return "⟨⟩"
    decoded = name.piece.decode("utf-8", "surrogateescape")
    shown: list[str] = []
    raw: list[str] = []
    for character in decoded:
        code = ord(character)
        if 0xDC80 <= code <= 0xDCFF:
            raw.append(f"{code - 0xDC00:02X}")
            continue
        if raw:
            shown.append(f"⟨{' '.join(raw)}⟩")
            raw = []
        shown.append(_visible(character))
    if raw:
        shown.append(f"⟨{' '.join(raw)}⟩")
    if unicodedata.category(decoded[0])[0] == "M":  # a combining mark needs something to stand on
        shown.insert(0, "◌")
    return _runs(shown)


def _visible(character: str) -> str:
    """One character so that it can be seen and can't steer the text around it."""
    if character in _GLYPHS:
        return _GLYPHS[character]
    category = unicodedata.category(character)
    if category[0] in "CZ":  # control, format (bidi, zero width), unassigned, other spaces
        return f"⟨U+{ord(character):04X}⟩"
    return character


def _runs(shown: list[str]) -> str:
    """Five or more equal whitespace glyphs in a row are counted: code models have tokens of 16 spaces."""
    parts: list[str] = []
    at = 0
    while at < len(shown):
        end = at
        while end < len(shown) and shown[end] == shown[at]:
            end += 1
        count = end - at
        parts.append(f"{shown[at]}×{count}" if count >= 5 and shown[at] in _GLYPHS.values() else shown[at] * count)
        at = end
    return "".join(parts)
