"""A knob is a dataclass field that knows its default, its range and what it constrains.

Sliders, validation, JSON, command-line options and docs all come from these declarations, and the
registries find every class that declares some: adding one is one new class and nothing else.
"""

from __future__ import annotations

import dataclasses
import importlib
import math
import pkgutil
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Generic, TypeVar

from playground.errors import BadValue, Text

T = TypeVar("T", bound=type)

#: A list of token sequences: each entry is text (encoded by the model's tokenizer) or a tuple of ids.
TokenSequences = tuple[str | tuple[int, ...], ...]
#: Token sequences with a number each.
Biases = tuple[tuple[str | tuple[int, ...], float], ...]

#: How many entries a list of token sequences may have, and how many characters or ids each of them.
MOST_ENTRIES = 256


@dataclass(frozen=True)
class Knob:
    """What one field of a strategy or a stage accepts, and what it means.

    `kind` is float, int, bool, choice, text, tokens (TokenSequences) or biases (token sequences with a
    number each). `off` is the value at which the stage does nothing; `low` and `high` are the
    range, open at an end where `low_open` or `high_open`. `slider` narrows what a slider offers;
    typing may go as far as the range; of a text, `high` is the number of characters. A knob with `only`
    (another knob of its class, and the values of that one) means something beside these values alone.
    """

    kind: str
    default: Any
    label: Text
    help: Text
    low: float | None = None
    high: float | None = None
    low_open: bool = False
    high_open: bool = False
    off: Any = None
    step: float | None = None
    slider: tuple[float, float] | None = None
    choices: tuple[str, ...] = ()
    names: tuple[tuple[str, str], ...] = ()
    only: tuple[str, tuple[str, ...]] | None = None

    def range(self) -> str:
        """The range as people write it: "(0, 1]" or ">= 0"."""
        if self.kind == "choice":
            return " | ".join(self.choices)
        if self.kind == "bool":
            return "true | false"
        if self.kind == "text":
            return f"text of at most {self.high:g} characters"
        most = f"one entry per line, at most {MOST_ENTRIES} entries of {MOST_ENTRIES} characters"
        if self.kind == "tokens":
            return f"text or #id #id, {most}"
        if self.kind == "biases":
            return f"text: number or #id: number, {most}, numbers {self._numbers()}"
        return self._numbers()

    def remedy(self) -> Text:
        """What to do where a value was refused."""
        if self.kind in ("int", "float"):
            return Text("Type a number of this range, or reset it.", "请输入此范围内的数，或恢复默认值。")
        if self.kind in ("choice", "bool"):
            return Text("Choose one of these.", "请从中选择。")
        if self.kind == "biases":
            return Text("Correct the entry, or reset it.", "请更正该条目，或恢复默认值。")
        return Text("Correct the text, or reset it.", "请更正文本，或恢复默认值。")

    def _numbers(self) -> str:
        if self.low is None and self.high is None:
            return "any number"
        if self.high is None:
            return f"{'>' if self.low_open else '>='} {self.low:g}"
        left = "(" if self.low_open else "["
        right = ")" if self.high_open else "]"
        return f"{left}{self.low:g}, {self.high:g}{right}"

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind, "default": self.default, "label": self.label.to_json(), "help": self.help.to_json(),
            "low": self.low, "high": self.high, "lowOpen": self.low_open, "highOpen": self.high_open, "off": self.off, "step": self.step,
            "slider": self.slider, "choices": self.choices, "range": self.range(), "names": dict(self.names),
            "only": self.only,
        }  # fmt: skip


def knob(default: Any, *, label: Text, help: Text, kind: str | None = None, names: dict[str, str] | None = None, **rules: Any) -> Any:
    """Declare a dataclass field as a knob; the kind follows from the default unless it is named."""
    kind = kind or {bool: "bool", int: "int", float: "float", str: "choice", tuple: "tokens"}[type(default)]
    declared = Knob(kind=kind, default=default, label=label, help=help, names=tuple((names or {}).items()), **rules)
    return field(default=default, metadata={"knob": declared})


def knobs_of(declaration: type) -> dict[str, Knob]:
    """Every knob of a class by name, in the order of declaration."""
    return {f.name: f.metadata["knob"] for f in dataclasses.fields(declaration) if "knob" in f.metadata}


def cast(name: str, declared: Knob, value: Any) -> Any:
    """Turn what a visitor, a file or a link gave into the knob's own type, or raise `BadValue`."""
    if declared.kind == "choice":
        if isinstance(value, bool):  # a choice between true, false and more
            value = str(value).lower()
        if value not in declared.choices:
            raise _bad(name, declared, value)
        return value
    if declared.kind == "bool":
        truth = {"true": True, "false": False, "1": True, "0": False, "yes": True, "no": False}
        if isinstance(value, bool):
            return value
        word = value.lower() if isinstance(value, str) else str(value) if value in (0, 1) else ""
        if word in truth:
            return truth[word]
        raise _bad(name, declared, value)
    if declared.kind == "text":
        if isinstance(value, str) and len(value) <= (declared.high or 0) and not any(0xD800 <= ord(character) <= 0xDFFF for character in value):
            return value
        raise _bad(name, declared, value)
    if declared.kind == "tokens":
        return _token_sequences(name, declared, value)
    if declared.kind == "biases":
        return _biases(name, declared, value)
    return _number(name, declared, value)


def _bad(name: str, declared: Knob, value: Any, why: Text | None = None) -> BadValue:
    """The error about a value: knob, range, value, and what to do about it."""
    try:
        shown = repr(value)
    except ValueError:  # an int with more digits than Python prints
        shown = f"{type(value).__name__} …"
    shown = shown if len(shown) <= 60 else shown[:57] + "..."
    within = "in " if declared.range().startswith(("[", "(")) else ""
    text = why or Text(f"{{name}} must be {within}{{range}}, got {{value}}.", "{name} 必须在 {range} 范围内，而给出的是 {value}。")
    remedy = declared.remedy()
    told = Text(f"{text.en} {remedy.en}", f"{text.zh}{remedy.zh}")
    return BadValue("knob_range", told, name=name, range=declared.range(), value=shown)


def _no_number(name: str, declared: Knob, value: Any) -> BadValue:
    """The error about a value of another kind, which no range could explain."""
    what = Text("a whole number", "整数") if declared.kind == "int" else Text("a number", "数字")
    if isinstance(value, str) and not value.strip():
        why = Text(f"{{name}} is empty: it must be {what.en}, range {{range}}.", f"{{name}} 为空：应为{what.zh}，范围 {{range}}。")
    else:
        why = Text(
            f"{{name}} must be {what.en}, range {{range}}, got {{value}}.", f"{{name}} 必须是{what.zh}，范围 {{range}}，而给出的是 {{value}}。"
        )
    return _bad(name, declared, value, why)


def _number(name: str, declared: Knob, value: Any) -> float | int:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise _no_number(name, declared, value)
    try:
        number: float | int = float(value)
    except ValueError:
        raise _no_number(name, declared, value) from None
    except OverflowError:
        raise _bad(name, declared, value) from None
    if math.isnan(number):
        raise _no_number(name, declared, value)
    if math.isinf(number):
        raise _bad(name, declared, value)
    if declared.kind == "int":
        if number != int(number):
            raise _no_number(name, declared, value)
        try:
            number = int(value)  # a float would lose the digits of a large seed
        except ValueError:
            number = int(number)  # "2.0", "1e3"
    too_low = declared.low is not None and (number < declared.low or (declared.low_open and number == declared.low))
    too_high = declared.high is not None and (number > declared.high or (declared.high_open and number == declared.high))
    if too_low or too_high:
        raise _bad(name, declared, value)
    return number


def _sequence(name: str, declared: Knob, entry: Any) -> str | tuple[int, ...]:
    """One entry: text as it is, "#12 #34" or a list of ints as token ids."""
    if isinstance(entry, str):
        ids = entry.split()
        if ids and len(ids) <= MOST_ENTRIES and all(re.fullmatch(r"#\d{1,9}", part) for part in ids):
            return tuple(int(part[1:]) for part in ids)
        if 0 < len(entry) <= MOST_ENTRIES and not any(0xD800 <= ord(character) <= 0xDFFF for character in entry):
            return entry
    elif isinstance(entry, int) and not isinstance(entry, bool) and entry >= 0:
        return (entry,)
    elif isinstance(entry, (list, tuple)) and 0 < len(entry) <= MOST_ENTRIES:
        if all(isinstance(token, int) and not isinstance(token, bool) and token >= 0 for token in entry):
            return tuple(entry)
    raise _bad(name, declared, entry)


def _token_sequences(name: str, declared: Knob, value: Any) -> TokenSequences:
    entries = [line for line in value.split("\n") if line] if isinstance(value, str) else value
    if not isinstance(entries, (list, tuple)) or len(entries) > MOST_ENTRIES:
        raise _bad(name, declared, value)
    return tuple(_sequence(name, declared, entry) for entry in entries)


def _biases(name: str, declared: Knob, value: Any) -> tuple[tuple[str | tuple[int, ...], float], ...]:
    if isinstance(value, str):
        pairs: Any = [line.rpartition(":")[::2] for line in value.split("\n") if line]
    elif isinstance(value, dict):
        pairs = list(value.items())
    else:
        pairs = value
    if not isinstance(pairs, (list, tuple)) or len(pairs) > MOST_ENTRIES:
        raise _bad(name, declared, value)
    number = dataclasses.replace(declared, kind="float")
    checked = []
    for pair in pairs:
        if not isinstance(pair, (list, tuple)) or len(pair) != 2:
            raise _bad(name, declared, pair)
        checked.append((_sequence(name, declared, pair[0]), float(_number(name, number, pair[1]))))
    return tuple(checked)


def values_of(declared: Any) -> dict[str, Any]:
    """The knob values of a strategy or a stage by name, as JSON has them: lists, no tuples; those that mean nothing here are left out."""
    knobs = knobs_of(type(declared))
    return {name: _plain(getattr(declared, name)) for name, own in knobs.items() if _counts(own, lambda other: getattr(declared, other))}


def _counts(declared: Knob, value_of: Callable[[str], Any]) -> bool:
    return declared.only is None or value_of(declared.only[0]) in declared.only[1]


def _plain(value: Any) -> Any:
    return [_plain(entry) for entry in value] if isinstance(value, tuple) else value


class Registry(Generic[T]):
    """The classes of one kind by name; looking one up imports the folder that holds them first."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._classes: dict[str, T] = {}
        self._folder: ModuleType | None = None
        self._importing = threading.RLock()

    def folder(self, package: ModuleType) -> None:
        """Name the package whose files register themselves when they are imported."""
        self._folder = package

    def register(self, declaration: T) -> T:
        name = declaration.name  # type: ignore[attr-defined]
        assert name not in self._classes, f"two {self.kind}s are called {name}"
        self._classes[name] = declaration
        return declaration

    def all(self) -> dict[str, T]:
        """Every class by name; the first call imports the folder that holds them."""
        with self._importing:
            if self._folder is not None:
                for module in pkgutil.iter_modules(self._folder.__path__):
                    importlib.import_module(f"{self._folder.__name__}.{module.name}")
                self._folder = None
        return dict(self._classes)

    def get(self, name: str) -> T:
        classes = self.all()
        if name not in classes:
            raise BadValue(
                f"{self.kind}_unknown",
                Text("There is no {kind} called {name}; there are {names}.", "没有名为 {name} 的 {kind}；可用的有 {names}。"),
                kind=self.kind, name=repr(name)[:60], names=", ".join(classes),
            )  # fmt: skip
        return classes[name]


def checked(declaration: type, values: dict[str, Any]) -> Any:
    """An instance of `declaration` from raw values: every value cast and held against its range."""
    knobs = knobs_of(declaration)
    unknown = set(values) - set(knobs)
    if unknown:
        raise BadValue(
            "knob_unknown",
            Text("{owner} has no knob {name}; it has {names}.", "{owner} 没有参数 {name}；它有 {names}。"),
            owner=declaration.name, name=sorted(map(str, unknown))[0][:60], names=", ".join(knobs) or "none",
        )  # fmt: skip
    cast_values = {name: cast(name, knobs[name], value) for name, value in values.items()}
    # What can't matter is forgotten, so that equal runs are equal values.
    kept = {name: value for name, value in cast_values.items() if _counts(knobs[name], lambda other: cast_values.get(other, knobs[other].default))}
    return declaration(**kept)
