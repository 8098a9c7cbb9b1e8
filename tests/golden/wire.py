"""What a packet says, whatever its fields are called on the wire: the one place of the frozen files that knows today's short names."""

from __future__ import annotations

from typing import Any

#: Field names as they stand on the wire, by kind of event, and what they mean.
MEANING: dict[str, dict[str, str]] = {
    "token": {
        "p": "position", "t": "token", "x": "text", "n": "name", "b": "bytes", "lp": "log_probability", "rlp": "raw_log_probability",
        "r": "rank", "rr": "raw_rank", "sh": "shown", "iv": "interval", "h": "entropy", "hr": "raw_entropy", "a": "alive", "top": "candidates",
        "o": "origin", "sc": "scale", "d": "doubt",
    },
    "step": {
        "n": "step", "s": "seconds", "rec": "recording", "ls": "lane_seconds", "kv": "cache_bytes", "len": "cache_length", "mem": "peak_memory",
    },
    "device": {"util": "utilisation", "mem": "memory_bytes", "total": "memory_total"},
    "beams": {"s": "step", "c": "candidates", "l": "living", "o": "pool", "b": "best"},
    "ranked": {"h": "hypotheses", "r": "returned", "e": "ending"},
    "draft": {
        "r": "round", "p": "position", "g": "guesses", "e": "extra", "o": "extra_origin", "s": "seconds", "k": "wanted", "l": "limit",
        "f": "source", "m": "matched",
    },
    "chunk": {"x": "text", "t": "tokens", "s": "seconds"},
    "counted": {"k": "kind"},
}  # fmt: skip


def meant(event: list[Any]) -> list[Any]:
    """One event of a packet with its fields' names in full."""
    lane, kind, payload = event
    names = MEANING.get(kind, {})
    return [lane, kind, {names.get(field, field): value for field, value in payload.items()}]
