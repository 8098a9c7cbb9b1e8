"""The books of a lane that speculates: what was guessed, accepted and thrown away, what it cost, and whether it paid.

A round is one forward of the target: it reads the last token and k guesses, and brings the accepted ones and one token of its
own. The lane's first token comes from the prompt's own forward and belongs to no round. "Accepted" counts by the rule; what
the end of the text cut off again is counted apart.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from statistics import median
from typing import Any

from playground.errors import Text
from playground.measures import Quantity
from playground.measures.formula import Formula, worked, written
from playground.measures.kv import model_of
from playground.measures.latency import lane_meter
from playground.measures.which_k import Factors, expected_tokens, interpolated, predicted
from playground.trace import DraftJudged, Finished, ModelAbout, PromptRead, StepTimed, TokenChosen, Trace, VerifyCalibrated

#: A lane that speculates, and the strategy whose text it writes.
PLAIN = {"speculative_greedy": "greedy", "speculative_sample": "sample"}
#: The parts of a round in the order in which they happen.
PARTS = ("draft", "verify", "select", "rollback", "other")
#: Fewer judged guesses than this at a position say too little: what all positions say together stands for them.
LEAST_JUDGED = 3
#: Speeds closer than this are the same: two runs of one lane differ by as much.
SAME_SPEED = 0.03
#: What a vLLM server refuses in a request as soon as it speculates.
REFUSED = ("min_p", "logit_bias")


@dataclass(frozen=True)
class Round:
    """A round, its whole step's seconds included, and how many tokens it brought."""

    judged: DraftJudged
    seconds: float

    @property
    def accepted(self) -> int:
        return sum(guess.state in ("accepted", "cut") for guess in self.judged.guesses)

    @property
    def tokens(self) -> int:
        return sum(guess.state == "accepted" for guess in self.judged.guesses) + (self.judged.extra is not None)

    def part(self, name: str) -> float:
        """Seconds of one part; what the parts leave of the step is other."""
        if name == "other":
            return max(self.seconds - sum(self.judged.seconds.values()), 0.0)
        return self.judged.seconds.get(name, 0.0)


@dataclass(frozen=True)
class Position:
    """What became of the guesses at one position of their drafts (0 is the first), over `drafts` rounds that had any."""

    position: int
    drafts: int
    judged: int
    accepted: int

    @property
    def unconditional(self) -> float | None:
        return self.accepted / self.drafts if self.drafts else None

    @property
    def conditional(self) -> float | None:
        """Of those that were judged: all before them had been accepted."""
        return self.accepted / self.judged if self.judged else None


@dataclass(frozen=True)
class Gain:
    """What a round won (seconds, negative: lost) against the plain lane's median step, and all rounds up to it."""

    position: int
    tokens: int
    won: float
    total: float


@dataclass(frozen=True)
class Row:
    """A line of the ledger: its group, its name, its number."""

    group: str
    name: str
    quantity: Quantity


@dataclass(frozen=True)
class Ledger:
    """Everything that one lane's record says of its speculation; `plain` is the lane of the same race without guesses."""

    trace: Trace
    lane: int
    rounds: tuple[Round, ...]
    calibrated: VerifyCalibrated | None
    plain: int | None

    # --- counts --------------------------------------------------------------------------------

    @cached_property
    def states(self) -> Counter[str]:
        return Counter(guess.state for one in self.rounds for guess in one.judged.guesses)

    @cached_property
    def origins(self) -> Counter[str]:
        return Counter(one.judged.extra_origin for one in self.rounds if one.judged.extra_origin is not None)

    @property
    def drafted(self) -> int:
        return sum(self.states.values())

    @property
    def accepted(self) -> int:
        return self.states["accepted"] + self.states["cut"]

    @property
    def judged(self) -> int:
        return self.accepted + self.states["rejected"]

    @cached_property
    def with_draft(self) -> tuple[Round, ...]:
        return tuple(one for one in self.rounds if one.judged.guesses)

    @property
    def tokens(self) -> int:
        """Tokens that the rounds wrote."""
        return sum(one.tokens for one in self.rounds)

    @property
    def rolled_back(self) -> int:
        """A round reads its k guesses and the last token; what it wrote stays in the cache, less its newest token, plus the one before it."""
        return sum(1 + len(one.judged.guesses) - one.tokens for one in self.rounds)

    @property
    def behind_the_end(self) -> int:
        """Guesses that stood behind the end of the text, whatever became of them."""
        return sum(len(one.judged.guesses) - one.tokens for one in self.rounds if one.judged.extra is None)

    @property
    def asked(self) -> int:
        """Rounds in which the drafter was asked for guesses: not where it paused, or where nothing but one token was left to write."""
        return len(self.with_draft) + sum(one.judged.limit == "no_match" for one in self.rounds if not one.judged.guesses)

    @property
    def hits(self) -> float | None:
        """Of the rounds in which the drafter was asked for guesses, the share in which it had some."""
        return len(self.with_draft) / self.asked if self.asked else None

    # --- rates ---------------------------------------------------------------------------------

    @property
    def acceptance_rate(self) -> float | None:
        return self.accepted / self.drafted if self.drafted else None

    @property
    def alpha(self) -> float | None:
        """How likely a guess is accepted that is judged at all: the α of the formulas."""
        return self.accepted / self.judged if self.judged else None

    @property
    def acceptance_length(self) -> float | None:
        return 1 + self.accepted / len(self.with_draft) if self.with_draft else None

    @property
    def tokens_per_forward(self) -> float | None:
        return self.tokens / len(self.rounds) if self.rounds else None

    @cached_property
    def positions(self) -> tuple[Position, ...]:
        most = max((len(one.judged.guesses) for one in self.rounds), default=0)
        found = []
        for i in range(most):
            there = [one.judged.guesses[i] for one in self.with_draft if len(one.judged.guesses) > i]
            judged = [guess for guess in there if guess.state != "never_judged"]
            found.append(Position(i, len(self.with_draft), len(judged), sum(guess.state != "rejected" for guess in judged)))
        return tuple(found)

    @cached_property
    def histogram(self) -> tuple[int, ...]:
        """How many of the rounds with a draft had 0, 1, … guesses accepted."""
        most = max((len(one.judged.guesses) for one in self.rounds), default=0)
        counts = Counter(one.accepted for one in self.with_draft)
        return tuple(counts[n] for n in range(most + 1)) if self.with_draft else ()

    # --- time ----------------------------------------------------------------------------------

    @cached_property
    def verify(self) -> tuple[tuple[int, float], ...]:
        """Positions in one forward, and its seconds, as the calibration measured them."""
        return tuple(sorted(self.calibrated.verify)) if self.calibrated is not None else ()

    @property
    def one(self) -> float | None:
        """T(1): seconds of a forward of one position."""
        return next((seconds for positions, seconds in self.verify if positions == 1 and seconds > 0), None)

    @property
    def draft_seconds(self) -> float | None:
        """Seconds per guess in the rounds."""
        return sum(one.part("draft") for one in self.with_draft) / self.drafted if self.drafted else None

    @property
    def draft_cost(self) -> float | None:
        """c: seconds per guess / T(1)."""
        return self.draft_seconds / self.one if self.draft_seconds is not None and self.one else None

    @property
    def mean_k(self) -> float | None:
        return self.drafted / len(self.with_draft) if self.with_draft else None

    @cached_property
    def plain_step(self) -> float | None:
        """The median step of the plain lane, its first one, which has no forward of its own, left out."""
        if self.plain is None:
            return None
        steps = [step.seconds for step in self.trace.of(self.plain, StepTimed)][1:]
        return median(steps) if steps else None

    @cached_property
    def gains(self) -> tuple[Gain, ...]:
        """Seconds won and lost round by round: tokens × the plain lane's median step − the round's seconds."""
        if self.plain_step is None:
            return ()
        total, found = 0.0, []
        for one in self.rounds:
            won = one.tokens * self.plain_step - one.seconds
            total += won
            found.append(Gain(one.judged.position, one.tokens, won, total))
        return tuple(found)

    @cached_property
    def speed_up(self) -> float | None:
        """Seconds per token behind the first, of the plain lane / of this one, both measured in this race."""
        return self.plain_token / self.own_token if self.plain_token is not None and self.own_token is not None else None

    @cached_property
    def plain_token(self) -> float | None:
        """Seconds per token behind the first of the plain lane."""
        return None if self.plain is None else self._token_seconds(self.plain)

    @cached_property
    def own_token(self) -> float | None:
        """Seconds per token behind the first of this lane."""
        return self._token_seconds(self.lane)

    def _token_seconds(self, lane: int) -> float | None:
        meter = lane_meter(self.trace, lane)
        after = meter.decode_seconds
        return after / (meter.timed_tokens - 1) if after else None

    @property
    def textbook(self) -> float | None:
        """(1 − α^(k+1)) / ((1 − α)(kc + 1)): verifying costs as much as a plain step."""
        if self.alpha is None or self.mean_k is None or self.draft_cost is None:
            return None
        return predicted(self.alpha, self.mean_k, self.draft_cost)

    @property
    def with_verify(self) -> float | None:
        """The same with what verifying costs here."""
        if self.textbook is None or self.one is None:
            return None
        return predicted(self.alpha, self.mean_k, self.draft_cost, interpolated(self.verify, self.mean_k + 1) / self.one)  # type: ignore[arg-type]

    @property
    def with_pauses(self) -> float | None:
        """The same again, over all rounds: those without a draft bring one token in T(1)."""
        if self.with_verify is None:
            return None
        share = len(self.with_draft) / len(self.rounds)
        tokens = expected_tokens(self.alpha, self.mean_k)  # type: ignore[arg-type]
        cost = tokens / self.with_verify
        return (share * tokens + 1 - share) / (share * cost + 1 - share)

    @property
    def factors(self) -> Factors | None:
        """The three factors as this lane measured them; None as long as nothing was judged or calibrated."""
        if self.alpha is None or self.draft_cost is None or self.one is None:
            return None
        known: list[float] = []
        for position in self.positions:
            if position.judged < LEAST_JUDGED or position.conditional is None:
                break
            known.append(position.conditional)
        # More positions never cost less, and a disturbance only slows: a count that took longer than a larger one was disturbed.
        seconds = reversed(list(accumulate((seconds for _, seconds in reversed(self.verify)), min)))
        verify = tuple((positions, max(taken / self.one, 1.0)) for (positions, _), taken in zip(self.verify, seconds, strict=True))
        return Factors(tuple(known), self.alpha, self.draft_cost, verify, self.hits or 1.0)

    # --- resources -----------------------------------------------------------------------------

    @property
    def draft_model(self) -> ModelAbout | None:
        key = self.trace.about.lanes[self.lane].draft_model
        return next((model for model in self.trace.about.models if model.key == key), None) if key is not None else None

    @property
    def extra_weights(self) -> int | None:
        if self.trace.about.lanes[self.lane].draft_model is None:
            return 0  # lookups hold none, an early exit the target's own
        return self.draft_model.weight_bytes if self.draft_model is not None else None

    @property
    def extra_cache(self) -> int:
        return max((one.judged.draft_bytes or 0 for one in self.rounds), default=0)

    @property
    def prefills(self) -> int:
        """Forwards that read the prompt: the lane's own, or those of the race that read it once for several lanes."""
        own = shared = 0
        handed_out = False
        for owner, event in self.trace.events:
            if not isinstance(event, PromptRead):
                continue
            if owner is None:  # lanes of another model or prompt have a reading of their own, behind the copies of this one
                shared, handed_out = (1 if handed_out else shared + 1), False
            elif event.reused:
                handed_out = True
                if owner == self.lane:
                    return shared
            elif owner == self.lane:
                own += 1
        return own

    @property
    def refused(self) -> tuple[str, ...]:
        """Stages of this lane for which a server that speculates would refuse the request."""
        return tuple(stage.stage for stage in self.trace.about.lanes[self.lane].stages if stage.stage in REFUSED and not stage.idle)

    @property
    def over(self) -> bool:
        return next(self.trace.of(self.lane, Finished), None) is not None


def ledger(trace: Trace, lane: int) -> Ledger:
    """The books of a lane as far as it has come."""
    rounds: list[Round] = []
    judged: DraftJudged | None = None
    for event in trace.of(lane, DraftJudged, StepTimed):
        if isinstance(event, DraftJudged):
            judged = event
        elif judged is not None:
            rounds.append(Round(judged, event.seconds))
            judged = None
    return Ledger(trace, lane, tuple(rounds), next(trace.of(lane, VerifyCalibrated), None), plain_lane(trace, lane))


def speculates(trace: Trace, lane: int) -> bool:
    return trace.about.lanes[lane].strategy in PLAIN


def plain_lane(trace: Trace, lane: int) -> int | None:
    """The lane of this race that does the same without guesses: model, prompt, stages, limits; the seed is the race's."""
    own = trace.about.lanes[lane]
    wanted = PLAIN.get(own.strategy)

    def settings(about: Any) -> tuple[Any, ...]:
        stages = tuple((stage.stage, stage.knobs) for stage in about.stages if not stage.idle)
        branch = None if about.branch is None else about.branch.get("tokens")
        return about.model, about.prompt_ids, stages, about.max_new_tokens, about.stop, branch, about.server

    return next((number for number, other in enumerate(trace.about.lanes) if other.strategy == wanted and settings(other) == settings(own)), None)


@dataclass(frozen=True)
class Difference:
    """The first position at which the lane's token differs from the plain lane's; `gap` is between the target's two best raw scores there."""

    position: int
    plain: int
    own: int
    gap: float | None


def first_difference(books: Ledger) -> Difference | None:
    """Where the lane and its plain lane part; None if one is the beginning of the other, or there is no plain lane."""
    if books.plain is None:
        return None
    outputs = books.trace.output(books.plain), books.trace.output(books.lane)
    found = next(((plain, own) for plain, own in zip(*outputs, strict=False) if plain.token != own.token), None)
    if found is None:
        return None
    plain, own = found
    best = plain.view.raw[:2] if plain.view is not None else ()  # candidates stand by raw score descending
    gap = best[0] - best[1] if len(best) == 2 and best[0] is not None and best[1] is not None else None
    return Difference(plain.position, plain.token, own.token, gap)


# --- rows -----------------------------------------------------------------------------------------


def identity(books: Ledger) -> tuple[tuple[Text, Text | str], ...]:
    """Who ran what, where: the block that stands before the numbers."""
    about, trace = books.trace.about.lanes[books.lane], books.trace
    model, draft = model_of(trace, books.lane), books.draft_model
    knobs = ", ".join(f"{name}={value}" for name, value in about.knobs.items() if value not in ("", None) and name != "recorded")
    stages = " → ".join(stage.stage for stage in about.stages if not stage.idle) or "–"
    versions = " · ".join(f"{name} {version}" for name, version in trace.about.versions.items())
    return (
        (Text("target", "目标模型"), _model_words(model)),
        (Text("draft model", "草稿模型"), _model_words(draft) if draft is not None else "–"),
        (Text("strategy and its settings", "策略及其设置"), f"{about.strategy}: {knobs}"[:400]),
        (Text("stages, in order", "各阶段（按顺序）"), stages),
        (Text("seed", "种子"), str(trace.about.request.get("seed", "–"))[:20]),
        (Text("prompt, in tokens", "提示词（词元数）"), str(len(about.prompt_ids))),
        (Text("machine", "机器"), f"{trace.about.machine} · {trace.about.created}"[:200]),
        (Text("versions", "版本"), versions[:200] or "–"),
    )


def _model_words(model: ModelAbout | None) -> Text:
    if model is None:
        return Text("–", "–")
    revision = model.revision[:12] if re.fullmatch(r"[0-9a-f]{40}", model.revision or "") else model.revision
    how = model.number_format
    en, zh = ((model.name, revision, how and getattr(how, language), model.device) for language in ("en", "zh"))
    return Text(" · ".join(filter(None, en)), " · ".join(filter(None, zh)))


def rows(books: Ledger) -> tuple[Row, ...]:
    """Every line of the ledger, in order; a number that isn't known is None."""
    return (*_counts(books), *_rates(books), *_times(books), *_speed(books), *_resources(books))


def _counts(books: Ledger) -> list[Row]:
    n, m = len(books.rounds), len(books.with_draft)
    first = sum(1 for event in books.trace.of(books.lane, TokenChosen) if event.position == 0 and event.origin == "plain")

    def count(name: str, value: int, en: str, zh: str, formula: Text | Formula | None = None, unit: str = "tokens") -> Row:
        return Row("counts", name, Quantity(value, unit, "measured", Text(en, zh), formula))

    return [
        count("forwards", n, "target forwards (rounds)", "目标模型前向次数（轮）", unit="1"),
        count("prefills", books.prefills, "prompt forwards (prefill)", "提示词前向次数（预填充）", unit="1"),
        count("with_draft", m, "rounds with at least one guess", "至少有一个猜测的轮", Text(f"of {n} rounds", f"共 {n} 轮"), "1"),
        count("without_draft", n - m, "rounds without a guess", "没有猜测的轮", Text(f"of {n} rounds", f"共 {n} 轮"), "1"),
        Row(
            "counts",
            "hit_rate",
            Quantity(
                books.hits,
                "1",
                "derived",
                Text("hit rate of the drafter", "起草器命中率"),
                worked(
                    Text("rounds with a guess / rounds in which it was asked", "有猜测的轮 / 被询问的轮"), "{m} / {asked}", written("1"),
                    m=m, asked=books.asked,
                ),
            ),
        ),
        count("drafted", books.drafted, "guessed", "猜测"),
        count("accepted", books.accepted, "accepted by the rule", "按规则接受", Text(f"of {books.drafted} guessed", f"共 {books.drafted} 个猜测")),
        count(
            "emitted",
            books.states["accepted"],
            "accepted and written",
            "接受并写出",
            Text(f"of {books.drafted} guessed", f"共 {books.drafted} 个猜测"),
        ),
        count(
            "cut",
            books.states["cut"],
            "accepted, but behind the end of the text",
            "接受但在文本结尾之后",
            Text(f"of {books.drafted} guessed", f"共 {books.drafted} 个猜测"),
        ),
        count("rejected", books.states["rejected"], "rejected", "被拒绝", Text(f"of {books.drafted} guessed", f"共 {books.drafted} 个猜测")),
        count(
            "never_judged",
            books.states["never_judged"],
            "never judged: behind a rejection",
            "未判定：在被拒者之后",
            Text(f"of {books.drafted} guessed", f"共 {books.drafted} 个猜测"),
        ),
        count("behind_the_end", books.behind_the_end, "guesses thrown away because the text ended", "因文本结束而作废的猜测"),
        count(
            "resampled",
            books.origins["resampled"],
            "own choice after a rejection",
            "拒绝后自行选择",
            Text(f"of {books.tokens} written by rounds", f"各轮共写出 {books.tokens} 个"),
        ),
        count(
            "bonus",
            books.origins["bonus"],
            "bonus after full acceptance",
            "全部接受后的奖励词元",
            Text(f"of {books.tokens} written by rounds", f"各轮共写出 {books.tokens} 个"),
        ),
        count(
            "plain",
            books.origins["plain"] + first,
            "plain: no draft before it",
            "普通：之前没有草稿",
            worked(
                Text("written by rounds without a guess + the prompt's first token", "没有猜测的轮写出 + 提示词之后的第一个词元"),
                "{rounds} + {first}", written("tokens"), rounds=books.origins["plain"], first=first,
            ),
        ),
        count(
            "rolled_back",
            books.rolled_back,
            "KV positions rolled back",
            "回滚的 KV 位置",
            worked(
                Text("Σ (1 + guesses − tokens written)", "Σ（1 + 猜测数 − 写出词元数）"), "{n} + {drafted} − {tokens}", written("tokens"),
                n=n, drafted=books.drafted, tokens=books.tokens,
            ),
        ),
    ]  # fmt: skip


def _rates(books: Ledger) -> list[Row]:
    m, n = len(books.with_draft), len(books.rounds)

    def rate(name: str, value: float | None, label: Text, words: Text, arithmetic: str, unit: str = "1", **operands: int) -> Row:
        return Row("rates", name, Quantity(value, unit, "derived", label, worked(words, arithmetic, written(unit), **operands)))

    found = [
        rate(
            "acceptance_rate", books.acceptance_rate, Text("acceptance rate", "接受率"),
            Text("accepted / guessed", "接受 / 猜测"), "{accepted} / {drafted}", accepted=books.accepted, drafted=books.drafted,
        ),
        rate(
            "alpha", books.alpha, Text("α: accepted of those judged", "α：已判定者的接受率"),
            Text("accepted / judged", "接受 / 已判定"), "{accepted} / {judged}", accepted=books.accepted, judged=books.judged,
        ),
        rate(
            "acceptance_length", books.acceptance_length, Text("mean acceptance length (vLLM)", "平均接受长度（vLLM）"),
            Text("1 + accepted / rounds with a guess", "1 + 接受 / 有猜测的轮"), "1 + {accepted} / {m}", "tokens per round",
            accepted=books.accepted, m=m,
        ),
        rate(
            "tokens_per_forward", books.tokens_per_forward,
            Text("tokens per target forward, rounds without a guess included", "每次目标前向的词元数（含没有猜测的轮）"),
            Text("written by rounds / rounds", "各轮写出 / 轮数"), "{tokens} / {n}", "tokens per forward", tokens=books.tokens, n=n,
        ),
    ]  # fmt: skip
    for one in books.positions:
        i = one.position + 1
        of_all = Text(f"accepted at guess {i}, of all drafts", f"第 {i} 个猜测被接受（占全部草稿）")
        of_judged = Text(f"accepted at guess {i}, of those judged", f"第 {i} 个猜测被接受（占已判定者）")
        per_draft = Text("accepted here / rounds with a guess", "此处接受 / 有猜测的轮")
        per_judged = Text("accepted here / judged here", "此处接受 / 此处判定")
        counts = "{accepted} / {of}"
        found.append(rate(f"position_{i}", one.unconditional, of_all, per_draft, counts, accepted=one.accepted, of=one.drafts))
        found.append(rate(f"position_{i}_judged", one.conditional, of_judged, per_judged, counts, accepted=one.accepted, of=one.judged))
    of_rounds = Text(f"of {m} rounds with a guess", f"共 {m} 轮有猜测")
    for accepted, rounds_so in enumerate(books.histogram):
        label = Text(f"rounds with {accepted} accepted", f"接受 {accepted} 个的轮")
        found.append(Row("rates", f"histogram_{accepted}", Quantity(rounds_so, "rounds", "measured", label, of_rounds)))
    return found


_PART_LABELS = {
    "draft": Text("drafting", "起草"),
    "verify": Text("verifying (the forward)", "验证（前向）"),
    "select": Text("stages and choice", "各阶段与选择"),
    "rollback": Text("rollback of the cache", "缓存回滚"),
    "other": Text("everything else", "其余"),
}


def _times(books: Ledger) -> list[Row]:
    found = [Row("time", f"time_{part}", _part_time(books, part)) for part in PARTS]
    repeats = books.calibrated.repeats if books.calibrated is not None else 0
    calibration = Text(f"calibration: median of {repeats}", f"校准：{repeats} 次的中位数")
    for positions, seconds in books.verify:
        found.append(Row("time", f"verify_{positions}", _verify_time(books, positions, seconds, calibration)))
    if not books.verify:
        found.append(Row("time", "verify_1", Quantity(None, "s", "measured", Text("T(1)", "T(1)"), Text("calibration: not made", "未做校准"))))
    if books.calibrated is not None and books.calibrated.draft is not None:
        label = Text("one token of the drafter", "起草器的一个词元")
        found.append(Row("time", "draft_token", Quantity(books.calibrated.draft, "s", "measured", label, calibration)))
    cost = Text("c: a guess, in plain steps", "c：一个猜测的代价（以普通步计）")
    formula = worked(
        Text("(Σ draft / guessed) / T(1)", "（Σ 起草 / 猜测数）/ T(1)"), "({draft} ms / {guessed}) / {one} ms", written("× T(1)"),
        draft=sum(one.part("draft") for one in books.with_draft) * 1e3, guessed=books.drafted, one=_milliseconds(books.one),
    )  # fmt: skip
    found.append(Row("time", "draft_cost", Quantity(books.draft_cost, "× T(1)", "derived", cost, formula)))
    return found


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3


def _part_time(books: Ledger, part: str) -> Quantity:
    """Seconds of one part of all rounds, and what share of them that is."""
    whole = sum(one.seconds for one in books.rounds)
    seconds = sum(one.part(part) for one in books.rounds) if books.rounds else None
    share = None
    if seconds is not None and whole > 0:
        share = worked(
            Text("of all rounds", "占全部轮"), "{part} ms / {whole} ms", lambda ratio: f"{ratio:.1%}", Text("{result}", "{result}"),
            part=seconds * 1e3, whole=whole * 1e3,
        )  # fmt: skip
    return Quantity(seconds, "s", "measured", _PART_LABELS[part], share)


def _verify_time(books: Ledger, positions: int, seconds: float, calibration: Text) -> Quantity:
    """Seconds of a forward of so many positions, and how many plain steps that is."""
    if positions == 1:
        return Quantity(seconds, "s", "measured", Text("T(1): a forward of one position", "T(1)：一个位置的前向"), calibration)
    label = Text(f"T_verify({positions - 1}): a forward of {positions} positions", f"T_verify({positions - 1})：{positions} 个位置的前向")
    if not books.one:
        return Quantity(seconds, "s", "measured", label, calibration)
    ratio = worked(
        Text(f"{calibration.en}; / T(1)", f"{calibration.zh}；/ T(1)"), "{verify} ms / {one} ms", written("×"), Text("{result} ×", "{result} ×"),
        verify=seconds * 1e3, one=books.one * 1e3,
    )  # fmt: skip
    return Quantity(seconds, "s", "measured", label, ratio)


def _predictions(books: Ledger) -> tuple[Formula, Formula, Formula]:
    """Three predictions of the speed-up: verifying at the price of a step, at its own price, and with the rounds that had no guess."""
    k, alpha, draft = books.mean_k, books.alpha, books.draft_cost
    verify = interpolated(books.verify, k + 1) / books.one if k is not None and books.one else None
    certain = alpha is not None and alpha >= 1  # then the sum 1 + α + … + α^k, which is what the fraction stands for, is k + 1
    bare = "({k} + 1) / ({k} × {draft} + {verify})"
    full = "(1 − {alpha}^({k} + 1)) / ((1 − {alpha}) × ({k} × {draft} + {verify}))"

    def one(en: str, zh: str, verify: float | None) -> Formula:
        operands = {"k": k, "draft": draft, "verify": verify} | ({} if certain else {"alpha": alpha})
        return worked(Text(en, zh), bare if certain else full, written("×"), **operands)

    with_draft, every = len(books.with_draft), len(books.rounds)
    tokens = expected_tokens(alpha, k) if alpha is not None and k is not None else None
    fraction = "(k + 1) / (kc + {v})" if certain else "(1 − α^(k+1)) / ((1 − α)(kc + {v}))"
    measured = fraction.format(v="T_verify(k) / T(1)")
    return (
        one(f"{fraction.format(v=1)}, k guesses per draft", f"{fraction.format(v=1)}，每份草稿 k 个猜测", 1),
        one(measured, measured, verify),
        worked(
            Text(
                f"{with_draft} of {every} rounds as above, the rest one token in T(1)",
                f"{every} 轮中 {with_draft} 轮如上，其余每轮在 T(1) 内一个词元",
            ),
            "({drafts} × {tokens} + {rest}) / ({drafts} × {tokens} / {speed} + {rest})", written("×"),
            drafts=with_draft, rest=every - with_draft, tokens=tokens, speed=books.with_verify,
        ),
    )  # fmt: skip


def _speed(books: Ledger) -> list[Row]:
    textbook, with_verify, with_pauses = _predictions(books)

    def row(name: str, value: float | None, unit: str, how: Any, label: Text, formula: Text | Formula) -> Row:
        return Row("speed", name, Quantity(value, unit, how, label, formula))

    return [
        row(
            "speed_up", books.speed_up, "×", "measured", Text("speed-up over the plain lane of this race", "相对本场普通通道的加速"),
            worked(
                Text("time per token behind the first: plain lane / this lane", "首词元之后每词元时间：普通通道 / 此通道"),
                "{plain} ms / {own} ms", written("×"), plain=_milliseconds(books.plain_token), own=_milliseconds(books.own_token),
            ),
        ),
        row(
            "textbook", books.textbook, "×", "estimated", Text("predicted, verifying as cheap as one step", "预测（验证与一步同价）"), textbook,
        ),
        row(
            "with_verify", books.with_verify, "×", "estimated", Text("predicted with the measured cost of verifying", "预测（用实测验证代价）"),
            with_verify,
        ),
        row(
            "with_pauses", books.with_pauses, "×", "estimated", Text("the same, with the rounds that had no guess", "同上，并计入没有猜测的轮"),
            with_pauses,
        ),
        row(
            "plain_step", books.plain_step, "s", "measured", Text("a step of the plain lane", "普通通道的一步"),
            Text("median, the first step left out", "中位数，不计第一步"),
        ),
        *_won(books),
    ]  # fmt: skip


def _won(books: Ledger) -> list[Row]:
    """Time won and lost round by round."""
    won = [(one, gain) for one, gain in zip(books.rounds, books.gains, strict=False) if gain.won > 0]
    lost = [(one, gain) for one, gain in zip(books.rounds, books.gains, strict=False) if gain.won < 0]
    every = list(zip(books.rounds, books.gains, strict=False))
    step = _milliseconds(books.plain_step)

    def row(name: str, rounds: list[tuple[Round, Gain]], sign: int, label: Text, words: Text) -> Row:
        value = sign * sum(gain.won for _, gain in rounds) if books.gains else None
        arithmetic = "{tokens} × {step} ms − {taken} ms" if sign > 0 else "{taken} ms − {tokens} × {step} ms"
        taken, tokens = 1e3 * sum(one.seconds for one, _ in rounds), sum(gain.tokens for _, gain in rounds)
        formula = worked(words, arithmetic, written("s", 1e-3), tokens=tokens, step=step, taken=taken) if rounds else words
        return Row("speed", name, Quantity(value, "s", "derived", label, formula))

    return [
        row(
            "won", won, 1, Text("won in rounds that were faster", "较快的轮赢得"),
            Text("Σ (tokens × plain step − round), where above 0", "Σ（词元数 × 普通一步 − 该轮），仅计大于 0 者"),
        ),
        row(
            "lost", lost, -1, Text("lost in rounds that were slower", "较慢的轮损失"),
            Text("Σ (round − tokens × plain step), where above 0", "Σ（该轮 − 词元数 × 普通一步），仅计大于 0 者"),
        ),
        row(
            "gain", every, 1, Text("won less lost", "净赢得"), Text("Σ (tokens × plain step − round)", "Σ（词元数 × 普通一步 − 该轮）"),
        ),
    ]  # fmt: skip


def _resources(books: Ledger) -> list[Row]:
    weights, cache = Text("extra weights", "额外权重"), Text("extra KV cache, at most", "额外 KV 缓存（最多）")
    held = books.extra_cache if books.rounds else None
    return [
        Row(
            "resources",
            "extra_weights",
            Quantity(books.extra_weights, "B", "measured", weights, Text("weights of the draft model", "草稿模型的权重")),
        ),
        Row("resources", "extra_cache", Quantity(held, "B", "measured", cache, Text("of the draft model", "草稿模型的缓存"))),
    ]


def refusal(books: Ledger) -> Text:
    """What a server that speculates would say to this lane's request."""
    if not books.refused:
        return Text(
            "A vLLM server that speculates refuses min-p and logit bias; this lane uses neither.",
            "开启投机解码的 vLLM 服务器会拒绝 min-p 和 logit bias；此通道均未使用。",
        )
    return Text(
        "A vLLM server that speculates would refuse this lane: {stages} can't be used with it there.",
        "开启投机解码的 vLLM 服务器会拒绝此通道：{stages} 不能与之同用。",
    ).filled(stages=", ".join(books.refused))


# --- verdict --------------------------------------------------------------------------------------


def verdict(books: Ledger) -> Text:
    """Whether it paid, in one sentence; a loss as plain as a win."""
    if not books.rounds:
        return Text("Nothing has been guessed yet.", "还没有任何猜测。")
    per_forward, rate = books.tokens_per_forward or 0.0, books.acceptance_rate
    so_far, so_far_zh = ("", "") if books.over else ("So far: ", "到目前为止：")
    accepted = f"{books.accepted} of {books.drafted} guesses accepted" if rate is not None else "no guess was made"
    accepted_zh = f"{books.drafted} 个猜测中接受 {books.accepted} 个" if rate is not None else "没有做出猜测"
    if books.speed_up is None:
        known = books.with_pauses
        estimate = "" if known is None else f" (its own calibration suggests {known:.2f}×, estimated)"
        estimate_zh = "" if known is None else f"（按自身校准估计为 {known:.2f}×）"
        return Text(
            f"{so_far}{accepted}, {per_forward:.2f} tokens per target forward; whether it paid was not measured: "
            f"this race has no plain lane with the same settings{estimate}.",
            f"{so_far_zh}{accepted_zh}，每次目标前向 {per_forward:.2f} 个词元；是否划算没有测量：本场没有相同设置的普通通道{estimate_zh}。",
        )
    speed = books.speed_up
    # tokens per forward / speed-up = what a round costs in the plain lane's seconds per token
    paid = worked(Text("", ""), "{tokens} / {cost}", lambda ratio: f"{ratio:.2f}", tokens=per_forward, cost=per_forward / speed)
    tokens, cost = paid.shown("tokens"), paid.shown("cost")
    because = f"{accepted}, {tokens} tokens per target forward, and a round took {cost} times a plain step"
    because_zh = f"{accepted_zh}，每次目标前向 {tokens} 个词元，而一轮耗时为普通一步的 {cost} 倍"
    if abs(speed - 1) < SAME_SPEED:
        return Text(f"{so_far}It made no difference ({speed:.2f}×): {because}.", f"{so_far_zh}没有差别（{speed:.2f}×）：{because_zh}。")
    if speed > 1:
        return Text(f"{so_far}It paid: {speed:.2f} times as fast as the plain lane. {because[0].upper()}{because[1:]}.",
                    f"{so_far_zh}划算：速度是普通通道的 {speed:.2f} 倍。{because_zh}。")  # fmt: skip
    return Text(f"{so_far}It lost: {speed:.2f} times as fast as the plain lane. {because[0].upper()}{because[1:]}.",
                f"{so_far_zh}亏损：速度只有普通通道的 {speed:.2f} 倍。{because_zh}。")  # fmt: skip
