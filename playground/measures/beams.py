"""Beam search read off its record: the tree, why a beam died, what other scores would rank first, what it costs, how alike its beams are.

A candidate is named by its key: (step, its index among the step's candidates). A hypothesis is a text
that ended; `n` is its length in output tokens, its end included, `s` the sum of its log-probabilities.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from statistics import median
from typing import Any, Literal

from playground.errors import Text
from playground.measures import Quantity
from playground.measures.formula import worked
from playground.measures.kv import model_of
from playground.trace import BeamCandidate, BeamsAdvanced, BeamsRanked, StepTimed, TokenChosen, Trace

Key = tuple[int, int]
#: Values of the length penalty, both ends included or infinite.
Interval = tuple[float, float]
EVERYWHERE: Interval = (-math.inf, math.inf)

#: Tokens per block of a paged KV cache: vLLM's default.
BLOCK = 16


@dataclass(frozen=True)
class Ended:
    """A hypothesis of the record: where it ended, its sum `score`, its `length`, and how it ended."""

    key: Key
    score: float
    length: int
    ended: str


@dataclass(frozen=True)
class BeamTree:
    """Every candidate of one lane's beam search, and who came from whom.

    `prompt` counts what stands before the search's first token: the prompt, and `forced` output tokens where there are any.
    """

    steps: tuple[BeamsAdvanced, ...]
    ranked: BeamsRanked | None
    prompt: int
    forced: int
    max_new_tokens: int
    knobs: dict[str, Any]

    @property
    def width(self) -> int:
        """How many beams live at most."""
        asked = self.knobs.get("num_beams")
        return asked if isinstance(asked, int) and asked > 0 else max((len(step.living) for step in self.steps), default=1)

    @property
    def penalty(self) -> float:
        asked = self.knobs.get("length_penalty")
        return float(asked) if isinstance(asked, (int, float)) and abs(asked) <= 10 else 1.0

    def candidate(self, key: Key) -> BeamCandidate:
        return self.steps[key[0]].candidates[key[1]]

    def parent(self, key: Key) -> Key | None:
        """The candidate that this one extends; None at the first step."""
        step, _ = key
        return None if step == 0 else (step - 1, self.steps[step - 1].living[self.candidate(key).beam])

    def path(self, key: Key) -> list[Key]:
        """The candidates from the first token to this one."""
        keys = [key]
        while (parent := self.parent(keys[-1])) is not None:
            keys.append(parent)
        return keys[::-1]

    def tokens(self, key: Key) -> list[int]:
        return [self.candidate(one).token for one in self.path(key)]

    @cached_property
    def living(self) -> tuple[Key, ...]:
        """The beams that lived after the last step."""
        last = len(self.steps) - 1
        return tuple((last, index) for index in self.steps[last].living) if self.steps else ()

    @cached_property
    def last_kept(self) -> dict[Key, Key]:
        """For every kept candidate the latest one of its line that was kept; of several the best."""
        found: dict[Key, Key] = {}
        for number in range(len(self.steps) - 1, -1, -1):
            for index in self.steps[number].living:
                key = (number, index)
                latest = found.setdefault(key, key)
                parent = self.parent(key)
                if parent is not None and (parent not in found or latest[0] > found[parent][0]):
                    found[parent] = latest
        return found

    @cached_property
    def pool(self) -> tuple[Key, ...]:
        """The finished hypotheses after the last step, best first."""
        if self.ranked is not None:
            return tuple((one.step, one.candidate) for one in self.ranked.hypotheses)
        return self.steps[-1].pool if self.steps else ()

    @cached_property
    def hypotheses(self) -> tuple[Ended, ...]:
        """Every text that ended and could be an answer under some length penalty, best first under the lane's own.

        An end that was not among the best `num_beams` candidates of its step is none of them: it is refused whatever the penalty.
        """
        keys = dict.fromkeys(self.pool)
        for step in self.steps:
            for index, one in enumerate(step.candidates):
                if one.ended is not None and one.reason != "ended_too_low" and one.fate != "kept":
                    keys[step.step, index] = None
        found = [Ended(key, self.candidate(key).score, key[0] + 1, self.candidate(key).ended or "unfinished") for key in keys]
        return tuple(sorted(found, key=lambda one: -ranked_score(one.score, one.length, self.penalty)))


def beam_tree(trace: Trace, lane: int) -> BeamTree:
    """The tree of a lane; without steps where the lane searched no beams, or has not begun."""
    about = trace.about.lanes[lane]
    forced = len({one.position for one in trace.of(lane, TokenChosen) if one.origin == "forced"})
    return BeamTree(
        steps=tuple(trace.of(lane, BeamsAdvanced)),
        ranked=next(trace.of(lane, BeamsRanked), None),
        prompt=len(about.prompt_ids) + forced,
        forced=forced,
        max_new_tokens=min(max(1, about.max_new_tokens - forced), 1_000_000),
        knobs=about.knobs,
    )


def ranked_score(score: float, length: int, penalty: float) -> float:
    """What a hypothesis counts: s / n^penalty."""
    return score / length**penalty


# --- obituaries -----------------------------------------------------------------------------------


How = Literal["alive", "won", "beaten", "ended_too_low", "worse_than_finished", "early_stop", "displaced", "outranked", "unfinished"]


@dataclass(frozen=True)
class Obituary:
    """What became of a candidate's line: `death` is where it ended, `by` who took its place, `gap` by how much.

    `interval` holds the length penalties for which its text, taken as it stood at `death`, would have
    come first among the recorded hypotheses; None if there is no such penalty.
    """

    key: Key
    how: How
    death: Key
    by: Key | None = None
    gap: float | None = None
    interval: Interval | None = None


def obituary(tree: BeamTree, key: Key) -> Obituary:
    """Why the line of a candidate is not the answer: read off the record, the interval solved exactly."""
    one = tree.candidate(key)
    over = tree.ranked is not None
    if one.fate == "kept":
        ended = next((other for other in tree.pool if key in tree.path(other)), None)
        if ended is not None:
            after = obituary(tree, ended)
            return Obituary(key, after.how, after.death, after.by, after.gap, after.interval)
        latest = tree.last_kept[key]
        if latest in tree.living:
            return Obituary(key, "unfinished" if over else "alive", latest, interval=coming_first(tree, latest))
        heirs = [(latest[0] + 1, index) for index, _ in enumerate(tree.steps[latest[0] + 1].candidates)]
        heirs = [heir for heir in heirs if tree.parent(heir) == latest]
        finished = [heir for heir in heirs if tree.candidate(heir).fate == "finished"]
        if not heirs:  # not even its best continuation was among the candidates: the worst one that was stands before it
            last = len(tree.steps[latest[0] + 1].candidates) - 1
            return Obituary(key, "beaten", latest, (latest[0] + 1, last), interval=coming_first(tree, latest))
        best = max(finished or heirs, key=lambda heir: tree.candidate(heir).score)
        after = obituary(tree, best)
        return Obituary(key, after.how, after.death, after.by, after.gap, after.interval)
    interval = coming_first(tree, key)
    if one.fate == "dropped":
        by = None if one.by is None else (key[0], one.by)
        if one.reason == "worse_than_finished" and tree.steps[key[0]].pool:
            by = tree.steps[key[0]].pool[-1]
        return Obituary(key, one.reason or "beaten", key, by, one.gap, interval)
    ranked = {other: tree.candidate(other).ranked for other in tree.pool}
    if key in ranked:
        if tree.pool[0] == key:
            return Obituary(key, "won" if over else "alive", key, interval=interval)
        return Obituary(key, "outranked", key, tree.pool[0], ranked[tree.pool[0]] - one.ranked, interval)
    for before, after in zip(tree.steps, tree.steps[1:], strict=False):
        if key in before.pool and key not in after.pool:
            pushed_in = [other for other in after.pool if other not in before.pool]
            by = min(pushed_in, key=lambda other: tree.candidate(other).ranked)
            return Obituary(key, "displaced", key, by, tree.candidate(by).ranked - one.ranked, interval)
    return Obituary(key, "outranked", key, tree.pool[0] if tree.pool else None, None, interval)


def not_beaten(score: float, length: int, other_score: float, other_length: int) -> Interval | None:
    """The penalties for which s/n^penalty is at least the other's: everywhere, nowhere (None), or one side of their crossing."""
    if length == other_length or score == 0 or other_score == 0 or (score > 0) != (other_score > 0):
        return EVERYWHERE if score >= other_score else None
    crossing = math.log(score / other_score) / math.log(length / other_length)
    # Negative sums: dividing by more helps, so the longer text gains as the penalty grows. Positive ones: it loses.
    above = (length > other_length) == (score < 0)
    return (crossing, math.inf) if above else (-math.inf, crossing)


def first_interval(score: float, length: int, others: Sequence[tuple[float, int]]) -> Interval | None:
    """The penalties for which a text of this sum and length comes first among `others`, ties included; None if there are none."""
    low, high = EVERYWHERE
    for other_score, other_length in others:
        part = not_beaten(score, length, other_score, other_length)
        if part is None:
            return None
        low, high = max(low, part[0]), min(high, part[1])
    return (low, high) if low <= high else None


def coming_first(tree: BeamTree, key: Key) -> Interval | None:
    """The penalties for which the text to a candidate, had it ended there, comes first among the recorded hypotheses."""
    return first_interval(tree.candidate(key).score, key[0] + 1, [(one.score, one.length) for one in tree.hypotheses if one.key != key])


# --- other scores ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Correction:
    """One way to count hypotheses of different lengths: a value for each, and their order, best first (indices)."""

    name: str
    label: Text
    formula: str
    values: tuple[float, ...]
    order: tuple[int, ...]


FORMULAS: tuple[tuple[str, Text, str], ...] = (
    ("sum", Text("raw sum", "原始和"), "s"),
    ("mean", Text("mean", "平均"), "s / n"),
    ("transformers", Text("transformers", "transformers"), "s / n^p"),
    ("gnmt", Text("GNMT", "GNMT"), "s / ((5 + n) / 6)^p"),
    ("vllm", Text("vLLM", "vLLM"), "s / (prompt + n, end token not counted)^p"),
)


def corrected(name: str, one: Ended, prompt: int, penalty: float) -> float:
    """A hypothesis' value under one correction. Sources: Wu et al. 2016 (GNMT), eq. 14 without coverage; vLLM's `get_beam_search_score`."""
    if name == "sum":
        return one.score
    if name == "mean":
        return one.score / one.length
    if name == "gnmt":
        return one.score / ((5 + one.length) / 6) ** penalty
    if name == "vllm":
        return one.score / max(1, prompt + one.length - (one.ended == "eos")) ** penalty
    return ranked_score(one.score, one.length, penalty)


def corrections(tree: BeamTree, penalty: float) -> tuple[Correction, ...]:
    """The recorded hypotheses under every correction, with this length penalty."""
    found = []
    for name, label, formula in FORMULAS:
        values = tuple(corrected(name, one, tree.prompt, penalty) for one in tree.hypotheses)
        found.append(Correction(name, label, formula, values, tuple(sorted(range(len(values)), key=lambda index: -values[index]))))
    return tuple(found)


@dataclass(frozen=True)
class Crossing:
    """Two hypotheses (by index) that count the same at one penalty."""

    penalty: float
    one: int
    other: int


def crossings(hypotheses: Sequence[Ended], low: float, high: float) -> tuple[Crossing, ...]:
    """Where any two hypotheses change places as the penalty goes from `low` to `high`: penalty = ln(s_i/s_j) / ln(n_i/n_j)."""
    found = []
    for (i, one), (j, other) in combinations(enumerate(hypotheses), 2):
        part = not_beaten(one.score, one.length, other.score, other.length)
        if part is None or part == EVERYWHERE:
            continue
        at = part[0] if math.isinf(part[1]) else part[1]
        if low <= at <= high:
            found.append(Crossing(at, i, j))
    return tuple(sorted(found, key=lambda crossing: crossing.penalty))


def winners(hypotheses: Sequence[Ended], low: float, high: float) -> tuple[tuple[float, float, int], ...]:
    """Who comes first where, as the penalty goes from `low` to `high`: (from, to, index), end to end."""
    best: dict[int, int] = {}  # of equal lengths only the best sum can come first
    for index, one in enumerate(hypotheses):
        if one.length not in best or one.score > hypotheses[best[one.length]].score:
            best[one.length] = index
    found = []
    for length, index in best.items():
        one = hypotheses[index]
        others = [(hypotheses[other].score, other_length) for other_length, other in best.items() if other_length != length]
        part = first_interval(one.score, one.length, others)
        if part is not None and max(part[0], low) < min(part[1], high):
            found.append((max(part[0], low), min(part[1], high), index))
    return tuple(sorted(found))


# --- the search under another penalty -------------------------------------------------------------


@dataclass(frozen=True)
class Search:
    """The pool of finished hypotheses after every recorded step, and the step after which the search would stop (None: not within the record)."""

    pools: tuple[tuple[Key, ...], ...]
    stop: int | None

    @property
    def winner(self) -> Key | None:
        return self.pools[-1][0] if self.pools and self.pools[-1] else None


def searched(tree: BeamTree, penalty: float, early_stopping: str) -> Search:
    """Pool and stop of the recorded search under another penalty or stopping rule, by the rules of transformers.

    Which beams live depends on raw sums alone, so the record tells it as far as it goes.
    """
    pool: list[tuple[float, Key]] = []
    pools: list[tuple[Key, ...]] = []
    for step in tree.steps:
        length = step.step + 1
        full = len(pool) >= tree.width
        if not (full and early_stopping == "true"):
            ends = [
                (ranked_score(one.score, length, penalty), (step.step, index))
                for index, one in enumerate(step.candidates)
                if one.ended is not None and one.reason != "ended_too_low"
            ]
            pool = sorted([*pool, *ends], key=lambda entry: -entry[0])[: tree.width]
        pools.append(tuple(key for _, key in pool))
        going_on = [one.score for one in step.candidates if one.ended is None]
        if len(pool) < tree.width or not going_on:
            continue
        if early_stopping == "true":
            return Search(tuple(pools), step.step)
        best = max(going_on)
        hoped = tree.max_new_tokens if early_stopping == "never" and penalty > 0 else length
        if ranked_score(best, hoped, penalty) <= pool[-1][0]:
            return Search(tuple(pools), step.step)
    return Search(tuple(pools), None)


@dataclass(frozen=True)
class Difference:
    """Where a search under another penalty would have gone another way than the recorded one.

    `pool` is the first step whose finished hypotheses differ; `stop` the step after which it would
    have stopped earlier; `longer` that it would have gone on behind the last recorded step, where
    nobody knows what it would have found.
    """

    pool: int | None
    stop: int | None
    longer: bool


def difference(tree: BeamTree, penalty: float, early_stopping: str | None = None) -> Difference | None:
    """What another penalty or stopping rule would have changed in the search; None where the record doesn't follow from these rules."""
    own = str(tree.knobs.get("early_stopping", "false"))
    recorded = searched(tree, tree.penalty, own)
    known = [step.pool for step in tree.steps]
    if not tree.steps or any(set(pool) != set(told) for pool, told in zip(recorded.pools, known, strict=False)) or len(recorded.pools) < len(known):
        return None
    other = searched(tree, penalty, own if early_stopping is None else early_stopping)
    pairs = enumerate(zip(other.pools, recorded.pools, strict=False))
    pool = next((number for number, (one, before) in pairs if set(one) != set(before)), None)
    last = len(tree.steps) - 1
    stop = other.stop if other.stop is not None and other.stop < last else None
    early = tree.ranked is not None and tree.ranked.ending in ("early_stop", "no_better")
    return Difference(pool, stop, longer=early and other.stop is None)


# --- what it costs --------------------------------------------------------------------------------


@dataclass(frozen=True)
class CostRow:
    """One number of a beam lane beside the greedy lane's of the same race; `ratio` is None where there is no such lane."""

    name: str
    beams: Quantity
    greedy: Quantity | None
    ratio: Quantity | None


def greedy_beside(trace: Trace, lane: int) -> int | None:
    """The greedy lane of the same race and model, if there is one that has begun."""
    model = trace.about.lanes[lane].model
    lanes = enumerate(trace.about.lanes)
    return next((n for n, one in lanes if one.strategy == "greedy" and one.model == model and next(trace.of(n, StepTimed), None)), None)


def cost(trace: Trace, lane: int) -> tuple[CostRow, ...]:
    """Step time, rows of a forward and KV bytes of a beam lane, each ÷ the greedy lane's over the steps that both have made."""
    steps = list(trace.of(lane, StepTimed))
    if not steps:
        return ()
    other = greedy_beside(trace, lane)
    beside = list(trace.of(other, StepTimed)) if other is not None else []
    count = min(len(steps), len(beside)) if beside else len(steps)
    median_of = Text(f"median of the first {count} steps", f"前 {count} 步的中位数")
    texts = (
        ("step", Text("time of a step", "每步时间"), "s", "derived", median_of),
        ("rows", Text("rows in the forward", "前向计算的行数"), "rows", "derived", median_of),
        ("kv", Text("KV cache", "KV 缓存"), "B", "measured", Text(f"bytes of the tensors after step {count}", f"第 {count} 步之后张量的字节数")),
    )
    found = []
    for name, label, unit, how, formula in texts:

        def value(of: Sequence[StepTimed], name: str = name) -> float:
            first = of[:count]
            if name == "kv":
                return first[-1].cache_bytes
            return median(one.seconds if name == "step" else one.rows for one in first)

        own = Quantity(value(steps), unit, how, label, formula)  # type: ignore[arg-type]
        known = Quantity(value(beside), unit, how, label, formula) if beside else None  # type: ignore[arg-type]
        ratio = None
        if known is not None and known.value:
            scale, of = {"s": (1e3, " ms"), "B": (1e-6, " MB")}.get(unit, (1, ""))
            words = Text("beam lane ÷ greedy lane of the same race", "束搜索通道 ÷ 同场贪心通道")
            arithmetic = f"{{beams}}{of} / {{greedy}}{of}"
            formula = worked(words, arithmetic, lambda ratio: f"{ratio:.2f}", beams=scale * value(steps), greedy=scale * value(beside))
            ratio = Quantity(value(steps) / value(beside), "×", "derived", label, formula)
        found.append(CostRow(name, own, known, ratio))
    return tuple(found)


@dataclass(frozen=True)
class BeamCache:
    """The KV cache after one step of beam search.

    `nbytes` is measured; `rows` are the beams in it. `forks` is how many rows had to become a copy of
    another beam's row, because its beam goes on in more than one way; as many beams died. `reordered`
    says whether beams overtook each other. `blocks` is how many blocks of 16 tokens a paged cache
    would hold that shares equal prefixes, `paged` their bytes.
    """

    step: int
    rows: int
    nbytes: int
    forks: int
    reordered: bool
    blocks: int | None
    paged: int | None


def beam_cache(trace: Trace, lane: int) -> tuple[BeamCache, ...]:
    """The cache of a beam lane after every step; what sharing would hold is derived from the recorded tree."""
    tree = beam_tree(trace, lane)
    model = model_of(trace, lane)
    per_token = model.cache_bytes_per_token if model else None
    paths = {number: [tree.path((number, index)) for index in step.living] for number, step in enumerate(tree.steps)}
    found = []
    for timed, step in zip(trace.of(lane, StepTimed), tree.steps, strict=False):
        parents = [step.candidates[index].beam for index in step.living]
        held = timed.cache_length - tree.prompt  # output tokens in the cache: the newest one joins it with the next forward
        rows = paths.get(held - 1, []) if held > 0 else [[]]
        blocks = None
        if rows and held >= 0:
            ends = range(BLOCK, timed.cache_length + BLOCK, BLOCK)
            tails = [max(0, min(end, timed.cache_length) - tree.prompt) for end in ends]
            blocks = sum(len({path[tail - 1] for path in rows}) if tail else 1 for tail in tails)
        found.append(
            BeamCache(
                step.step, timed.rows, timed.cache_bytes,
                forks=len(parents) - len(set(parents)),
                reordered=parents != sorted(parents),
                blocks=blocks,
                paged=None if blocks is None or per_token is None else blocks * BLOCK * per_token,
            )
        )  # fmt: skip
    return tuple(found)


# --- how alike the beams are ----------------------------------------------------------------------


@dataclass(frozen=True)
class Variety:
    """The living beams after one step: `distinct` newest tokens, `shared` leading tokens that all have, the best one's sum.

    Beside them the greedy lane: whether its text so far is one of the living beams, and its sum; None without such a lane.
    """

    step: int
    living: int
    distinct: int
    shared: int
    best: float
    greedy_alive: bool | None
    greedy: float | None


def variety(trace: Trace, lane: int) -> tuple[Variety, ...]:
    """How different a lane's living beams are, step by step."""
    tree = beam_tree(trace, lane)
    other = greedy_beside(trace, lane)
    greedy = trace.output(other) if other is not None else []
    found = []
    along: Key | None = None  # the greedy text's place in the tree, as far as it has one
    lost = not greedy
    total = 0.0
    for number, step in enumerate(tree.steps):
        if not step.living:
            break
        living = [(number, index) for index in step.living]
        paths = [tree.path(key) for key in living]
        shared = next((at for at in range(number + 1) if len({path[at] for path in paths}) > 1), number + 1)
        known = number < len(greedy)
        if known and not lost:
            along = next((key for key in living if tree.parent(key) == along and tree.candidate(key).token == greedy[number].token), None)
            lost = along is None
        if known:
            total += greedy[number].log_probability or 0.0
        found.append(
            Variety(
                number, len(living), len({tree.candidate(key).token for key in living}), shared, max(tree.candidate(key).score for key in living),
                greedy_alive=not lost if known else None, greedy=total if known else None,
            )
        )  # fmt: skip
    return tuple(found)


def repeated_share(tokens: Sequence[int], n: int = 4) -> float | None:
    """The share of a text's n-grams that stood in it before: 0 where nothing repeats; None where the text is shorter than n."""
    grams = [tuple(tokens[at : at + n]) for at in range(len(tokens) - n + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else None


def first_repeat(tokens: Sequence[int], n: int) -> int | None:
    """The position at which a text completes an n-gram for the second time; None if it never does."""
    seen: set[tuple[int, ...]] = set()
    for at in range(len(tokens) - n + 1):
        gram = tuple(tokens[at : at + n])
        if gram in seen:
            return at + n - 1
        seen.add(gram)
    return None
