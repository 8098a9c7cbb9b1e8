"""Which k on this server: what a baseline and one run with k_max guesses per step say of every smaller k.

For each load:

- E(k) = 1 + h · (P_1 + … + P_k): tokens per step. P_i is the share of drafts whose guess i was accepted, h the share of steps
  that had a draft. Derived: with a smaller k the blocks start elsewhere, and the P_i there are not quite these.
- T(k): seconds per step. T(0) is the baseline's seconds per token, T(k_max) = the speculative seconds per token · E(k_max); in
  between estimated, on a straight line. The interval also holds the case that every step costs what k_max costs, as
  it would if the price were in speculating at all, not in the number of guesses.
- speed-up(k) = E(k) · T(0) / T(k). At k_max it is the measured one.

The interval is the smallest and the largest over the repeats and both cases of T. It is no confidence interval, and from a
single repeat it holds nothing of how far two runs differ; `KVerdict.confirm` then says so.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from playground.errors import Text
from playground.measures import Quantity
from playground.measures.server_load import Cell, Confirmation, Expectation, Level, LoadResult, speed_up
from playground.measures.server_speculation import LARGEST_K, SpeculationRecord

_TOKENS = Text("tokens per step", "每步词元数")
_STEP = Text("seconds per step", "每步秒数")
_MEASURED_STEP = Text("E(k) · speculative seconds per token", "E(k) · 推测每词元秒数")
_ON_THE_LINE = Text("on the line from T(0) to T({most}): {k}/{most} of the way", "T(0) 至 T({most}) 连线上的 {k}/{most} 处")
_SPEED_UP = Text("expected speed-up", "预期加速比")

UNKNOWN = Text(
    "Which k: unknown. It takes a load that both servers went through, and the acceptance of this run alone: from the replies "
    "(--per-request-spec-decode-metrics detailed), or from /metrics while nobody else uses the server.",
    "k 取多少：未知。需要两台服务器都跑过的同一负载，以及仅属于本次运行的接受率：来自回复（--per-request-spec-decode-metrics detailed），"
    "或来自没有他人使用时的 /metrics。",
)

MEASURED_ONCE = Text(
    "A load was measured only once: the interval holds nothing of how far two runs differ. ",
    "有负载只测过一次：区间未包含两次运行之间的差异。",
)

#: A smaller speed-up is not worth the memory and the risk, unless the whole interval lies above 1.
WORTH_IT = 1.05

#: What the end of the batch-size table is: above what was measured, speculation is off.
LARGEST_BATCH = 512

#: vLLM 0.32 takes the table of k by batch size, and keeps to it; older versions may not.
TABLE_SINCE = (0, 32)


@dataclass(frozen=True)
class Repeat:
    """One repeat at one load: the baseline's and the speculative server's seconds per token, P_1 … P_kmax, and h."""

    baseline: float
    speculative: float
    positions: tuple[float, ...]
    with_draft: float


@dataclass(frozen=True)
class Expected:
    """What is to be expected of one k; `low` and `high` bound the speed-up."""

    k: int
    tokens: Quantity
    step: Quantity
    speed_up: Quantity
    low: float
    high: float

    def to_json(self) -> dict[str, Any]:
        quantities = {name: getattr(self, name).to_json() for name in ("tokens", "step", "speed_up")}
        return {"k": self.k, **quantities, "low": self.low, "high": self.high}


@dataclass(frozen=True)
class LevelVerdict:
    """The answer at one load: `k` guesses, 0 for off; `sure` where the whole interval lies on one side of 1."""

    level: Level
    expected: tuple[Expected, ...]
    k: int
    sure: bool
    repeats: int

    @property
    def best(self) -> Expected:
        return max(self.expected, key=lambda entry: (_number(entry.speed_up), -entry.k))

    @property
    def sentence(self) -> Text:
        best, at = self.best, self.level.text
        said = f"{_number(best.speed_up):.2f}× ({best.low:.2f}–{best.high:.2f})"
        if self.k and self.sure:
            return Text(f"At {at.en}: k = {self.k}, expected {said}.", f"{at.zh}：k = {self.k}，预期 {said}。")
        if self.k:
            return Text(
                f"At {at.en}: k = {self.k} may pay, expected {said}; the interval holds 1, so confirm it with a run.",
                f"{at.zh}：k = {self.k} 可能有收益，预期 {said}；区间包含 1，请再测一次确认。",
            )
        if best.high > 1:
            return Text(
                f"At {at.en}: leave it off; the best, k = {best.k}, is expected at {said}, too close to 1 to be worth it.",
                f"{at.zh}：不要开启；最好的 k = {best.k} 预期 {said}，与 1 太接近，不值得。",
            )
        return Text(
            f"At {at.en}: leave it off; the best, k = {best.k}, is expected at {said}.", f"{at.zh}：不要开启；最好的 k = {best.k} 也只有 {said}。"
        )

    def to_json(self) -> dict[str, Any]:
        level = {"concurrency": self.level.concurrency, "rate": self.level.rate, "text": self.level.text.to_json()}
        expected = [entry.to_json() for entry in self.expected]
        return {"level": level, "k": self.k, "sure": self.sure, "expected": expected, "sentence": self.sentence.to_json()}


@dataclass(frozen=True)
class KVerdict:
    """Which k, load by load; the sentence for all of them, the server's setting, and how to confirm it.

    `config` is None where speculation is to be left off; `trial` is what a confirming run sets then: the best k all the same.
    """

    levels: tuple[LevelVerdict, ...]
    sentence: Text
    config: dict[str, Any] | None
    config_note: Text
    confirm: Text
    trial: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        return {
            "levels": [level.to_json() for level in self.levels], "sentence": self.sentence.to_json(), "config": self.config,
            "config_note": self.config_note.to_json(), "confirm": self.confirm.to_json(),
        }  # fmt: skip


def which_k(result: LoadResult, config: dict[str, Any] | None = None) -> KVerdict | None:
    """The verdict on an experiment; `config` is the speculative server's --speculative-config, if it is known.

    None where the runs don't tell: no load with both servers, a server that says nothing of its acceptance, or a run that confirms an answer.
    """
    found: list[LevelVerdict] = []
    for index, level in enumerate(result.setup.levels if result.confirms is None else ()):
        baseline = {cell.repeat: cell.seconds_per_token for cell in result.cells_of("baseline", index)}
        pairs = [(baseline.get(cell.repeat), cell) for cell in result.cells_of("speculative", index)]
        repeats = [repeat for seconds, cell in pairs if seconds and (repeat := _repeat(seconds, cell)) is not None]
        if repeats:
            found.append(level_verdict(level, repeats))
    about = result.servers["speculative"]
    return verdict(found, config, takes_table=about.kind == "vllm" and _version(about.version) >= TABLE_SINCE) if found else None


def _repeat(baseline: float, cell: Cell) -> Repeat | None:
    seconds = cell.seconds_per_token
    shape = draft_shape(cell.speculation, len([request for request in cell.whole if request.tokens]))
    return Repeat(baseline, seconds, *shape) if seconds is not None and shape is not None else None


def draft_shape(record: SpeculationRecord, requests: int) -> tuple[tuple[float, ...], float] | None:
    """P_1 … P_kmax and h of a ledger over so many requests; None where it doesn't hold them.

    A request's first token comes with its prompt, and every other forward is a step. Where only sums are known there are
    tokens - accepted forwards, as each writes one token of its own; fewer than had a draft can't be.
    """
    if not record.steps or not record.by_position or record.tokens is None or record.accepted is None:
        return None
    if record.source == "counters" and record.other_tokens:
        return None  # others' drafts are in the counters
    forwards = record.forwards if record.source == "request" and record.forwards is not None else record.tokens - record.accepted
    steps = max(forwards - requests, record.steps)
    return tuple(min(max(count / record.steps, 0.0), 1.0) for count in record.by_position), record.steps / steps


def level_verdict(level: Level, repeats: Sequence[Repeat]) -> LevelVerdict:
    """What every k up to k_max is expected to bring at one load, and which to take."""
    most = min(max(len(repeat.positions) for repeat in repeats), LARGEST_K)
    expected = tuple(_expected(k, most, repeats) for k in range(1, most + 1))
    best = max(expected, key=lambda entry: (_number(entry.speed_up), -entry.k))
    pays = best.low > 1 or _number(best.speed_up) >= WORTH_IT
    return LevelVerdict(level, expected, best.k if pays else 0, sure=best.low > 1 or best.high <= 1, repeats=len(repeats))


def _expected(k: int, most: int, repeats: Sequence[Repeat]) -> Expected:
    tokens, steps, speeds, bounds = [], [], [], []
    for repeat in repeats:
        e = 1 + repeat.with_draft * sum(repeat.positions[:k])
        slowest = repeat.speculative * (1 + repeat.with_draft * sum(repeat.positions))
        step = repeat.baseline + (slowest - repeat.baseline) * k / most
        tokens.append(e)
        steps.append(step)
        speeds.append(e * repeat.baseline / step)
        bounds += [e * repeat.baseline / step, e * repeat.baseline / slowest]
    measured = k == most
    line = _MEASURED_STEP if measured else _ON_THE_LINE.filled(k=k, most=most)
    return Expected(
        k,
        Quantity(statistics.median(tokens), "tokens", "derived", _TOKENS, f"1 + h · (P_1 + … + P_{k})"),
        Quantity(statistics.median(steps), "s", "derived" if measured else "estimated", _STEP, line),
        Quantity(statistics.median(speeds), "x", "derived" if measured else "estimated", _SPEED_UP, "E(k) · T(0) / T(k)"),
        min(bounds),
        max(bounds),
    )


def verdict(levels: Sequence[LevelVerdict], config: dict[str, Any] | None = None, takes_table: bool = False) -> KVerdict:
    """The levels in one sentence, and as a setting for the server."""
    ordered = sorted(levels, key=lambda entry: (entry.level.concurrency is None, entry.level.concurrency or 0, entry.level.rate or 0.0))
    setting, note = _config(ordered, config, takes_table)
    once = MEASURED_ONCE if any(entry.repeats == 1 for entry in ordered) else Text("", "")
    confirm = _confirm(ordered)
    trial = setting
    if trial is None:
        best = max((entry.best for entry in ordered), key=lambda entry: _number(entry.speed_up))
        trial = {**_without_k(config), "num_speculative_tokens": best.k}
    return KVerdict(tuple(ordered), _sentence(ordered), setting, note, Text(once.en + confirm.en, once.zh + confirm.zh), trial)


def _without_k(config: dict[str, Any] | None) -> dict[str, Any]:
    """A server's setting without its numbers of guesses."""
    return {name: value for name, value in (config or {}).items() if name not in ("num_speculative_tokens", "num_speculative_tokens_per_batch_size")}


# --- the run that confirms it -----------------------------------------------------------------------


def confirmation(result: LoadResult, found: KVerdict) -> Confirmation:
    """What a run with the verdict's setting has to show, load by load."""
    expected = []
    for entry in found.levels:
        k = _k_at(found.trial, entry.level)
        of_k = next((one for one in entry.expected if one.k == k), None)
        at = result.setup.levels.index(entry.level)
        expected.append(Expectation(at, k, _number(of_k.speed_up), of_k.low, of_k.high) if of_k is not None else Expectation(at, 0, 1.0, 1.0, 1.0))
    return Confirmation(result.created, found.trial, tuple(expected))


def _k_at(config: dict[str, Any], level: Level) -> int:
    """How many guesses a server makes with so many streams: its table of k by batch size where it has one."""
    table = config.get("num_speculative_tokens_per_batch_size")
    if table is None or level.concurrency is None:
        return int(config["num_speculative_tokens"])
    return next((int(k) for first, last, k in table if first <= level.concurrency <= last), 0)


@dataclass(frozen=True)
class Confirmed:
    """One load of a confirming run: `as_expected` is None where nothing was measured, or nothing was to be shown."""

    level: Level
    as_expected: bool | None
    sentence: Text

    def to_json(self) -> dict[str, Any]:
        return {"level": self.level.text.to_json(), "as_expected": self.as_expected, "sentence": self.sentence.to_json()}


def confirmed(result: LoadResult) -> list[Confirmed]:
    """Expected and measured, load by load; empty where the result confirms nothing. As expected means that the two intervals meet."""
    found = []
    for one in result.confirms.expected if result.confirms is not None else ():
        level, measured = result.setup.levels[one.level], speed_up(result, one.level)
        at, expected = level.text, f"{one.speed_up:.2f}× ({one.low:.2f}–{one.high:.2f})"
        if measured.value is None:
            found.append(Confirmed(level, None, Text(f"At {at.en}: not measured.", f"{at.zh}：未测到。")))
            continue
        low, high = (measured.value if bound is None else bound for bound in (measured.low, measured.high))
        got = f"{measured.value:.2f}×" + (f" ({low:.2f}–{high:.2f})" if measured.low is not None else "")
        if not one.k:
            said = Text(f"At {at.en}: off there; measured {got}.", f"{at.zh}：此处关闭；实测 {got}。")
            found.append(Confirmed(level, None, said))
            continue
        met = low <= one.high and high >= one.low
        verdict_ = AS_EXPECTED if met else BELOW if measured.value < one.speed_up else ABOVE
        said = Text(
            f"At {at.en}: k = {one.k}, expected {expected}, measured {got}: {verdict_.en}.",
            f"{at.zh}：k = {one.k}，预期 {expected}，实测 {got}：{verdict_.zh}。",
        )
        found.append(Confirmed(level, met, said))
    return found


AS_EXPECTED = Text("as expected", "符合预期")
BELOW = Text("below what was expected", "低于预期")
ABOVE = Text("above what was expected", "高于预期")


def confirmed_sentence(found: Sequence[Confirmed]) -> Text:
    """All loads of a confirming run in one sentence."""
    judged = [one for one in found if one.as_expected is not None]
    if not judged:
        return Text("Nothing was measured that could confirm the answer.", "没有测到能够验证结论的数据。")
    met = sum(one.as_expected is True for one in judged)
    if met == len(judged):
        return Text(f"Confirmed: as expected at {_loads(met)}.", f"已验证：{met} 个负载均符合预期。")
    return Text(f"Not confirmed: as expected at {met} of {_loads(len(judged))}.", f"未得到验证：{len(judged)} 个负载中 {met} 个符合预期。")


def _loads(count: int) -> str:
    return f"{count} load{'s' if count > 1 else ''}"


def _sentence(levels: Sequence[LevelVerdict]) -> Text:
    """ "k = 3 up to 8 streams, off above; expected 1.4× (1.2-1.5)": neighbours with the same answer are one part."""
    if not any(entry.k for entry in levels):
        best = max(levels, key=lambda entry: _number(entry.best.speed_up))
        top, at = best.best, best.level.text
        said = f"{_number(top.speed_up):.2f}× ({top.low:.2f}–{top.high:.2f})"
        return Text(
            f"Leave it off: at every load measured; the best, k = {top.k} at {at.en}, is expected at {said}.",
            f"不要开启：在所有测过的负载下都是如此；最好的情况是 {at.zh}时 k = {top.k}，预期 {said}。",
        )
    groups: list[list[LevelVerdict]] = []
    for entry in levels:
        if groups and groups[-1][0].k == entry.k and _same_kind(groups[-1][0].level, entry.level):
            groups[-1].append(entry)
        else:
            groups.append([entry])
    english, chinese = [], []
    for number, group in enumerate(groups):
        k, where = group[0].k, _where(groups, number)
        range_ = ""
        if k:
            speeds = [_number(entry.best.speed_up) for entry in group]
            low, high = min(entry.best.low for entry in group), max(entry.best.high for entry in group)
            mean = f"{min(speeds):.2f}–{max(speeds):.2f}×" if f"{min(speeds):.2f}" != f"{max(speeds):.2f}" else f"{speeds[0]:.2f}×"
            range_ = f"{mean} ({low:.2f}–{high:.2f})"
        english.append(f"k = {k} {where.en}, expected {range_}" if k else f"off {where.en}")
        chinese.append(f"{where.zh} k = {k}，预期 {range_}" if k else f"{where.zh}关闭")
    first = english[0][0].upper() + english[0][1:] if english[0].startswith("off") else english[0]
    return Text("; ".join([first, *english[1:]]) + ".", "；".join(chinese) + "。")


def _same_kind(a: Level, b: Level) -> bool:
    return (a.concurrency is None) == (b.concurrency is None)


def _where(groups: Sequence[Sequence[LevelVerdict]], number: int) -> Text:
    """Where a group of loads lies: alone, up to its last, above the group before, or from its first to its last."""
    group = groups[number]
    first, last = group[0].level, group[-1].level
    before = number > 0 and _same_kind(groups[number - 1][-1].level, first)
    after = number + 1 < len(groups) and _same_kind(groups[number + 1][0].level, last)
    if not before and not after:
        if len(group) == 1:
            return Text(f"at {first.text.en}", first.text.zh)
        return Text(f"from {first.text.en} to {last.text.en}", f"{first.text.zh}至 {last.text.zh}")
    if not before and last.concurrency == 1:
        return Text(f"at {last.text.en}", last.text.zh)
    if not before:
        return Text(f"up to {last.text.en}", f"{last.text.zh}及以下")
    if not after:
        return Text(f"from {first.text.en} on", f"{first.text.zh}及以上")
    if len(group) == 1:
        return Text(f"at {first.text.en}", first.text.zh)
    return Text(f"from {first.text.en} to {last.text.en}", f"{first.text.zh}至 {last.text.zh}")


def _config(levels: Sequence[LevelVerdict], config: dict[str, Any] | None, takes_table: bool) -> tuple[dict[str, Any] | None, Text]:
    """The server's setting: one k for all loads, or vLLM's table of k by batch size."""
    streams = [entry for entry in levels if entry.level.concurrency is not None] or list(levels)
    wanted = [entry.k for entry in streams]
    if not any(wanted):
        return None, Text("Start the server without --speculative-config.", "启动服务器时不加 --speculative-config。")
    base = _without_k(config)
    own = Text("", "") if config else Text(" Add method and model as your server has them.", "请补上服务器所用的 method 和 model。")
    if len(set(wanted)) == 1:
        said = Text(f"The same k at every load.{own.en}", f"所有负载使用同一个 k。{own.zh}")
        return {**base, "num_speculative_tokens": wanted[0]}, said
    if not takes_table or any(entry.level.concurrency is None for entry in streams):
        one = max(streams, key=lambda entry: _number(entry.best.speed_up) if entry.k else 0.0)
        said = Text(
            f"One k for all loads, the best at {one.level.text.en}: this server isn't known to take a table of k by batch size.{own.en}",
            f"所有负载使用同一个 k，取 {one.level.text.zh}时的最优值：未知此服务器是否支持按批大小设置 k。{own.zh}",
        )
        return {**base, "num_speculative_tokens": one.k}, said
    table, low = [], 1
    for entry in streams:
        assert entry.level.concurrency is not None
        if table and table[-1][2] == entry.k:
            table[-1][1] = entry.level.concurrency
        else:
            table.append([low, entry.level.concurrency, entry.k])
        low = entry.level.concurrency + 1
    if low <= LARGEST_BATCH:
        if table[-1][2] == 0:
            table[-1][1] = LARGEST_BATCH
        else:
            table.append([low, LARGEST_BATCH, 0])
    said = Text(
        "k by batch size, each from vLLM's [first, last, k]: between two loads that were measured the larger one's k, above the last one off. "
        f"Tried on vLLM 0.32: with [[1, 1, 4], [2, 2, 2], [3, 512, 0]] one stream was guessed 4 per step, two 2, four none.{own.en}",
        "按批大小设置 k，每项为 vLLM 的 [起, 止, k]：两个测点之间取较大负载的 k，超过最后一个测点则关闭。"
        f"已在 vLLM 0.32 上试过：设为 [[1, 1, 4], [2, 2, 2], [3, 512, 0]] 时，单路每步猜 4 个，两路 2 个，四路不猜。{own.zh}",
    )
    return {**base, "num_speculative_tokens": max(wanted), "num_speculative_tokens_per_batch_size": table}, said


def _confirm(levels: Sequence[LevelVerdict]) -> Text:
    chosen = {entry.k: entry for entry in levels if entry.k}
    if not chosen:
        top = max((entry.best for entry in levels), key=lambda best: _number(best.speed_up))
        return Text(
            f"To confirm: restart the speculative server with num_speculative_tokens {top.k} and run the same experiment; it should not get above 1.",
            f"验证方法：以 num_speculative_tokens {top.k} 重启推测服务器，再做同样的实验；加速比不应超过 1。",
        )
    parts = [f"k = {k}: {_number(entry.best.speed_up):.2f}×, {entry.level.text.en}" for k, entry in sorted(chosen.items())]
    parts_zh = [f"k = {k}：{_number(entry.best.speed_up):.2f}×，{entry.level.text.zh}" for k, entry in sorted(chosen.items())]
    return Text(
        f"To confirm: restart the speculative server with each k as num_speculative_tokens and run the same experiment ({'; '.join(parts)}).",
        f"验证方法：分别以各个 k 作为 num_speculative_tokens 重启推测服务器，再做同样的实验（{'；'.join(parts_zh)}）。",
    )


def config_text(config: dict[str, Any]) -> str:
    """The setting as it stands after --speculative-config."""
    return json.dumps(config, ensure_ascii=False, separators=(", ", ": "))


def _number(quantity: Quantity) -> float:
    assert isinstance(quantity.value, (int, float))
    return quantity.value


def _version(text: str | None) -> tuple[int, int]:
    """(major, minor) of a version; (0, 0) where it can't be read."""
    parts = (text or "").split(".")
    return (int(parts[0]), int(parts[1])) if len(parts) > 1 and parts[0].isdecimal() and parts[1].isdecimal() else (0, 0)
