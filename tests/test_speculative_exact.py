"""Speculative decoding has exactly the target's distribution: every accept and reject path, enumerated with its probability.

The strategy itself runs on toy models whose probabilities are tables of the whole history. Every die
is replaced by a branch: each outcome that it can have is played, weighted by the share of the die's
values that give it, which is found by asking the very functions that the strategy asks.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from playground.engine import select
from playground.engine import task as task_module
from playground.engine.drafters import Draft, chain
from playground.engine.knobs import checked
from playground.engine.stages import stages
from playground.engine.strategies import speculative, strategies
from playground.engine.strategies.speculative import Speculative, SpeculativeSample, Verdict
from playground.engine.task import Task
from playground.trace import TokenChosen
from tests.toy_model import ToyModel, toy_task

History = tuple[int, ...]
Law = dict[History, float]
BASE: History = (0, 1)
AHEAD = 3  # the joint of so many tokens is compared
#: A die is a multiple of 2**-53 in [0, 1).
FACES = 2**53


# --- models whose probabilities are known exactly -------------------------------------------------


class TableModel(ToyModel):
    """Float64 log-probabilities `[B, keep, V]` that depend on the whole history."""

    def __init__(self, size: int, probabilities: Callable[[History], Tensor], rows: list[list[int]] | None = None) -> None:
        super().__init__(size, rows=rows, table=torch.zeros(0))
        self.probabilities = probabilities

    def forward(self, tokens: Tensor, keep: int = 1, hidden: Sequence[int] = ()) -> Tensor:
        self._rows = self._rows or [[]]
        (row,), (new,) = self._rows, tokens.tolist()
        start = len(row)
        row.extend(new)
        ends = range(max(start, len(row) - keep), len(row))
        return torch.stack([self.probabilities(tuple(row[: end + 1])).log() for end in ends])[None]


@dataclass(frozen=True)
class Tables:
    """p and q of every history, with the zeros that a kind asks for."""

    size: int
    kind: str = "dense"
    seed: int = 0

    @functools.cache  # noqa: B019  (a few tables per test)
    def p(self, history: History) -> Tensor:
        return self._of(history, 0)

    @functools.cache  # noqa: B019
    def q(self, history: History) -> Tensor:
        return self.p(history) if self.kind == "equal" else self._of(history, 1)

    def _of(self, history: History, side: int) -> Tensor:
        number = functools.reduce(lambda sum, token: sum * 7 + token + 1, history, 2 * self.seed + side)
        generator = torch.Generator().manual_seed(number)
        weights = torch.rand(self.size, generator=generator, dtype=torch.float64) + 0.05
        keep = torch.ones(self.size, dtype=torch.bool)
        if self.kind == "zeros":
            keep = torch.rand(self.size, generator=generator) < 0.6
            keep[int(torch.randint(self.size, (1,), generator=generator))] = True
        elif self.kind == "disjoint":
            keep = torch.arange(self.size) % 2 == side
        elif self.kind == f"one-hot {'pq'[side]}":
            keep = torch.arange(self.size) == int(torch.randint(self.size, (1,), generator=generator))
        weights = torch.where(keep, weights, 0.0)
        return weights / weights.sum()


# --- every path, with its probability -------------------------------------------------------------


class Die(float):
    """What stands for a rolled die: nobody may look at its value, and nobody may use it twice."""


@dataclass
class Path:
    """One way through all branches: the script names the outcome of the first ones, the rest take their first."""

    script: list[int]
    taken: list[tuple[int, int]] = field(default_factory=list)
    weight: float = 1.0
    rolled: set[tuple[Any, ...]] = field(default_factory=set)

    def u(self, position: int, purpose: str = "choose", index: int = 0, round: int = 0) -> Die:
        key = (position, purpose, index, 0 if purpose == "choose" else round)
        assert key not in self.rolled, f"the die {key} is rolled twice: two decisions would depend on each other"
        self.rolled.add(key)
        return Die(0.0)

    def branch(self, outcomes: Sequence[tuple[Any, float]]) -> Any:
        at = len(self.taken)
        index = self.script[at] if at < len(self.script) else 0
        self.taken.append((index, len(outcomes)))
        self.weight *= outcomes[index][1]
        return outcomes[index][0]


def accept_outcomes(accepts: Callable[[float, float, float], bool], p: float, q: float) -> list[tuple[bool, float]]:
    """The share of the die's faces at which a guess stands, counted by bisection: it falls as the die rises."""
    low, high = 0, FACES
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if accepts(p, q, middle / FACES) else (low, middle)
    return [(outcome, share) for outcome, share in ((True, low / FACES), (False, 1 - low / FACES)) if share > 0]


def draw_outcomes(draw: Callable[[Tensor, float], select.Drawn], probabilities: Tensor) -> list[tuple[select.Drawn, float]]:
    """Every token that a draw can give, with the length of its interval, from left to right."""
    outcomes: list[tuple[select.Drawn, float]] = []
    edge = 0.0
    while edge < 1 - 1e-14:
        drawn = draw(probabilities, edge)
        outcomes.append((drawn, float(drawn.high) - float(drawn.low)))
        assert float(drawn.high) > edge
        edge = float(drawn.high)
    return outcomes


class Enumerator:
    """Puts branches in the place of dice, in the modules that use them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = Path([])
        for module in (task_module, speculative, chain):
            monkeypatch.setattr(module, "draw", self._drawing(module.draw))
        real = speculative.accepts
        monkeypatch.setattr(speculative, "accepts", lambda p, q, u: self.path.branch(accept_outcomes(real, p, q)))

    def _drawing(self, real: Callable[[Tensor, float], select.Drawn]) -> Callable[[Tensor, Die], select.Drawn]:
        known: dict[tuple[float, ...], list[tuple[select.Drawn, float]]] = {}

        def drawing(probabilities: Tensor, u: Die) -> select.Drawn:
            assert isinstance(u, Die)
            key = tuple(probabilities.tolist())
            if key not in known:
                known[key] = draw_outcomes(real, probabilities)
            return self.path.branch(known[key])

        return drawing

    def law(self, play: Callable[[Path], History]) -> Law:
        """The probability of everything that `play` can give."""
        law: Law = {}
        script: list[int] = []
        while True:
            self.path = Path(script)
            result = play(self.path)
            law[result] = law.get(result, 0.0) + self.path.weight
            taken = self.path.taken
            while taken and taken[-1][0] + 1 == taken[-1][1]:
                taken.pop()
            if not taken:
                return law
            script = [index for index, _ in taken]
            script[-1] += 1


# --- the strategy's law, and the target's ---------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A strategy on tables; `temperature` is a stage of the lane, for target and drafter alike."""

    tables: Tables
    k: int
    strategy: str = "speculative_sample"
    temperature: float = 1.0
    knobs: dict[str, Any] = field(default_factory=lambda: {"drafter": "draft_model", "drafting": "probabilistic"})

    def task(self, prompt: History, pinned: int | None, path: Any, most: int) -> Task:
        """A lane behind `prompt`; with `pinned`, its first token, which is no guess, is that one for certain."""

        def p(history: History) -> Tensor:
            if pinned is not None and history == prompt:
                return torch.nn.functional.one_hot(torch.tensor(pinned), self.tables.size).double()
            return self.tables.p(history)

        wanted = [checked(stages.get("temperature"), {"temperature": self.temperature})] if self.temperature != 1.0 else []
        task = toy_task(TableModel(self.tables.size, p), prompt, wanted, max_new_tokens=most, record=False)
        task.draft_model = TableModel(self.tables.size, self.tables.q)
        task.dice = path
        return task

    def lane(self) -> Any:
        return checked(strategies.get(self.strategy), {"k": self.k, "schedule": "fixed", **self.knobs})

    def target(self, history: History) -> Tensor:
        """The distribution that the plain lane takes the next token from, by its definition."""
        p = self.tables.p(history)
        if self.strategy == "speculative_greedy":
            return torch.nn.functional.one_hot(p.argmax(), self.tables.size).double()
        tempered = p ** (1 / self.temperature)
        return tempered / tempered.sum()

    def expected(self, history: History, ahead: int) -> Law:
        if not ahead:
            return {(): 1.0}
        law: Law = {}
        for token, probability in enumerate(self.target(history).tolist()):
            for rest, share in self.expected((*history, token), ahead - 1).items() if probability else ():
                law[(token, *rest)] = probability * share
        return law


def one_round(enumerator: Enumerator, case: Case, history: History) -> Law:
    """The law of the tokens that one round appends to a history."""

    def play(path: Path) -> History:
        steps = case.lane().run(case.task(history[:-1], history[-1], path, most=50))
        with torch.inference_mode():
            while not any(isinstance(event, TokenChosen) for event in next(steps)):  # the prompt, then the pinned token
                pass
            block = tuple(event.token for event in next(steps) if isinstance(event, TokenChosen))
        steps.close()
        return block[:AHEAD]

    return enumerator.law(play)


def by_rounds(enumerator: Enumerator, case: Case) -> Law:
    """The law of the first `AHEAD` tokens: rounds, one after the other, each from every history that the ones before can leave."""
    known: dict[History, Law] = {}

    def ahead(history: History, missing: int) -> Law:
        law: Law = {}
        if history not in known:
            known[history] = one_round(enumerator, case, history)
        for block, probability in known[history].items():
            block = block[:missing]
            rest = ahead((*history, *block), missing - len(block)) if len(block) < missing else {(): 1.0}
            for tokens, share in rest.items():
                law[block + tokens] = law.get(block + tokens, 0.0) + probability * share
        return law

    return ahead(BASE, AHEAD)


def whole_run(enumerator: Enumerator, case: Case) -> Law:
    """The law of a whole lane of `AHEAD` tokens, its first token and its end included."""

    def play(path: Path) -> History:
        with torch.inference_mode():
            events = [event for events in case.lane().run(case.task(BASE, None, path, most=AHEAD)) for event in events]
        return tuple(event.token for event in events if isinstance(event, TokenChosen))

    return enumerator.law(play)


def assert_same_law(law: Law, case: Case) -> None:
    """Marginals and joints of the first tokens within 1e-12, and not one path to a token that the target never writes."""
    for count in range(1, AHEAD + 1):
        expected, got = case.expected(BASE, count), dict.fromkeys(case.expected(BASE, count), 0.0)
        for tokens, probability in law.items():
            assert tokens[:count] in got, f"{tokens[:count]} can't be written by the target, and was, with probability {probability}"
            got[tokens[:count]] += probability
        for tokens, probability in expected.items():
            assert abs(got[tokens] - probability) < 1e-12, f"P{tokens} is {got[tokens]}, and should be {probability}"
    for place in range(AHEAD):
        for token in range(case.tables.size):
            got_marginal = sum(probability for tokens, probability in law.items() if tokens[place] == token)
            marginal = sum(probability for tokens, probability in case.expected(BASE, AHEAD).items() if tokens[place] == token)
            assert abs(got_marginal - marginal) < 1e-12


KINDS = ("dense", "zeros", "equal", "disjoint", "one-hot p", "one-hot q")
GREEDY_DRAFT = {"drafter": "draft_model", "drafting": "greedy"}
CONFIDENT = {"drafter": "draft_model", "drafting": "probabilistic", "schedule": "confidence", "confidence": 0.4}


@pytest.fixture
def enumerator(monkeypatch: pytest.MonkeyPatch) -> Enumerator:
    return Enumerator(monkeypatch)


@pytest.mark.parametrize(("size", "k"), [(3, 1), (3, 2), (3, 3), (4, 2), (5, 1)])
@pytest.mark.parametrize("kind", KINDS)
def test_drawn_guesses_leave_the_targets_law(enumerator: Enumerator, kind: str, size: int, k: int) -> None:
    case = Case(Tables(size, kind), k)
    assert_same_law(by_rounds(enumerator, case), case)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize(
    "knobs",
    [GREEDY_DRAFT, {"drafter": "recorded", "recorded": "#1 #0 #2 #1 #1 #0"}, {"drafter": "ngram"}, {"drafter": "suffix", "suffix_min": 1}],
    ids=lambda knobs: knobs["drafter"],
)  # fmt: skip
def test_guesses_without_a_die_leave_the_targets_law(enumerator: Enumerator, kind: str, k: int, knobs: dict[str, Any]) -> None:
    case = Case(Tables(3, kind), k, knobs=knobs)
    assert_same_law(by_rounds(enumerator, case), case)


@pytest.mark.parametrize("knobs", [CONFIDENT, {**GREEDY_DRAFT, "schedule": "confidence"}], ids=["drawn", "greedy"])
@pytest.mark.parametrize("kind", ["dense", "zeros"])
@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_stopping_at_a_doubtful_guess_leaves_the_targets_law(
    enumerator: Enumerator, kind: str, temperature: float, knobs: dict[str, Any]
) -> None:  # fmt: skip
    case = Case(Tables(3, kind), 3, temperature=temperature, knobs=knobs)
    assert_same_law(by_rounds(enumerator, case), case)


@pytest.mark.parametrize("knobs", [{}, GREEDY_DRAFT], ids=["drawn", "greedy"])
def test_a_greedy_target_stays_greedy(enumerator: Enumerator, knobs: dict[str, Any]) -> None:
    case = Case(Tables(4, "zeros"), 2, "speculative_greedy", knobs={"drafter": "draft_model", "drafting": "probabilistic", **knobs})
    assert_same_law(by_rounds(enumerator, case), case)


@pytest.mark.parametrize("kind", ["dense", "zeros", "disjoint"])
@pytest.mark.parametrize("schedule", ["fixed", "adaptive", "confidence"])
def test_a_whole_lane_has_the_targets_law(enumerator: Enumerator, kind: str, schedule: str) -> None:
    case = Case(Tables(3, kind), 3, temperature=0.7, knobs={"drafter": "draft_model", "drafting": "probabilistic", "schedule": schedule})
    assert_same_law(whole_run(enumerator, case), case)


# --- planted faults: each must be found ------------------------------------------------------------


def _argmax_drafts_with_soft_q(patch: pytest.MonkeyPatch) -> None:
    def most_likely(probabilities: Tensor, u: float) -> select.Drawn:
        return select.Drawn(probabilities.argmax(), torch.tensor(0.0), torch.tensor(1.0))

    patch.setattr(chain, "draw", most_likely)


def _residual_not_renormalised(patch: pytest.MonkeyPatch) -> None:
    def trusting(probabilities: Tensor, u: float) -> select.Drawn:
        """Inverse CDF by token id that takes its input to add up to 1: what is beyond the end falls on the last token."""
        edges = probabilities.cumsum(0)
        token = min(int((edges <= u).sum()), len(edges) - 1)
        last = token == len(edges) - 1
        return select.Drawn(torch.tensor(token), torch.tensor(u), torch.tensor(1.0, dtype=torch.float64) if last else edges[token])

    patch.setattr(speculative, "residual", lambda p, q: (p - q).clamp(min=0))
    patch.setattr(speculative, "draw", trusting)


def _residual_is_p(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(speculative, "residual", lambda p, q: p)


def _bonus_from_the_wrong_position(patch: pytest.MonkeyPatch) -> None:
    real = Speculative.verify

    def verify(self: Any, task: Task, row: Any, logits: Tensor, draft: Draft, round: int) -> Any:
        shifted = torch.cat([logits[:-1], logits[-2:-1]]) if draft.tokens else logits
        return real(self, task, row, shifted, draft, round)

    patch.setattr(Speculative, "verify", verify)


def _first_guess_unverified(patch: pytest.MonkeyPatch) -> None:
    real_judge, real_verify, first = Speculative.judge, Speculative.verify, [True]

    def verify(self: Any, *arguments: Any) -> Any:
        first[0] = True
        return real_verify(self, *arguments)

    def judge(self: Any, task: Task, row: Any, scored: Any, token: int, q: Tensor | None, round: int) -> Verdict:
        if first[0]:
            first[0] = False
            return Verdict(True, task.take(scored, token), 1.0, 0.0)
        return real_judge(self, task, row, scored, token, q, round)

    patch.setattr(Speculative, "verify", verify)
    patch.setattr(Speculative, "judge", judge)


def _at_most_p_over_q(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(speculative, "accepts", lambda p, q, u: u <= p / q)


def _target_without_temperature(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SpeculativeSample, "target", lambda self, scored: scored.raw[0].double().softmax(-1))


def _altered_draft(patch: pytest.MonkeyPatch, alter: Callable[[Draft], Draft]) -> None:
    real = chain.Chain.guess
    patch.setattr(chain.Chain, "guess", lambda self, *arguments: alter(real(self, *arguments)))


def _q_without_temperature(patch: pytest.MonkeyPatch) -> None:
    def alter(draft: Draft) -> Draft:
        cooled = [q**FAULTY.temperature for q in draft.q or ()]
        return dataclasses.replace(draft, q=tuple(q / q.sum() for q in cooled))

    _altered_draft(patch, alter)


def _q_in_bfloat16(patch: pytest.MonkeyPatch) -> None:
    _altered_draft(patch, lambda draft: dataclasses.replace(draft, q=tuple(q.bfloat16().double() for q in draft.q or ())))


def _doubtful_guess_dropped(patch: pytest.MonkeyPatch) -> None:
    def alter(draft: Draft) -> Draft:
        kept = len(draft.tokens) - (draft.limit == "confidence")
        return dataclasses.replace(draft, tokens=draft.tokens[:kept], q=(draft.q or ())[:kept])

    _altered_draft(patch, alter)


def _one_die_for_two_decisions(patch: pytest.MonkeyPatch) -> None:
    real = Path.u

    def u(self: Path, position: int, purpose: str = "choose", index: int = 0, round: int = 0) -> Die:
        return real(self, position, "accept" if purpose == "residual" else purpose, index, round)

    patch.setattr(Path, "u", u)


FAULTS = {
    "soft q with argmax drafts": _argmax_drafts_with_soft_q,
    "residual not renormalised": _residual_not_renormalised,
    "a rejection draws from p": _residual_is_p,
    "bonus from the wrong position": _bonus_from_the_wrong_position,
    "first guess unverified": _first_guess_unverified,
    "u <= p/q at u = 0": _at_most_p_over_q,
    "temperature on the drafter's side only": _target_without_temperature,
    "temperature on the target's side only": _q_without_temperature,
    "q in bfloat16, p in float32": _q_in_bfloat16,
    "a drawn guess dropped for low confidence": _doubtful_guess_dropped,
    "one die for two decisions": _one_die_for_two_decisions,
}
FAULTY = Case(Tables(3, "zeros", seed=1), 2, temperature=0.5, knobs={**CONFIDENT, "confidence": 0.6})


def test_the_case_for_the_faults_is_exact_without_one(enumerator: Enumerator) -> None:
    assert_same_law(by_rounds(enumerator, FAULTY), FAULTY)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    FAULTS[fault](monkeypatch)
    with pytest.raises(AssertionError):
        assert_same_law(by_rounds(Enumerator(monkeypatch), FAULTY), FAULTY)


# --- the arithmetic itself -------------------------------------------------------------------------


def test_a_guess_that_the_target_never_writes_is_never_accepted() -> None:
    assert not speculative.accepts(0.0, 0.5, 0.0)
    assert speculative.accepts(5e-324, 0.5, 0.0)
    assert speculative.accepts(0.5, 0.5, 1 - 2**-53)
    assert not speculative.accepts(0.25, 0.5, 0.5)


def test_the_residual_of_equal_distributions_is_the_target() -> None:
    p = torch.tensor([0.2, 0.8], dtype=torch.float64)
    assert speculative.residual(p, p).tolist() == p.tolist()
    assert speculative.residual(p, torch.tensor([0.6, 0.4], dtype=torch.float64)).tolist() == [0.0, 1.0]


def test_argmax_drafts_keep_the_targets_probability() -> None:
    """p = [.6, .4], q = [.7, .3], drafts always token 0: judged by the soft q, P(0) would be .857."""
    p, q = torch.tensor([0.6, 0.4], dtype=torch.float64), torch.tensor([0.7, 0.3], dtype=torch.float64)
    naive = 0.6 / 0.7 + (1 - 0.6 / 0.7) * float(speculative.residual(p, q)[0])
    assert naive == pytest.approx(0.857, abs=1e-3)
    one_hot = torch.tensor([1.0, 0.0], dtype=torch.float64)
    assert 0.6 / 1.0 + (1 - 0.6) * float(speculative.residual(p, one_hot)[0]) == pytest.approx(0.6)


def test_paths_add_up_to_one(enumerator: Enumerator) -> None:
    assert sum(one_round(enumerator, Case(Tables(4, "zeros"), 3), BASE).values()) == pytest.approx(1.0, abs=1e-13)
