"""What a visitor reads when something can't be done, in the visitor's language."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Text:
    """One sentence in both languages of the page; `{name}` places are filled by `filled`."""

    en: str
    zh: str

    def filled(self, /, **values: Any) -> Text:
        return Text(self.en.format(**values), self.zh.format(**values))

    def to_json(self) -> dict[str, str]:
        return {"en": self.en, "zh": self.zh}


class PlaygroundError(Exception):
    """Something the visitor can mend: the message is shown once, on the screen, and is not a bug.

    `code` names the kind of error for programs ("knob_range", "model_unknown"), `text` is what the
    visitor reads, `values` are the plain values that were put into it.
    """

    def __init__(self, code: str, text: Text, /, **values: Any) -> None:
        self.code = code
        self.text = text.filled(**values) if values else text
        self.values = values
        super().__init__(self.text.en)

    def __reduce__(self) -> tuple[Any, ...]:
        """Errors travel between processes whole: the text is filled in already, so the values come after it."""
        return type(self), (self.code, self.text), {"values": self.values}

    def to_json(self) -> dict[str, Any]:
        values = {key: value if isinstance(value, (int, float, bool, type(None))) else str(value) for key, value in self.values.items()}
        return {"code": self.code, "text": self.text.to_json(), "values": values}


class BadValue(PlaygroundError):
    """A knob or a limit was given a value that it can't have: names knob, range and value."""


class ModelUnavailable(PlaygroundError):
    """A model can't be used: unknown, gated, unreachable, too large or broken."""


class Cancelled(Exception):
    """The visitor pressed Stop, or the last viewer left: ends a race between two steps."""
