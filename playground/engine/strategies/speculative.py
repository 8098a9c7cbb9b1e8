"""Speculative decoding: a drafter guesses, the target verifies all guesses in one forward, the output stays the target's.

Leviathan, Kalman, Matias 2023 (arXiv 2211.17192); Chen et al. 2023 (arXiv 2302.01318). Letters as
there: p is the target's distribution, q the drafter's, k the number of guesses.
"""

from __future__ import annotations

from dataclasses import dataclass, field, make_dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from playground.engine.calibrate import calibrated
from playground.engine.drafters import Draft, Drafter, Drafting, drafters
from playground.engine.knobs import Knob, knob, knobs_of
from playground.engine.select import argmax, draw
from playground.engine.strategies import Steps, Strategy, strategies
from playground.engine.task import Choice, Row, Scored, Task
from playground.errors import BadValue, PlaygroundError, Text
from playground.trace import DraftJudged, Guess, TokenChosen, VerifyCalibrated

#: After so many drafts in a row of which nothing was accepted, an adaptive lane pauses for so many steps, then twice as many.
FRUITLESS = 2
SHORTEST_PAUSE, LONGEST_PAUSE = 8, 64


def accepts(p: float, q: float, u: float) -> bool:
    """Whether a guess of probability p under the target and q under the drafter may stand: with probability min(1, p / q).

    Written as a product, so that a guess of p = 0 never does, whatever the die in [0, 1) shows.
    """
    return u * q < p


def residual(p: Tensor, q: Tensor) -> Tensor:
    """What a rejection leaves to draw from: max(0, p - q), renormalised `[V]`; p where rounding leaves nothing."""
    left = (p - q).clamp(min=0)
    total = left.sum()
    return left / total if total > 0 else p


@dataclass
class Pace:
    """How many tokens to guess next: always k, or as many as past guesses were worth.

    Adaptive: k at first and after full acceptance, half way down to what was accepted after a rejection,
    and a pause where nothing is accepted, after which a single guess tries again.
    """

    k: int
    adaptive: bool
    now: int = field(init=False)
    _fruitless: int = 0
    _pausing: int = 0
    _pause: int = SHORTEST_PAUSE

    def __post_init__(self) -> None:
        self.now = self.k

    @property
    def wanted(self) -> int:
        return 0 if self._pausing else self.now

    def after(self, drafted: int, accepted: int) -> None:
        """Learn from a step: how many tokens were guessed, and how many of them stood."""
        if not self.adaptive:
            return
        if self._pausing:
            self._pausing -= 1
        elif accepted:
            self.now = self.k if accepted == drafted else max((self.now + accepted) // 2, 1)
            self._fruitless, self._pause = 0, SHORTEST_PAUSE
        elif drafted:
            self.now = max(self.now // 2, 1)
            self._fruitless += 1
            if self._fruitless >= FRUITLESS:
                self.now, self._pausing, self._pause = 1, self._pause, min(2 * self._pause, LONGEST_PAUSE)


@dataclass(frozen=True)
class Verdict:
    """The token that joins at a guess' position: the guess itself, or what stands there instead."""

    accepted: bool
    choice: Choice
    p: float
    u: float


@dataclass(frozen=True)
class Speculative(Strategy):
    """Guess k tokens, verify them in one forward of k + 1 positions, keep those that the target would have written."""

    emits = frozenset({TokenChosen, DraftJudged, VerifyCalibrated})
    #: The strategy whose output this one has: token for token where no die is rolled for the guesses, else in law.
    plain: ClassVar[str]
    loop = (
        ("draft", "guesses, q = drafter(history, k)"),
        ("forward", "logits = model([last token, *guesses], cache)"),
        ("processors", "p = stages(history + guesses before it, logits)"),
        ("select", "accept guess if u·q < p, else draw from max(0, p - q)"),
        ("cache", "cache.truncate(to the last accepted)"),
    )

    drafter: str = knob(
        "ngram",
        label=Text("drafter", "起草器"),
        help=Text("What guesses ahead.", "由什么来预先猜测。"),
        choices=tuple(drafters.all()),
        names={"vllm": "method"},
    )
    k: int = knob(
        4,
        label=Text("guesses k", "猜测数 k"),
        help=Text("How many tokens are guessed per step, at the most.", "每步最多猜测多少个词元。"),
        low=1, high=16, slider=(1, 12), names={"transformers": "num_assistant_tokens", "vllm": "num_speculative_tokens"},
    )  # fmt: skip
    schedule: str = knob(
        "adaptive",
        label=Text("how many to guess", "猜测多少"),
        help=Text(
            "fixed: always k. adaptive: k after full acceptance, fewer after a rejection, a pause where nothing is accepted. "
            "confidence: up to k, a doubtful guess being the last.",
            "fixed：总是 k 个。adaptive：全部接受后为 k，被拒后减少，毫无接受时暂停。confidence：最多 k 个，遇到没把握的猜测即为最后一个。",
        ),
        choices=("fixed", "adaptive", "confidence"),
        names={"transformers": "num_assistant_tokens_schedule"},
    )
    confidence: float = knob(
        0.4,
        label=Text("confidence", "把握"),
        help=Text(
            "A guess below this probability under the drafter is the last of its draft. It stays in: dropping it would bias the output.",
            "草稿概率低于此值的猜测是这次草稿的最后一个。它会保留：丢弃它会使输出产生偏差。",
        ),
        low=0, high=1, slider=(0, 1), step=0.05, only=("schedule", ("confidence",)), names={"transformers": "assistant_confidence_threshold"},
    )  # fmt: skip

    def check(self) -> None:
        chosen = self.drafting_by()
        if self.schedule == "confidence" and not chosen.doubts:
            raise BadValue(
                "knob_range",
                Text(
                    "{drafter} has no probabilities to be confident by: schedule must be fixed | adaptive, got confidence.",
                    "{drafter} 没有可作为把握依据的概率：schedule 必须是 fixed | adaptive，而给出的是 confidence。",
                ),
                drafter=self.drafter,
            )  # fmt: skip

    def drafting_by(self) -> Drafter:
        """The drafter with its knobs."""
        declaration = drafters.get(self.drafter)
        return declaration(**{name: getattr(self, name) for name in knobs_of(declaration)})

    @property
    def drafts_with(self) -> str | None:
        return getattr(self, "draft_model", "") if drafters.get(self.drafter).needs_model else None

    def check_models(self, task: Task) -> None:
        if not task.model.can_roll_back:
            raise PlaygroundError(
                "cache_not_croppable",
                Text(
                    "This model's KV cache can't be rolled back (recurrent state, sliding window or a cache of its own kind), "
                    "and rejected guesses must be: choose another model or strategy.",
                    "此模型的 KV 缓存无法回滚（循环状态、滑动窗口或特殊缓存），而被拒绝的猜测必须回滚：请选择其他模型或策略。",
                ),
            )
        self.drafting_by().check_models(task)

    # --- the algorithm -----------------------------------------------------------------------

    def run(self, task: Task) -> Steps:
        self.check_models(task)
        row, logits = yield from task.begin()  # [1, V]
        if row.stopped:
            return
        drafting = yield from self.drafting_by().start(task)
        if task.calibrate:
            with task.clock.part("recording"):
                measured = calibrated(task, drafting, row, self.k)
            yield (measured,)
        row, chosen = task.append(row, self.choose(task, task.score(logits, [row]), row))  # the prompt's own forward gives the first token
        yield (replace(chosen, origin="plain"),)
        pace, round = Pace(self.k, adaptive=self.schedule == "adaptive"), 0
        while not row.stopped:
            before, draft = row, self.guess(task, drafting, row, pace, round)
            logits = task.forward([[row.output[-1], *draft.tokens]], keep=len(draft.tokens) + 1)[0]  # [k + 1, V]
            row, chosen, guesses = self.verify(task, row, logits, draft, round)
            task.rollback(len(row.ids) - 1)  # all but the last token, which the next forward reads
            yield (*chosen, self.judged(task, drafting, draft, before.position, chosen, guesses, round))
            pace.after(len(guesses), sum(guess.state in ("accepted", "cut") for guess in guesses))
            round += 1

    def guess(self, task: Task, drafting: Drafting, row: Row, pace: Pace, round: int) -> Draft:
        """Ask for as many guesses as the pace wants and the row has room for, beside the target's own token."""
        room, limit_of_room = task.room(row)
        k = min(pace.wanted, room - 1)
        limit = limit_of_room if k < pace.wanted else "adaptive" if k < self.k else None
        if k < 1:
            return Draft(limit=limit)
        with task.clock.part("draft"):
            draft = drafting.guess(row, k, round, self.confidence if self.schedule == "confidence" else 0.0)
        return replace(draft, limit=draft.limit or limit)

    def verify(self, task: Task, row: Row, logits: Tensor, draft: Draft, round: int) -> tuple[Row, list[TokenChosen], list[Guess]]:
        """Keep the guesses up to the first rejection or the row's end, and the target's own token after them.

        `logits` `[k + 1, V]` stand position by position; each goes through every stage with the guesses before it in its history.
        """
        chosen: list[TokenChosen] = []
        guesses: list[Guess] = []
        for i, token in enumerate(draft.tokens):
            verdict = self.judge(task, row, task.score(logits[i : i + 1], [row]), token, q := draft.q[i] if draft.q else None, round)
            row, event = task.append(row, verdict.choice)
            chosen.append(replace(event, origin="accepted" if verdict.accepted else "resampled"))
            guesses.append(_guess(token, q, "accepted" if verdict.accepted else "rejected", verdict))
            if row.stopped and verdict.accepted:
                return row, chosen, guesses + self.behind_the_end(task, row, logits, draft, i + 1, round)
            if not verdict.accepted:
                return row, chosen, guesses + _never_judged(draft, i + 1)
        row, event = task.append(row, self.choose(task, task.score(logits[-1:], [row]), row))
        chosen.append(replace(event, origin="bonus" if draft.tokens else "plain"))
        return row, chosen, guesses

    def judge(self, task: Task, row: Row, scored: Scored, token: int, q: Tensor | None, round: int) -> Verdict:
        """Decide on one guess; the tokens that come out have the law of p, whatever q `[V]` is.

        Without q no die was rolled for the guess: q is one-hot, and drawing from p with the die of the
        plain lane, then comparing, is the same rule and gives the plain lane's token.
        """
        if q is None:
            choice = self.choose(task, scored, row)
            accepted = choice.token == token
            with task.clock.part("recording"):
                p = self.target(scored)[token].item()
            return Verdict(accepted, choice, p, choice.u)
        u = task.dice.u(row.position, "accept", round=round)
        with task.clock.part("select"):
            p = self.target(scored)  # [V]
            probability = float(p[token])
            accepted = accepts(probability, float(q[token]), u)
            if not accepted:
                token = int(draw(residual(p, q), task.dice.u(row.position, "residual", round=round)).token)
        return Verdict(accepted, task.take(scored, token), probability, u)

    def behind_the_end(self, task: Task, row: Row, logits: Tensor, draft: Draft, first: int, round: int) -> list[Guess]:
        """Judge the guesses behind the end of the text, for the record alone: those that would have stood are cut."""
        guesses: list[Guess] = []
        for i, token in enumerate(draft.tokens[first:], first):
            try:
                scored = task.score(logits[i : i + 1], [row], views=())
                verdict = self.judge(task, row, scored, token, q := draft.q[i] if draft.q else None, round)
            except PlaygroundError:  # stages may leave nothing there: the lane has ended well all the same
                return guesses + _never_judged(draft, i)
            guesses.append(_guess(token, q, "cut" if verdict.accepted else "rejected", verdict))
            if not verdict.accepted:
                return guesses + _never_judged(draft, i + 1)
            row = task.extend(row, token, verdict.choice.log_probability)
        return guesses

    def choose(self, task: Task, scored: Scored, row: Row) -> Choice:
        """The token that the plain lane would take here."""
        raise NotImplementedError

    def target(self, scored: Scored) -> Tensor:
        """The distribution p `[V]` that the plain lane takes its token from, float64."""
        raise NotImplementedError

    def judged(
        self, task: Task, drafting: Drafting, draft: Draft, position: int, chosen: list[TokenChosen], guesses: list[Guess], round: int
    ) -> DraftJudged:
        last = chosen[-1]
        ended_inside = last.origin == "accepted"
        return DraftJudged(
            round=round,
            position=position,
            drafter=self.drafter,
            guesses=tuple(guesses),
            wanted=self.k,
            extra=None if ended_inside else last.token,
            extra_origin=None if ended_inside else last.origin,  # type: ignore[arg-type]
            seconds={},  # the race reads the clock
            target_length=task.model.cache_length,
            draft_length=drafting.length,
            draft_bytes=drafting.cache_bytes,
            limit=draft.limit,
            source=draft.source,
            matched=draft.matched,
        )


def _guess(token: int, q: Tensor | None, state: Literal["accepted", "rejected", "cut"], verdict: Verdict) -> Guess:
    probability = 1.0 if q is None else float(q[token])
    return Guess(token, probability, state, verdict.p, min(1.0, verdict.p / probability), verdict.u)


def _never_judged(draft: Draft, first: int) -> list[Guess]:
    q = draft.q or (None,) * len(draft.tokens)
    return [Guess(token, 1.0 if q[i] is None else float(q[i][token]), "never_judged") for i, token in enumerate(draft.tokens) if i >= first]


def _with_every_drafters_knobs(strategy: type[Speculative]) -> type[Speculative]:
    """The strategy with the knobs of all drafters as its own, each asked for only beside its drafters: a drafter is one file."""
    owners: dict[str, list[str]] = {}
    knobs: dict[str, Knob] = {}
    for name, drafter in drafters.all().items():
        for knob_name, declared in knobs_of(drafter).items():
            assert knobs.setdefault(knob_name, declared) == declared, f"two drafters mean different things by {knob_name}"
            owners.setdefault(knob_name, []).append(name)
    fields: list[Any] = [
        (name, Any, field(default=declared.default, metadata={"knob": replace(declared, only=("drafter", tuple(owners[name])))}))
        for name, declared in knobs.items()
    ]
    return make_dataclass("SpeculativeWithDrafters", fields, bases=(strategy,), frozen=True)


SpeculativeWithDrafters: Any = _with_every_drafters_knobs(Speculative)


@strategies.register
@dataclass(frozen=True)
class SpeculativeGreedy(SpeculativeWithDrafters):
    """Greedy decoding with guesses: p is one-hot, and a guess stands if it is the argmax."""

    name = "speculative_greedy"
    label = Text("speculative, greedy", "投机解码（贪心）")
    summary = Text(
        "A drafter guesses several tokens, one forward verifies them; the text is greedy's.",
        "起草器先猜多个词元，一次前向即可验证；文本与贪心相同。",
    )
    warps = False
    when_cold = "speculative_greedy"
    plain = "greedy"

    def choose(self, task: Task, scored: Scored, row: Row) -> Choice:
        return task.most_likely(scored)

    def target(self, scored: Scored) -> Tensor:
        p = torch.zeros_like(scored.scores[0], dtype=torch.float64)
        p[argmax(scored.scores[0])] = 1.0
        return p


@strategies.register
@dataclass(frozen=True)
class SpeculativeSample(SpeculativeWithDrafters):
    """Sampling with guesses: what is written has exactly the distribution that sampling has."""

    name = "speculative_sample"
    label = Text("speculative, sample", "投机解码（采样）")
    summary = Text(
        "A drafter guesses several tokens, one forward verifies them; the text has sampling's distribution.",
        "起草器先猜多个词元，一次前向即可验证；文本的分布与采样相同。",
    )
    when_cold = "speculative_greedy"
    plain = "sample"

    def choose(self, task: Task, scored: Scored, row: Row) -> Choice:
        return task.draw(scored, task.dice.u(row.position))

    def target(self, scored: Scored) -> Tensor:
        return scored.scores[0].double().softmax(-1)
