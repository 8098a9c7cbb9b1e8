"""When a lane ends, and where its text is cut."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from playground.engine.stop import ContextLimit, EndOfSequence, MaxNewTokens, StopStrings, held_back


class Bytes:
    """A vocabulary of raw bytes: every character beyond ASCII is split over several tokens."""

    size = 256

    def piece(self, token: int) -> bytes:
        return bytes([token])

    def is_special(self, token: int) -> bool:
        return False

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(text.encode())


def feed(rule: StopStrings, text: bytes) -> tuple[list[int], int | None]:
    """What may be shown after every byte, and where the rule cut."""
    state, shown = rule.start, []
    for position, token in enumerate(text):
        state, stopped = rule.check(state, token, position)
        shown.append(rule.shown(state))
        if stopped is not None:
            assert stopped.reason == "stop" and stopped.detail == "stop_string"
            return shown, stopped.cut
    return shown, None


def test_stop_string_across_tokens_is_held_back_and_cut() -> None:
    shown, cut = feed(StopStrings((b"\n\nUser",), Bytes()), b"Hi\n\nNo\n\nUser: x")
    assert cut == 6
    assert shown == [1, 2, 2, 2, 5, 6, 6, 6, 6, 6, 6, 6]  # the newlines wait until the N shows that they are no stop


def test_cjk_stop_string_split_over_byte_tokens_is_found() -> None:
    text = "你好。再见".encode()
    assert feed(StopStrings(("。".encode(),), Bytes()), text)[1] == len("你好".encode())


def test_left_most_match_wins() -> None:
    assert feed(StopStrings((b"cd", b"bcd"), Bytes()), b"abcd")[1] == 1


def test_no_empty_hold() -> None:
    assert held_back(b"abc", [b"x"]) == 0
    assert held_back(b"ab", [b"abc", b"b1"]) == 2


@given(st.text("ab", max_size=30), st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3))
@settings(max_examples=300, deadline=None)
def test_nothing_shown_is_ever_taken_back(text: str, strings: list[str]) -> None:
    encoded = [string.encode() for string in strings]
    shown, cut = feed(StopStrings(tuple(encoded), Bytes()), text.encode())
    assert shown == sorted(shown)
    # Token by token, the first prefix that contains a stop string is where the lane ends.
    ends = [end for end in range(1, len(text) + 1) if any(string in text[:end] for string in strings)]
    expected = min(text[: ends[0]].find(string) for string in strings if string in text[: ends[0]]) if ends else None
    assert cut == expected
    if cut is not None:
        assert all(count <= cut for count in shown)


@pytest.mark.parametrize(("rule", "token", "position", "detail"), [
    (EndOfSequence(frozenset({3, 5})), 5, 0, "eos"),
    (EndOfSequence(frozenset({3, 5})), 4, 0, None),
    (MaxNewTokens(3), 0, 2, "max_new_tokens"),
    (MaxNewTokens(3), 0, 1, None),
    (ContextLimit(10, prompt=7), 0, 2, "context"),
    (ContextLimit(10, prompt=7), 0, 1, None),
])  # fmt: skip
def test_rules_end_a_row_at_the_right_token(rule: object, token: int, position: int, detail: str | None) -> None:
    _, stopped = rule.check(None, token, position)  # type: ignore[attr-defined]
    assert (stopped.detail if stopped else None) == detail
