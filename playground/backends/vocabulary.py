"""Token ids as bytes of text: exact for byte-level and SentencePiece-style tokenizers, by decoding for others."""

from __future__ import annotations

import copy
import json
import re
import threading
from collections.abc import Callable
from typing import Any

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")

#: SentencePiece's sign for a space.
_METASPACE = "\u2581"


def byte_decoder() -> dict[str, int]:
    """The character that GPT-2's byte-level BPE writes for each byte: itself if it can be printed, else one from U+0100 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + index): byte for index, byte in enumerate(others)}


class TokenizerVocabulary:
    """A tokenizer as the engine sees it: which bytes a token adds, which tokens are special, a text's ids.

    `size` counts the rows of the model's output matrix, which is often padded beyond the tokenizer's last id.
    """

    def __init__(self, tokenizer: Any, size: int | None = None) -> None:
        self._tokenizer = tokenizer
        self._known = frozenset(tokenizer.get_vocab().values())
        self.size = max(self._known) + 1 if size is None else size
        added = tokenizer.added_tokens_decoder
        self._added = {token: entry.content for token, entry in added.items()}
        self.special_ids = frozenset(tokenizer.all_special_ids) | {token for token, entry in added.items() if entry.special}
        self._bytes_of = self._way()
        self._pieces: dict[int, bytes] = {}
        self._literal: Any = None
        self._literal_lock = threading.Lock()

    def piece(self, token: int) -> bytes:
        """The bytes a token adds to the output text; none for special ids and for padding beyond the tokenizer."""
        found = self._pieces.get(token)
        if found is None:
            found = self._pieces[token] = self._piece(token)
        return found

    def is_special(self, token: int) -> bool:
        return token in self.special_ids or token not in self._known

    def name(self, token: int) -> str:
        """What a token is called on the screen: its text, or a special token's own name."""
        if token not in self._known:
            return f"<unused {token}>"
        if token in self.special_ids:
            return self._added.get(token) or str(self._tokenizer.convert_ids_to_tokens(token))
        return self.piece(token).decode("utf-8", "replace")

    def encode(self, text: str) -> tuple[int, ...]:
        """The ids of a text exactly as it stands, with no special tokens around it; a special token's name is that token."""
        return tuple(self._tokenizer(text, add_special_tokens=False).input_ids)

    def encode_literally(self, text: str) -> tuple[int, ...]:
        """The ids of a text that a stranger wrote: the name of a special token is ordinary text in it."""
        backend = getattr(self._tokenizer, "backend_tokenizer", None)
        if backend is None:
            return tuple(self._tokenizer(text, add_special_tokens=False, split_special_tokens=True).input_ids)
        with self._literal_lock:
            if self._literal is None:
                # A copy, because the switch belongs to the whole tokenizer and other threads use it.
                self._literal = copy.deepcopy(backend)
                self._literal.encode_special_tokens = True
        return tuple(self._literal.encode(text, add_special_tokens=False).ids)

    def _piece(self, token: int) -> bytes:
        if self.is_special(token):
            return b""
        if token in self._added:
            return self._added[token].encode()
        written = self._tokenizer.convert_ids_to_tokens(token)
        return b"" if written is None else self._bytes_of(token, written)

    def _way(self) -> Callable[[int, str], bytes]:
        """How this tokenizer's tokens are written, told by its decoder."""
        backend = getattr(self._tokenizer, "backend_tokenizer", None)
        decoder = getattr(backend, "decoder", None)
        steps = _steps(json.loads(decoder.__getstate__())) if decoder is not None else []
        kinds = {step["type"] for step in steps}
        if "ByteLevel" in kinds or hasattr(self._tokenizer, "byte_decoder"):
            table = byte_decoder()
            return lambda _, written: bytes(table[c] for c in written) if all(c in table for c in written) else written.encode()
        if "Metaspace" in kinds or "ByteFallback" in kinds or hasattr(self._tokenizer, "sp_model"):
            spaces = [step["replacement"] for step in steps if step["type"] == "Metaspace"]
            return lambda _, written: _metaspace_piece(written, spaces[0] if spaces else _METASPACE)
        return self._decoded

    def _decoded(self, token: int, written: str) -> bytes:
        """What decoding shows after another token: a tokenizer may treat the first one otherwise."""
        anchor = self._anchor()
        before = self._tokenizer.decode(anchor)
        both = self._tokenizer.decode([*anchor, token])
        return (both.removeprefix(before) if both.startswith(before) else self._tokenizer.decode([token])).encode()

    def _anchor(self) -> list[int]:
        return list(self.encode("a"))[-1:]


def _steps(decoder: dict[str, Any] | None) -> list[dict[str, Any]]:
    """A decoder's steps, whether it is one or a sequence of them."""
    if decoder is None:
        return []
    if decoder["type"] == "Sequence":
        return [inner for step in decoder["decoders"] for inner in _steps(step)]
    return [decoder]


def _metaspace_piece(written: str, space: str) -> bytes:
    byte = _BYTE_TOKEN.fullmatch(written)
    return bytes([int(byte[1], 16)]) if byte else written.replace(space, " ").encode()
