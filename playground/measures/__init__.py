"""Numbers from traces: every one says its unit, how it was got and, if it was derived, by which formula."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from playground.errors import Text
from playground.measures.formula import Formula

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
    formula: str | Text | Formula | None = None

    def to_json(self) -> dict[str, Any]:
        formula = self.formula if isinstance(self.formula, str) or self.formula is None else self.formula.to_json()
        return {"value": self.value, "unit": self.unit, "how": self.how, "label": self.label.to_json(), "formula": formula}

    @property
    def formula_text(self) -> Text | None:
        """The formula as one line, its operands in it."""
        found = self.formula.text if isinstance(self.formula, Formula) else self.formula
        return Text(found, found) if isinstance(found, str) else found
