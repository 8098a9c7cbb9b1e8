"""A formula with its operands: the words, and the same worked out with the numbers that stand there.

Whoever recomputes it from what is shown gets the number that is shown: operands have as many digits as that takes.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from functools import partial

from playground.errors import Text

#: No operand needs more significant digits than this, and none is shown with fewer than `FEWEST`.
FEWEST, MOST = 3, 9

_OPERATIONS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv, ast.Pow: operator.pow,
}  # fmt: skip


@dataclass(frozen=True)
class Formula:
    """How a number comes from others: `words`, and the `arithmetic` with its operands as they are shown.

    `gives` is the result in words where no number stands beside the formula. In the measures of a lane the operands stay open:
    `{name}` is the measure of that name beside it, and whoever shows the formula puts in what it shows of that measure.
    """

    words: Text
    arithmetic: str = ""
    gives: Text | None = None
    operands: tuple[tuple[str, str], ...] = ()

    def shown(self, operand: str) -> str:
        """An operand as it stands in the formula; a dash where it is unknown."""
        return dict(self.operands).get(operand, "–")

    @property
    def text(self) -> Text:
        """All of it as one line: words = arithmetic = result."""
        return Text(*(" = ".join(filter(None, parts)) for parts in self._parts()))

    def _parts(self) -> tuple[tuple[str, str, str], tuple[str, str, str]]:
        gives = self.gives or Text("", "")
        return (self.words.en, self.arithmetic, gives.en), (self.words.zh, self.arithmetic, gives.zh)

    def to_json(self) -> dict[str, str]:
        """As a text in both languages; open operands apart, for whoever knows the measures."""
        if "{" in self.arithmetic:
            return {**self.words.to_json(), "arithmetic": self.arithmetic}
        return self.text.to_json()


def worked(words: Text, arithmetic: str, shown: Callable[[float], str], gives: Text | None = None, /, **operands: float | int | None) -> Formula:
    """The formula with its operands filled in as `operands_shown` has them; where they are unknown the words alone are left.

    `gives` says the result, with `{result}` in its place, where no number stands beside the formula.
    """
    filled = operands_shown(arithmetic, shown, **operands)
    if filled is None:
        return Formula(words)
    exact = evaluated(arithmetic.format(**{name: _whole(value) for name, value in operands.items()}))
    return Formula(words, arithmetic.format(**filled), None if gives is None else gives.filled(result=shown(exact)), tuple(filled.items()))


def operands_shown(arithmetic: str, shown: Callable[[float], str], **operands: float | int | None) -> dict[str, str] | None:
    """The operands in as few digits as give the result that is shown; None if one isn't known, or the result is a division by zero.

    `arithmetic` has a place per operand ("{accepted} / {drafted}"), and `shown` is how the result is written.
    """
    if any(value is None for value in operands.values()):
        return None
    try:
        exact = shown(evaluated(arithmetic.format(**{name: _whole(value) for name, value in operands.items()})))
    except ZeroDivisionError:
        return None
    filled: dict[str, str] = {}
    for digits in range(FEWEST, MOST + 1):
        filled = {name: plain(value, digits) for name, value in operands.items() if value is not None}
        try:
            if shown(evaluated(arithmetic.format(**filled))) == exact:
                break
        except ZeroDivisionError:
            continue
    return filled


def _whole(value: float | int | None) -> str:
    """All digits of a number, without an exponent."""
    return "" if value is None else f"{Decimal(value):f}"


def plain(value: float, digits: int) -> str:
    """So many significant digits, without an exponent; whole numbers as they are."""
    return str(value) if isinstance(value, int) else f"{Decimal(f'{value:#.{digits}g}'.rstrip('.')):f}"


def evaluated(arithmetic: str) -> float:
    """The value of numbers, + − × / ÷ ^ and brackets; units between them are passed over."""
    bare = re.sub(r"[^\W\d_]+", "", arithmetic)
    for sign, written in (("−", "-"), ("×", "*"), ("÷", "/"), ("^", "**")):
        bare = bare.replace(sign, written)
    return _value(ast.parse(bare.strip(), mode="eval").body)


def _value(node: ast.expr) -> float:
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand)
    if isinstance(node, ast.BinOp):
        return _OPERATIONS[type(node.op)](_value(node.left), _value(node.right))
    raise ValueError(ast.dump(node))


def shown(value: float | int | None, unit: str) -> tuple[str, str]:
    """A number of a ledger as a screen has it, and its unit."""
    if value is None:
        return "–", ""
    sign, size = ("−" if value < 0 else ""), abs(value)
    if unit == "1":
        return (f"{value:.0f}" if float(value).is_integer() else f"{value:.3f}"), ""
    if value == 1 and unit in ("tokens", "rounds"):
        return "1", unit.removesuffix("s")
    if unit == "tokens":
        return (f"{value:.0f}" if float(value).is_integer() else f"{value:.2f}"), unit
    if " " in unit:
        return f"{value:.2f}", unit
    if unit == "s":
        if size >= 1:
            return f"{sign}{size:.{1 if size >= 10 else 2}f}", "s"
        return f"{sign}{size * 1e3:.{0 if size >= 0.1 else 1 if size >= 0.01 else 2}f}", "ms"
    if unit == "B":
        for step, name in ((1e9, "GB"), (1e6, "MB")):
            if size >= step:
                return f"{size / step:.{2 if step == 1e9 or size < 1e7 else 1 if size < 1e8 else 0}f}", name
        return f"{size / 1e3:.0f}", "kB"
    if isinstance(value, int):
        return str(value), unit
    return f"{sign}{size:.{0 if size >= 100 else 1 if size >= 10 else 2}f}", unit


def written(unit: str, scale: float = 1.0) -> Callable[[float], str]:
    """How a result in this unit is written, where the arithmetic gives it in units of `scale`."""
    return partial(_written, unit, scale)


def _written(unit: str, scale: float, value: float) -> str:
    return shown(float(value * scale), unit)[0]
