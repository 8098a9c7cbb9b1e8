"""Numbers from traces: every one says its unit, how it was got and, if it was derived, by which formula."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from playground.errors import Text

How = Literal["measured", "derived", "estimated", "reported"]


@dataclass(frozen=True)
class Quantity:
    """One number as it stands on a screen or in a file; unknown is None, never 0.

    `how` says where it comes from: measured here, derived by `formula`, estimated, or reported by a
    server. The one quantity that is a word and no number is why a lane stopped.
    """

    value: float | int | str | None
    unit: str
    how: How
    label: Text
    formula: str | Text | None = None

    def to_json(self) -> dict[str, Any]:
        formula = self.formula.to_json() if isinstance(self.formula, Text) else self.formula
        return {"value": self.value, "unit": self.unit, "how": self.how, "label": self.label.to_json(), "formula": formula}
